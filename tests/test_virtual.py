"""Virtual agrees with numpy for every sequence of operations, covers exactly once, and stays small."""

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from converter.accounting import made_once
from converter.arrays import Arith
from converter.layout import balanced, covers
from converter.operands import held, place_of
from converter.ops.dequantize import Dequantize
from converter.virtual import CONSTANT, Block, Virtual, check_exact, clip


def enumerate_blocks(virtual, sources):
    """Evaluate without any of the code under test but the meaning of a block."""
    out = np.full(prod(virtual.shape), -12345.0)
    seen = np.zeros(prod(virtual.shape), int)

    def arithmetic(values, chain, others):
        for step in chain:
            other = step.value if step.operand is None else others[step.operand]
            values = values + other if step.kind == "add" else values * other
        return values

    def origin(b, x, k):
        src = np.array([place_of(b.src, k)])
        for n, _, ss in b.dims:
            src = (src[:, None] + np.arange(n) * place_of(ss, k)).reshape(-1)
        return np.full(len(src), x.value) if x.slot == CONSTANT else sources[x.slot].reshape(-1)[src]

    for b in virtual.blocks:
        dst = np.array([b.dst])
        for n, ds, _ in b.dims:
            dst = (dst[:, None] + np.arange(n) * ds).reshape(-1)
        others = [arithmetic(origin(b, x, k + 1), x.chain, ()) for k, x in enumerate(b.operands)]
        values = arithmetic(origin(b, b, 0), b.chain, others)
        out[dst] = values
        seen[dst] += 1
        assert b.size == len(dst)
        assert list(b.dims) == sorted(b.dims, key=lambda d: -d[1])
        assert all(n > 1 for n, _, _ in b.dims)
    assert (seen == 1).all()
    return out.reshape(virtual.shape)


class Numpy:
    """The interface in the plainest numpy."""

    def __init__(self, a):
        self.a, self.shape = a, a.shape

    def reshape(self, shape):
        return Numpy(self.a.reshape(shape))

    def transpose(self, axes):
        return Numpy(self.a.transpose(axes))

    def slice(self, axis, start, stop):
        return Numpy(np.take(self.a, np.arange(start, stop), axis))

    def pad(self, axis, size, value):
        more = [(0, size - n if k == axis else 0) for k, n in enumerate(self.shape)]
        return Numpy(np.pad(self.a, more, constant_values=value))

    def concat(self, others, axis):
        return Numpy(np.concatenate([self.a, *(o.a for o in others)], axis))

    def arith(self, step):
        return Numpy(self.a + step.value if step.kind == "add" else self.a * step.value)

    def scale_rows(self, kind, factors):
        return Numpy(self.a * factors.a[:, None])


@st.composite
def factorisations(draw, total):
    """A shape of up to five axes with that many elements."""
    if total == 0:
        return tuple(draw(st.permutations([0, draw(st.integers(1, 3))])))
    shape, rest = [], total
    while rest > 1 and len(shape) < 4:
        n = draw(st.sampled_from([d for d in range(1, rest + 1) if rest % d == 0]))
        shape.append(n)
        rest //= n
    return tuple(draw(st.permutations([*shape, rest])))


def apply_random(draw, pair, pool):
    """Apply one random operation to both of a (numpy, virtual) pair."""
    real, virtual = pair
    shape = virtual.shape
    kinds = ["reshape", "transpose", "transpose", "slice", "split", "pad", "concat", "arith", "rows"]
    kind = draw(st.sampled_from(kinds))
    if kind == "rows":
        return rows_scaled(draw, pair, pool)
    if kind == "reshape":
        new = draw(factorisations(prod(shape)))
        return real.reshape(new), virtual.reshape(new)
    if kind == "arith":
        step = Arith(draw(st.sampled_from(["add", "multiply"])), draw(st.sampled_from([2.0, 3.0])))
        return real.arith(step), virtual.arith(step)
    if not shape:
        return real, virtual
    axis = draw(st.integers(0, len(shape) - 1))
    if kind == "transpose":
        axes = draw(st.permutations(range(len(shape))))
        return real.transpose(axes), virtual.transpose(axes)
    if kind == "pad":
        args = axis, shape[axis] + draw(st.integers(0, 3)), 7.5
        return real.pad(*args), virtual.pad(*args)
    if kind == "slice":
        start = draw(st.integers(0, shape[axis]))
        args = axis, start, draw(st.integers(start, shape[axis]))
        return real.slice(*args), virtual.slice(*args)
    if kind == "split":  # and joined again, in another order
        cuts = sorted(draw(st.lists(st.integers(0, shape[axis]), min_size=1, max_size=3)))
        bounds = list(zip([0, *cuts], [*cuts, shape[axis]]))
        order = draw(st.permutations(bounds))
        parts = [(real.slice(axis, *b), virtual.slice(axis, *b)) for b in order]
        return tuple(first.concat(others, axis) for first, *others in zip(*parts))
    others = [p for p in pool if len(p[1].shape) == len(shape)] or [pair]
    other = draw(st.sampled_from(others))
    if other[1].shape[:axis] + other[1].shape[axis + 1 :] != shape[:axis] + shape[axis + 1 :]:
        other = pair
    return real.concat([other[0]], axis), virtual.concat([other[1]], axis)


def rows_scaled(draw, pair, pool):
    """Each row of a matrix times an element of another array, which is no product itself."""
    total = prod(pair[1].shape)
    plain = [p for p in pool if not any(b.operands for b in p[1].blocks)]
    factors = draw(st.sampled_from(plain))
    have = prod(factors[1].shape)
    counts = [n for n in range(1, have + 1) if total % n == 0] if total else [0]
    if not counts or any(len(b.operands) > 1 for b in pair[1].blocks):
        return pair
    n = draw(st.sampled_from(counts))
    start = draw(st.integers(0, have - n))
    width = total // n if n else draw(st.integers(0, 3))
    made = []
    for x, f in zip(pair, factors):
        made.append(x.reshape((n, width)).scale_rows("multiply", f.reshape((have,)).slice(0, start, start + n)))
    return tuple(made)


@st.composite
def programs(draw):
    """A (numpy, virtual) pair made by random operations, and its sources."""
    shapes = draw(st.lists(st.lists(st.integers(0, 6), max_size=4).map(tuple), min_size=1, max_size=3))
    shapes = [s if prod(s) <= 400 else (6, 4) for s in shapes]
    sources = [np.arange(prod(s), dtype=float).reshape(s) + 1000 * k for k, s in enumerate(shapes)]
    pool = [(Numpy(a), Virtual.source(k, a.shape)) for k, a in enumerate(sources)]
    for _ in range(draw(st.integers(1, 7))):
        pair = draw(st.sampled_from(pool))
        new = apply_random(draw, pair, pool)
        if prod(new[1].shape) <= 2000:
            pool.append(new)
    return pool[-1], sources


@settings(max_examples=400, deadline=None)
@given(programs())
def test_agrees_with_numpy(program):
    (real, virtual), sources = program
    assert real.shape == virtual.shape
    assert np.array_equal(enumerate_blocks(virtual, sources), real.a)
    assert made_once(virtual)


@settings(max_examples=150, deadline=None)
@given(programs(), st.data())
def test_clip_is_a_range_of_the_row_major_order(program, data):
    (real, virtual), sources = program
    total = prod(virtual.shape)
    start = data.draw(st.integers(0, total))
    stop = data.draw(st.integers(start, total))
    blocks = tuple(p for b in virtual.blocks for p in clip(b, start, stop, total))
    assert np.array_equal(enumerate_blocks(Virtual((stop - start,), blocks), sources), real.a.reshape(-1)[start:stop])


def test_places_of_several_arrays_travel_as_one_number():
    for places in ([5, 0, 7], [2**40, -3, 12], [-1, -(2**50), 0], [0, 0, -9]):
        number = sum(held(p, k) for k, p in enumerate(places))
        assert [place_of(number, k) for k in range(3)] == places
        assert [place_of(3 * number, k) for k in range(3)] == [3 * p for p in places]


def test_factors_of_blocks_of_a_large_matrix_are_one_block():
    """The blocks of 128 x 128 of a weight, in a few numbers however large it is; shorter ones at two ends make four."""
    for shape, count in (((7168, 18432), 1), ((576, 7168), 2), ((70_000, 70_001), 4)):
        grid = tuple(-(-n // 128) for n in shape)
        op = Dequantize(128, 128)
        made = op.scaled("multiply", Virtual.source(0, shape), Virtual.source(1, grid))
        check_exact(made)
        assert len(made.blocks) == count
        assert all(b.first.slot == 0 and b.operands[0].slot == 1 for b in made.blocks)


def test_every_factor_is_used_for_one_row():
    short = Virtual((3,), (Block(1, 0.0, 0, 0, ((2, 1, 1),)),))
    with pytest.raises(AssertionError, match="exactly once"):
        Virtual.source(0, (3, 4)).scale_rows("multiply", short)


def whole(virtual):
    return len(virtual.blocks) == 1 and virtual.blocks[0].dims == ((prod(virtual.shape), 1, 1),)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("cuts", [[5], [1, 2, 3], list(range(1, 12)), [3, 4, 11]])
def test_joining_what_was_split_restores_one_run(axis, cuts):
    t = Virtual.source(0, (12, 12, 12))
    first, *others = [t.slice(axis, a, b) for a, b in zip([0, *cuts], [*cuts, 12])]
    assert whole(first.concat(others, axis))


def test_inverse_permutations_restore_one_run():
    t = Virtual.source(0, (2, 3, 5, 7))
    assert whole(t.transpose((2, 0, 3, 1)).transpose((1, 3, 0, 2)))
    pairs = Virtual.source(0, (2 * 4 * 6, 5)).reshape((2, 4, 3, 2, 5)).transpose((0, 1, 3, 2, 4)).reshape((48, 5))
    assert len(pairs.blocks) == 1
    assert whole(pairs.reshape((2, 4, 2, 3, 5)).transpose((0, 1, 3, 2, 4)))


def test_order_of_gates_is_a_few_runs():
    t = Virtual.source(0, (4 * 96, 32)).reshape((4, 96, 32))
    parts = [t.slice(0, k, k + 1) for k in (0, 2, 3, 1)]
    joined = parts[0].concat(parts[1:], 0)
    assert [(b.dst // 3072, b.src // 3072) for b in joined.blocks] == [(0, 0), (1, 2), (3, 1)]


def test_scalars_and_zero_sizes():
    scalar = Virtual.source(3, ())
    assert scalar.blocks == (Block(3, 0.0, 0, 0, ()),)
    assert scalar.reshape((1, 1)).transpose((1, 0)).reshape(()).blocks == scalar.blocks
    assert Virtual.source(0, (3, 0)).blocks == ()
    assert Virtual.source(0, (3, 0)).transpose((1, 0)).shape == (0, 3)
    assert Virtual.source(0, (3, 0)).concat([Virtual.source(1, (3, 2))], 1).blocks == Virtual.source(1, (3, 2)).blocks


def test_constants_of_unlike_sign_stay_apart():
    joined = Virtual.constant(0.0, (2,)).concat([Virtual.constant(-0.0, (2,)), Virtual.constant(-0.0, (3,))], 0)
    assert [(b.value, b.size) for b in joined.blocks] == [(0.0, 2), (-0.0, 5)]
    nans = Virtual.constant(float("nan"), (2,)).concat([Virtual.constant(float("nan"), (2,))], 0)
    assert len(nans.blocks) == 1


def test_twenty_thousand_terms():
    terms = [Virtual.source(k, (1, 7, 3)) for k in range(20_000)]
    stacked = terms[0].concat(terms[1:], 0)
    assert made_once(stacked)
    beside = terms[0].concat(terms[1:], 2)
    assert len(stacked.blocks) == len(beside.blocks) == 20_000


def test_unstacking_what_was_stacked_is_not_quadratic():
    terms = [Virtual.source(k, (1, 7, 3)) for k in range(6000)]
    stacked = terms[0].concat(terms[1:], 0)
    parts = [stacked.slice(0, k, k + 1) for k in range(6000)]
    assert [p.blocks[0].slot for p in parts] == list(range(6000))


def test_accounting_finds_gaps_overlaps_and_strays():
    def pairs(*pieces):
        return [(start, tuple(dims)) for start, dims in pieces]

    assert covers(pairs((0, [(4, 2)]), (1, [(4, 2)])), 8)
    assert covers(pairs((4, [(2, 1)]), (0, [(2, 2)]), (1, [(2, 2)]), (6, [])), 7)
    assert covers(pairs((0, [(3, 1), (2, 3)])), 6)
    assert covers([], 0)
    assert covers(pairs((0, [])), 1)
    wrong = [
        ([(0, [(4, 2)]), (0, [(4, 2)])], 8),
        ([(0, [(4, 2)]), (1, [(3, 2)])], 8),
        ([(0, [(4, 1)]), (5, [(4, 1)])], 8),
        ([(0, [(4, 1)]), (3, [(4, 1)])], 7),
        ([(0, [(4, 1)]), (4, [(2, 2)])], 7),
        ([(0, [(4, 2)]), (1, [(4, 2)])], 9),
        ([(1, [(4, 1)])], 5),
        ([(-1, [(4, 1)])], 4),
        ([(0, [(3, 2)]), (1, []), (2, [])], 5),
        ([], 1),
        ([(0, [])], 0),
    ]
    assert not [case for case in wrong if covers(pairs(*case[0]), case[1])]
    assert balanced(pairs((0, [(4, 1)]), (2, [(2, 1)])), pairs((2, [(2, 1)])), 4)
    assert not balanced(pairs((0, [(4, 1)]), (1, [(2, 1)])), pairs((2, [(2, 1)])), 4)
    assert not made_once(Virtual((3,), (Block(0, 0.0, 0, 0, ((2, 1, 1),)),)))


def test_reshape_keeps_the_number_of_elements():
    with pytest.raises(ValueError, match=r"cannot reshape \[2, 3\] into \[7\]"):
        Virtual.source(0, (2, 3)).reshape((7,))
