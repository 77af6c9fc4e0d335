"""Write a plan: check it in full, run it into an output that appears whole or not at all, and prove it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from converter.accounting import lower_checked, unaccounted
from converter.errors import ConvertError, FormatError, MapError, MismatchError, Problem, UsageError
from converter.execute import Outcome, execute
from converter.formats import Layout, Output, check_space, check_target, layout
from converter.formats.base import Input
from converter.lowering import Label, Lowering
from converter.moves import Moves
from converter.report import Report, make_report
from converter.steps import Plan
from converter.values import Compare
from converter.verify import verify

if TYPE_CHECKING:
    from converter.proof import Verdict

Progress = Callable[[int], None]
PathLike = str | os.PathLike[str]
MEMORY = 256 << 20


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


def raise_problems(plan: Plan) -> None:
    """Raise MismatchError (with the report) if the plan has any problem, or does not account for every tensor."""
    problems = verify(plan) or tuple(unaccounted(plan))
    if problems:
        error = MapError if all(p.kind == "map" for p in problems) else MismatchError
        raise error(problems, make_report(plan, problems))


def write(plan: Plan, checkpoint: Input, job: Job, checks: bool = True) -> Report:
    """Write a plan whose header checks hold; raises as :meth:`converter.run.Plan.write`.

    Without ``checks`` the data may be anything.
    """
    begun = time.monotonic()
    if job.memory < 1 or (job.jobs is not None and job.jobs < 1):
        raise UsageError(f"jobs is {job.jobs} and memory {job.memory}: both are 1 or more")
    raise_problems(plan)
    files = [f.path for f in plan.header.files]
    check_output(job, files)
    made = _layout(plan, job)
    lowering = Lowering(plan.header)
    space = {k: (len(f.header_bytes), f.size) for k, f in enumerate(made.files)}
    moves = lower_checked(lowering.produces(plan, made.place), space)
    compares = lowering.compares(plan) if checks else []
    output = Output(job.output, made, job.force, files)
    with _in_place(output):
        with output:
            run = _Run(plan, checkpoint, job, lowering, made, output, begun)
            casts, verdict = run.fill(moves, compares)
            output.commit()
        return make_report(
            plan,
            (),
            casts,
            made.total_size,
            time.monotonic() - begun,
            str(verdict or ""),
            verdict.files if verdict else (),
        )


def _layout(plan: Plan, job: Job) -> Layout:
    begins = plan.header.files[0].data_start if plan.header.files else 0
    return layout(plan.outputs, plan.metadata, job.max_shard_size, begins)


@contextmanager
def _in_place(output: Output) -> Iterator[None]:
    """Say with an interrupt that came too late that it did."""
    try:
        yield
    except BaseException as e:
        if output.committed and not isinstance(e, ConvertError):
            e.add_note("the output was in place already")
        raise


@dataclass(frozen=True)
class _Run:
    plan: Plan
    checkpoint: Input
    job: Job
    lowering: Lowering
    layout: Layout
    output: Output
    begun: float

    def fill(self, moves: Moves, compares: Sequence[Compare]) -> tuple[Mapping[str, Any], Verdict | None]:
        """Write the data, check everything that only data tell, and prove it if asked to."""
        read = sum(e.stop - e.start for e in self.plan.header.tensors.values())
        memory = min(self.job.memory, MEMORY + 8 * (read + self.layout.total_size))  # more than this no run could use
        jobs = self.job.jobs or min(4, os.cpu_count() or 1)
        outcome = execute(
            moves, compares, self.checkpoint.fd, self.output.fd, jobs=jobs, memory=memory, allow_overflow=True,
            progress=self.job.progress, name=self.checkpoint.name, output=self.output.path,
        )  # fmt: skip
        self.checkpoint.check_unchanged()
        problems = data_problems(self.plan, outcome)
        if problems:
            raise MismatchError(problems, self._report(problems, outcome))
        if not self.job.verify:
            return outcome.casts, None
        from converter.proof import prove

        verdict = prove(self.plan, self.lowering, self.checkpoint, self.output, jobs, memory)
        self.checkpoint.check_unchanged()
        if verdict.problems:
            error = MismatchError if all(p.kind == "lost" for p in verdict.problems) else FormatError
            raise error(verdict.problems, self._report(verdict.problems, outcome))
        return outcome.casts, verdict

    def _report(self, problems: Sequence[Problem], outcome: Outcome) -> Report:
        return make_report(self.plan, problems, outcome.casts, 0, time.monotonic() - self.begun)


def check_planned(plan: Plan, checkpoint: Input) -> None:
    """Refuse an input that is not the one that was planned; raises FormatError naming each file that has changed."""
    was, now = (
        {f.path: f for f in (*h.files, *([h.index] if h.index else []))} for h in (plan.header, checkpoint.header)
    )
    changed = [path for path in {**was, **now} if was.get(path) != now.get(path)]
    if changed or plan.header.files != checkpoint.header.files:
        raise FormatError(
            Problem("has changed since it was planned: plan again", "changed", p) for p in changed or [checkpoint.path]
        )


def check_room(plan: Plan, job: Job) -> None:
    """Refuse what writing refuses before its first byte, headers past the limit and too little disk: FormatError."""
    made = _layout(plan, job)
    if job.output:
        check_space(check_target(os.fspath(job.output), made.directory, True), made.size)


def check_output(job: Job, header_files: list[str]) -> None:
    """Refuse an output that could not be written, before anything else is done; raises UsageError and FormatError."""
    check_target(os.fspath(job.output), job.max_shard_size is not None, job.force, header_files)


def data_problems(plan: Plan, outcome: Outcome) -> list[Problem]:
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
