"""How a block that does not fit into memory is walked: the extents of its boxes, and the reads that fill one.

A block's dims are (steps, dst stride, src stride) in elements, sorted by dst stride; the extents of a box say how many
steps of each it takes. Numbers only: no data, no numpy.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from math import prod
from typing import NamedTuple

from converter.layout import Dims

CALL_BYTES = 8192  # bytes that memory moves in the time of one system call and its Python
WRITE_CALLS = 2  # reads that a small write costs: the system also looks for its page
GAP_BYTES = 4096  # bytes between two runs that are rather read along than skipped
BOX_BYTES = 512 << 10  # bytes that memory moves in the time that a box costs in Python
CACHE_BYTES = 2 << 20  # boxes beyond this leave the cache between reading, computing and writing


class Reads(NamedTuple):
    """The reads of a box: each ``length`` elements, at ``starts`` (elements), and how its dims step in what was read.

    ``outer``: (steps, src stride) of the reads, the last one fastest; ``strides``: elements, one a dim of the box.
    """

    length: int
    outer: tuple[tuple[int, int], ...]
    strides: tuple[int, ...]

    @property
    def calls(self) -> int:
        """Number of reads."""
        return prod(n for n, _ in self.outer)

    @property
    def elements(self) -> int:
        """Elements read, with those between runs."""
        return self.length * self.calls

    def starts(self) -> Iterator[int]:
        """Yield where each read starts, relative to the first."""
        for steps in product(*(range(0, n * s, s) for n, s in self.outer)):
            yield sum(steps)


@lru_cache(maxsize=4096)
def plan_reads(extents: tuple[tuple[int, int], ...], size: int, limit: int) -> Reads:
    """Plan the reads of a box of (steps, src stride) dims with elements of ``size`` bytes.

    Runs that are near each other are read as one, as long as what is read is not more than ``limit`` bytes.
    """
    strides = [0] * len(extents)
    length, volume = 1, prod(n for n, _ in extents)
    outer: list[tuple[int, int]] = []
    packed = 0
    for k in sorted(range(len(extents)), key=lambda k: extents[k][1]):
        n, stride = extents[k]
        if n > 1 and not outer:
            longer = (n - 1) * stride + length
            volume //= n
            near = (stride - length) * size <= GAP_BYTES
            if stride <= length or (near and longer * volume * size <= limit):
                strides[k], length = stride, longer
                continue
            packed = length
            volume *= n
        if n > 1:
            strides[k] = packed
            packed *= n
            outer.append((n, stride))
    return Reads(length, tuple(reversed(outer)), tuple(strides))


def count_writes(extents: tuple[int, ...], dims: Dims) -> int:
    """Count the runs in the destination that a box consists of."""
    run, runs = 1, 1
    for n, (_, ds, _) in zip(reversed(extents), reversed(dims)):
        if runs == 1 and ds == run:
            run *= n
        else:
            runs *= n
    return runs


@lru_cache(maxsize=1024)
def choose_box(dims: Dims, read: int, write: int, extra: int, limit: int) -> tuple[int, ...]:
    """Choose the extents of the boxes in which a block is walked, so that reads and writes are few and long.

    ``read``, ``write`` and ``extra`` are bytes an element in the source (0: there is none), in the destination and of
    temporaries, ``limit`` the bytes of memory at hand. At least one element is taken, whatever the limit.
    """
    total = prod(n for n, _, _ in dims)
    most = max(1, limit // (read + write + extra))
    if total <= most and total * (read + write + extra) <= BOX_BYTES:
        return tuple(n for n, _, _ in dims)
    if len(dims) == 1 and dims[0][1] == 1 and dims[0][2] <= 1:
        return (min(most, max(1, CACHE_BYTES // 2 // write)),)
    best, best_cost = tuple(1 for _ in dims), float("inf")

    def cost_of(extents: tuple[int, ...]) -> float:
        return _cost(dims, extents, read, write, extra, limit) / prod(extents)

    by_dst = list(range(len(dims) - 1, -1, -1))
    by_src = sorted(by_dst, key=lambda k: (dims[k][2], dims[k][1])) if read else by_dst
    for i in range(total.bit_length() + 1):
        for j in range(total.bit_length() + 1):
            extents = _union(_fill(dims, by_dst, 1 << i), _fill(dims, by_src, 1 << j))
            volume = prod(extents)
            if volume > most:
                break
            cost = cost_of(extents)
            if cost < best_cost:
                best, best_cost = extents, cost
            if volume == total:
                break
    for k, quarters in product(range(len(dims)), (7, 6, 5)):  # what is left of the memory
        extents = (*best[:k], min(dims[k][0], best[k] * quarters // 4), *best[k + 1 :])
        if prod(extents) <= most and cost_of(extents) < best_cost:
            best, best_cost = extents, cost_of(extents)
    return tuple(-(-n // -(-n // b)) for (n, _, _), b in zip(dims, best))


def _cost(dims: Dims, extents: tuple[int, ...], read: int, write: int, extra: int, limit: int) -> float:
    """Estimate the time of a box, in bytes that memory could move in it."""
    volume = prod(extents)
    calls, moved = WRITE_CALLS * count_writes(extents, dims), volume * (write + extra)
    if read:
        room = limit - volume * (write + extra)
        reads = plan_reads(tuple((n, d[2]) for n, d in zip(extents, dims)), read, room)
        calls += reads.calls
        moved += reads.elements * read
    return calls * CALL_BYTES + moved * (1 if moved <= CACHE_BYTES else 1.5) + BOX_BYTES


def _fill(dims: Dims, order: list[int], volume: int) -> tuple[int, ...]:
    """Take ``volume`` elements, whole dims first, in the given order."""
    extents = [1] * len(dims)
    for k in order:
        extents[k] = min(dims[k][0], volume)
        volume = -(-volume // dims[k][0])
        if volume <= 1:
            break
    return tuple(extents)


def _union(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(max, a, b))


def walk(dims: Dims, box: tuple[int, ...]) -> Iterator[tuple[int, int, Dims]]:
    """Yield (dst, src, dims) of each box of a block, relative to its first element, in the destination's order."""
    ranges = (range(0, n, b) for (n, _, _), b in zip(dims, box))
    for at in product(*ranges):
        dst = sum(i * d[1] for i, d in zip(at, dims))
        src = sum(i * d[2] for i, d in zip(at, dims))
        yield dst, src, tuple((min(b, n - i), ds, ss) for i, b, (n, ds, ss) in zip(at, box, dims))
