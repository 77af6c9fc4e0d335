"""The Python API on files: plan a conversion, write it, prove it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from converter.errors import FormatError, MapError, MismatchError, Problem, UsageError
from converter.execute import Outcome, execute
from converter.facts import Settings, early_values
from converter.formats import Layout, Output, check_space, check_target, layout, open_checkpoint
from converter.formats.base import Input
from converter.formats.text import many_objects
from converter.lowering import Label, Lowering
from converter.mapfile import load_map, read_map
from converter.planning import make_plan
from converter.report import Report, make_report
from converter.rules import Ruleset
from converter.spec import parse_dtype
from converter.steps import Plan as Steps
from converter.verify import verify

Progress = Callable[[int], None]
PathLike = str | os.PathLike[str]
MEMORY = 256 << 20


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
            if checkpoint.header.files != self.header.files:
                raise FormatError(Problem("has changed since it was planned: plan again", "changed", self.input))
            return write(self, checkpoint, Job(output, max_shard_size, force, verify, jobs, memory, progress))

    def __str__(self) -> str:
        from converter.printing import print_plan

        return print_plan(self)


@dataclass(frozen=True)
class Job:
    """How to write: output path, shard size and memory in bytes, threads (None: one for each core, at most 4)."""

    output: PathLike
    max_shard_size: int | None = None
    force: bool = False
    verify: bool = False
    jobs: int | None = None
    memory: int = MEMORY
    progress: Progress | None = None


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
        beside = Path(input)
        path = (beside if beside.is_dir() else beside.parent) / "config.json"
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


def raise_problems(plan: Plan) -> None:
    """Raise MismatchError (with the report) if the plan has any problem."""
    problems = verify(plan)
    if problems:
        error = MapError if all(p.kind == "map" for p in problems) else MismatchError
        raise error(problems, make_report(plan, problems))


def write(plan: Plan, checkpoint: Input, job: Job, checks: bool = True) -> Report:
    """Write a plan whose header checks hold; raises as :meth:`Plan.write`. Without ``checks`` the data may be
    anything.
    """
    begun = time.monotonic()
    if job.memory < 1 or (job.jobs is not None and job.jobs < 1):
        raise UsageError(f"jobs is {job.jobs} and memory {job.memory}: both are 1 or more")
    raise_problems(plan)
    files = [f.path for f in plan.header.files]
    made = _layout(plan, job)
    jobs = job.jobs or min(4, os.cpu_count() or 1)
    lowering = Lowering(plan.header)
    read = sum(e.stop - e.start for e in plan.header.tensors.values())
    memory = min(job.memory, MEMORY + 8 * (read + made.total_size))  # more than this no run could use
    with Output(job.output, made, job.force, files) as output:
        produces = lowering.produces(plan, made.place)
        compares = lowering.compares(plan) if checks else []
        outcome = execute(
            produces, compares, checkpoint.fd, output.fd, jobs=jobs, memory=memory, allow_overflow=True,
            progress=job.progress, name=checkpoint.name,
        )  # fmt: skip
        problems = data_problems(plan, outcome)
        checkpoint.check_unchanged()
        verdict = None
        if not problems and job.verify:
            from converter.proof import prove

            verdict = prove(plan, lowering, made, checkpoint.fd, output.fd, jobs, memory)
            problems = list(verdict.problems)
        if problems:
            raise MismatchError(problems, make_report(plan, problems, outcome.casts, 0, time.monotonic() - begun))
        output.commit()
    return make_report(plan, (), outcome.casts, made.total_size, time.monotonic() - begun, str(verdict or ""))


def _layout(plan: Plan, job: Job) -> Layout:
    begins = plan.header.files[0].data_start if plan.header.files else 0
    return layout(plan.outputs, plan.metadata, job.max_shard_size, begins)


def check_room(plan: Plan, job: Job) -> None:
    """Refuse what writing refuses before its first byte, headers past the limit and too little disk: FormatError."""
    made = _layout(plan, job)
    if job.output:
        check_space(check_target(os.fspath(job.output), made.directory, True), made.size)


def check_output(job: Job, header_files: list[str]) -> None:
    """Refuse an output that could not be written, before anything else is done; raises UsageError and FormatError."""
    check_target(os.fspath(job.output), job.max_shard_size is not None, job.force, header_files)


def data_problems(plan: Steps, outcome: Outcome) -> list[Problem]:
    """Turn what the data showed into problems: differences, values that do not fit."""
    out: list[Problem] = []
    for d in outcome.differences:
        label = d.label
        assert isinstance(label, Label)
        index = [i + (label.start if k == label.axis else 0) for k, i in enumerate(d.index)]
        at = (
            f"{d.count} of {d.total} {'element' if d.total == 1 else 'elements'}, first at "
            f"{index}: {d.left} and {d.right}"
        )
        out.append(Problem(f"{label.what.format(other=label.other)} ({at})", "data", label.name, label.step.origin))
    origins = {n: s.origin for s in plan.steps for n in s.target_names()}
    specs = {s.name: s for s in plan.outputs}
    for name, counts in outcome.casts.items():
        dtype = specs[name].dtype
        if counts.inexact:
            text = (
                f"{counts.inexact} {'value is' if counts.inexact == 1 else 'values are'} not exact "
                f"in {dtype}, and whole numbers are never rounded"
            )
            out.append(Problem(text, "cast", name, origins[name]))
        if counts.overflow and not plan.allow_overflow:
            text = (
                f"{counts.overflow} {'value does' if counts.overflow == 1 else 'values do'} not "
                f"fit {dtype} (--allow-overflow lets {'it' if counts.overflow == 1 else 'them'} pass)"
            )
            out.append(Problem(text, "overflow", name, origins[name]))
    return out
