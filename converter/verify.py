"""Every check that headers allow, as a tuple of functions from a plan to problems. All of them run, always."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from math import prod
from pathlib import Path

from converter.dims import MAX_SIZE
from converter.errors import Problem
from converter.folding import clip, closest, fold, natural_key, visible
from converter.hints import HINTS
from converter.spec import DTYPES
from converter.steps import Plan, step_outputs

Check = Callable[[Plan], Iterable[Problem]]
_HOLE = re.compile(r"\{[^{}]*\}")
_DIGITS = re.compile(r"[0-9]+")
HINTED = 40  # unexpected names that get a suggestion


def verify(plan: Plan) -> tuple[Problem, ...]:
    """Give every problem of a plan, in natural order of the names; hints come last. Empty when the plan may be
    written.
    """
    found = [p for check in CHECKS for p in check(plan)]
    found = list(dict.fromkeys(found))
    found.sort(key=lambda p: (natural_key(p.subject or ""), str(p.origin or "")))
    return (*found, *(hint for check in HINTS for hint in check(plan))) if found else ()


def planning(plan: Plan) -> Iterable[Problem]:
    """What planning met: sizes that are unknown, claims that clash, ops that do not fit, dtypes that do not join."""
    return plan.problems


def missing(plan: Plan) -> Iterable[Problem]:
    """Names that rules read and the input does not have."""
    return [Problem(text, "missing", name, origin) for name, origin, text in plan.fates.missing]


def unexpected(plan: Plan) -> Iterable[Problem]:
    """Names of the input that nothing reads, each with the spelling that a rule would read, if one is close."""
    candidates = {_HOLE.sub("#", t): t for t in plan.expected[0].templates}
    forms = {_normal(t): t for t in plan.expected[0].templates}
    files = plan.header.files
    place = None if not files else files[0].path if len(files) == 1 else f"{Path(files[0].path).parent}"
    out = []
    for k, (name, origin, text) in enumerate(plan.fates.unexpected):
        key = _normal(name)
        hint = None
        if k < HINTED and origin is None and key not in forms:
            near = closest(name, candidates)
            hint = candidates[near] if near else forms.get(closest(key, forms) or "")
        if origin is None and key in forms and re.search(r"(?<!\d)0\d", name):
            text += f" ('{forms[key]}' writes 7 as 7, not as 07)"
        out.append(
            Problem(
                text + (f" (did you mean {hint}?)" if hint else ""),
                "unexpected",
                name,
                origin,
                None if origin else place,
            )
        )
    return out


def shapes(plan: Plan) -> Iterable[Problem]:
    """Tensors whose shape is not what the rules and the rest of the file say."""
    return [Problem(text, "shape", name, origin) for name, origin, text in plan.fates.shape_mismatch]


def nothing(plan: Plan) -> Iterable[Problem]:
    """An input or a map with nothing in it."""
    fates = plan.fates
    wrong = plan.problems or fates.unexpected or fates.missing or fates.shape_mismatch
    if plan.header.tensors and not plan.outputs and not wrong:
        yield Problem("every tensor is dropped, nothing would be written", "empty")


def sizes(plan: Plan) -> Iterable[Problem]:
    """Outputs that no reader could count: the format's readers have 63 bits."""
    seen: set[object] = set()
    for step in plan.steps:
        key = id(step.recipe) if step.recipe is not None else step.constant
        if key in seen:
            continue
        seen.add(key)
        for spec in step_outputs(step):
            if prod(max(n, 1) for n in spec.shape) * DTYPES[spec.dtype].bits >= 8 * MAX_SIZE:
                text = (
                    f"would be {spec.dtype} of shape {clip(str(list(spec.shape)))}: too large to be counted in 63 bits"
                )
                yield Problem(text, "size", spec.name, step.origin)
                break


CHECKS: tuple[Check, ...] = (planning, missing, unexpected, shapes, nothing, sizes)


def _normal(text: str) -> str:
    return _DIGITS.sub("#", _HOLE.sub("#", text))


def folded(problems: Iterable[Problem], limit: int | None = None) -> list[str]:
    """Write problems as lines: names that differ only in numbers are folded, and what passes ``limit`` lines is
    counted.
    """
    groups: dict[Problem, list[str]] = {}
    for p in problems:
        groups.setdefault(replace(p, subject=None), []).append(p.subject or "")
    lines: list[str] = []
    for p, names in groups.items():
        shown = fold(names) if any(names) else [""]
        lines += [str(replace(p, subject=clip(s, 200) or None, message=clip(p.message, 1000))) for s in shown]
    if limit is not None and len(lines) > limit:
        more = len(lines) - limit
        lines = [*lines[:limit], f"... and {more} more (--report FILE.json has them all)"]
    return [visible(line) for line in lines]
