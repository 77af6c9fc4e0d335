"""`--verify`: the output is read back, turned around, and compared with the input.

Where the way back gives every bit, what comes back is compared with the input, byte for byte, in the dtype of the
output where that is wider; so is what the way back would leave out, such as padding and replicas. Where it does not (a
cast that rounds, arithmetic, a one-way op), the output is compared with what the input gives once more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from itertools import repeat
from math import prod
from typing import TYPE_CHECKING

from converter.casting import widens
from converter.dims import Dim, SizeError
from converter.errors import Problem
from converter.execute import execute
from converter.flow import Chain, apply, infer, results
from converter.formats import Layout, Output
from converter.formats.base import Input, faults
from converter.formats.shards import INDEX
from converter.lowering import Lowering, constant
from converter.moves import Moves
from converter.ops.base import Family, OpError, Value
from converter.ops.results import Result
from converter.pool import Pool
from converter.report import Written
from converter.spec import TensorSpec
from converter.steps import Operand, Plan, Recipe, Step
from converter.transfer import End, read_file
from converter.values import Compare, FileSource, Source
from converter.virtual import CONSTANT, Virtual

if TYPE_CHECKING:
    from converter.compare import Difference

CHUNK = 1 << 20  # bytes that are summed up at a time


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
        """Every comparison; a label is the way and the name of the tensor.

        The ways are `back` (`rounds`, if arithmetic is part of it), `again`, and `check` for what is compared beside.
        """
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
        """Compare what the way back makes of the outputs with the inputs, and check all that it leaves out."""
        names = [n for group in step.targets for n in group]
        sources: tuple[Source, ...] = tuple(places[n] for n in names)
        done = apply(back, _families(recipe.outputs))
        inputs = [n for group in step.sources for n in group]
        values = [v for family, operand in zip(done.families, recipe.inputs) for v in _reordered(family, operand.bound)]
        out: list[Compare] = []
        rounds = False
        for name, value, entry in zip(inputs, values, self.lowering.sources(step.sources)):
            dtype = _widest([entry.dtype, *(sources[b.slot].dtype for b in value.blocks if b.slot != CONSTANT)])
            if dtype is None or any(b.chain for b in value.blocks):
                dtype, rounds = entry.dtype, True
            out.append(Compare(("back", name), dtype, value, entry.virtual(len(sources)), (*sources, entry)))
        if rounds:
            # Rounding hides bits of the output. Where all of them are right, what does not come back is the op's loss.
            out = [replace(c, label=("rounds", _label(c)[1])) for c in out]
            out += [replace(c, label=("check", _label(c)[1])) for c in self._again(step, recipe, places)]
        for check in done.checks:
            k = next(b.slot for v in (check.left, check.right) for b in v.blocks if b.slot != CONSTANT)
            out.append(Compare(("check", names[k]), sources[k].dtype, check.left, check.right, sources))
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


def _families(operands: Sequence[Operand]) -> tuple[Family[Virtual], ...]:
    """The tensors of some terms as sources, numbered one after the other."""
    out: list[Family[Virtual]] = []
    slot = 0
    for operand in operands:
        count = prod(n for _, n in operand.bound)
        out.append(Family(operand.bound, tuple(Virtual.source(slot + m, operand.shape) for m in range(count))))
        slot += count
    return tuple(out)


def _widest(dtypes: Sequence[str]) -> str | None:
    """The dtype among some that holds the values of all, None where none does."""
    return next((d for d in dtypes if all(o == d or widens(o, d) for o in dtypes)), None)


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
    except SizeError:
        return None
    return back if isinstance(back, Chain) else None


def _holds(recipe: Recipe, made: Result, output: Operand) -> bool:
    """Whether an output has all bits of what it is made of."""
    kinds = made.dtypes([o.dtype for o in recipe.inputs])
    return output.dtype in made.held_by or all(d == output.dtype or widens(d, output.dtype) for d in kinds)


@dataclass(frozen=True)
class Verdict:
    """What a proof found: problems, how many tensors were compared in which way, and the files with their checksums.

    ``turned``: input tensors that the output gives back bit for bit; ``again``: output tensors that were computed once
    more from the input, since their way back rounds or loses something.
    """

    problems: tuple[Problem, ...]
    turned: int = 0
    again: int = 0
    files: tuple[Written, ...] = ()

    def __str__(self) -> str:
        out = [f"{self.turned} input tensors came back from it bit for bit"] if self.turned or not self.again else []
        out += [f"{self.again} output tensors were computed again and compared"] if self.again else []
        return f"the output was read back: {' and '.join(out)}".replace(" 1 input tensors", " 1 input tensor").replace(
            " 1 output tensors were", " 1 output tensor was"
        )


def prove(plan: Plan, lowering: Lowering, checkpoint: Input, output: Output, jobs: int, memory: int) -> Verdict:
    """Read the output back from the disk and compare all of it; ``memory`` is bytes, ``jobs`` threads.

    Files are compared with what was laid out: their sizes, headers and index; every tensor with the input. Raises
    FormatError if anything cannot be read.
    """
    made = output.layout
    output.settle()
    heads = tuple(_heads(output))
    if heads:
        return Verdict(heads)
    proof = _Proof(plan, lowering, made)

    def fd(i: int) -> End:
        return checkpoint.fd(i) if i < proof.inputs else output.fd(i - proof.inputs)

    def name(i: int) -> str:
        return checkpoint.name(i) if i < proof.inputs else output.name(i - proof.inputs)

    compares = proof.compares()
    outcome = execute(Moves(()), compares, fd, fd, jobs=jobs, memory=memory, allow_overflow=True, name=name)
    said = "the output, read back, differs from the input"
    problems = []
    for d in outcome.differences:
        text = f"{said} ({d.count} of {d.total} elements, first at {list(d.index)})"
        problems.append(Problem(text, "lost" if _label(d)[0] == "rounds" else "proof", _label(d)[1]))
    ways = [_label(c)[0] for c in compares]
    turned = ways.count("back") + ways.count("rounds")
    return Verdict(tuple(problems), turned, ways.count("again"), () if problems else _checksums(output, jobs))


def _label(found: Compare | Difference) -> tuple[str, str]:
    assert isinstance(found.label, tuple)
    return found.label


def _heads(output: Output) -> Iterator[Problem]:
    """Compare what is not data: sizes, headers, the index."""
    layout = output.layout
    heads = [(file.name, file.size, file.header_bytes) for file in layout.files]
    if layout.index is not None:
        heads.append((INDEX, len(layout.index), layout.index))
    for k, (name, size, head) in enumerate(heads):
        fd = output.fd(k)
        found = os.fstat(fd).st_size
        if found != size:
            yield Problem(f"the file that was read back has {found} bytes, {size} were written", "proof", name)
        elif os.pread(fd, len(head), 0) != head:
            what = "index" if name == INDEX else "header"
            yield Problem(f"the {what} that was read back is not the one that was written", "proof", name)


def _checksums(output: Output, jobs: int) -> tuple[Written, ...]:
    """Sum up every byte of every file, some files at a time."""
    names = [f.name for f in output.layout.files] + ([INDEX] if output.layout.index is not None else [])
    found: dict[int, Written] = {}

    def sum_up(k: int) -> None:
        digest, at, buffer = sha256(), 0, memoryview(bytearray(CHUNK))
        with faults(output.name(k), "cannot be read"):
            while many := read_file(output.fd(k), buffer, at):
                digest.update(buffer[:many])
                at += many
        found[k] = Written(names[k] if output.layout.directory else "", at, digest.hexdigest())

    tasks = ((0, lambda _, k=k: sum_up(k)) for k in range(len(names)))
    Pool[None]([None] * min(jobs, len(names)), tasks).run()
    return tuple(found[k] for k in range(len(names)))
