"""Laws of dtypes: who states one wins by nearness, and nothing is cast that would lose its meaning."""

from itertools import product

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from converter.casting import LARGEST, CastError, Stated, constant_problem, decide, state, widens
from converter.kernels import numpy_dtype
from converter.spec import DTYPES, dtype_names, nbytes, parse_dtype

laws = settings(max_examples=200, deadline=None)
FLOATS = [n for n, d in DTYPES.items() if d.kind == "float"]
NUMPY = [n for n, d in DTYPES.items() if d.kind != "packed"]
dtypes = st.sampled_from(list(DTYPES))
stated = st.sampled_from([None, "keep", *DTYPES])


# The table.


@pytest.mark.parametrize("name", DTYPES)
def test_spellings_of_a_dtype(name):
    row = DTYPES[name]
    for text in (name, name.lower(), row.numpy, f"torch.{row.numpy}", row.numpy.upper(), *row.aliases):
        assert parse_dtype(text) == name
    assert row.numpy in dtype_names()


def test_no_spelling_has_two_meanings():
    spelled = [s.lower() for d in DTYPES.values() for s in {d.name.lower(), d.numpy.lower(), *d.aliases}]
    assert len(set(spelled)) == len(spelled)


@pytest.mark.parametrize("text", ["", "float", "torch.", "f33", "bfloat", "float32 ", "keep", "torch.torch.float32"])
def test_what_is_no_dtype(text):
    assert parse_dtype(text) == {"float": "F32"}.get(text)


@pytest.mark.parametrize("name", NUMPY)
def test_bits_are_numpys(name):
    assert numpy_dtype(name).itemsize * 8 == DTYPES[name].bits
    assert nbytes(name, (3, 5)) == 15 * numpy_dtype(name).itemsize


def test_elements_that_end_within_a_byte():
    assert nbytes("F4", (2, 3)) == 3
    with pytest.raises(ValueError, match="whole bytes"):
        nbytes("F4", (3,))
    with pytest.raises(ValueError, match="whole bytes"):
        nbytes("F6_E2M3", (2,))


@pytest.mark.parametrize(("dtype", "to"), list(product(FLOATS, FLOATS)))
def test_widening_is_what_keeps_every_value(dtype, to):
    """Held against the number formats themselves: mantissa and exponent of one fit into those of the other."""
    a, b = ml_dtypes.finfo(numpy_dtype(dtype)), ml_dtypes.finfo(numpy_dtype(to))
    fits = a.nmant <= b.nmant and a.maxexp <= b.maxexp and a.minexp >= b.minexp
    assert widens(dtype, to) == fits
    if fits:
        values = np.array([a.max, a.smallest_normal, a.smallest_subnormal, 1 + float(a.eps)]).astype(numpy_dtype(dtype))
        assert (values.astype(numpy_dtype(to)).astype(numpy_dtype(dtype)) == values).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_largest(dtype):
    assert LARGEST[dtype] == float(ml_dtypes.finfo(numpy_dtype(dtype)).max)


@pytest.mark.parametrize("dtype", [n for n in DTYPES if n not in FLOATS])
def test_only_floats_widen(dtype):
    assert not any(widens(dtype, to) for to in FLOATS)


# Who wins.


@laws
@given(stated, stated, stated, stated)
def test_the_most_specific_statement_wins(term, rule, flag, whole):
    found = state(term, rule, flag, whole)
    first = next((d for d in (term, rule, flag, whole) if d is not None), None)
    assert found.dtype == (None if first == "keep" else first)
    assert found.named == (term is not None or rule is not None)


# What is cast.

ALL_STATED = [Stated(None, False), Stated(None, True)] + [Stated(d, n) for d in DTYPES for n in (False, True)]


def one(dtype: str, stated: Stated) -> str | None:
    """The dtype that one tensor becomes, None where the cast is refused."""
    try:
        return decide({"w": dtype}, {}, stated)
    except CastError:
        return None


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_stated_casts_nothing(dtype):
    assert one(dtype, Stated(None, False)) == one(dtype, Stated(None, True)) == one(dtype, Stated(dtype, True)) == dtype


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_becomes_what_is_stated_or_stays_or_is_refused(dtype):
    for stated in ALL_STATED:
        assert one(dtype, stated) in (None, dtype, stated.dtype), stated


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_map_or_flag_concerns_floating_tensors_only(dtype):
    for to in DTYPES:
        want: str | None = dtype
        if dtype in FLOATS:
            want = to if DTYPES[to].kind in ("float", "float8") else dtype
        elif DTYPES[dtype].kind in ("float8", "packed") and to != dtype:
            want = None
        assert one(dtype, Stated(to, False)) == want, to


@pytest.mark.parametrize("dtype", [n for n, d in DTYPES.items() if d.kind in ("float8", "packed")])
def test_what_has_a_scale_is_never_cast_without_it(dtype):
    for to, named in product(DTYPES, (False, True)):
        if to != dtype:
            with pytest.raises(CastError, match="scale"):
                decide({"w": dtype}, {}, Stated(to, named))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_rule_that_names_a_dtype_gets_it_or_an_error(dtype):
    castable = {"float", "int", "bool"}
    for to in DTYPES:
        allowed = DTYPES[dtype].kind in castable and DTYPES[to].kind in castable
        allowed |= dtype in FLOATS and DTYPES[to].kind == "float8"
        assert one(dtype, Stated(to, True)) == (to if allowed or to == dtype else None), to


# What joins.

leaves = st.dictionaries(st.sampled_from(["q", "k", "v"]), st.sampled_from(list(DTYPES)), min_size=1)
joins = st.dictionaries(st.sampled_from(["q", "k", "v"]), st.sampled_from([None, "keep", *FLOATS]))


@laws
@given(leaves, joins, st.sampled_from(ALL_STATED))
def test_joining_is_one_dtype_that_every_leaf_reaches(leaves, joining, stated):
    try:
        got = decide(leaves, joining, stated)
    except CastError as e:
        text = str(e)
        if not any(name in text for name in leaves):
            pytest.fail(text)
        return
    for name, dtype in leaves.items():
        assert got in (dtype, stated.dtype) or (got == joining.get(name) and widens(dtype, got))


@laws
@given(leaves, joins, st.sampled_from(ALL_STATED))
def test_the_order_of_terms_does_not_matter(leaves, joining, stated):
    def result(items: dict[str, str]) -> str | None:
        try:
            return decide(items, joining, stated)
        except CastError:
            return None

    assert result(leaves) == result(dict(reversed(leaves.items())))


@laws
@given(st.lists(dtypes, min_size=2, max_size=3, unique=True))
def test_different_dtypes_do_not_join_by_themselves(several):
    with pytest.raises(CastError, match="different dtypes do not join"):
        decide(dict(zip("qkv", several)), {}, Stated(None, False))


def test_a_side_that_states_its_dtype_widens_for_joining():
    both = {"q": "BF16", "k": "F32"}
    assert decide(both, {"q": "F32", "k": "F32"}, Stated(None, False)) == "F32"
    with pytest.raises(CastError):
        decide(both, {"q": "F16"}, Stated(None, False))
    with pytest.raises(CastError):
        decide(both, {"q": "BF16", "k": "BF16"}, Stated(None, False))
    assert decide(both, {}, Stated("F16", False)) == "F16"


def test_two_terms_that_do_not_join_are_both_named():
    with pytest.raises(CastError) as caught:
        decide({"a.q": "F32", "a.k": "F32", "a.v": "I64"}, {}, Stated("F16", False))
    assert all(text in str(caught.value) for text in ("a.q", "F16", "a.v", "I64"))


# Constants of fills.

values = (
    st.sampled_from([0.0, 1.0, -1.0, 0.5, 127.0, 128.0, 255.0, 256.0, -128.0, -129.0, 65504.0, 65505.0, 1e39])
    | st.floats()
)


@laws
@given(
    values.filter(lambda v: v == v), st.sampled_from([n for n in NUMPY if DTYPES[n].kind in ("int", "bool", "float")])
)
def test_a_constant_is_a_value_of_its_dtype(value, dtype):
    kind = DTYPES[dtype].kind
    problem = constant_problem("value", value, dtype)
    if kind == "float":
        with np.errstate(over="ignore"):
            became_infinite = np.isinf(np.float64(value).astype(numpy_dtype(dtype))) and not np.isinf(value)
        if became_infinite:
            assert problem is not None
        elif abs(value) <= LARGEST[dtype] or np.isinf(value):
            assert problem is None
        return
    limits = (0, 1) if kind == "bool" else (np.iinfo(numpy_dtype(dtype)).min, np.iinfo(numpy_dtype(dtype)).max)
    holds = float(value).is_integer() and limits[0] <= int(value) <= limits[1] if np.isfinite(value) else False
    assert (problem is None) == holds


@pytest.mark.parametrize("what", ["zeros", "ones", "value", "arange", "causal_mask"])
@pytest.mark.parametrize("dtype", [n for n, d in DTYPES.items() if d.kind in ("packed", "complex", "float8")])
def test_no_fill_of_a_dtype_that_needs_more_than_a_value(what, dtype):
    assert constant_problem(what, 1.0, dtype) is not None


@pytest.mark.parametrize("dtype", [*FLOATS, "I64", "U8", "BOOL"])
def test_masks_and_ranges(dtype):
    assert constant_problem("causal_mask", 0.0, dtype) is None
    assert (constant_problem("arange", 0.0, dtype) is None) == (dtype != "BOOL")
