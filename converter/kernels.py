"""numpy dtypes of the safetensors names, and the copy that changes the order of elements."""

from __future__ import annotations

from functools import cache
from itertools import product
from math import prod
from typing import Any

import numpy as np

from converter.spec import DTYPES

Buffer = np.ndarray[Any, np.dtype[Any]]

# What goes through the scratch at a time: elements that are neighbours in the destination, bytes that are so in the
# source. Both runs are long enough for the caches to look ahead, and all of it fits the second level of most machines.
PIECE, BYTES_PIECE = (384, 768), (768, 384)  # the latter for elements of one byte
MANY = 64  # elements beyond which a copy for each entry of a short innermost axis is worth its calls
FEW_BYTES = 16  # of an innermost axis for which a loop in C costs more than it does
NEAR = 128  # cache lines that surely stay in the cache until all of each is used
PLAIN_BYTES = 128 << 10  # numpy's own order is as good for what fits in the second-level cache
SCRATCH_BYTES = PIECE[0] * PIECE[1] * 5 // 4  # what rearrange takes, at most


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
    """Copy elements bit by bit between strided arrays of one shape and element size, in pieces that fit the caches."""
    word = np.dtype(f"u{dst.itemsize}")
    dst, src = dst.view(word), src.view(word)
    axes = sorted((a for a in range(src.ndim) if src.shape[a] > 1), key=lambda a: -dst.strides[a])
    if len(axes) < 2:
        dst[...] = src
        return
    ones = [a for a in range(src.ndim) if src.shape[a] == 1]
    shape = tuple(src.shape[a] for a in axes)
    _rearrange(*_widened(dst.transpose(*axes, *ones).reshape(shape), src.transpose(*axes, *ones).reshape(shape)))


def _widened(dst: Buffer, src: Buffer) -> tuple[Buffer, Buffer]:
    """Take neighbours that stay neighbours as one element of up to 8 bytes."""
    size = src.itemsize
    if dst.strides[-1] == src.strides[-1] == size:
        while size < 8 and src.shape[-1] * src.itemsize % (2 * size) == 0:
            size *= 2
        if size > src.itemsize:
            dst, src = dst.view(f"u{size}"), src.view(f"u{size}")
            if src.shape[-1] == 1 and src.ndim > 1:
                return dst[..., 0], src[..., 0]
    return dst, src


def _rearrange(dst: Buffer, src: Buffer) -> None:
    """Copy between arrays without axes of one step, sorted by the strides of ``dst``."""
    few = src.shape[-1] * src.itemsize < FEW_BYTES
    longest = max(range(src.ndim), key=lambda a: src.shape[a])
    step = max(1, src.shape[longest] * PLAIN_BYTES // src.nbytes)
    if few and src.ndim > 1 and step < src.shape[longest]:
        for at in range(0, src.shape[longest], step):
            piece = (slice(None),) * longest + (slice(at, at + step),)
            _rearrange(dst[piece], src[piece])
        return
    if few and src.ndim > 1 and src.size > src.shape[-1] * MANY:
        for k in range(src.shape[-1]):
            dst[..., k] = src[..., k]
        return
    row = min(range(src.ndim), key=lambda a: src.strides[a])
    narrow = src.shape[row] * src.itemsize < FEW_BYTES
    if narrow or src.nbytes <= PLAIN_BYTES or prod(src.shape[row + 1 :]) <= NEAR:
        dst[...] = src
    else:
        _in_pieces(dst, src, row)


def _in_pieces(dst: Buffer, src: Buffer, row: int) -> None:
    """Copy piece by piece through a scratch that has the order of the source, whose innermost axis is ``row``.

    Its rows do not fall on the same cache sets, as rows do whose length is a power of two, a usual size of weights.
    """
    extents = [1] * src.ndim
    elements, length = BYTES_PIECE if src.itemsize == 1 else PIECE
    room = elements * length // src.itemsize
    limits = {src.ndim - 1: elements, row: length // src.itemsize}
    for axis in (src.ndim - 1, row, *(a for a in range(src.ndim - 2, -1, -1) if a != row)):
        extents[axis] = max(1, min(src.shape[axis], room, limits.get(axis, room)))
        room //= extents[axis]
    order = sorted(range(src.ndim), key=lambda a: -src.strides[a])
    back = [order.index(a) for a in range(src.ndim)]
    gap = 64 if extents[row] * src.itemsize >= 256 else 0
    scratch = np.empty([extents[a] for a in order[:-1]] + [extents[row] + gap // src.itemsize], src.dtype)
    for start in product(*(range(0, n, e) for n, e in zip(src.shape, extents))):
        piece = tuple(slice(at, at + e) for at, e in zip(start, extents))
        values = src[piece].transpose(order)
        held = scratch[tuple(slice(0, n) for n in values.shape)]
        held[...] = values
        dst[piece] = held.transpose(back)
