"""The work on one piece at a time: read a strided set of elements, cast it, compute and rearrange it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import prod
from typing import NamedTuple

import numpy as np

from converter import casts
from converter.blockwise import convert_with, largest_magnitudes, scales_of
from converter.boxes import plan_reads
from converter.casts import Counts, convert
from converter.kernels import SCRATCH_BYTES, Buffer, bytes_of, numpy_dtype, rearrange
from converter.layout import Dims
from converter.operands import dims_of, place_of
from converter.shared import Shared
from converter.spec import DTYPES
from converter.transfer import Files, Worker
from converter.values import FileSource, PatternSource, ScaleSource, Source
from converter.virtual import CONSTANT, Block, clip

SLACK = 1024  # bytes lost to alignment
PATTERN_BYTES = 40  # of temporaries an element of a computed source
OPERAND_BYTES = 48  # of temporaries an element of an operand


def chunk_of(memory: int) -> int:
    """Give the elements that are cast at a time, so that temporaries take no more than a quarter of the memory."""
    return max(16, min(casts.CHUNK, memory // 4 // casts.TEMPORARY))


def usable(memory: int) -> int:
    """Give the bytes of a thread's memory that are left for what is read and written."""
    return max(0, memory - chunk_of(memory) * casts.TEMPORARY - min(SCRATCH_BYTES, memory // 3))


class Workspace(Worker):
    """A worker with one piece of memory that it cuts up anew for each task; ``shared`` are scales that all share."""

    def __init__(self, files: Files, memory: int, shared: Shared) -> None:
        super().__init__(files)
        self.shared = shared
        self.chunk = chunk_of(memory)
        self.memory = usable(memory)
        self._arena = np.empty(self.memory + SLACK, np.uint8)  # pages that are never used cost nothing
        self._used = 0

    @property
    def room(self) -> int:
        """Bytes of memory that are left."""
        return max(0, self.memory - self._used)

    def reset(self, mark: int = 0) -> None:
        """Give memory back, down to a mark."""
        self._used = mark

    @property
    def mark(self) -> int:
        """How much memory is in use."""
        return self._used

    def take(self, count: int, dtype: np.dtype[np.generic]) -> Buffer:
        """Give an uninitialised flat array; beyond the memory at hand it is a new one."""
        size = count * dtype.itemsize
        start = -(-self._used // 64) * 64
        if start + size > len(self._arena):
            return np.empty(count, dtype)
        self._used = start + size
        return self._arena[start : start + size].view(dtype)

    def count(self, name: str, counts: Counts) -> None:
        """Add to what casting a tensor could not keep."""
        if any(counts):
            self.counts[name] = counts.plus(Counts(*self.counts.get(name, casts.NONE)))


class Frame(NamedTuple):
    """What all pieces of one value share: target dtype (safetensors name), sources, and the width of arithmetic."""

    dtype: str
    sources: Sequence[Source]
    double: bool

    def sizes(self, block: Block) -> tuple[int, int, int]:
        """Give bytes an element that a piece of a block takes: read (0 for a constant), written, temporary."""
        write = DTYPES[self.dtype].bits // 8
        if block.slot == CONSTANT:
            return 0, write, 0
        source = self.sources[block.slot]
        read = DTYPES[source.dtype].bits // 8
        more = sum(-(-OPERAND_BYTES // _shared_by(dims_of(block.dims, k + 1))) for k in range(len(block.operands)))
        if not isinstance(source, FileSource):
            return 0, write, read + PATTERN_BYTES + more
        return read, write, more + (0 if self.plain(block) else read)

    def plain(self, block: Block) -> bool:
        """Tell whether a block keeps its bits."""
        return not block.chain and block.slot != CONSTANT and self.sources[block.slot].dtype == self.dtype

    def room(self, blocks: Sequence[Block], memory: int) -> int:
        """Give the memory that pieces of some blocks may take: half, where scales have to be computed beside."""
        slots = {s for b in blocks for s in (b.slot, *(o.slot for o in b.operands)) if s != CONSTANT}
        return memory // 2 if any(isinstance(self.sources[s], ScaleSource) for s in slots) else memory


def _shared_by(dims: Dims) -> int:
    """Count the neighbours in a block that take the same element of an operand."""
    count = 1
    for n, _, stride in reversed(dims):
        if stride:
            break
        count *= n
    return count


def assemble(work: Workspace, frame: Frame, blocks: Sequence[Block], start: int, out: Buffer, total: int) -> Counts:
    """Fill a flat array with the elements from ``start`` on of a tensor of ``total`` elements."""
    counts, mark = casts.NONE, work.mark
    for block in blocks:
        for piece in clip(block, start, start + len(out), total):
            strides = tuple(ds * out.itemsize for _, ds, _ in piece.dims)
            shape = tuple(n for n, _, _ in piece.dims)
            target = np.ndarray(shape, out.dtype, out, piece.dst * out.itemsize, strides)
            counts = counts.plus(evaluate(work, frame, piece, target)[1])
            work.reset(mark)
    return counts


def evaluate(work: Workspace, frame: Frame, piece: Block, target: Buffer | None) -> tuple[Buffer, Counts]:
    """Compute a piece in its dims' order: into ``target``, of any strides, or into an array that is made for it."""
    dtype = numpy_dtype(frame.dtype)
    if piece.operands:
        return _combined(work, frame, piece, target)
    if piece.slot == CONSTANT:
        value, counts = casts.rounded(piece.value, frame.dtype, piece.chain, frame.double)
        if target is None:
            target = work.take(piece.size, dtype).reshape([n for n, _, _ in piece.dims])
        word = f"u{dtype.itemsize}"
        target.view(word)[...] = value.view(word)[0]
        return target, Counts(*(c * piece.size for c in counts)) if any(counts) else casts.NONE
    if frame.plain(piece):
        source = frame.sources[piece.slot]
        if target is not None and isinstance(source, FileSource) and all(d[1:] == (1, 1) for d in piece.dims):
            work.files.read(source.file, bytes_of(target.reshape(-1)), source.offset + piece.src * dtype.itemsize)
            return target, casts.NONE
        values = _values(work, frame, piece, piece.size * dtype.itemsize if target is None else 0)
        if target is None and values.flags.c_contiguous:
            return values, casts.NONE
        if target is None:
            target = work.take(piece.size, dtype).reshape(values.shape)
        rearrange(target, values)
        return target, casts.NONE
    if target is None:
        target = work.take(piece.size, dtype).reshape([n for n, _, _ in piece.dims])
    whole = target.flags.c_contiguous
    out = target.reshape(-1) if whole else work.take(piece.size, dtype)
    name = frame.sources[piece.slot].dtype
    values = _values(work, frame, piece, piece.size * DTYPES[name].bits // 8)
    flat = values.reshape(-1) if values.flags.c_contiguous else _packed(work, values)
    counts = convert(flat, name, out, frame.dtype, piece.chain, frame.double, work.chunk)
    if not whole:
        rearrange(target, out.reshape(target.shape))
    return target, counts


def _combined(work: Workspace, frame: Frame, piece: Block, target: Buffer | None) -> tuple[Buffer, Counts]:
    """Compute a piece whose steps take operands."""
    wide = Frame("F64" if frame.double else "F32", frame.sources, frame.double)
    operands = [_operand(work, wide, piece, k) for k in range(len(piece.operands))]
    first, dtype = piece.first, numpy_dtype(frame.dtype)
    shape = tuple(n for n, _, _ in piece.dims)
    if target is None:
        target = work.take(piece.size, dtype).reshape(shape)
    whole = target.flags.c_contiguous
    out = target.reshape(-1) if whole else work.take(piece.size, dtype)
    if first.slot == CONSTANT:
        name, values = wide.dtype, np.full(shape, first.value, numpy_dtype(wide.dtype))
    else:
        name = frame.sources[first.slot].dtype
        values = _values(work, frame, first, piece.size * DTYPES[name].bits // 8)
        values = values if values.flags.c_contiguous else _packed(work, values).reshape(shape)
    counts = convert_with(values, name, out, frame.dtype, piece.chain, operands, frame.double, work.chunk)
    if not whole:
        rearrange(target, out.reshape(shape))
    return target, counts


def _operand(work: Workspace, frame: Frame, piece: Block, k: int) -> Buffer:
    """Give operand ``k`` of a piece, with an axis of 1 for each dim whose steps share its elements."""
    slot, value, chain, _ = piece.operands[k]
    dims = dims_of(piece.dims, k + 1)
    block = Block(slot, value, place_of(piece.src, k + 1), 0, tuple(d for d in dims if d[2]), chain)
    return evaluate(work, frame, block, None)[0].reshape([n if stride else 1 for n, _, stride in dims])


def _packed(work: Workspace, values: Buffer) -> Buffer:
    flat = work.take(values.size, values.dtype)
    rearrange(flat.reshape(values.shape), values)
    return flat


def _values(work: Workspace, frame: Frame, piece: Block, reserve: int) -> Buffer:
    """Read the elements of a piece: an array of its dims' shape, of any strides; leave ``reserve`` bytes of memory."""
    source = frame.sources[piece.slot]
    dtype = numpy_dtype(source.dtype)
    shape = tuple(n for n, _, _ in piece.dims)
    if isinstance(source, PatternSource):
        return _pattern(source, _positions(piece.src, piece.dims)).astype(dtype)
    if isinstance(source, ScaleSource):
        return _scales(work, source, _positions(piece.src, piece.dims))
    size = dtype.itemsize
    extents = tuple((n, ss) for n, _, ss in piece.dims)
    reads = plan_reads(extents, size, max(piece.size * size, work.room - reserve))
    buffer = work.take(reads.elements, dtype)
    base = source.offset + piece.src * size
    starts = (base + start * size for start in reads.starts())
    work.files.read_pieces(source.file, bytes_of(buffer), reads.length * size, starts)
    return np.ndarray(shape, dtype, buffer, 0, tuple(s * size for s in reads.strides))


def _positions(start: int, dims: Dims) -> Buffer:
    """Give where the elements of a piece stand in the row-major order of a source."""
    index = np.full((1,) * len(dims), start, np.int64)
    for axis, (n, _, ss) in enumerate(dims):
        shape = [1] * len(dims)
        shape[axis] = n
        index = index + (np.arange(n, dtype=np.int64) * ss).reshape(shape)
    return index


def _pattern(source: PatternSource, index: Buffer) -> Buffer:
    """Compute elements of a pattern as integers."""
    columns = source.shape[-1] if source.shape else 1
    if source.kind == "arange":
        return np.asarray(index % columns)
    rows = source.shape[-2]
    return np.asarray((index % columns <= index // columns % rows).astype(np.int64))


def _scales(work: Workspace, source: ScaleSource, index: Buffer) -> Buffer:
    """Look up scales, computing those of neighbouring rows at a time."""
    item = DTYPES["F64" if source.double else "F32"].bits // 8
    step = max(1, work.memory // 4 // (source.value.shape[1] * 2 * item or 1))
    flat = index.reshape(-1)
    out = np.empty(flat.shape, np.float32)
    for number, where in _grouped(flat // step):
        start, stop = number * step, min((number + 1) * step, source.shape[0])
        found = work.shared.get((source, number), partial(_compute_scales, work, source, start, stop))
        out[where] = found[flat[where] - start]
    return out.reshape(index.shape)


def _grouped(numbers: Buffer) -> Iterator[tuple[int, Buffer]]:
    """Yield each number that occurs, with where it does."""
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    for where in np.split(order, np.flatnonzero(ordered[1:] != ordered[:-1]) + 1):
        yield int(numbers[where[0]]), where


def _compute_scales(work: Workspace, source: ScaleSource, start: int, stop: int) -> Buffer:
    """Read some rows of a matrix, parts of one if it is long, and give their scales."""
    frame, width = Frame("F64" if source.double else "F32", source.sources, source.double), source.value.shape[1]
    dtype, mark, total = numpy_dtype(frame.dtype), work.mark, prod(source.value.shape)
    found = np.zeros(stop - start, dtype)
    step = width if stop - start > 1 else max(1, min(width, work.memory // 4 // (2 * dtype.itemsize)))
    for at in range(0, width, step):
        size = min(step, width - at)
        part = work.take((stop - start) * size, dtype)
        assemble(work, frame, source.value.blocks, start * width + at, part, total)
        np.maximum(found, largest_magnitudes(part.reshape(stop - start, size)), out=found)
        work.reset(mark)
    return scales_of(found, source.largest)
