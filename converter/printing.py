"""A plan as text: one line for what layers share, in columns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from converter.folding import fold, visible
from converter.names import skeleton
from converter.steps import Operand, Plan, Step


def print_plan(plan: Plan) -> str:
    """Write the plan: sizes, steps folded over every index, what is dropped, tied and checked."""
    title = f"{plan.map_name}: {plan.sides[0]} -> {plan.sides[1]}" + (" (reverse)" if plan.reverse else "")
    lines = [title]
    numbers = [f"{n} = {v} ({why})" for n, v, why in plan.sizes if _is_size(v, why)]
    lines += [f"  sizes: {', '.join(numbers)}"] if numbers else []
    rows = [row for group in _groups(plan.steps) for row in _rows(group)]
    widths = [max((len(r[k]) for r in rows), default=0) for k in range(4)]
    lines += ["  " + "  ".join(c.ljust(w) for c, w in zip(r, widths)).rstrip() for r in rows]
    for word, names in (("dropped", plan.fates.dropped), ("kept", plan.fates.kept), ("absent", plan.fates.absent)):
        lines += [f"  {word}: {n}" for n in fold(names)]
    lines += [
        f"  tied: {t.name} = {t.of}" + (f", recorded as an alias of {t.alias[1]}" if t.alias else "")
        for t in plan.fates.tied
    ]
    lines += [f"  assumed: {n} = {v}, the map's default" for n, v in plan.fates.assumed]
    lines += [f"  checked while the data flows: {text}" for text in _checks(plan.steps)]
    count = len(plan.outputs)
    lines.append(f"  {count} tensor{'' if count == 1 else 's'}, {plan.output_bytes} bytes")
    return "\n".join(map(visible, lines))


def _is_size(value: Any, why: str) -> bool:
    """Whether a value is worth a place among the sizes: no list that was given, but one that was counted."""
    return not isinstance(value, list) or why.startswith("counted")


def _groups(steps: Iterable[Step]) -> list[list[Step]]:
    groups: dict[object, list[Step]] = {}
    for s in steps:
        if s.kind in ("move", "fill"):
            groups.setdefault((s.kind, s.origin, id(s.recipe) if s.recipe else None, s.constant, _form(s)), []).append(
                s
            )
    return list(groups.values())


def _form(step: Step) -> tuple[str, ...]:
    first = (next(iter(step.source_names()), ""), next(iter(step.target_names()), ""))
    return tuple(skeleton(n) for n in first)


def _rows(steps: list[Step]) -> list[tuple[str, str, str, str]]:
    first = steps[0]
    if first.constant is not None:
        kind = f"{first.constant.what} {list(first.constant.shape)} {first.constant.dtype}"
        return [(f"({kind})", "->", n, "") for n in _fold(s.targets[0] for s in steps)]
    assert first.recipe is not None
    left = [f"{n} {_kind(o)}" for k, o in enumerate(first.recipe.inputs) for n in _fold(s.sources[k] for s in steps)]
    right = [f"{n} {_kind(o)}" for k, o in enumerate(first.recipe.outputs) for n in _fold(s.targets[k] for s in steps)]
    ops = ", ".join(str(op) for op in first.recipe.chain.ops()) + ("" if first.recipe.chain.exact else "  (inexact)")
    rows = []
    for k in range(max(len(left), len(right))):
        a, b = (column[k] if k < len(column) else "" for column in (left, right))
        rows.append((a, "->" if k == 0 else "", b, ops if k == 0 else ""))
    return rows


def _fold(groups: Iterable[tuple[str, ...]]) -> list[str]:
    return fold(n for g in groups for n in g)


def _kind(operand: Operand) -> str:
    return f"{list(operand.shape)} {operand.dtype}"


def _checks(steps: Iterable[Step]) -> list[str]:
    from converter.ops.same import Same
    from converter.ops.trim import Trim

    found: dict[str, list[str]] = {}
    for s in steps:
        names = list(s.source_names())
        if s.kind == "check" and s.constant is not None:
            found.setdefault(
                f"{{}} is {s.constant.what if s.constant.what != 'value' else format(s.constant.value, 'g')}", []
            ).append(names[0])
        elif s.kind == "compare":
            found.setdefault(f"{{}} equals {s.other_sources[0][0]}", []).append(names[0])
        elif s.recipe is not None:
            for op in s.recipe.chain.ops():
                if isinstance(op, Same):
                    found.setdefault("{} are all the same", []).extend(names)
                elif isinstance(op, Trim) and op.checked:
                    found.setdefault(f"what is trimmed of {{}} is all {op.fill:g}", []).extend(names)
    return [text.format(n) for text, names in found.items() for n in fold(names)]
