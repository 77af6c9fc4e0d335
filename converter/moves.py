"""From what the outputs are to what has to be moved: byte ranges to copy, and tiles to compute.

:func:`lower` decides from block geometry alone, without data. Long runs of bytes that stay as they are become copies
in the kernel; a block whose elements change order, dtype or value becomes a :class:`Tile`; blocks that interleave in
small runs become a :class:`Gather`, whose destination is assembled in memory and written in one piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from operator import attrgetter
from typing import NamedTuple

from converter.errors import MismatchError, Problem
from converter.formats.text import many_objects
from converter.packed import in_bytes
from converter.spec import DTYPES
from converter.values import Compare, FileSource, PatternSource, Produce, Source
from converter.virtual import CONSTANT, Block

__all__ = ["Compare", "Copy", "FileSource", "Gather", "Moves", "PatternSource", "Produce", "Runs", "Tile", "lower"]

RUN_BYTES = 128 << 10  # below this, moving a run through memory is cheaper than a system call of its own
ACROSS_BYTES = 2048  # the same for runs whose elements lie this far apart in the source, or farther
RUN_ELEMENTS = 2048  # a run of fewer is not worth a move of its own between two that are computed
GATHER_BYTES = 1 << 20  # neighbours are assembled in memory up to this size, whatever their runs


class Copy(NamedTuple):
    """A range of bytes of an input file that goes to an output file as it is."""

    src_file: int
    src_offset: int
    dst_file: int
    dst_offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Runs:
    """Many copies at regular distances: ``first``, repeated over ``dims`` of (times, dst bytes, src bytes)."""

    first: Copy
    dims: tuple[tuple[int, int, int], ...]

    @property
    def nbytes(self) -> int:
        """Bytes written."""
        return self.first.nbytes * prod(n for n, _, _ in self.dims)

    def __iter__(self) -> Iterator[Copy]:
        f = self.first
        for steps in product(*(range(n) for n, _, _ in self.dims)):
            dst = sum(i * d[1] for i, d in zip(steps, self.dims))
            src = sum(i * d[2] for i, d in zip(steps, self.dims))
            yield Copy(f.src_file, f.src_offset + src, f.dst_file, f.dst_offset + dst, f.nbytes)


@dataclass(frozen=True, slots=True)
class Tile:
    """One block of a tensor, to be read, computed (in float64 if ``double``) and written in boxes."""

    produce: Produce
    block: Block
    double: bool

    @property
    def nbytes(self) -> int:
        """Bytes written."""
        return self.block.size * DTYPES[self.produce.dtype].bits // 8


@dataclass(frozen=True, slots=True)
class Gather:
    """The elements ``start`` to ``stop`` of a tensor, assembled in memory from the blocks that hold them."""

    produce: Produce
    start: int
    stop: int
    blocks: tuple[Block, ...]
    double: bool

    @property
    def nbytes(self) -> int:
        """Bytes written."""
        return (self.stop - self.start) * DTYPES[self.produce.dtype].bits // 8


Move = Copy | Runs | Tile | Gather


@dataclass(frozen=True)
class Moves:
    """All moves of a conversion, in the order of their first byte in the output files."""

    items: tuple[Move, ...]

    @property
    def nbytes(self) -> int:
        """Bytes written."""
        return sum(m.nbytes for m in self.items)

    @property
    def computes(self) -> bool:
        """Tell whether anything passes through memory."""
        return not all(isinstance(m, (Copy, Runs)) for m in self.items)

    def __str__(self) -> str:
        parts = []
        for kind, one, many in (
            (Copy, "copy", "copies"),
            (Runs, "strided copy", "strided copies"),
            (Tile, "tile", "tiles"),
            (Gather, "gather", "gathers"),
        ):
            sizes = [m.nbytes for m in self.items if isinstance(m, kind)]
            if sizes:
                parts.append(f"{len(sizes)} {one if len(sizes) == 1 else many} of {sum(sizes)} bytes")
        return ", ".join(parts) or "nothing to move"


@many_objects()
def lower(produces: Iterable[Produce], *, run_bytes: int = RUN_BYTES) -> Moves:
    """Say what has to be moved to write the tensors, in file order, neighbours merged.

    Raises MismatchError, naming the tensors, where a dtype smaller than a byte would be cut within a byte, or where a
    dtype cannot be cast at all.
    """
    items: list[Move] = []
    problems: list[Problem] = []
    for produce in sorted(produces, key=attrgetter("file", "offset")):
        try:
            _lower_one(produce, run_bytes, items)
        except MismatchError as error:
            problems.extend(Problem(p.message, p.kind, produce.name) for p in error.problems)
    if problems:
        raise MismatchError(problems)
    return Moves(tuple(items))


def _lower_one(produce: Produce, run_bytes: int, items: list[Move]) -> None:
    blocks = produce.value.blocks
    if DTYPES[produce.dtype].kind == "packed":
        dtype, value, sources = in_bytes(produce.dtype, produce.value, produce.sources)
        produce = Produce(produce.name, produce.file, produce.offset, dtype, value, sources)
        blocks = value.blocks
    size = DTYPES[produce.dtype].bits // 8
    if len(blocks) == 1 and _is_run(produce, blocks[0]):
        _add(items, _copy(produce, blocks[0], size))
        return
    double = check_castable(produce.dtype, produce.sources, blocks)
    for group in _pack(produce, _groups(blocks), GATHER_BYTES // size):
        if all(_is_run(produce, block) for block in group):
            for block in group:
                _add(items, _copy(produce, block, size))
        elif len(group) > 1 and not _long(produce, group, run_bytes):
            items.append(Gather(produce, group[0].dst, max(map(_stop, group)), group, double))
        else:
            items.extend(_single(produce, block, size, run_bytes, double) for block in group)


def check_castable(dtype: str, sources: Sequence[Source], blocks: Sequence[Block]) -> bool:
    """Tell whether the arithmetic of a value takes float64, else it takes float32.

    It does if a source in use is a 64-bit float, an integer or a boolean, or, without sources, if ``dtype`` is. Raises
    MismatchError where a source cannot be cast to ``dtype``, or computed with.
    """
    used = {(b.slot, bool(b.chain)) for b in blocks} | {(o.slot, True) for b in blocks for o in b.operands}
    used = {(slot, chained) for slot, chained in used if slot != CONSTANT}
    for slot, chained in used:
        other = sources[slot].dtype
        if other == dtype and not chained:
            continue
        for d in (other, dtype):
            if DTYPES[d].kind in ("packed", "complex"):
                raise MismatchError(f"{other} cannot be {'computed with' if other == dtype else f'cast to {dtype}'}")
    dtypes = {sources[slot].dtype for slot, _ in used} or {dtype}
    return any(d == "F64" or DTYPES[d].kind in ("int", "bool") for d in dtypes)


def _is_run(produce: Produce, block: Block) -> bool:
    """Tell whether a block is one range of bytes of a file, taken as it is."""
    if block.chain or block.slot == CONSTANT:
        return False
    dims, source = block.dims, produce.sources[block.slot]
    contiguous = not dims or (len(dims) == 1 and dims[0][1:] == (1, 1))
    return contiguous and source.dtype == produce.dtype and isinstance(source, FileSource)


def _copy(produce: Produce, block: Block, size: int) -> Copy:
    source = produce.sources[block.slot]
    assert isinstance(source, FileSource)
    many = block.dims[0][0] if block.dims else 1
    src, dst = source.offset + block.src * size, produce.offset + block.dst * size
    return Copy(source.file, src, produce.file, dst, many * size)


def _add(items: list[Move], copy: Copy) -> None:
    """Append a copy, or lengthen the last one if this continues it in both files."""
    last = items[-1] if items else None
    if isinstance(last, Copy):
        src_file, src, dst_file, dst, nbytes = last
        if copy[:4] == (src_file, src + nbytes, dst_file, dst + nbytes):
            items[-1] = Copy(src_file, src, dst_file, dst, nbytes + copy.nbytes)
            return
    items.append(copy)


def _single(produce: Produce, block: Block, size: int, run_bytes: int, double: bool) -> Move:
    """Move a block by itself: by copies where its runs are long and stay as they are, else as a tile."""
    if block.dims and block.dims[-1][1:] == (1, 1) and block.dims[-1][0] * size >= run_bytes:
        run = block._replace(dims=block.dims[-1:])
        if _is_run(produce, run):
            dims = tuple((n, ds * size, ss * size) for n, ds, ss in block.dims[:-1])
            return Runs(_copy(produce, run, size), dims)
    return Tile(produce, block, double)


def _stop(block: Block) -> int:
    stop = block.dst + 1
    for n, ds, _ in block.dims:
        stop += (n - 1) * ds
    return stop


def _groups(blocks: Iterable[Block]) -> Iterator[list[Block]]:
    """Part blocks, sorted by place, where no block reaches from one group into the next."""
    group: list[Block] = []
    end = 0
    for block in blocks:
        if group and block.dst >= end:
            yield group
            group = []
        group.append(block)
        end = max(end, _stop(block))
    if group:
        yield group


def _pack(produce: Produce, groups: Iterable[list[Block]], size: int) -> Iterator[tuple[Block, ...]]:
    """Join small neighbouring groups as long as together they have no more than ``size`` elements."""
    packed: list[Block] = []
    for group in groups:
        stop = max(map(_stop, group))
        alone = len(group) == 1 and group[0].size >= RUN_ELEMENTS and _is_run(produce, group[0])
        if packed and (alone or stop - packed[0].dst > size):
            yield tuple(packed)
            packed = []
        if alone:
            yield tuple(group)
        else:
            packed.extend(group)
    if packed:
        yield tuple(packed)


def _long(produce: Produce, group: Sequence[Block], run_bytes: int) -> bool:
    """Tell whether the runs of a group in the destination are long enough, on average, to be written one by one.

    Where sources are read across their rows, whole boxes are worth more than whole rows of the destination.
    """
    size = DTYPES[produce.dtype].bits // 8
    total, least = 0, 0
    for block in group:
        *_, (n, ds, ss) = block.outline or ((1, 1, 1),)
        runs = block.size // (n if ds == 1 else 1)
        total += block.size * size
        least += runs * (ACROSS_BYTES if ss * size > ACROSS_BYTES else run_bytes)
    return total > GATHER_BYTES and total >= least
