"""Changes of dtype and arithmetic on flat arrays: rounded once, to nearest even, with a count of what does not fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from converter.arrays import Arith
from converter.eighths import ROUNDED, from_eighth, to_eighth
from converter.halves import from_half, to_half
from converter.kernels import Buffer, numpy_dtype
from converter.spec import DTYPES

CHUNK = 32768  # elements cast at a time where temporaries are needed: they stay in the second-level cache
TEMPORARY = 32  # bytes of temporaries an element, at most

WIDER = {("F32", "F64"), *((n, "F64") for n in ("F16", "BF16")), *((n, "F32") for n in ("F16", "BF16"))}
INFINITY = {"F64": 0x7FF << 52, "F32": 0x7F8 << 20, "F16": 0x7C00, "BF16": 0x7F80, "F8_E5M2": 0x7C}
# Of the dtypes without infinity: the bits of the largest number, and those of NaN under a mask.
LARGEST = {"F8_E4M3": 0x7E, "F8_E4M3FNUZ": 0x7F, "F8_E5M2FNUZ": 0x7F, "F8_E8M0": 0xFE}
NAN = {"F8_E4M3": (0x7F, 0x7F), "F8_E4M3FNUZ": (0xFF, 0x80), "F8_E5M2FNUZ": (0xFF, 0x80), "F8_E8M0": (0xFF, 0xFF)}
TINY = 2.0**-100  # a factor that is not smaller makes no float8 vanish in float32


class Counts(NamedTuple):
    """Values that a cast could not keep.

    ``overflow``: finite ones that became infinite, not a number, or the largest number of a dtype without infinity;
    ``underflow``: others than zero that became zero; ``inexact``: values changed by a cast from or to an integer or
    boolean dtype.
    """

    overflow: int = 0
    underflow: int = 0
    inexact: int = 0

    def plus(self, other: Counts) -> Counts:
        """Add two counts."""
        return Counts(*(a + b for a, b in zip(self, other)))


NONE = Counts()


def convert(
    src: Buffer, source: str, dst: Buffer, target: str, chain: Sequence[Arith], double: bool, chunk: int = CHUNK
) -> Counts:
    """Cast a flat, contiguous array into another of the same length, through arithmetic if there is any.

    ``source`` and ``target`` are safetensors names of the dtypes that the arrays have; ``double``: compute in float64
    instead of float32; ``chunk``: elements at a time. Without arithmetic and between equal dtypes, bits are kept.
    """
    if not chain and source == target:
        dst.view(f"u{dst.itemsize}")[...] = src.view(f"u{src.itemsize}")
        return NONE
    if not chain and (source, target) == ("F16", "F32"):
        for at in range(0, len(src), chunk):
            from_half(src[at : at + chunk], dst[at : at + chunk])
        return NONE
    if not chain and (source, target) in WIDER:
        with np.errstate(invalid="ignore"):  # a signalling NaN
            np.copyto(dst, src, casting="unsafe")
        return NONE
    total = NONE
    narrow = _narrow(target)
    with np.errstate(all="ignore"):
        for at in range(0, len(src), chunk):
            part, out = src[at : at + chunk], dst[at : at + chunk]
            if chain:
                counts = compute(part, source, out, target, Step(chain, double))
            elif DTYPES[source].kind in ("int", "bool"):
                counts = _from_integer(part, source, out, target)
            else:
                counts = narrow(part if source == "F64" else widen(part, source), out)
            if counts is not NONE:
                total = total.plus(counts)
    return total


def apply_chain(values: Buffer, chain: Sequence[Arith], operands: Sequence[Buffer] = ()) -> None:
    """Apply arithmetic to an array of float32 or float64, in place; numpy spreads operands to its shape."""
    with np.errstate(all="ignore"):
        for step in chain:
            other = values.dtype.type(step.value) if step.operand is None else operands[step.operand]
            if step.kind == "add":
                np.add(values, other, out=values)
            elif step.kind == "multiply":
                np.multiply(values, other, out=values)
            elif step.kind == "divide" and step.operand is not None and not np.all(other):
                np.divide(values, other, out=values, where=(other != 0) | (values != 0))  # 0 / 0: a block of zeros
            elif step.kind == "divide":
                np.divide(values, other, out=values)
            elif step.kind == "exp":
                np.exp(values, out=values)
            elif step.kind == "log":
                np.log(values, out=values)
            else:
                raise ValueError(f"no arithmetic is called {step.kind}")


def widen(values: Buffer, source: str) -> Buffer:
    """Give flat, contiguous values of 32 bits or fewer as float32; the same array where they are."""
    if DTYPES[source].kind == "float8":
        return from_eighth(values, source)
    return values.astype(np.float32, copy=False)


class Step(NamedTuple):
    """Arithmetic in float32, or float64 if ``double``; numpy spreads its operands to ``shape``.

    ``vanishing``: an operand may make zeros of other numbers, which then are counted.
    """

    chain: Sequence[Arith]
    double: bool
    operands: Sequence[Buffer] = ()
    shape: tuple[int, ...] = (-1,)
    vanishing: bool = False


def compute(src: Buffer, source: str, dst: Buffer, target: str, step: Step) -> Counts:
    """Put some flat values through arithmetic, and round them."""
    wide = src.astype(np.float64) if step.double else widen(src, source)
    values = wide.copy() if wide is src else wide
    nonzero = int(np.count_nonzero(values)) if step.vanishing else 0
    apply_chain(values.reshape(step.shape), step.chain, step.operands)
    counts = _narrow(target)(values, dst)
    lost = ~np.isfinite(values)
    if lost.any():
        lost &= np.isfinite(src.astype(values.dtype))
        if target in LARGEST:
            lost &= np.isnan(values)  # the infinite ones are counted by who rounds them
        counts = counts.plus(Counts(overflow=int(np.count_nonzero(lost))))
    if nonzero:
        counts = counts.plus(Counts(underflow=max(0, nonzero - int(np.count_nonzero(values)))))
    return counts


@cache
def _narrow(target: str) -> Callable[[Buffer, Buffer], Counts]:
    """Give the function that rounds float32 or float64 values to a dtype and counts what does not fit."""
    kind = DTYPES[target].kind
    if kind == "bool":
        return _to_bool
    if kind == "int":
        return _to_integer
    if kind == "complex":
        return _to_complex
    if target in LARGEST:
        return lambda values, out: _to_saturating(values, out, target)
    return lambda values, out: _to_float(values, out, target)


def _to_float(values: Buffer, out: Buffer, target: str) -> Counts:
    if values.dtype == out.dtype:
        np.copyto(out, values)
        return NONE
    if out.dtype == np.float16 and values.dtype == np.float32:
        to_half(values, out)
    else:
        _round(_single(values, out), out, target)
    infinity = INFINITY[target]
    bits = out.view(f"u{out.itemsize}") & np.array(2 ** (8 * out.itemsize - 1) - 1, f"u{out.itemsize}")
    overflow = int(np.count_nonzero(bits == infinity))
    if overflow:
        overflow -= int(np.count_nonzero(np.isinf(values)))
    return _counted(overflow, _underflow(values, bits))


def _to_saturating(values: Buffer, out: Buffer, target: str) -> Counts:
    """Round to a dtype without infinity: what is beyond its largest number becomes that, and is counted."""
    _round(_single(values, out), out, target)
    bits = out.view(np.uint8)
    mask, nan = NAN[target]
    beyond = bits & mask == nan
    if beyond.any():
        beyond &= ~np.isnan(values)
    overflow = int(np.count_nonzero(beyond))
    if overflow:
        if target == "F8_E8M0":  # powers of two only: no sign, and no zero
            bits[beyond] = np.where(values[beyond] > 0, LARGEST[target], 0)
        else:
            bits[beyond] = np.where(np.signbit(values[beyond]), LARGEST[target] | 0x80, LARGEST[target])
    if target == "F8_E8M0":
        return _counted(overflow, 0)
    return _counted(overflow, _underflow(values, bits & 0x7F if target == "F8_E4M3" else bits))  # others lack -0


def _round(values: Buffer, out: Buffer, target: str) -> None:
    if target in ROUNDED:
        to_eighth(values, out, target)
    else:
        np.copyto(out, values, casting="unsafe")


def _underflow(values: Buffer, bits: Buffer) -> int:
    zeros = len(bits) - int(np.count_nonzero(bits))
    return zeros and zeros - int(np.count_nonzero(values == 0))


def _counted(overflow: int, underflow: int) -> Counts:
    return Counts(overflow, underflow) if overflow or underflow else NONE


def _single(values: Buffer, out: Buffer) -> Buffer:
    """Bring float64 to float32 on the way to narrower floats, rounding to odd, so that they are rounded only once.

    See Boldo and Melquiond, "When double rounding is odd" (2005). numpy itself goes from float64 to float16 directly.
    """
    if values.dtype != np.float64 or out.dtype in (np.float32, np.float16):
        return values
    single = values.astype(np.float32)
    bits = single.view(np.uint32)
    inexact = (single != values) & ~np.isnan(values)
    bits -= inexact & (np.abs(single) > np.abs(values))
    bits |= inexact
    return single


def _to_integer(values: Buffer, out: Buffer) -> Counts:
    whole = np.trunc(values)
    info = np.iinfo(out.dtype)
    fits = (whole >= float(info.min)) & (whole < float(info.max // 2 + 1) * 2)
    whole[~fits] = 0
    np.copyto(out, whole, casting="unsafe")
    inexact = int(np.count_nonzero(~fits | (whole != values)))
    return Counts(inexact=inexact) if inexact else NONE


def _to_bool(values: Buffer, out: Buffer) -> Counts:
    np.not_equal(values, 0, out=out)
    inexact = int(np.count_nonzero((values != 0) & (values != 1)))
    return Counts(inexact=inexact) if inexact else NONE


def _from_integer(src: Buffer, source: str, dst: Buffer, target: str) -> Counts:
    """Cast integers or booleans; every value that the target cannot hold exactly is counted."""
    if source == "BOOL":
        src = (src.view(np.uint8) != 0).astype(np.uint8)
    if target == "BOOL":
        return _to_bool(src, dst)
    if DTYPES[target].kind == "int":
        np.copyto(dst, src, casting="unsafe")
        inexact = int(np.count_nonzero((dst.astype(src.dtype) != src) | ((src < 0) != (dst < 0))))
        return Counts(inexact=inexact) if inexact else NONE
    values = src.astype(np.float64)
    counts = _narrow(target)(values, dst)
    wrong = dst.astype(np.float64) != values
    if src.itemsize == 8:
        wrong |= (values >= 2.0 ** (63 if src.dtype.kind == "i" else 64)) | (values.astype(src.dtype) != src)
    inexact = int(np.count_nonzero(wrong))
    return counts.plus(Counts(inexact=inexact)) if inexact else counts


def _to_complex(values: Buffer, out: Buffer) -> Counts:
    """Take a constant as the real part; tensors are not cast to complex numbers."""
    np.copyto(out, values, casting="unsafe")
    return NONE


def rounded(value: float, target: str, chain: Sequence[Arith], double: bool) -> tuple[Buffer, Counts]:
    """Give a constant as an array of one element of a dtype, after arithmetic."""
    values = np.array([value], np.float64 if double else np.float32)
    dtype: np.dtype[Any] = numpy_dtype(target)
    out = np.empty(1, dtype)
    name = "F64" if double else "F32"
    return out, convert(values, name, out, target, chain, double)
