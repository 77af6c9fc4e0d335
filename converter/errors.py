"""Where a fact stands, what is wrong with it, and the exceptions that carry both to the user.

Inner code states a fact and the actual values (:class:`Problem`); the frame that knows the place adds the
origin and the tensor. Exit codes are those of the command line: 1 the checkpoint does not fit the map, 2 the map or
the command line is wrong, 3 reading or writing failed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, order=True)
class Origin:
    """A place in a map file: path as the user gave it, line and column counted from 1."""

    file: str
    line: int
    column: int = 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, in one line.

    ``kind`` groups problems for folding and reports (``missing``, ``unexpected``, ``shape``, ...), ``subject`` is the
    tensor or file that it is about, ``origin`` the line of the map that asked for it. ``message`` must not repeat
    either.
    """

    message: str
    kind: str = "error"
    subject: str | None = None
    origin: Origin | None = None
    place: str | None = None  # the file that it is about, where no line of a map asked for anything

    def __str__(self) -> str:
        return ": ".join(str(x) for x in (self.origin or self.place, self.subject, self.message) if x is not None)


class ConvertError(Exception):
    """Base of every error that the package raises on purpose.

    Attributes: ``problems`` (a tuple, at least one), ``exit_code`` (1, 2 or 3) and ``report`` (the
    :class:`converter.Report` of the run where one was made, else None).
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, problems: Problem | str | Iterable[Problem], report: Any = None) -> None:
        if isinstance(problems, str):
            problems = Problem(problems)
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        self.report = report
        super().__init__("\n".join(str(p) for p in self.problems))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problems, self.report)


class MismatchError(ConvertError):
    """The checkpoint does not fit the map: names, shapes, dtypes, sizes or data (exit code 1)."""

    exit_code = 1


class MapError(ConvertError):
    """The map is wrong, whatever the checkpoint (exit code 2)."""

    exit_code = 2


class UsageError(ConvertError):
    """The command line or a call is wrong (exit code 2)."""

    exit_code = 2


class FormatError(ConvertError):
    """A file cannot be read as what it should be, or reading or writing failed (exit code 3)."""

    exit_code = 3
