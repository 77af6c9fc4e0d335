"""Casts round once, to nearest even, and count what they lose; rearranging keeps every bit."""

from fractions import Fraction
from itertools import permutations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from converter import kernels
from converter.arrays import Arith
from converter.casts import CHUNK, Counts, convert, rounded
from converter.kernels import numpy_dtype, rearrange
from converter.spec import DTYPES

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered in cast")  # signalling NaN, on purpose

NUMPY = [d for d in DTYPES if DTYPES[d].kind != "packed"]
FLOATS = ["F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"]


def cast(array, source, target, chain=(), double=False, chunk=CHUNK):
    out = np.empty(len(array), numpy_dtype(target))
    return out, convert(array, source, out, target, chain, double, chunk)


def every_value(dtype):
    """All bit patterns of a dtype of one or two bytes; many for wider ones."""
    np_dtype = numpy_dtype(dtype)
    if np_dtype.itemsize <= 2:
        return np.arange(2 ** (8 * np_dtype.itemsize), dtype=f"u{np_dtype.itemsize}").view(np_dtype)
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 2**32, 200_000, np.uint32)
    if dtype == "F32":
        ties = np.arange(2**16, dtype=np.uint32) << 16
        around = np.concatenate([ties + k for k in (0, 1, 0x7FFF, 0x8000, 0x8001, 0x1000, 0xFFF, 0x1001, 0x3000)])
        return np.concatenate([bits, around.astype(np.uint32)]).view(np.float32)
    halves = every_value("F16").astype(np.float64)
    with np.errstate(invalid="ignore"):
        near = np.concatenate([halves * (1 + k * 2.0**-e) for k in (-1, 0, 1) for e in (4, 9, 12, 40, 52)])
    return np.concatenate([near, bits.view(np.float32).astype(np.float64), rng.standard_normal(10_000) * 1e300])


def nearest(values, target):
    """Round by the definition: the neighbour that is nearer, of two equally near the even one."""
    np_dtype = numpy_dtype(target)
    finite = np.unique(every_value(target).astype(np.float64))
    finite = finite[np.isfinite(finite)]
    out = []
    for v in values.tolist():
        at = min(max(int(np.searchsorted(finite, v)), 1), len(finite) - 1)
        low, high = Fraction(finite[at - 1]), Fraction(finite[at])
        middle = (low + high) / 2
        if Fraction(v) == middle:
            pair = np.array([finite[at - 1], finite[at]]).astype(np_dtype)
            out.append(pair[int(pair.view(f"u{np_dtype.itemsize}")[0]) & 1])
        else:
            out.append(np_dtype.type(finite[at - 1] if Fraction(v) < middle else finite[at]))
    return np.array(out, np_dtype)


@pytest.mark.parametrize("source", ["F64", "F32"])
@pytest.mark.parametrize("target", ["F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"])
def test_floats_round_to_nearest_even_once(source, target):
    values = every_value(source)
    limit = float(ml_dtypes.finfo(numpy_dtype(target)).max)
    values = values[np.isfinite(values) & (np.abs(values) <= limit)]
    values = np.random.default_rng(5).choice(values, 3000, replace=False)
    out, counts = cast(values, source, target)
    assert np.array_equal(out.astype(np.float64), nearest(values, target).astype(np.float64))
    assert counts == (0, np.count_nonzero((out.astype(np.float64) == 0) & (values != 0)), 0)


@pytest.mark.parametrize("target", ["F32", "F16", "BF16", "F8_E5M2"])
@pytest.mark.parametrize("source", FLOATS)
def test_all_values_against_numpy(source, target):
    values = every_value(source)
    out, counts = cast(values, source, target)
    with np.errstate(all="ignore"):
        wide = values.astype(np.float64)
        expected = values.astype(np.float32).astype(numpy_dtype(target)) if source != "F64" else out
    result = out.astype(np.float64)
    assert np.array_equal(np.isnan(result), np.isnan(wide))
    assert np.array_equal(result, expected.astype(np.float64), equal_nan=True)
    assert np.array_equal(np.signbit(result)[~np.isnan(wide)], np.signbit(wide)[~np.isnan(wide)])
    assert counts.overflow == np.count_nonzero(np.isinf(result) & np.isfinite(wide))
    assert counts.underflow == np.count_nonzero((result == 0) & (wide != 0))


@pytest.mark.parametrize("target", ["F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2FNUZ"])
def test_dtypes_without_infinity_saturate(target):
    largest = float(ml_dtypes.finfo(numpy_dtype(target)).max)
    values = np.array([largest, -largest, largest * 1.01, largest * 2, -1e30, np.inf, -np.inf, np.nan, 0.0], np.float32)
    out, counts = cast(values, "F32", target)
    expected = [largest, -largest, largest, largest, -largest, largest, -largest]
    assert out.astype(np.float64)[:7].tolist() == expected
    assert np.isnan(out.astype(np.float64)[7])
    assert counts == (4, 0, 0)  # the third rounds to the largest number


def test_powers_of_two_only():
    values = np.array([1, 3, 2.0**127, 3e38, np.inf, 0.0, -1.0, np.nan], np.float32)
    out, counts = cast(values, "F32", "F8_E8M0")
    assert out.astype(np.float64)[:7].tolist() == [1, 4, 2.0**127, 2.0**127, 2.0**127, 2.0**-127, 2.0**-127]
    assert np.isnan(out.astype(np.float64)[7])
    assert counts.overflow == 4


@pytest.mark.parametrize("dtype", NUMPY)
def test_equal_dtypes_keep_every_bit(dtype):
    raw = np.random.default_rng(2).integers(0, 256, 16 * 1000, np.uint8)
    if dtype == "BOOL":
        raw &= 1
    out, counts = cast(raw.view(numpy_dtype(dtype)), dtype, dtype)
    assert out.tobytes() == raw.tobytes()
    assert counts == Counts()


def test_widening_bfloat16_keeps_payloads():
    values = every_value("BF16")
    out, _ = cast(values, "BF16", "F32")
    assert np.array_equal(out.view(np.uint32) >> 16, values.view(np.uint16))


def test_nan_stays_nan_in_bfloat16():
    values = (np.arange(1, 2**16, 7, dtype=np.uint32) | 0x7F800000).view(np.float32)
    out, counts = cast(values, "F32", "BF16")
    assert np.isnan(out.astype(np.float32)).all()
    assert counts == Counts()


INTEGERS = [d for d in DTYPES if DTYPES[d].kind in ("int", "bool")]


@pytest.mark.parametrize("source", INTEGERS)
@pytest.mark.parametrize("target", [*INTEGERS, "F64", "F32", "F16", "BF16"])
def test_integers_are_exact_or_counted(source, target):
    edges = [0, 1, 2, 255, 256, 257, 2**11 + 1, 2**24, 2**24 + 1, 2**31 - 1, 2**53 + 1, 2**62, 2**63 - 1, 2**64 - 1]
    edges = edges + [-e - 1 for e in edges]
    if source == "BOOL":
        edges = [0, 1]
    else:
        info = np.iinfo(numpy_dtype(source))
        edges = [e for e in edges if info.min <= e <= info.max]
    array = np.array(edges, numpy_dtype(source))
    out, counts = cast(array, source, target)
    kept = [v == e for v, e in zip((exact(v) for v in out), edges)]
    assert counts.inexact == kept.count(False)


def exact(value):
    """Give a Python number; infinities stay floats."""
    if value.dtype.kind in "iub":
        return int(value)
    return int(float(value)) if np.isfinite(float(value)) else float(value)


@pytest.mark.parametrize("target", INTEGERS)
@pytest.mark.parametrize("source", ["F64", "F32", "BF16"])
def test_floats_become_integers_exactly_or_are_counted(source, target):
    values = np.array([0, 1, 2, 100, 0.5, -1, -128, -129, 2.0**31, 2.0**63, -(2.0**63), 2.0**64, 1e30, np.inf, np.nan])
    array = values.astype(numpy_dtype(source))
    out, counts = cast(array, source, target)
    wanted = array.astype(np.float64).tolist()
    kept = [v == v and abs(v) != np.inf and v == int(v) and exact(o) == int(v) for o, v in zip(out, wanted)]
    assert counts.inexact == kept.count(False)


def test_booleans_of_strange_bytes_are_true():
    out, counts = cast(np.array([0, 1, 2, 255], np.uint8).view(bool), "BOOL", "F32")
    assert out.tolist() == [0, 1, 1, 1]
    assert counts == Counts()


@pytest.mark.parametrize("chunk", [1, 3, 1000, CHUNK])
def test_chunks_do_not_matter(chunk):
    values = every_value("BF16")
    chain = (Arith("multiply", 3.7), Arith("exp"), Arith("add", -1.0), Arith("log"))
    values = values[:: 1 if chunk > 3 else 61].copy()
    whole = cast(values, "BF16", "F16", chain)
    parts = cast(values, "BF16", "F16", chain, chunk=chunk)
    assert parts[0].tobytes() == whole[0].tobytes()
    assert parts[1] == whole[1]


def test_arithmetic_counts_values_that_leave_the_numbers():
    values = np.array([100.0, 1.0, np.inf, 0.0, -1.0], np.float32)
    assert cast(values, "F32", "F32", (Arith("exp"),))[1].overflow == 1
    assert cast(values, "F32", "F32", (Arith("log"),))[1].overflow == 2
    assert cast(values, "F32", "BF16", (Arith("multiply", 1e37),))[1].overflow == 1
    assert cast(values, "F32", "F64", (Arith("exp"),), double=True)[1].overflow == 0


def test_constants():
    out, counts = rounded(0.1, "BF16", (), False)
    assert (float(out[0]), counts) == (0.10009765625, Counts())
    assert rounded(1e6, "F16", (), False)[1].overflow == 1
    assert rounded(-2.0, "C64", (), False)[0].tolist() == [-2 + 0j]
    assert rounded(3.0, "I64", (Arith("add", 1.0),), True)[0].tolist() == [4]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.data())
def test_rearrange_is_numpy_assignment(shape, data):
    order = data.draw(st.permutations(range(len(shape))))
    word = data.draw(st.sampled_from(["u1", "u2", "u4", "u8"]))
    src = np.arange(np.prod(shape)).astype(word).reshape(shape).transpose(order)
    step = data.draw(st.integers(1, 2))
    dst = np.zeros((*src.shape[:-1], src.shape[-1] * step), word)[..., ::step]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "PLAIN_BYTES", 0)
        patch.setattr(kernels, "PIECE", (3, 16))
        patch.setattr(kernels, "BYTES_PIECE", (4, 8))
        rearrange(dst, src)
    assert np.array_equal(dst, src)


@pytest.mark.parametrize("dtype", ["U8", "BF16", "F32", "C64"])
def test_rearrange_large(dtype):
    rng = np.random.default_rng(4)
    shape = (3, 130, 70, 67)
    raw = rng.integers(0, 256, np.prod(shape) * numpy_dtype(dtype).itemsize, np.uint8)
    src = raw.view(numpy_dtype(dtype)).reshape(shape)
    for order in permutations(range(4)):
        view = src.transpose(order)
        dst = np.empty(view.shape, view.dtype)
        rearrange(dst, view)
        assert dst.tobytes() == view.tobytes()
