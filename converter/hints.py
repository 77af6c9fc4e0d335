"""What a person would say of a plan that does not fit: the other direction, a prefix, another map, odd contents."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from converter.errors import Problem
from converter.folding import clip
from converter.names import Strip
from converter.regexes import compile_pattern
from converter.steps import Plan

LOOK = 400  # names that hints look at
TRIED, AT_ONCE = 2000, 100  # names of the map that they are held against, and how many of them by one pattern
_HOLE = re.compile(r"\{[^{}]*\}")


def reversed_hint(plan: Plan) -> Iterable[Problem]:
    """Say when the input looks like the other side. Patterns of renames match much: alone they tell only where nothing
    has the form of this side.
    """
    names = list(plan.header.tensors)[:LOOK]
    here, there = (sum(map(bool, map(_matcher(plan, side), names))) for side in (0, 1))
    if there > here and not (here and plan.expected[1].patterns):
        how = "without" if plan.reverse else "with"
        text = (
            f"{there} of {_tried(plan, names)} the form of the '{plan.sides[1]}' side, "
            f"{here} that of the '{plan.sides[0]}' side: convert {how} --reverse, or is it converted already?"
        )
        yield Problem(text, "hint")


def prefix_hint(plan: Plan) -> Iterable[Problem]:
    """Say when names differ from what rules read by one prefix or segment, and would not become ones that are there."""
    matches, other, there = _matcher(plan, 0), _matcher(plan, 1), plan.header.tensors
    names = [n for n, origin, _ in plan.fates.unexpected if origin is None and not other(n)][:LOOK]
    tally: dict[Strip, int] = {}
    for name in names:
        found = next((s for s in _strips(name) if matches(s.off(name)) and s.off(name) not in there), None)
        if found is not None:
            tally[found] = tally.get(found, 0) + 1
    strip, count = max(tally.items(), key=lambda x: x[1], default=(Strip(""), 0))
    if 2 * count <= len(names):
        return
    first = "" if len(names) < LOOK else f"first {LOOK} "
    fit = "fits" if count == 1 else "fit"
    side, entry = "to" if plan.reverse else "from", f"'{strip.text}'"
    entry = f"{{segment: {strip.text}}}" if strip.segment else entry
    yield Problem(
        f"{count} of the {first}unexpected names {fit} without the {strip.what} '{strip.text}': "
        f"add `strip: {{{side}: [{entry}]}}` to the map",
        "hint",
    )


def _strips(name: str) -> Iterable[Strip]:
    """What could be taken off a name: each prefix that ends at a dot, then each of its other segments."""
    parts = name.split(".")
    yield from (Strip(".".join(parts[:k]) + ".") for k in range(1, len(parts)))
    yield from (Strip(part, segment=True) for part in dict.fromkeys(parts[1:]) if part and not part.isdigit())


def model_hint(plan: Plan, names: Iterable[str]) -> Iterable[Problem]:
    """Say when the names of a live model are those of the side that is read, so that it needs no map."""
    looked = list(names)[:LOOK]
    here, there = (sum(map(bool, map(_matcher(plan, side), looked))) for side in (0, 1))
    if here > there:
        text = (
            f"{here} of {len(looked)} names that the model alone has have the form of the '{plan.sides[0]}' side, as "
            f"the checkpoint's have, and the map leads to the '{plan.sides[1]}' side: does this model need a map?"
        )
        yield Problem(text, "hint")


def flat_hint(plan: Plan) -> Iterable[Problem]:
    """Say when many tensors lie in one vector, as in what FSDP saves of a wrapper by itself."""
    flat = [n for n, _, _ in plan.fates.unexpected if n.split(".")[-1].lstrip("_") == "flat_param"]
    if flat:
        one = "it holds" if len(flat) == 1 else "each holds"
        yield Problem(
            f"{clip(flat[0])} is a flat parameter of FSDP: {one} many tensors in one vector, which renaming cannot "
            "take apart; save a full state dict instead",
            "hint",
        )


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
    fits = any(matches(n) for matches in (_matcher(plan, 0), _matcher(plan, 1)) for n in names)
    if names and plan.fates.unexpected and not fits and not any(prefix_hint(plan)):
        yield Problem(f"none of {_tried(plan, names)} the form of either side: is this the right map?", "hint")


HINTS: tuple[Callable[[Plan], Iterable[Problem]], ...] = (
    reversed_hint,
    prefix_hint,
    stranger_hint,
    flat_hint,
    config_hint,
)


def _tried(plan: Plan, names: list[str]) -> str:
    """How many names a hint looked at, out of how many, and the verb: ``3 names have``."""
    total = len(plan.header.tensors)
    few = str(total) if len(names) == total else f"the first {len(names)}"
    return f"{few} {'name has' if total == 1 else 'names have'}"


def _matcher(plan: Plan, side: int) -> Callable[[str], bool]:
    """Tell whether a name looks like one of a side (0: the one that is read)."""
    looks = plan.expected[side]
    forms = ["[^.]+".join(map(re.escape, _HOLE.split(t))) for t in looks.templates[:TRIED]]
    patterns = [compile_pattern("|".join(forms[k : k + AT_ONCE])) for k in range(0, len(forms), AT_ONCE)]
    patterns += [compile_pattern(p) for p in looks.patterns]

    def matches(name: str) -> bool:
        for strip in looks.strips:
            name = strip.off(name)
        return any(p.fullmatch(name) for p in patterns)

    return matches
