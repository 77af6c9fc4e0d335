"""The Python API on files: plan a conversion, write it, prove it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from converter.errors import FormatError, Problem, UsageError
from converter.facts import early_values
from converter.formats import folder_of, open_checkpoint
from converter.formats.base import Input
from converter.formats.text import many_objects
from converter.mapfile import load_map, read_map
from converter.planning import make_plan
from converter.report import Report, make_report
from converter.rules import Ruleset
from converter.settings import Settings
from converter.spec import parse_dtype
from converter.steps import Plan as Steps
from converter.verify import verify
from converter.writing import MEMORY, Job, PathLike, Progress, check_planned, raise_problems, write


@dataclass(frozen=True)
class Plan(Steps):
    """What a conversion will do, decided from headers alone; see :class:`converter.steps.Plan` for its fields.

    ``str(plan)`` is the plan as text, folded by layer; ``to_json()`` and ``pickle`` keep it; ``part(names)`` divides
    it.
    """

    input: str = ""
    root: str | None = None

    @property
    def report(self) -> Report:
        """The fate of every name, as far as headers tell."""
        return make_report(self, verify(self))

    def write(
        self,
        output: PathLike,
        *,
        max_shard_size: int | None = None,
        force: bool = False,
        verify: bool = False,
        jobs: int | None = None,
        memory: int = MEMORY,
        progress: Progress | None = None,
    ) -> Report:
        """Run the plan; the output appears whole, or not at all.

        ``max_shard_size`` and ``memory`` are bytes, ``progress`` is called with bytes just written. Raises
        MismatchError (the data does not hold what the plan relies on; carries the report), UsageError (the output
        exists, or is the input) and FormatError (reading or writing failed, or the input changed since it was
        planned).
        """
        with open_checkpoint(self.input, self.root) as checkpoint:
            check_planned(self, checkpoint)
            return write(self, checkpoint, Job(output, max_shard_size, force, verify, jobs, memory, progress))

    def __str__(self) -> str:
        from converter.printing import print_plan

        return print_plan(self)


def plan(
    input: PathLike,
    map: PathLike,
    *,
    reverse: bool = False,
    set: Mapping[str, Any] | None = None,
    config: PathLike | Mapping[str, Any] | None = None,
    dtype: str | None = None,
    untie: bool = False,
    tied: str | None = None,
    unmatched: str | None = None,
    allow_overflow: bool = False,
    root: str | None = None,
) -> Plan:
    """Plan the conversion of a checkpoint by a map (a path, or the name of a shipped one) without reading its data.

    The options are those of the command line: ``set`` (names to values), ``config`` (a path or a mapping; by default
    config.json beside the input), ``dtype`` (``bfloat16``), ``untie``, ``tied`` (``omit``, ``copy``), ``unmatched``
    (``error``, ``drop``, ``keep``), ``allow_overflow``, ``root`` (which state dict of a wrapped pickle). Raises
    MismatchError with every problem that headers show and the report, MapError, UsageError and FormatError.
    """
    settings = make_settings(input, set, config, dtype, untie, tied, unmatched, allow_overflow)
    with open_checkpoint(input, root) as checkpoint:
        made = plan_open(checkpoint, load_rules(map, settings, reverse), settings)
    raise_problems(made)
    return made


def convert(
    input: PathLike,
    output: PathLike,
    map: PathLike,
    *,
    max_shard_size: int | None = None,
    force: bool = False,
    verify: bool = False,
    jobs: int | None = None,
    memory: int = MEMORY,
    progress: Progress | None = None,
    **options: Any,
) -> Report:
    """Convert a checkpoint by a map; takes the options of :func:`plan` and of :meth:`Plan.write`, raises what they
    raise.
    """
    return plan(input, map, **options).write(
        output, max_shard_size=max_shard_size, force=force, verify=verify, jobs=jobs, memory=memory, progress=progress
    )


def make_settings(
    input: PathLike | None,
    set: Mapping[str, Any] | None = None,
    config: PathLike | Mapping[str, Any] | None = None,
    dtype: str | None = None,
    untie: bool = False,
    tied: str | None = None,
    unmatched: str | None = None,
    allow_overflow: bool = False,
) -> Settings:
    """Check options and read the config; raises UsageError, and FormatError for a config that is no JSON object."""
    code = parse_dtype(dtype) if dtype is not None else None
    if dtype is not None and code not in ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"):
        raise UsageError(
            f"--dtype {dtype}: not a floating dtype (float64, float32, float16, bfloat16, float8_e4m3fn, float8_e5m2)"
        )
    for name, value, words in (("tied", tied, ("omit", "copy")), ("unmatched", unmatched, ("error", "drop", "keep"))):
        if value is not None and value not in words:
            raise UsageError(f"{name} is {value!r}, not {' or '.join(words)}")
    found, shown = (config, "the config") if isinstance(config, Mapping) else read_config(input, config)
    return Settings(dict(set or {}), found, shown, code, untie, tied, unmatched, allow_overflow)


def read_config(input: PathLike | None, config: PathLike | None) -> tuple[Mapping[str, Any] | None, str]:
    """Read the config that is named, or config.json beside the input; returns it with its name for messages."""
    if config is None:
        if input is None:
            return None, "config.json"
        path = folder_of(os.fspath(input)) / "config.json"
        if not path.is_file():
            return None, "config.json"
    else:
        path = Path(config)
        path = path / "config.json" if path.is_dir() else path
        if not path.is_file():
            raise UsageError(Problem("no such config", "usage", str(config)))
    try:
        doc = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        raise FormatError(Problem(f"is not a JSON config: {str(e)[:200]}", "config", str(path))) from None
    if not isinstance(doc, dict):
        raise FormatError(Problem("is not a JSON object", "config", str(path)))
    return doc, path.name if config is None else str(path)


def load_rules(map: PathLike, settings: Settings, reverse: bool) -> Ruleset:
    """Read a map in one direction; raises MapError and UsageError."""
    rules = load_map(read_map(os.fspath(map)), early_values(settings))
    return rules.reverse() if reverse else rules


def plan_open(checkpoint: Input, rules: Ruleset, settings: Settings) -> Plan:
    """Plan the conversion of an open checkpoint; what is wrong with it is found by :func:`converter.verify.verify`."""
    with many_objects():
        steps = make_plan(rules, checkpoint.header, settings)
    check_others(steps)
    return Plan(**{f.name: getattr(steps, f.name) for f in fields(steps)}, input=checkpoint.path, root=checkpoint.root)


def check_others(plan: Steps) -> None:
    """Refuse entries that are no tensors, unless the map drops them by name; raises FormatError."""
    left = {n: what for n, what in plan.header.others.items() if n not in plan.fates.dropped}
    if left:
        raise FormatError(
            Problem(f"is {what}, not a tensor (the map may drop it)", "other", n) for n, what in left.items()
        )
