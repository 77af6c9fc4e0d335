"""numpy dtypes of the safetensors names, and the copy that changes the order of elements."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import numpy as np

from converter.spec import DTYPES

Buffer = np.ndarray[Any, np.dtype[Any]]

STRIP = 64  # columns of the destination that are written together: whole cache lines
STRIP_BYTES = 4096  # of the source that one row of a strip reads
PLAIN_BYTES = 128 << 10  # numpy's own order is as good for what fits in the second-level cache


@cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """Give the numpy dtype of a safetensors name; that of ``ml_dtypes`` where numpy has none."""
    text = DTYPES[name].numpy
    try:
        return np.dtype(text)
    except TypeError:
        import ml_dtypes

        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, text))
        return dtype


def works_in_double(dtype: np.dtype[Any]) -> bool:
    """Tell whether arithmetic on a dtype takes float64: 64-bit floats, integers and booleans."""
    return dtype.kind in "iub" or dtype == np.float64


def bytes_of(flat: Buffer) -> memoryview:
    """Give the bytes of a flat, contiguous array, to read into or to write."""
    return memoryview(flat.view(np.uint8))  # type: ignore[arg-type]  # an array is a buffer; typeshed learnt it in 3.12


def rearrange(dst: Buffer, src: Buffer) -> None:
    """Copy elements bit by bit between strided arrays of one shape and element size, in strips that fit the caches.

    Where the innermost axes swap, a strip of the source is first copied, row by row, to a scratch whose rows do not
    fall on the same cache sets; powers of two, the usual sizes of weights, else evict each other.
    """
    word = np.dtype(f"u{dst.itemsize}")
    dst, src = dst.view(word), src.view(word)
    if src.ndim < 2 or src.nbytes <= PLAIN_BYTES:
        dst[...] = src
        return
    axes = sorted((a for a in range(src.ndim) if src.shape[a] > 1), key=lambda a: -dst.strides[a])
    if len(axes) < 2:
        dst[...] = src
        return
    column = axes[-1]
    row = min(axes, key=lambda a: src.strides[a])
    if row == column or src.shape[row] * src.shape[column] * word.itemsize <= PLAIN_BYTES:
        dst[...] = src
        return
    rest = [a for a in range(src.ndim) if a not in (row, column)]
    dst, src = dst.transpose(*rest, row, column), src.transpose(*rest, row, column)
    width = STRIP_BYTES // word.itemsize
    scratch = np.empty((STRIP, width + 64 // word.itemsize), word)
    for index in product(*(range(n) for n in src.shape[:-2])):
        _transpose(dst[index], src[index], scratch, width)


def _transpose(dst: Buffer, src: Buffer, scratch: Buffer, width: int) -> None:
    """Copy a matrix whose columns lie side by side in ``src``, and whose rows do in ``dst``."""
    rows, columns = src.shape
    for column in range(0, columns, STRIP):
        for row in range(0, rows, width):
            piece = src[row : row + width, column : column + STRIP]
            strip = scratch[: piece.shape[1], : piece.shape[0]]
            strip[...] = piece.T
            dst[row : row + width, column : column + STRIP] = strip.T
