"""Every check that headers allow, as a tuple of functions from a plan to problems. All of them run, always."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from converter.errors import Problem
from converter.folding import clip, closest, fold, natural_key, visible
from converter.steps import Plan

Check = Callable[[Plan], Iterable[Problem]]
_HOLE = re.compile(r"\{[^{}]*\}")
_DIGITS = re.compile(r"[0-9]+")
LOOK = 400  # names that hints look at


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
    candidates = {_HOLE.sub("#", t): t for t in plan.expected[0]}
    forms = {_normal(t): t for t in plan.expected[0]}
    files = plan.header.files
    place = None if not files else files[0].path if len(files) == 1 else f"{Path(files[0].path).parent}"
    out = []
    for k, (name, origin, text) in enumerate(plan.fates.unexpected):
        key = _normal(name)
        hint = None
        if k < LOOK and origin is None and key not in forms:
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


CHECKS: tuple[Check, ...] = (planning, missing, unexpected, shapes, nothing)


def reversed_hint(plan: Plan) -> Iterable[Problem]:
    """Say when the input looks like the other side."""
    names = list(plan.header.tensors)[:LOOK]
    here, there = (sum(map(bool, map(_matcher(side), names))) for side in plan.expected)
    if there > here:
        what = "without --reverse" if plan.reverse else "with --reverse"
        text = (
            f"{there} of {_tried(plan, names)} names have the form of the '{plan.sides[1]}' side, "
            f"{here} that of the '{plan.sides[0]}' side: convert {what}?"
        )
        yield Problem(text, "hint")


def prefix_hint(plan: Plan) -> Iterable[Problem]:
    """Say when names differ from what rules read by one prefix."""
    matches = _matcher(plan.expected[0])
    names = [n for n, origin, _ in plan.fates.unexpected if origin is None][:LOOK]
    tally: dict[str, int] = {}
    for name in names:
        parts = name.split(".")
        for k in range(1, len(parts)):
            if matches(".".join(parts[k:])):
                prefix = ".".join(parts[:k]) + "."
                tally[prefix] = tally.get(prefix, 0) + 1
                break
    if tally:
        prefix, count = max(tally.items(), key=lambda x: x[1])
        side = "to" if plan.reverse else "from"
        if 2 * count > len(names):
            few = (
                f"{count} of the unexpected names"
                if len(names) < LOOK
                else f"{count} of the first {LOOK} unexpected names"
            )
            text = f"{few} fit without the prefix '{prefix}': add `strip: {{{side}: ['{prefix}']}}` to the map"
            yield Problem(text, "hint")


def config_hint(plan: Plan) -> Iterable[Problem]:
    """Say when every tensor is empty, as in the placeholders of ZeRO stage 3."""
    shapes_ = [e.shape for e in plan.header.tensors.values()]
    if shapes_ and all(0 in s for s in shapes_) and plan.fates.shape_mismatch:
        yield Problem(
            "every tensor is empty: this looks like a ZeRO-3 placeholder checkpoint, run its consolidation step first",
            "hint",
        )


def stranger_hint(plan: Plan) -> Iterable[Problem]:
    """Say when no name fits either side, and no prefix explains it."""
    names = list(plan.header.tensors)[:LOOK]
    fits = any(matches(n) for matches in map(_matcher, plan.expected) for n in names)
    if names and plan.fates.unexpected and not fits and not any(prefix_hint(plan)):
        yield Problem(
            f"none of {_tried(plan, names)} names has the form of either side: is this the right map?", "hint"
        )


HINTS: tuple[Check, ...] = (reversed_hint, prefix_hint, stranger_hint, config_hint)


def _tried(plan: Plan, names: list[str]) -> str:
    """How many names a hint looked at, out of how many."""
    total = len(plan.header.tensors)
    return str(total) if len(names) == total else f"the first {len(names)}"


def _normal(text: str) -> str:
    return _DIGITS.sub("#", _HOLE.sub("#", text))


def _matcher(templates: Iterable[str]) -> Callable[[str], bool]:
    pattern = re.compile("|".join("[^.]+".join(re.escape(p) for p in _HOLE.split(t)) for t in templates) or r"(?!)")
    return lambda name: pattern.fullmatch(name) is not None


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
