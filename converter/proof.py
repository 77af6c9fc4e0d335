"""`--verify`: the output is read back, turned around, and compared with the input.

Where the way back gives every bit, what comes back is compared with the input's bytes. Where it does not (a cast,
arithmetic, a one-way op), the output is compared with what the input gives once more.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from math import prod

from converter.casting import widens
from converter.dims import Dim
from converter.errors import Problem
from converter.execute import execute
from converter.flow import Chain, apply, infer, results
from converter.formats import Layout
from converter.lowering import Lowering, constant
from converter.ops.base import Family, OpError, Value
from converter.ops.results import Result
from converter.spec import TensorSpec
from converter.steps import Operand, Plan, Recipe, Step
from converter.transfer import End, Ends
from converter.values import Compare, FileSource, Source
from converter.virtual import Virtual

Fd = Callable[[int], int]


@dataclass(frozen=True)
class _Proof:
    plan: Plan
    lowering: Lowering
    layout: Layout

    @property
    def inputs(self) -> int:
        return 1 + max((e.file for e in self.plan.header.tensors.values()), default=-1)

    def written(self, names: tuple[str, ...]) -> tuple[FileSource, ...]:
        """Output tensors as sources; their files are numbered after those of the input."""
        specs = self.specs
        return tuple(
            FileSource(self.inputs + self.layout.place[n][0], self.layout.place[n][1], specs[n].dtype, specs[n].shape)
            for n in names
        )

    @cached_property
    def specs(self) -> dict[str, TensorSpec]:
        return {s.name: s for s in self.plan.outputs}

    def compares(self) -> list[Compare]:
        """Every comparison; a label is the way (`back` or `again`) and the name of the tensor."""
        out: list[Compare] = []
        places = dict(zip(self.specs, self.written(tuple(self.specs))))
        backs: dict[int, Chain | None] = {}
        for step in self.plan.steps:
            if step.kind == "fill" and step.constant is not None:
                value, pattern = constant(step.constant, 1)
                whole = Virtual.source(0, step.constant.shape)
                for name in step.target_names():
                    sources = (places[name], *pattern)
                    out.append(Compare(("again", name), step.constant.dtype, whole, value, sources))
            elif step.kind == "move" and step.recipe is not None:
                if id(step.recipe) not in backs:
                    backs[id(step.recipe)] = way_back(step.recipe)
                back = backs[id(step.recipe)]
                again = back is None or len(set(step.source_names())) < len(list(step.source_names()))
                out += (
                    self._again(step, step.recipe, places)
                    if again or back is None
                    else self._back(step, step.recipe, back, places)
                )
        return out

    def _back(self, step: Step, recipe: Recipe, back: Chain, places: dict[str, FileSource]) -> list[Compare]:
        names = [n for group in step.targets for n in group]
        families: list[Family[Virtual]] = []
        slot = 0
        for operand in recipe.outputs:
            count = prod(n for _, n in operand.bound)
            families.append(Family(operand.bound, tuple(Virtual.source(slot + m, operand.shape) for m in range(count))))
            slot += count
        made, _ = apply(back, tuple(families))
        sources: list[Source] = [places[n] for n in names]
        out: list[Compare] = []
        inputs = [n for group in step.sources for n in group]
        values = [v for family, operand in zip(made, recipe.inputs) for v in _reordered(family, operand.bound)]
        for name, value, entry in zip(inputs, values, self.lowering.sources(step.sources)):
            out.append(Compare(("back", name), entry.dtype, value, entry.virtual(slot), (*sources, entry)))
        return out

    def _again(self, step: Step, recipe: Recipe, places: dict[str, FileSource]) -> list[Compare]:
        read = self.lowering.sources(step.sources)
        lowered = self.lowering.recipe(recipe, read)
        sources = lowered.sources(read)
        out = []
        for operand, group, values in zip(recipe.outputs, step.targets, lowered.outputs):
            for name, value in zip(group, values):
                whole = Virtual.source(len(sources), operand.shape)
                out.append(Compare(("again", name), operand.dtype, value, whole, (*sources, places[name])))
        return out


def _reordered(family: Family[Virtual], bound: tuple[tuple[str, int], ...]) -> list[Virtual]:
    """The members of a family in row-major order over other bound indices."""
    if family.bound == bound:
        return list(family.items)
    strides: dict[str, int] = {}
    step = 1
    for index, n in reversed(family.bound):
        strides[index] = step
        step *= n
    rows = [0]
    for index, n in bound:
        rows = [r + k * strides[index] for r in rows for k in range(n)]
    return [family.items[r] for r in rows]


def way_back(recipe: Recipe) -> Chain | None:
    """The chain that turns a recipe's outputs into its inputs bit for bit, None where there is none."""
    if not recipe.chain.exact or not all(map(_holds, repeat(recipe), results(recipe.chain), recipe.outputs)):
        return None

    def unknown(name: str) -> Dim:
        raise OpError(f"{name} is not known")

    try:
        back = infer(recipe.chain, tuple(Value(o.bound, o.shape) for o in recipe.inputs), unknown).inverse
    except OpError:
        return None
    return back if isinstance(back, Chain) else None


def _holds(recipe: Recipe, made: Result, output: Operand) -> bool:
    """Whether an output has all bits of what it is made of."""
    kinds = made.dtypes([o.dtype for o in recipe.inputs])
    return output.dtype in made.held_by or all(d == output.dtype or widens(d, output.dtype) for d in kinds)


@dataclass(frozen=True)
class Verdict:
    """What a proof found: problems, and how many tensors were compared in which way.

    ``turned``: input tensors that the output gives back bit for bit; ``again``: output tensors that were computed once
    more from the input, since their way back rounds or loses something.
    """

    problems: tuple[Problem, ...]
    turned: int
    again: int

    def __str__(self) -> str:
        out = [f"{self.turned} input tensors came back from it bit for bit"] if self.turned or not self.again else []
        out += [f"{self.again} output tensors were computed again and compared"] if self.again else []
        return f"the output was read back: {' and '.join(out)}".replace(" 1 input tensors", " 1 input tensor").replace(
            " 1 output tensors were", " 1 output tensor was"
        )


def prove(
    plan: Plan, lowering: Lowering, layout: Layout, read_fd: Ends, write_fd: Fd, jobs: int, memory: int
) -> Verdict:
    """Read the output back and compare; ``memory`` is bytes, ``jobs`` threads."""
    problems = [
        Problem("the header that was read back is not the one that was written", "proof", file.name)
        for k, file in enumerate(layout.files)
        if os.pread(write_fd(k), len(file.header_bytes), 0) != file.header_bytes
    ]
    proof = _Proof(plan, lowering, layout)

    def fd(i: int) -> End:
        return read_fd(i) if i < proof.inputs else write_fd(i - proof.inputs)

    compares = proof.compares()
    outcome = execute((), compares, fd, fd, jobs=jobs, memory=memory, allow_overflow=True)
    for d in outcome.differences:
        assert isinstance(d.label, tuple)
        text = (
            f"the output, read back, differs from the input ({d.count} of {d.total} elements, first at {list(d.index)})"
        )
        problems.append(Problem(text, "proof", str(d.label[1])))
    turned = sum(1 for c in compares if _way(c) == "back")
    return Verdict(tuple(problems), turned, len(compares) - turned)


def _way(compare: Compare) -> str:
    assert isinstance(compare.label, tuple)
    return str(compare.label[0])
