"""Tensors without data: which element of which source stands where.

A :class:`Virtual` runs an op's ``apply`` on headers alone. Its blocks say, for every element, the source and place it
comes from (or the constant it is) and the arithmetic it goes through; together they cover each element exactly once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import copysign, prod
from typing import NamedTuple

from converter.arrays import Arith
from converter.layout import Dim, Dims, count, covers, normalise, outer, relay
from converter.operands import beside_rows, dims_of, place_of, runs

CONSTANT = -1
COMPUTED = -2


class Operand(NamedTuple):
    """Where a step of arithmetic has its second numbers from: slot, value, chain and ``of`` as of a block."""

    slot: int
    value: float
    chain: tuple[Arith, ...]
    of: RowScales | None


class Block(NamedTuple):
    """A strided set of elements with one origin.

    ``slot``: which source, or :data:`CONSTANT`, and then ``value``, or :data:`COMPUTED`, and then ``of``; ``src``:
    element offset in the source; ``dst``: in the tensor, in row-major order; ``dims``: (steps, dst stride, src stride),
    by descending dst stride, joined where they continue each other; ``chain``: arithmetic, first step first;
    ``operands``: what its steps take beside, at places that ``src`` and the src strides hold too (see
    :mod:`converter.operands`).
    """

    slot: int
    value: float
    src: int
    dst: int
    dims: Dims
    chain: tuple[Arith, ...] = ()
    operands: tuple[Operand, ...] = ()
    of: RowScales | None = None

    @property
    def size(self) -> int:
        """Elements of the block."""
        return count(self.dims)

    @property
    def first(self) -> Block:
        """The block as it lies in its own source, without the places of its operands."""
        return self._replace(src=place_of(self.src, 0), dims=dims_of(self.dims, 0)) if self.operands else self

    @property
    def outline(self) -> Dims:
        """The dims in its own source, joined also where those of an operand do not continue each other."""
        return normalise(dims_of(self.dims, 0)) if self.operands else self.dims


@dataclass(frozen=True)
class Virtual:
    """A tensor of blocks, sorted by their first element: :class:`converter.arrays.Array` without data."""

    shape: tuple[int, ...]
    blocks: tuple[Block, ...]

    @classmethod
    def source(cls, slot: int, shape: Sequence[int], strides: Sequence[int] | None = None) -> Virtual:
        """Make the tensor that is source number ``slot`` itself; ``strides`` (elements) where it is not packed."""
        if strides is None:
            return cls(tuple(shape), _whole(slot, 0.0, prod(shape), 1))
        units = [prod(shape[k + 1 :]) for k in range(len(shape))]
        dims = normalise(zip(shape, units, strides))
        return cls(tuple(shape), (Block(slot, 0.0, 0, 0, dims),) if prod(shape) else ())

    @classmethod
    def constant(cls, value: float, shape: Sequence[int]) -> Virtual:
        """Make a tensor of one value."""
        return cls(tuple(shape), _whole(CONSTANT, value, prod(shape), 0))

    def reshape(self, shape: Sequence[int]) -> Virtual:
        """Give the same elements in row-major order another shape; raises ValueError if their number differs."""
        if prod(shape) != prod(self.shape):
            raise ValueError(f"cannot reshape {list(self.shape)} into {list(shape)}")
        return Virtual(tuple(shape), self.blocks)

    def transpose(self, axes: Sequence[int]) -> Virtual:
        """Permute the axes: axis ``k`` of the result is axis ``axes[k]``."""
        shape = tuple(self.shape[a] for a in axes)
        groups: list[list[int]] = []  # axes that stay neighbours move as one
        for axis in axes:
            if groups and axis == groups[-1][-1] + 1:
                groups[-1].append(axis)
            else:
                groups.append([axis])
        if len(groups) < 2:
            return Virtual(shape, self.blocks)
        order = sorted(range(len(groups)), key=lambda g: groups[g])
        lengths = [prod(self.shape[a] for a in groups[g]) for g in order]
        strides, stride = [0] * len(groups), 1
        for g in range(len(groups) - 1, -1, -1):
            strides[order.index(g)] = stride
            stride *= lengths[order.index(g)]
        box = [(0, n) for n in lengths]
        return Virtual(shape, merge(p for b in self.blocks for p in _relay(b, lengths, box, strides, 0)))

    def slice(self, axis: int, start: int, stop: int) -> Virtual:
        """Keep ``start <= index < stop`` along an axis."""
        shape = (*self.shape[:axis], stop - start, *self.shape[axis + 1 :])
        if not prod(shape):
            return Virtual(shape, ())
        if (start, stop) == (0, self.shape[axis]):
            return self
        outer, inner = prod(self.shape[:axis]), prod(self.shape[axis + 1 :])
        lengths = (outer, self.shape[axis] * inner)
        low, high = start * inner, stop * inner
        box, strides = ((0, outer), (low, high)), (high - low, 1)
        if outer == 1:
            near = self.blocks[bisect_left(self._reach, low) : bisect_left(self.blocks, high, key=lambda b: b.dst)]
            return Virtual(shape, merge(p for b in near for p in clip(b, low, high, lengths[1])))
        return Virtual(shape, merge(p for b in self.blocks for p in _relay(b, lengths, box, strides, 0)))

    @cached_property
    def _reach(self) -> tuple[int, ...]:
        """How far the blocks up to each one reach: the way to those that hold a range."""
        return tuple(accumulate((_last(b) for b in self.blocks), max))

    def pad(self, axis: int, size: int, value: float) -> Virtual:
        """Grow an axis at its end to ``size``, filled with ``value``."""
        more = (*self.shape[:axis], size - self.shape[axis], *self.shape[axis + 1 :])
        return self.concat([Virtual.constant(value, more)], axis)

    def concat(self, others: Sequence[Virtual], axis: int) -> Virtual:
        """Join with others along an existing axis, this one first."""
        terms = (self, *others)
        size = sum(t.shape[axis] for t in terms)
        outer, inner = prod(self.shape[:axis]), prod(self.shape[axis + 1 :])
        base = 0
        pieces: list[Block] = []
        for term in terms:
            row = term.shape[axis] * inner
            if outer == 1:
                pieces.extend(b._replace(dst=b.dst + base) for b in term.blocks)
            else:
                box, strides = ((0, outer), (0, row)), (size * inner, 1)
                pieces.extend(p for b in term.blocks for p in _relay(b, (outer, row), box, strides, base))
            base += row
        return Virtual((*self.shape[:axis], size, *self.shape[axis + 1 :]), merge(pieces))

    def arith(self, step: Arith) -> Virtual:
        """Add one arithmetic step to every element."""
        return Virtual(self.shape, tuple(b._replace(chain=(*b.chain, step)) for b in self.blocks))

    def renumber(self, number: Callable[[int, RowScales | None], int]) -> Virtual:
        """Give every origin but constants the slot that ``number`` says for its slot and ``of``."""

        def new(slot: int, of: RowScales | None) -> int:
            return slot if slot == CONSTANT else number(slot, of)

        def block(b: Block) -> Block:
            operands = tuple(o._replace(slot=new(o.slot, o.of), of=None) for o in b.operands)
            return b._replace(slot=new(b.slot, b.of), of=None, operands=operands)

        return Virtual(self.shape, tuple(map(block, self.blocks)))

    def scale_rows(self, kind: str, factors: Virtual) -> Virtual:
        """Let each row of a matrix take its factor: every element of ``factors`` is used for one row, and all are."""
        check_exact(factors)
        width, pieces = self.shape[1], list[Block]()
        for factor, run in runs(factors.blocks):
            assert not factor.operands, "a factor has one origin"
            operand = Operand(factor.slot, factor.value, factor.chain, factor.of)
            for b in self.slice(0, run[0], run[0] + run[1]).blocks:
                chain = (*b.chain, Arith(kind, operand=len(b.operands)))
                for dst, src, dims in beside_rows(b, width, run, len(b.operands) + 1):
                    made = Block(b.slot, b.value, src, dst + run[0] * width, dims, chain, (*b.operands, operand), b.of)
                    pieces.append(made)
        return Virtual(self.shape, merge(pieces))

    def row_scales(self, largest: float) -> Virtual:
        """Give a factor for each row of a matrix, which somebody has to compute when there are data."""
        scales = RowScales(self, largest)
        return Virtual(self.shape[:1], tuple(b._replace(of=scales) for b in _whole(COMPUTED, 0.0, self.shape[0], 1)))


@dataclass(frozen=True, eq=False)
class RowScales:
    """The factors of the rows of a matrix (see :meth:`converter.arrays.Array.row_scales`), before there are data."""

    value: Virtual
    largest: float


def made_once(value: Virtual) -> bool:
    """Tell whether the blocks of a value are each of its elements once, at a cost per block."""
    return covers(((b.dst, outer(b.dims)) for b in value.blocks), prod(value.shape))


def check_exact(value: Virtual) -> None:
    """Check that the blocks of a value are each of its elements once; raises AssertionError otherwise."""
    if not made_once(value):
        raise AssertionError(f"the blocks do not cover each element of {list(value.shape)} exactly once")


def clip(block: Block, start: int, stop: int, total: int) -> Iterable[Block]:
    """Cut a block of a tensor of ``total`` elements to a range of its row-major order, counted from ``start``."""
    if start <= block.dst and _last(block) < stop:
        return (block._replace(dst=block.dst - start) if start else block,)
    if block.dst >= stop or _last(block) < start:
        return ()
    return _relay(block, (total,), ((start, stop),), (1,), 0)


def merge(blocks: Iterable[Block]) -> tuple[Block, ...]:
    """Sort blocks by place and join neighbours that continue each other in the tensor and in the source.

    Blocks that only lie at the same distance in both are joined last, so that they break no longer run.
    """
    found = sorted(blocks, key=lambda b: b.dst)
    if len(found) > 1:
        found = _joined(found, apart=False)
    if len(found) > 1:
        found = _joined(found, apart=True)
    return tuple(found)


def _joined(blocks: Iterable[Block], apart: bool) -> list[Block]:
    out: list[Block] = []
    for block in blocks:
        while out and (joined := _join(out[-1], block, apart)) is not None:
            out.pop()
            block = joined
        out.append(block)
    return out


def _whole(slot: int, value: float, size: int, stride: int) -> tuple[Block, ...]:
    dims = ((size, 1, stride),) if size > 1 else ()
    return (Block(slot, value, 0, 0, dims),) if size else ()


def _last(block: Block) -> int:
    last = block.dst
    for n, ds, _ in block.dims:
        last += (n - 1) * ds
    return last


def _relay(
    block: Block, lengths: Sequence[int], box: Sequence[tuple[int, int]], strides: Sequence[int], base: int
) -> Iterable[Block]:
    for at, start, new in relay(block.dst, block.src, block.dims, lengths, box, strides):
        yield Block(block.slot, block.value, start, at + base, new, block.chain, block.operands, block.of)


def _join(a: Block, b: Block, apart: bool) -> Block | None:
    """Make one block of two if that can be done by lengthening one dim, or, if ``apart``, by adding one."""
    if a.slot != b.slot or a.chain != b.chain or not _same(a.value, b.value) or b.src < a.src:
        return None
    if a.operands != b.operands or a.of is not b.of:
        return None
    longer = _longer(a.dims, b.dims, b.dst - a.dst, b.src - a.src)
    if longer is None:
        return None
    dims = normalise(longer)
    if len(dims) > max(len(a.dims), len(b.dims)) and not apart and (len(dims) > 1 or dims[0][1] > 1):
        return None
    return a._replace(dims=dims)


def _longer(a: Dims, b: Dims, dst: int, src: int) -> list[Dim] | None:
    """Give the dims of the union of two blocks that lie (dst, src) apart, None if it has none."""
    if a == b:
        return [(2, dst, src), *a]
    if len(a) == len(b):
        k = next(k for k, (x, y) in enumerate(zip(a, b)) if x != y)
        (n, ds, ss), (m, *strides) = a[k], b[k]
        fits = strides == [ds, ss] and (n * ds, n * ss) == (dst, src) and a[k + 1 :] == b[k + 1 :]
        return [*a[:k], (n + m, ds, ss), *a[k + 1 :]] if fits else None
    longer, shorter = (a, b) if len(a) > len(b) else (b, a)
    if len(longer) != len(shorter) + 1:
        return None
    k = next((k for k, (x, y) in enumerate(zip(longer, shorter)) if x != y), len(shorter))
    n, ds, ss = longer[k]
    steps = n if longer is a else 1
    fits = (steps * ds, steps * ss) == (dst, src) and longer[k + 1 :] == shorter[k:]
    return [*longer[:k], (n + 1, ds, ss), *longer[k + 1 :]] if fits else None


def _same(a: float, b: float) -> bool:
    return (a == b and copysign(1, a) == copysign(1, b)) or (a != a and b != b)
