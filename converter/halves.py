"""float16 to and from float32, in vector steps on the bits; numpy's own casts take two to three times as long."""

from __future__ import annotations

import numpy as np

from converter.kernels import Buffer

MAGNITUDE = np.uint32(0x7FFFFFFF)
SMALLEST = np.uint32(0x38800000)  # 2**-14, the smallest float32 whose float16 is normal
NORMAL = np.uint32(0x47800000 - 0x38800000)  # from there to 2**16
REBIAS = np.uint32((0xFFF - (112 << 23)) % 2**32)  # exponents less 112, and what rounds half up
SIGN = np.uint32(0x80000000)


def to_half(values: Buffer, out: Buffer) -> None:
    """Round flat float32 to float16, to nearest even; what is not a normal float16 is left to numpy."""
    bits = values.view(np.uint32)
    magnitude = bits & MAGNITUDE
    scratch = magnitude - SMALLEST
    rare = np.flatnonzero(scratch >= NORMAL)
    if len(rare) * 4 > len(values):
        np.copyto(out, values, casting="unsafe")
        return
    np.right_shift(magnitude, 13, out=scratch)
    np.bitwise_and(scratch, 1, out=scratch)
    np.add(magnitude, scratch, out=magnitude)
    np.add(magnitude, REBIAS, out=magnitude)
    np.right_shift(magnitude, 13, out=magnitude)
    np.right_shift(bits, 16, out=scratch)
    np.bitwise_and(scratch, 0x8000, out=scratch)
    np.bitwise_or(magnitude, scratch, out=magnitude)
    np.copyto(out.view(np.uint16), magnitude, casting="unsafe")
    if len(rare):
        out[rare] = values[rare].astype(np.float16)


def from_half(values: Buffer, out: Buffer) -> None:
    """Widen flat float16 to float32, exactly; where there are infinities or NaN, numpy does."""
    bits = out.view(np.uint32)
    np.copyto(out.view(np.int32), values.view(np.int16))  # extends the sign
    sign = bits & SIGN
    np.bitwise_and(bits, np.uint32(0x7FFF), out=bits)
    if len(values) and bits.max() >= 0x7C00:
        np.copyto(out, values)
        return
    np.left_shift(bits, 13, out=bits)
    np.multiply(out, np.float32(2.0**112), out=out)
    np.bitwise_or(bits, sign, out=bits)
