"""From a plan and a layout to what the data plane runs: every output as blocks of its sources, every check as a
comparison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from converter.accounting import check_books
from converter.computed import Numbering, reads, with_computed
from converter.flow import apply
from converter.formats.text import many_objects
from converter.ops.base import DataCheck, Family
from converter.spec import Header, Shape
from converter.steps import Constant, Names, Plan, Recipe, Step
from converter.values import Compare, FileSource, PatternSource, Produce, Source
from converter.virtual import CONSTANT, RowScales, Virtual

Place = Mapping[str, tuple[int, int]]  # tensor name -> output file number, absolute byte offset


Strides = tuple[Shape | None, ...]  # of each source of a recipe; () where all are packed


@dataclass(frozen=True)
class Lowered:
    """A recipe as blocks: a virtual tensor for each member of each output, and the checks.

    Slots count the tensors that are read, then what is ``computed``.
    """

    outputs: tuple[tuple[Virtual, ...], ...]
    checks: tuple[DataCheck[Virtual], ...]
    computed: tuple[RowScales, ...] = ()

    def sources(self, read: tuple[FileSource, ...]) -> tuple[Source, ...]:
        """What the slots stand for, where these are the tensors that are read."""
        return with_computed(read, self.computed) if self.computed else read


@dataclass(frozen=True)
class Label:
    """What a comparison is about: the step, what is wrong when it fails, and the tensors on either side."""

    step: Step
    what: str
    name: str
    other: str
    axis: int = 0  # the comparison begins at entry `start` of this axis
    start: int = 0


@dataclass
class Lowering:
    """Lower the steps of a plan; recipes that steps share are lowered once."""

    header: Header
    _cache: dict[tuple[int, Strides], tuple[Recipe, Lowered]] = field(default_factory=dict)
    _feeds: dict[int, tuple[tuple[int, int, int, bool], ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._strided = any(e.strides for e in self.header.tensors.values())

    def recipe(self, recipe: Recipe, sources: Sequence[FileSource] = ()) -> Lowered:
        """Run a recipe's ops on virtual tensors, and account for every element on either side.

        ``sources`` are what it reads, where that may lie in other than row-major order; the account is made for the
        recipe as it is where none does.
        """
        strides = tuple(s.strides for s in sources) if self._strided and any(s.strides for s in sources) else ()
        found = self._cache.get((id(recipe), strides))
        if found is not None:
            return found[1]
        if strides:
            self.recipe(recipe)

        def source(slot: int, shape: Shape) -> Virtual:
            return Virtual.source(slot, shape, strides[slot] if strides else None)

        families: list[Family[Virtual]] = []
        slot = 0
        for operand in recipe.inputs:
            members = prod(n for _, n in operand.bound)
            families.append(Family(operand.bound, tuple(source(slot + m, operand.shape) for m in range(members))))
            slot += members
        done = apply(recipe.chain, tuple(families))
        if not strides:
            check_books([v.shape for f in families for v in f.items], done)
        numbering = Numbering(slot)
        outputs = tuple(tuple(map(numbering.virtual, f.items)) for f in done.families)
        checks = [replace(c, left=numbering.virtual(c.left), right=numbering.virtual(c.right)) for c in done.checks]
        lowered = Lowered(outputs, tuple(checks), tuple(numbering.made))
        self._cache[id(recipe), strides] = (recipe, lowered)
        return lowered

    def feeds(self, recipe: Recipe) -> tuple[tuple[int, int, int, bool], ...]:
        """List (source slot, target term, target member) wherever a source feeds a target, and whether with elements
        of its own: else it is what others are computed with.
        """
        found = self._feeds.get(id(recipe))
        if found is not None:
            return found
        slots = sum(prod(n for _, n in o.bound) for o in recipe.inputs)
        out: list[tuple[int, int, int, bool]] = []
        lowered = self.recipe(recipe)
        for k, values in enumerate(lowered.outputs):
            for m, value in enumerate(values):
                own, beside = reads(value, slots, lowered.computed)
                used = sorted(own | beside) or (range(slots) if not value.blocks else ())
                out += [(s, k, m, s not in beside) for s in used]
        fed = {s for s, _, _, _ in out}
        self._feeds[id(recipe)] = (*out, *((s, 0, 0, True) for s in range(slots) if s not in fed))
        return self._feeds[id(recipe)]

    def sources(self, names: Names) -> tuple[FileSource, ...]:
        """Where the bytes of some tensors are."""
        tensors = self.header.tensors
        out = []
        for group in names:
            for name in group:
                _, dtype, shape, file, start, _, strides = tensors[name]
                out.append(FileSource(file, start, dtype, shape, strides))
        return tuple(out)

    @many_objects()
    def produces(self, plan: Plan, place: Place) -> list[Produce]:
        """Every tensor that is written, in the dtype that the plan's outputs say."""
        out: list[Produce] = []
        dtypes = {s.name: s.dtype for s in plan.outputs}
        for step in plan.steps:
            if step.kind == "fill" and step.constant is not None:
                value, pattern = constant(step.constant, 0)
                for name in step.target_names():
                    out.append(Produce(name, *place[name], dtypes[name], value, pattern))
            elif step.kind == "move" and step.recipe is not None:
                read = self.sources(step.sources)
                lowered = self.recipe(step.recipe, read)
                sources = lowered.sources(read)
                for group, values in zip(step.targets, lowered.outputs):
                    for name, value in zip(group, values):
                        file, offset = place[name]
                        out.append(Produce(name, file, offset, dtypes[name], value, sources))
        return out

    @many_objects()
    def compares(self, plan: Plan) -> list[Compare]:
        """Every check on data that the plan relies on."""
        out: list[Compare] = []
        for step in plan.steps:
            if step.kind == "check" and step.constant is not None:
                (name,) = step.source_names()
                value, pattern = constant(step.constant, 1)
                out.append(
                    Compare(
                        Label(step, "is not the constant that the map states", name, ""),
                        step.constant.dtype,
                        self.sources(step.sources)[0].virtual(0),
                        value,
                        (*self.sources(step.sources), *pattern),
                    )
                )
            elif step.kind == "compare" and step.recipe is not None and step.other is not None:
                out.append(self._compare(step, step.recipe, step.other))
            elif step.recipe is not None:
                out += self._checks(step, step.recipe)
        return out

    def _compare(self, step: Step, recipe: Recipe, other: Recipe) -> Compare:
        read, others_read = self.sources(step.sources), self.sources(step.other_sources)
        left, right = self.recipe(recipe, read), self.recipe(other, others_read)
        sources, others = left.sources(read), right.sources(others_read)
        shifted = right.outputs[0][0].renumber(lambda slot, _: slot + len(sources))
        names = [n for g in step.sources for n in g], [n for g in step.other_sources for n in g]
        label = Label(step, "differs from {other}, although the map ties them", names[0][0], names[1][0])
        return Compare(label, recipe.outputs[0].dtype, left.outputs[0][0], shifted, (*sources, *others))

    def _checks(self, step: Step, recipe: Recipe) -> list[Compare]:
        out: list[Compare] = []
        if not self.recipe(recipe).checks:
            return out
        names = [n for group in step.sources for n in group]
        read = self.sources(step.sources)
        lowered = self.recipe(recipe, read)
        sources = lowered.sources(read)
        for check in lowered.checks:
            sides = [next((b.slot for b in v.blocks if b.slot != CONSTANT), None) for v in (check.left, check.right)]
            name = names[sides[0]] if sides[0] is not None else names[0]
            other = names[sides[1]] if sides[1] is not None else ""
            what = f"{check.what} from {{other}}, although the map says that they are the same" if other else check.what
            dtype = sources[sides[0] or 0].dtype
            out.append(
                Compare(
                    Label(step, what, name, other, check.axis, check.start), dtype, check.left, check.right, sources
                )
            )
        return out


def constant(value: Constant, slot: int) -> tuple[Virtual, tuple[Source, ...]]:
    """A constant as a virtual tensor, with the pattern that it reads from source ``slot`` on, if any."""
    if value.what in ("arange", "causal_mask"):
        return Virtual.source(slot, value.shape), (PatternSource(value.what, value.dtype, value.shape),)
    return Virtual.constant(value.value, value.shape), ()


def pairs(lowering: Lowering, step: Step) -> list[tuple[str, str, int, bool]]:
    """List which source feeds which target of a step, by the blocks: (source, target, number of the target's term,
    whether the target has its elements).

    Sources that are only compared count for the first target.
    """
    if step.kind != "move" or step.recipe is None:
        return []
    names = [n for group in step.sources for n in group]
    return [(names[slot], step.targets[k][m], k, own) for slot, k, m, own in lowering.feeds(step.recipe)]
