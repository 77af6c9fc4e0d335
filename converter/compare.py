"""Comparisons of values that need not be written: two tensors are brought to one dtype and compared byte by byte."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from converter.errors import MismatchError
from converter.kernels import Buffer, numpy_dtype
from converter.moves import check_castable
from converter.packed import in_bytes
from converter.pieces import Frame, Workspace, assemble
from converter.spec import DTYPES, Shape
from converter.tiles import Task, chunk_elements
from converter.transfer import Worker
from converter.values import Compare
from converter.virtual import Virtual


@dataclass(frozen=True)
class Difference:
    """A comparison that failed: how many of ``total`` elements differ, and the first of them with its two values."""

    label: object
    count: int
    total: int
    index: tuple[int, ...]
    left: str
    right: str


@dataclass(frozen=True, slots=True)
class _Pair:
    number: int
    sides: tuple[tuple[Frame, Virtual], ...]
    start: int
    stop: int

    def __call__(self, work: Worker) -> None:
        assert isinstance(work, Workspace)
        work.reset()
        arrays = [work.take(self.stop - self.start, numpy_dtype(frame.dtype)) for frame, _ in self.sides]
        for out, (frame, value) in zip(arrays, self.sides):
            assemble(work, frame, value.blocks, self.start, out, prod(value.shape))
        word = f"u{arrays[0].itemsize}"
        differs = arrays[0].view(word) != arrays[1].view(word)
        count = int(np.count_nonzero(differs))
        if count:
            first = int(np.argmax(differs))
            texts = _texts(arrays[0][first : first + 1], arrays[1][first : first + 1])
            work.differences.append((self.number, count, self.start + first, texts))


def compare_tasks(number: int, compare: Compare, memory: int) -> Iterator[tuple[int, Task]]:
    """Part a comparison into chunks of the row-major order: (0 bytes written, task)."""
    sides = tuple(_side(compare, value) for value in (compare.left, compare.right))
    if compare.left.shape != compare.right.shape:
        raise MismatchError(f"shapes {list(compare.left.shape)} and {list(compare.right.shape)} cannot be equal")
    total = prod(sides[0][1].shape)
    if not total:
        return
    room = memory * 3 // 4  # the second side's array, and which elements differ
    step = max(1, min(chunk_elements(f, v.blocks, f.room(v.blocks, room)) for f, v in sides) // 2)
    for start in range(0, total, step):
        yield 0, _Pair(number, sides, start, min(start + step, total))


def _side(compare: Compare, value: Virtual) -> tuple[Frame, Virtual]:
    dtype, sources = compare.dtype, compare.sources
    if DTYPES[dtype].kind == "packed":
        dtype, value, sources = in_bytes(dtype, value, sources)
    return Frame(dtype, sources, check_castable(dtype, sources, value.blocks)), value


def difference(compare: Compare, chunks: list[tuple[int, int, tuple[str, str]]]) -> Difference:
    """Sum up the (count, first index, texts) of the chunks of a comparison that differ."""
    shape = compare.left.shape
    _, first, texts = min(chunks, key=lambda c: c[1])
    bits = DTYPES[compare.dtype].bits
    if bits < 8:
        first = first * 8 // bits  # compared as bytes
    return Difference(compare.label, sum(c[0] for c in chunks), prod(shape), _multi(first, shape), *texts)


def _multi(index: int, shape: Shape) -> tuple[int, ...]:
    out: list[int] = []
    for n in reversed(shape):
        out.append(index % n)
        index //= n
    return tuple(reversed(out))


def _texts(left: Buffer, right: Buffer) -> tuple[str, str]:
    """Write two values; with their bytes where the numbers look the same (-0.0, payloads of NaN)."""
    texts = [str(a.item() if a.dtype.kind in "iubc" else float(a[0])) for a in (left, right)]
    if texts[0] == texts[1]:
        texts = [f"{t} ({a[::-1].tobytes()[::-1].hex()})" for t, a in zip(texts, (left, right))]
    return texts[0], texts[1]
