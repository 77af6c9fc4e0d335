"""float8 to and from float32 in vector steps; the casts of ml_dtypes take ten to thirty times as long."""

from __future__ import annotations

from functools import cache

import numpy as np

from converter.kernels import Buffer, numpy_dtype

MAGNITUDE = np.uint32(0x7FFFFFFF)
FEW = 256  # elements for which a table of pairs is not worth its cache


@cache
def _table(source: str) -> Buffer:
    return np.arange(256, dtype=np.uint8).view(numpy_dtype(source)).astype(np.float32)


@cache
def _pairs(source: str) -> Buffer:
    """The float32 values of each two neighbours, as one element."""
    pairs = np.arange(1 << 16, dtype=np.uint16).view(np.uint8)
    return _table(source)[pairs].view(np.float64)


def from_eighth(values: Buffer, source: str) -> Buffer:
    """Widen flat, contiguous float8 (``source``: its safetensors name) to float32, exactly."""
    size = len(values) & ~1
    words = values.view(np.uint8)
    if size < FEW:
        return np.asarray(_table(source)[words])
    out = np.empty(len(values), np.float32)
    np.take(_pairs(source), words[:size].view(np.uint16), out=out[:size].view(np.float64), mode="clip")
    out[size:] = _table(source)[words[size:]]
    return out


# Mantissa bits, bias, and the magnitude from which on a value may not fit (half a step above the largest).
ROUNDED = {"F8_E4M3": (3, 7, 464.0), "F8_E5M2": (2, 15, 61440.0)}


def to_eighth(values: Buffer, out: Buffer, target: str) -> None:
    """Round flat float32 to float8, to nearest even; what is not a normal number of it is left to ml_dtypes."""
    mantissa, bias, limit = ROUNDED[target]
    shift = 23 - mantissa
    smallest = np.uint32((128 - bias) << 23)
    rebias = np.uint32(((1 << (shift - 1)) - 1 - ((127 - bias) << 23)) % (1 << 32))  # exponents, and half up
    bits = values.view(np.uint32)
    magnitude = bits & MAGNITUDE
    scratch = magnitude - smallest
    rare = np.flatnonzero(scratch >= np.float32(limit).view(np.uint32) - smallest)
    if len(rare) * 4 > len(values):
        np.copyto(out, values, casting="unsafe")
        return
    np.right_shift(magnitude, shift, out=scratch)
    np.bitwise_and(scratch, 1, out=scratch)
    np.add(magnitude, scratch, out=magnitude)
    np.add(magnitude, rebias, out=magnitude)
    np.right_shift(magnitude, shift, out=magnitude)
    np.right_shift(bits, 24, out=scratch)
    np.bitwise_and(scratch, 0x80, out=scratch)
    np.bitwise_or(magnitude, scratch, out=magnitude)
    np.copyto(out.view(np.uint8), magnitude, casting="unsafe")
    if len(rare):
        out[rare] = values[rare].astype(out.dtype)
