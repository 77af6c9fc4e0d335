"""Values that share factors: arithmetic with operands in pieces that fit the caches, and the factors themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from converter.arrays import Arith
from converter.casts import CHUNK, NONE, TINY, Counts, Step, compute
from converter.kernels import Buffer

SMALLEST = np.float32(2.0**-126)  # the smallest normal float32: a smaller factor would not be exact


def convert_with(
    src: Buffer,
    source: str,
    dst: Buffer,
    target: str,
    chain: Sequence[Arith],
    operands: Sequence[Buffer],
    double: bool,
    chunk: int = CHUNK,
) -> Counts:
    """Cast a contiguous array of any shape into a flat one of as many elements, through arithmetic with operands.

    ``operands`` are float32 (float64 if ``double``) with as many axes as ``src``, of its size or of 1. The rest is as
    in :func:`converter.casts.convert`.
    """
    total = NONE
    vanishing = any(np.any(np.abs(o) < TINY) for o in operands)
    with np.errstate(all="ignore"):
        for at, piece in slabs(src.shape, chunk):
            part = src[piece] if src.ndim else src
            others = [o[tuple(p if n > 1 else slice(None) for p, n in zip(piece, o.shape))] for o in operands]
            out = dst[at : at + part.size]
            step = Step(chain, double, tuple(others), part.shape, vanishing)
            counts = compute(part.reshape(-1), source, out, target, step)
            if counts is not NONE:
                total = total.plus(counts)
    return total


def slabs(shape: tuple[int, ...], size: int) -> Iterator[tuple[int, tuple[slice, ...]]]:
    """Cut an array into pieces of at most ``size`` elements that are contiguous in it: (first element, piece)."""
    axis, inner = len(shape), 1
    while axis and inner * shape[axis - 1] <= size:
        axis -= 1
        inner *= shape[axis]
    if not axis:
        yield 0, tuple(slice(None) for _ in shape)
        return
    axis -= 1
    step = max(1, size // inner)
    at = 0
    for outer in product(*(range(n) for n in shape[:axis])):
        for start in range(0, shape[axis], step):
            stop = min(start + step, shape[axis])
            yield at, (*(slice(i, i + 1) for i in outer), slice(start, stop), *(slice(None) for _ in shape[axis + 1 :]))
            at += (stop - start) * inner


def largest_magnitudes(matrix: Buffer) -> Buffer:
    """Give the largest finite magnitude of each row of a matrix of floats (which it spoils), 0 where there is none."""
    magnitudes = np.abs(matrix, out=matrix)
    found: Buffer = magnitudes.max(axis=1, initial=0)
    odd = ~np.isfinite(found)
    if odd.any():
        rows = magnitudes[odd]
        rows[~np.isfinite(rows)] = 0
        found[odd] = rows.max(axis=1, initial=0)
    return found


def scales_of(magnitudes: Buffer, largest: float) -> Buffer:
    """Give the float32 scales that bring magnitudes to ``largest`` or below: 1 for 0, and else a normal number."""
    scales: Buffer = (magnitudes / magnitudes.dtype.type(largest)).astype(np.float32)
    np.maximum(scales, SMALLEST, out=scales)
    scales[magnitudes == 0] = 1
    return scales
