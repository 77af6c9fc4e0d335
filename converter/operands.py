"""Elements of more than one origin: a step of arithmetic that takes a second array, its operand.

Cutting, permuting and joining are linear in the places of elements and in strides. So the places that a block has in
several arrays travel as one whole number, each in binary digits of its own, the first array's lowest: whatever is done
to a block is done to all of them, and nothing but this module knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Protocol, TypeVar

from converter.layout import Dim, Dims, normalise, split_rows

BITS = 64
HALF = 1 << (BITS - 1)
Run = tuple[int, int, int, int]  # first element of the array, count, place in its source, stride there


class Placed(Protocol):
    """Elements at ``src`` of somewhere that go to ``dst``: a block."""

    @property
    def src(self) -> int:
        """Where they begin there."""

    @property
    def dst(self) -> int:
        """Where they begin here."""

    @property
    def dims(self) -> Dims:
        """How they go on, here and there."""


B = TypeVar("B", bound=Placed)


def place_of(number: int, k: int) -> int:
    """Give the place in array ``k`` that a number holds (0: the first, k + 1: operand ``k``); it may be below 0."""
    for _ in range(k):
        number = (number - place_of(number, 0)) >> BITS
    return ((number + HALF) & (2 * HALF - 1)) - HALF


def held(place: int, k: int) -> int:
    """Give the number that holds a place in array ``k``, to be added to those of the others."""
    return place << (BITS * k)


def dims_of(dims: Dims, k: int) -> Dims:
    """Give the dims of a block in array ``k`` alone, dim for dim."""
    return tuple((n, ds, place_of(ss, k)) for n, ds, ss in dims)


def runs(blocks: Iterable[B]) -> Iterator[tuple[B, Run]]:
    """Part the blocks of an array of one axis into runs of neighbours that step evenly in their source."""
    for block in blocks:
        *outer, (count, ds, stride) = block.dims or ((1, 1, 0),)
        if ds != 1:
            outer, count, stride = list(block.dims), 1, 0
        for steps in product(*(range(n) for n, _, _ in outer)):
            at = block.dst + sum(i * d[1] for i, d in zip(steps, outer))
            yield block, (at, count, block.src + sum(i * d[2] for i, d in zip(steps, outer)), stride)


def beside_rows(block: Placed, width: int, run: Run, k: int) -> Iterator[tuple[int, int, Dims]]:
    """Give a block of a matrix the places of array ``k``, which has an element for each row; ``run`` says where.

    Row 0 of the matrix is the first of the run. Yields (dst, src, dims) of the pieces.
    """
    _, _, start, stride = run
    for row, rows, column, columns, src in split_rows(block.dst, block.src, block.dims, width):
        dims: list[Dim] = [(n, ds * width, ss + held(ds * stride, k)) for n, ds, ss in rows]
        yield row * width + column, src + held(start + row * stride, k), normalise((*dims, *columns))
