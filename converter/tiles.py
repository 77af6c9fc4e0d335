"""Tiles and gathers cut into tasks that fit the memory: each reads, computes and writes one piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from converter.boxes import choose_box, walk
from converter.casts import convert
from converter.kernels import bytes_of, numpy_dtype
from converter.moves import Gather, Tile
from converter.pieces import Frame, Workspace, assemble, evaluate
from converter.spec import DTYPES
from converter.transfer import Worker
from converter.values import FileSource, Produce
from converter.virtual import Block

GATHER_BYTES = 4 << 20  # of a destination that is assembled, unless its sources are read in runs shorter than RUN_BYTES
RUN_BYTES = 4096

Task = Callable[[Worker], None]


def tile_tasks(tile: Tile, memory: int) -> Iterator[tuple[int, Task]]:
    """Part a tile into boxes: (bytes written, task)."""
    produce, block = tile.produce, tile.block
    frame = Frame(produce.dtype, produce.sources, tile.double)
    read, write, extra = frame.sizes(block)
    box = choose_box(block.first.dims, read, write, extra, frame.room((block,), memory))
    if read and len(box) < 2 and (not box or block.dims[0][1:] == (1, 1)) and not block.operands:
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
    step = chunk_elements(frame, gather.blocks, frame.room(gather.blocks, memory))
    size = DTYPES[produce.dtype].bits // 8
    for start in range(gather.start, gather.stop, step):
        stop = min(start + step, gather.stop)
        yield (stop - start) * size, _Chunk(produce, frame, gather.blocks, start, stop)


def chunk_elements(frame: Frame, blocks: Sequence[Block], memory: int) -> int:
    """Choose how many elements of a destination to assemble at a time, a whole number of periods where possible."""
    sizes = [frame.sizes(b) for b in blocks]
    need = max(2 * read + write + 2 * extra for read, write, extra in sizes) + sizes[0][1]
    most = max(1, memory // need)
    period = max((b.outline[0][1] for b in blocks if len(b.outline) > 1), default=1)
    scattered = any(b.outline and b.outline[-1][2] * sizes[k][0] >= RUN_BYTES for k, b in enumerate(blocks))
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
