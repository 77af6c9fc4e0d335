"""Laws of dims: polynomials with integer coefficients behave as the numbers that they become."""

from fractions import Fraction
from math import prod

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from converter import dims as dims_
from converter.dims import Poly, SizeError, divide, names, product, render_shape, solve, substitute, total
from converter.expressions import parse

NAMES = ["d", "h", "hd", "q"]
laws = settings(max_examples=100, deadline=None)

atoms = st.sampled_from(NAMES).map(Poly.of) | st.integers(-5, 9)
dims = st.recursive(
    atoms,
    lambda s: st.tuples(s, s, st.sampled_from("+-*")).map(
        lambda t: t[0] + t[1] if t[2] == "+" else t[0] - t[1] if t[2] == "-" else t[0] * t[1]
    ),
    max_leaves=6,
)
worlds = st.fixed_dictionaries({n: st.integers(-4, 12) for n in NAMES})


@laws
@given(dims, dims, worlds)
def test_substitution_is_a_ring_homomorphism(a, b, world):
    x, y = substitute(a, world), substitute(b, world)
    assert isinstance(x, int)
    assert isinstance(y, int)
    assert substitute(a + b, world) == x + y
    assert substitute(a - b, world) == x - y
    assert substitute(a * b, world) == x * y


@laws
@given(dims, dims, dims)
def test_ring_laws(a, b, c):
    assert a + b == b + a
    assert a * b == b * a
    assert (a + b) + c == a + (b + c)
    assert (a * b) * c == a * (b * c)
    assert a * (b + c) == a * b + a * c
    assert a - a == 0
    assert a + 0 == a == a * 1
    assert a * 0 == 0


@laws
@given(dims)
def test_what_holds_no_name_is_a_plain_int(a):
    assert isinstance(a, Poly) == bool(names(a))
    assert substitute(a, {}) == a
    if isinstance(a, Poly):
        assert all(c for _, c in a.terms)
        assert list(a.terms) == sorted(a.terms)
        assert all(list(m) == sorted(m) for m, _ in a.terms)


@laws
@given(dims, dims)
def test_equal_dims_are_equal_values(a, b):
    assert (a == b) == (a - b == 0)
    if a == b:
        assert hash(a) == hash(b)


@laws
@given(dims, worlds)
def test_substitution_in_two_steps_is_one(a, world):
    first = {n: v for n, v in world.items() if n in ("d", "q")}
    assert names(substitute(a, first)) <= names(a) - set(first)
    assert substitute(substitute(a, first), world) == substitute(a, world)


@laws
@given(dims, dims, worlds)
def test_substitution_of_dims(a, b, world):
    assert substitute(substitute(a, {"d": b}), world) == substitute(a, world | {"d": substitute(b, world)})


@laws
@given(dims)
def test_text_reads_back(a):
    assert parse(str(a)).dim() == a


@laws
@given(st.lists(dims, max_size=4), worlds)
def test_product_and_total(several, world):
    numbers = [substitute(d, world) for d in several]
    assert substitute(product(tuple(several)), world) == prod(numbers)
    assert substitute(total(tuple(several)), world) == sum(numbers)


@laws
@given(dims, dims)
def test_division_is_exact(d, by):
    quotient = divide(d, by)
    if quotient is not None:
        assert quotient * by == d


monomials = st.tuples(st.integers(-5, 5).filter(bool), st.lists(st.sampled_from(NAMES), max_size=3)).map(
    lambda t: product((t[0], *map(Poly.of, t[1])))
)


@laws
@given(dims, monomials)
def test_division_finds_what_was_multiplied(quotient, by):
    assert divide(quotient * by, by) == quotient


@laws
@given(dims)
def test_division_by_itself_and_by_zero(d):
    assert divide(d, 0) is None
    assume(d != 0)
    assert divide(d, d) == 1
    assert divide(0, d) == 0


@laws
@given(st.integers(-99, 99), st.integers(-9, 9))
def test_division_of_numbers(d, by):
    exact = by != 0 and Fraction(d, by).denominator == 1
    assert divide(d, by) == (d // by if exact else None)


def polynomial(coefficients: list[int]) -> Poly | int:
    return total(tuple(product((c, *[Poly.of("d")] * p)) for p, c in enumerate(coefficients)))


@laws
@given(st.lists(st.integers(0, 20), min_size=2, max_size=4), st.integers(0, 60_000))
def test_solve_finds_what_was_put_in(coefficients, size):
    assume(any(coefficients[1:]))
    p = polynomial(coefficients)
    assert solve(p, substitute(p, {"d": size}), "d") == size


@laws
@given(st.integers(-20, 20).filter(bool), st.integers(-99, 99), st.integers(0, 10**12))
def test_solve_of_a_line_takes_any_sign(slope, constant, size):
    line = Poly.of("d") * slope + constant
    assert solve(line, slope * size + constant, "d") == size


@laws
@given(st.lists(st.integers(-20, 20), min_size=1, max_size=4), st.integers(-500, 5000))
def test_solve_never_lies(coefficients, value):
    p = polynomial(coefficients)
    found = solve(p, value, "d")
    if found is not None:
        assert found >= 0
        assert substitute(p, {"d": found}) == value
    elif all(c >= 0 for c in coefficients) and any(coefficients[1:]):
        assert all(substitute(p, {"d": n}) != value for n in range(200))


@pytest.mark.parametrize(
    ("text", "value"),
    [("3*d", 770), ("d+8", 3), ("d*d", 8), ("-d", 4), ("5", 5), ("5", 6), ("d*d+d+1", 0), ("d*d-d", 6), ("d*d-5*d", 0)],
)
def test_solve_says_when_there_is_no_size(text, value):
    assert solve(parse(text).dim(), value, "d") is None


def test_qkv_of_grouped_queries():
    """48 rows with g = 2 and hd = 4 give h = 4, as the design has it."""
    rows = parse("g*(h*hd+hd+hd)").dim()
    assert solve(substitute(rows, {"g": 2, "hd": 4}), 48, "h") == 4


def test_text():
    assert str(parse("d+3*d").dim()) == "4*d"
    assert str(parse("q-2*kv+1").dim()) == "q-2*kv+1"
    assert render_shape((parse("3*d").dim(), Poly.of("d"), 7)) == "[3*d, d, 7]"
    assert render_shape(()) == "[]"
    odd = Poly((((), 1), (("a b",), 1), (("a b", "c"), 1), (("c",), -1)))
    assert str(odd) == "a b+(a b)*c-c+1"
    assert str(Poly(((("a b",), 2),))) == "2*(a b)"
    assert str(Poly(((("c", "d"), -1),))) == "-c*d"
    assert str(parse("0*d+3-d").dim()) == "-d+3"


def test_factors_stand_in_the_order_of_their_names():
    h, d = Poly.of("h"), Poly.of("d")
    assert h * d == d * h == Poly(((("d", "h"), 1),))
    assert 3 * h * d + d * 2 * h == Poly(((("d", "h"), 5),))


@pytest.mark.parametrize(("size", "fits"), [(dims_.MAX_SIZE - 1, True), (dims_.MAX_SIZE, False)])
def test_numbers_of_63_bits(size, fits):
    d = Poly.of("d")
    for n in (size, -size):
        if fits:
            assert substitute(d * n, {"d": 1}) == n
        else:
            with pytest.raises(SizeError, match="beyond 64 factors or 63 bits"):
                d * n
        assert d * 0 + n == n  # a number by itself is bounded where tensors are


def test_degrees_and_terms_are_bounded():
    d = Poly.of("d")
    most = d
    for _ in range(dims_.MAX_DEGREE - 1):
        most = most * d
    assert names(most) == {"d"}
    with pytest.raises(SizeError, match="beyond 64 factors"):
        most * d
    many = total(tuple(Poly.of(f"x{k}") for k in range(dims_.MAX_TERMS)))
    assert len(names(many)) == dims_.MAX_TERMS
    with pytest.raises(SizeError, match="more than 500 terms"):
        many + d
    assert substitute(many - many, {}) == 0
    with pytest.raises(SizeError, match="more than 500 terms"):
        many * many
