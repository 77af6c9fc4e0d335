"""The work on one piece at a time: read a strided set of elements, cast and rearrange it, write it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np

from converter import casts
from converter.boxes import choose_box, plan_reads, walk
from converter.casts import Counts, convert
from converter.kernels import SCRATCH_BYTES, Buffer, bytes_of, numpy_dtype, rearrange
from converter.layout import Dims
from converter.moves import Gather, Tile
from converter.spec import DTYPES
from converter.transfer import Files, Worker
from converter.values import FileSource, PatternSource, Produce, Source
from converter.virtual import CONSTANT, Block, clip

GATHER_BYTES = 4 << 20  # of a destination that is assembled, unless its sources are read in runs shorter than RUN_BYTES
RUN_BYTES = 4096
SLACK = 1024  # bytes lost to alignment
PATTERN_BYTES = 40  # of temporaries an element of a computed source

Task = Callable[[Worker], None]


def chunk_of(memory: int) -> int:
    """Give the elements that are cast at a time, so that temporaries take no more than a quarter of the memory."""
    return max(16, min(casts.CHUNK, memory // 4 // casts.TEMPORARY))


def usable(memory: int) -> int:
    """Give the bytes of a thread's memory that are left for what is read and written."""
    return max(0, memory - chunk_of(memory) * casts.TEMPORARY - min(SCRATCH_BYTES, memory // 3))


class Workspace(Worker):
    """A worker with one piece of memory that it cuts up anew for each task."""

    def __init__(self, files: Files, memory: int) -> None:
        super().__init__(files)
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
        if isinstance(source, PatternSource):
            return 0, write, read + PATTERN_BYTES
        return read, write, 0 if self.plain(block) else read

    def plain(self, block: Block) -> bool:
        """Tell whether a block keeps its bits."""
        return not block.chain and block.slot != CONSTANT and self.sources[block.slot].dtype == self.dtype


def tile_tasks(tile: Tile, memory: int) -> Iterator[tuple[int, Task]]:
    """Part a tile into boxes: (bytes written, task)."""
    produce, block = tile.produce, tile.block
    frame = Frame(produce.dtype, produce.sources, tile.double)
    read, write, extra = frame.sizes(block)
    box = choose_box(block.dims, read, write, extra, memory)
    if read and len(box) < 2 and (not box or block.dims[0][1:] == (1, 1)):
        total, step = (block.dims[0][0], box[0]) if box else (1, 1)
        for at in range(0, total, step):
            size = min(step, total - at)
            yield size * write, _Run(produce, frame, block, at, size)
        return
    for dst, src, dims in walk(block.dims, box):
        piece = block._replace(dst=block.dst + dst, src=block.src + src, dims=dims)
        yield piece.size * write, _Box(produce, frame, piece)


def gather_tasks(gather: Gather, memory: int) -> Iterator[tuple[int, Task]]:
    """Part a gather into chunks of the destination: (bytes written, task)."""
    produce = gather.produce
    frame = Frame(produce.dtype, produce.sources, gather.double)
    step = chunk_elements(frame, gather.blocks, memory)
    size = DTYPES[produce.dtype].bits // 8
    for start in range(gather.start, gather.stop, step):
        stop = min(start + step, gather.stop)
        yield (stop - start) * size, _Chunk(produce, frame, gather.blocks, start, stop)


def chunk_elements(frame: Frame, blocks: Sequence[Block], memory: int) -> int:
    """Choose how many elements of a destination to assemble at a time, a whole number of periods where possible."""
    sizes = [frame.sizes(b) for b in blocks]
    need = max(2 * read + write + 2 * extra for read, write, extra in sizes) + sizes[0][1]
    most = max(1, memory // need)
    period = max((b.dims[0][1] for b in blocks if len(b.dims) > 1), default=1)
    scattered = any(b.dims and b.dims[-1][2] * sizes[k][0] >= RUN_BYTES for k, b in enumerate(blocks))
    step = most if scattered else min(most, max(GATHER_BYTES // sizes[0][1], min(period, most)))
    return step // period * period if step >= period else step


@dataclass(frozen=True, slots=True)
class _Run:
    """A range of a block that is contiguous in its source and in the tensor: read, cast, written, and nothing else."""

    produce: Produce
    frame: Frame
    block: Block
    start: int
    size: int

    def __call__(self, work: Worker) -> None:
        assert isinstance(work, Workspace)
        work.reset()
        produce, frame, block = self.produce, self.frame, self.block
        source = frame.sources[block.slot]
        assert isinstance(source, FileSource)
        src = work.take(self.size, numpy_dtype(source.dtype))
        out = work.take(self.size, numpy_dtype(frame.dtype))
        work.files.read(source.file, bytes_of(src), source.offset + (block.src + self.start) * src.itemsize)
        counts = convert(src, source.dtype, out, frame.dtype, block.chain, frame.double, work.chunk)
        work.count(produce.name, counts)
        work.files.write(produce.file, bytes_of(out), produce.offset + (block.dst + self.start) * out.itemsize)


@dataclass(frozen=True, slots=True)
class _Box:
    produce: Produce
    frame: Frame
    piece: Block

    def __call__(self, work: Worker) -> None:
        assert isinstance(work, Workspace)
        work.reset()
        produce, piece = self.produce, self.piece
        values, counts = evaluate(work, self.frame, piece, None)
        work.count(produce.name, counts)
        size = values.itemsize
        data = bytes_of(values.reshape(-1))
        length = 1
        outer = list(piece.dims)
        while outer and outer[-1][1] == length:
            length *= outer.pop()[0]
        base, ranges = produce.offset + piece.dst * size, [range(0, n * ds * size, ds * size) for n, ds, _ in outer]
        work.files.write_pieces(produce.file, data, length * size, [base + sum(steps) for steps in product(*ranges)])


@dataclass(frozen=True, slots=True)
class _Chunk:
    produce: Produce
    frame: Frame
    blocks: Sequence[Block]
    start: int
    stop: int

    def __call__(self, work: Worker) -> None:
        assert isinstance(work, Workspace)
        work.reset()
        produce = self.produce
        out = work.take(self.stop - self.start, numpy_dtype(self.frame.dtype))
        work.count(produce.name, assemble(work, self.frame, self.blocks, self.start, out, prod(produce.value.shape)))
        data = bytes_of(out)
        work.files.write(produce.file, data, produce.offset + self.start * out.itemsize)


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
        return _pattern(source, piece.src, piece.dims).astype(dtype)
    size = dtype.itemsize
    extents = tuple((n, ss) for n, _, ss in piece.dims)
    reads = plan_reads(extents, size, max(piece.size * size, work.room - reserve))
    buffer = work.take(reads.elements, dtype)
    base = source.offset + piece.src * size
    starts = (base + start * size for start in reads.starts())
    work.files.read_pieces(source.file, bytes_of(buffer), reads.length * size, starts)
    return np.ndarray(shape, dtype, buffer, 0, tuple(s * size for s in reads.strides))


def _pattern(source: PatternSource, start: int, dims: Dims) -> Buffer:
    """Compute the elements of a pattern as integers; positions are in row-major order."""
    index = np.full((1,) * len(dims), start, np.int64)
    for axis, (n, _, ss) in enumerate(dims):
        shape = [1] * len(dims)
        shape[axis] = n
        index = index + (np.arange(n, dtype=np.int64) * ss).reshape(shape)
    columns = source.shape[-1] if source.shape else 1
    if source.kind == "arange":
        return np.asarray(index % columns)
    rows = source.shape[-2]
    return np.asarray((index % columns <= index // columns % rows).astype(np.int64))
