"""Lists of tensor names as people read them: in natural order, and folded over every number in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import cache
from typing import TypeVar

T = TypeVar("T")

MAX_CANDIDATES, MAX_COMPARED = 500, 200  # words that a suggestion is looked for among, letters of the word itself
_DIGITS = re.compile(r"([0-9]+)")


def natural_key(name: str) -> str:
    """Give a sort key by which ``h.2`` comes before ``h.10``.

    A number becomes its length and its digits, behind a mark that sorts before every other character: numbers are
    compared by value without making integers of them, since a name may have thousands of digits.
    """
    return _DIGITS.sub(_padded, name)


def _padded(m: re.Match[str]) -> str:
    return _number(m[0])


@cache
def _number(digits: str) -> str:
    short = digits.lstrip("0")
    return f"\0{chr(min(len(short), 0xFFFF))}{short}"


def fold(names: Iterable[str]) -> list[str]:
    """Fold names that differ only in numbers: ``h.{0..11}.w (12)``, gaps as ``{0..10,12..23}``, in natural order."""
    groups: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for name in set(names):
        parts = _DIGITS.split(name)
        groups.setdefault(tuple(parts[::2]), []).append(tuple(parts[1::2]))
    for rows in groups.values():
        rows.sort(key=lambda row: [_number(d) for d in row])
    ordered = sorted(groups.items(), key=lambda g: natural_key(_joined(g[0], g[1][0])))
    lines: list[tuple[str, int]] = []
    for literals, numbers in ordered:
        for columns in _boxes(numbers):
            text = literals[0] + "".join(_column(c) + rest for c, rest in zip(columns, literals[1:]))
            count = 1
            for c in columns:
                count *= len(c)
            lines.append((text, count))
    return [f"{text} ({count})" if count > 1 else text for text, count in lines]


def _joined(literals: Sequence[str], numbers: Sequence[str]) -> str:
    return literals[0] + "".join(n + text for n, text in zip(numbers, literals[1:]))


def _boxes(rows: list[tuple[str, ...]]) -> list[list[list[str]]]:
    """Cut a set of number tuples into products of columns, splitting on the first column that stands in the way."""
    if not rows or not rows[0]:
        return [[] for _ in rows[:1]]
    columns = [list(dict.fromkeys(r[i] for r in rows)) for i in range(len(rows[0]))]
    size = 1
    for c in columns:
        size *= len(c)
    if size == len(rows):
        return [columns]
    by_first: dict[str, list[tuple[str, ...]]] = {}
    for r in rows:
        by_first.setdefault(r[0], []).append(r[1:])
    merged: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for first, rest in by_first.items():
        merged.setdefault(tuple(rest), []).append(first)
    return [[firsts, *box] for rest, firsts in merged.items() for box in _boxes(list(rest))]


def _column(values: Sequence[str]) -> str:
    if len(values) == 1:
        return values[0]
    ordered = sorted(values, key=lambda v: (_number(v), v))
    runs: list[list[str]] = []
    for v in ordered:
        if runs and _follows(runs[-1][-1], v):
            runs[-1].append(v)
        else:
            runs.append([v])
    return "{" + ",".join(r[0] if len(r) == 1 else f"{r[0]}..{r[-1]}" for r in runs) + "}"


def _follows(a: str, b: str) -> bool:
    """Whether b is the number after a, written in the same way (zero padded to one width, or not at all)."""
    if len(b) > 18 or int(b) != int(a) + 1:
        return False
    return len(a) == len(b) or (not (a.startswith("0") and len(a) > 1) and not b.startswith("0"))


def closest(name: str, candidates: Iterable[str]) -> str | None:
    """Give the candidate that is spelled most like the name, None if none is close; of very many some are looked at."""
    size = len(name)
    near = [c for c in candidates if 0.375 * (size + len(c)) <= min(size, len(c))]  # others cannot reach the cutoff
    found = get_close_matches(name, near[:MAX_CANDIDATES], n=1, cutoff=0.75) if size <= MAX_COMPARED else []
    return found[0] if found else None


class Hints:
    """What a text may have meant, for the first few texts of a kind: nobody reads more, and each takes time."""

    def __init__(self, limit: int = 20) -> None:
        self._left = limit

    def of(self, name: str, candidates: Iterable[str]) -> str:
        """Give ``(did you mean 'x'?)`` with a blank before it, or nothing."""
        self._left -= 1
        near = closest(name, candidates) if self._left >= 0 else None
        return f" (did you mean '{near}'?)" if near else ""


def repeated(items: Iterable[T]) -> T | None:
    """Give the first item that stands among those before it, None if all differ."""
    seen: set[T] = set()
    return next((x for x in items if x in seen or seen.add(x)), None)  # type: ignore[func-returns-value]


def visible(text: str) -> str:
    """Make control characters and broken surrogates of a line visible, as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def clip(text: str, limit: int = 200) -> str:
    """Shorten a text for a message, and make control characters visible."""
    shown = visible(text[: limit + 1])
    return shown if len(shown) <= limit else shown[: limit - 3] + "..."
