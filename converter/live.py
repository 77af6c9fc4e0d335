"""Checkpoints into live torch modules and out of them: the plan and the checks are those of files."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from converter.errors import MapError, MismatchError, Problem, UsageError
from converter.formats import open_checkpoint
from converter.live_export import Source
from converter.live_fit import Fitted, Lenience, fit
from converter.live_model import Model, code, read_model, refuse_computed
from converter.live_report import LoadReport, show_op
from converter.live_write import Put, staged, streamed
from converter.lowering import Lowering
from converter.report import Report, make_report
from converter.run import load_rules, make_settings, plan_open
from converter.spec import DTYPES
from converter.writing import MEMORY, Job, PathLike, Progress, raise_problems, write

logger = logging.getLogger("converter.live")
__all__ = ["LoadReport", "export", "load"]


def load(
    model: torch.nn.Module,
    checkpoint: PathLike,
    map: PathLike,
    *,
    reverse: bool = False,
    params: Mapping[str, Any] | None = None,
    set: Mapping[str, Any] | None = None,
    config: PathLike | Mapping[str, Any] | None = None,
    dtype: str | None = None,
    untie: bool = False,
    unmatched: str | None = None,
    root: str | None = None,
    allow_missing: bool = False,
    allow_unexpected: bool = False,
    allow_overflow: bool = False,
    stage: bool = True,
    jobs: int | None = None,
    memory: int = MEMORY,
    progress: Progress | None = None,
) -> LoadReport:
    """Put a checkpoint into a live model by a map, all of it or nothing.

    The map's other side is held against the names, shapes and dtypes of the model's parameters and buffers, then
    every tensor is read into staging memory and every check of the data is made; only then is the model changed, in
    one step that cannot fail. Parameters stay the same objects, with their dtype, device and ``requires_grad``; tied
    ones stay one, and what the map ties becomes one. What is on the meta device gets the staged tensors themselves.

    ``params`` and ``set`` are one thing under two names: sizes and params (``n_layer=12``), refused where the
    checkpoint disagrees. ``dtype`` makes floating tensors of the model that dtype. ``allow_missing`` lets tensors of
    the model keep their values, ``allow_unexpected`` leaves tensors of the checkpoint out. With ``stage=False``
    tensors go into the model one by one after all checks, so that at most one tensor (or 64 MiB of small ones) is
    held beside it: if reading fails half-way then, the model is left a mixture, and the error says so. The other
    options are those of :func:`converter.plan`.

    Raises MismatchError (carrying the report), MapError, UsageError and FormatError.
    """
    begun = time.monotonic()
    given = _merge(params, set)
    wanted = make_settings(checkpoint, given, config, dtype, untie, None, unmatched, allow_overflow)
    found = read_model(model)
    settings = replace(wanted, dtype=wanted.dtype or _common_dtype(found))
    with open_checkpoint(checkpoint, root) as opened:
        plan = plan_open(opened, load_rules(map, settings, reverse), settings)
        entries = found.entries(wanted.dtype)
        refuse_computed(model, (n for s in plan.steps for n in s.target_names()))
        lenience = Lenience(allow_missing, allow_unexpected, (wanted.dtype or "").startswith("F8"))
        fitted = fit(plan, entries, lenience)
        notes = (*plan.notes, *found.notes)
        _raise(fitted, notes)
        put = Put(found, fitted, Lowering(plan.header), opened, jobs or min(4, os.cpu_count() or 1), memory, progress)
        outcome = (staged if stage else streamed)(put, lambda problems, casts: _refusal(fitted, notes, problems, casts))
    report = _report(fitted, notes, (), outcome.casts, outcome.bytes_written, time.monotonic() - begun)
    _log(report)
    return report


def export(
    model: torch.nn.Module,
    output: PathLike,
    map: PathLike,
    *,
    reverse: bool = False,
    params: Mapping[str, Any] | None = None,
    set: Mapping[str, Any] | None = None,
    config: PathLike | Mapping[str, Any] | None = None,
    dtype: str | None = None,
    untie: bool = False,
    tied: str | None = None,
    unmatched: str | None = None,
    allow_overflow: bool = False,
    max_shard_size: int | None = None,
    force: bool = False,
    verify: bool = False,
    jobs: int | None = None,
    memory: int = MEMORY,
    progress: Progress | None = None,
) -> Report:
    """Write the tensors of a live model in the other layout: what :func:`load` with the same map reads.

    The map is followed from the model's side to the checkpoint's, ``reverse=True`` as in ``load(reverse=True)`` the
    other way. Parameters and persistent buffers are read one by one, nothing is copied as a whole; the output appears
    whole or not at all. A tied head is left out and recorded as an alias, or stored with ``tied='copy'``. The options
    are those of :func:`converter.plan` and :meth:`converter.Plan.write`; raises what they raise.
    """
    settings = make_settings(None, _merge(params, set), config, dtype, untie, tied, unmatched, allow_overflow)
    source = Source(read_model(model))
    rules = load_rules(map, settings, not reverse)
    plan = plan_open(source, rules, settings)
    raise_problems(plan)
    return write(plan, source, Job(output, max_shard_size, force, verify, jobs, memory, progress))


def _merge(params: Mapping[str, Any] | None, set: Mapping[str, Any] | None) -> dict[str, Any]:
    one, other = dict(params or {}), dict(set or {})
    for name in one.keys() & other.keys():
        if one[name] != other[name]:
            raise UsageError(f"{name} is {one[name]!r} in params and {other[name]!r} in set")
    return one | other


def _common_dtype(model: Model) -> str | None:
    """The one floating dtype of a model, None if there are several: it decides how terms join, as `--dtype` does."""
    kinds = {code(s.tensor) for s in model.slots.values()} - {""}
    floats = {c for c in kinds if DTYPES[c].kind == "float"}
    return floats.pop() if len(floats) == 1 and not any(DTYPES[c].kind == "float8" for c in kinds) else None


def _report(
    fitted: Fitted,
    notes: tuple[str, ...],
    problems: Sequence[Problem],
    casts: Mapping[str, Any] | None = None,
    written: int = 0,
    seconds: float = 0.0,
) -> LoadReport:
    made = make_report(replace(fitted.plan, notes=notes), problems, casts, written, seconds)
    return LoadReport.of(fitted.report(made))


def _raise(fitted: Fitted, notes: tuple[str, ...]) -> None:
    problems = fitted.problems
    if problems:
        error = MapError if all(p.kind == "map" for p in problems) else MismatchError
        raise error(problems, _report(fitted, notes, problems))


def _refusal(
    fitted: Fitted, notes: tuple[str, ...], problems: Sequence[Problem], casts: Mapping[str, Any]
) -> MismatchError:
    return MismatchError(problems, _report(fitted, notes, problems, casts))


def _log(report: LoadReport) -> None:
    """Log every assignment: source names, destination name, dtype, shape and ops."""
    if not logger.isEnabledFor(logging.INFO):
        return
    sources: dict[str, list[str]] = {}
    for x in report.loaded:
        sources.setdefault(x.destination, []).append(x.source)
    for x in {x.destination: x for x in report.loaded}.values():
        ops = ", ".join(map(show_op, x.ops)) or "as it is"
        shown = " + ".join(sources[x.destination])
        logger.info("%s -> %s %s %s (%s)", shown, x.destination, x.dtype, list(x.shape), ops)
    for name in report.filled:
        logger.info("%s filled with the map's constant", name)
    for t in report.tied:
        alias = t.alias or (t.name, t.of)
        logger.info("%s = %s (tied)", *alias)
