"""Laws of the ops, from one table of cases: what `infer` says is what `apply` does, and the inverse undoes it.

An op without cases fails. Shapes are symbolic (`3*d c`); numbers come from `SIZES`, all different. Every law runs on
every case.
"""

import copy
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from converter.accounting import check_books
from converter.arrays import Arith
from converter.dims import Poly, names, solve, substitute
from converter.eager import Eager
from converter.expressions import parse
from converter.flow import joint
from converter.operands import place_of
from converter.ops import OPS, Op, OpContext, OpError, parse_op
from converter.ops.base import DataCheck, Family, Value
from converter.ops.rearrange import parse_side
from converter.ops.results import Result
from converter.ops.same import Same
from converter.ops.trim import Trim
from converter.schema import op_schemas
from converter.virtual import COMPUTED, CONSTANT, Virtual

GOLDEN = Path(__file__).parent / "ops_refusals.txt"
COUNTS = {"i": 3, "j": 2, "layer": 11}
SIZES = {"a": 2, "b": 3, "c": 5, "d": 7, "m": 12} | {f"n_{k}": n for k, n in COUNTS.items()}
PARTS = 3
NUMBERS = OpContext(frozenset(SIZES), dict(COUNTS), PARTS)
SYMBOLS = OpContext(frozenset(SIZES), {k: Poly.of(f"n_{k}") for k in COUNTS}, PARTS)


class Case(NamedTuple):
    """An op as YAML, and the values that reach it: bound indices with a symbolic shape (`i j: a 3*b`).

    ``like``: what holds of the data: "equal" members, or a number that fills what a trim takes away; "found": the way
    back finds factors of its own, which give the same products. ``parts``: names on the `to` side.
    """

    yaml: Any
    flow: tuple[str, ...]
    like: Any = None
    parts: int = PARTS

    def __str__(self) -> str:
        return f"{self.yaml} on {' and '.join(self.flow)}"


CASES = [
    Case("transpose", ("a b",)),
    Case("transpose", ("layer: 3*d c",)),
    Case({"transpose": [2, 0, 3, 1]}, ("a b c d",)),
    Case({"transpose": [1, 2, 0]}, ("i j: a b c",)),
    Case({"transpose": [0]}, ("d",)),
    Case("(a b x) d -> a (b x) d", ("a*b*c d",)),
    Case("(a b x) d -> a (b x) d", ("m d",)),
    Case("(b half 2) d -> (b 2 half) d", ("4*b d",)),
    Case("a b c d -> (d b) (a c)", ("i: a b c d",)),
    Case("(x a) (b y) -> (y x) b a", ("a*c b*d",)),
    Case("a 1 b -> 1 b a", ("a 1 b",)),
    Case("x d -> (x d)", ("a+2*b d",)),
    Case(" -> 1", ("",)),
    Case({"concat": 0}, ("a d", "b d", "c d")),
    Case({"concat": 1}, ("i: d a", "i: d 2*b+1")),
    Case({"concat": -1}, ("a b c d", "a b c m")),
    Case({"concat": 0}, ("a d",)),
    Case({"concat": {"dim": 0, "over": "i"}}, ("i: b d",)),
    Case({"concat": {"dim": -1, "over": "j"}}, ("i j: a b c",)),
    Case({"concat": {"dim": 1, "over": "i"}}, ("i layer: a b",)),
    Case({"split": {"dim": 1, "sizes": ["a", "2*b", 5]}}, ("c a+2*b+5",)),
    Case({"split": {"dim": 0, "sizes": ["a*b", 0]}}, ("i: a*b d",)),
    Case({"split": {"dim": -2, "sizes": [4, 4, 4]}}, ("d m a",)),
    Case({"split": {"dim": 0, "over": "i"}}, ("n_i*b d",)),
    Case({"split": {"dim": -1, "over": "j"}}, ("i: a c m",)),
    Case({"stack": "layer"}, ("layer: c d",)),
    Case({"stack": {"over": "j", "dim": 2}}, ("i j layer: a b",)),
    Case({"stack": {"over": "i", "dim": -1}}, ("i j: a b c",)),
    Case({"stack": "i"}, ("i:",)),
    Case({"unstack": "layer"}, ("n_layer c d",)),
    Case({"unstack": {"over": "j", "dim": 2}}, ("i: a b n_j d",)),
    Case({"unstack": {"over": "i", "dim": -1}}, ("a n_i",)),
    Case({"unstack": "i"}, ("n_i",)),
    Case({"add": 1}, ("c d",)),
    Case({"add": "-a/b"}, ("i: c d",)),
    Case({"add": 0.125}, ("",)),
    Case({"multiply": 3}, ("c d",)),
    Case({"multiply": "a/d"}, ("j: a b c d",)),
    Case({"multiply": -0.5}, ("d",)),
    Case("exp", ("a b",)),
    Case("log", ("i: a b",)),
    Case({"pad": {"dim": 0, "to": 8}}, ("d c",)),
    Case({"pad": {"dim": -1, "to": "2*d", "value": -1.5}}, ("i: a b c d",)),
    Case({"pad": {"dim": 1, "to": "m", "value": float("-inf")}}, ("a m",)),
    Case({"pad": {"dim": 0, "to": "b", "value": float("nan")}}, ("a d",)),
    Case({"trim": {"dim": 0, "to": "a", "fill": 0}}, ("i: d c",), 0),
    Case({"trim": {"dim": -1, "to": 5, "fill": -2.5}}, ("b m",), -2.5),
    Case({"trim": {"dim": 0, "to": "d", "fill": 1}}, ("d c",), 1),
    Case({"trim": {"dim": 1, "to": 1}}, ("a b",)),
    Case("replicate", ("a b",)),
    Case({"replicate": "i"}, ("j: a b",)),
    Case("same", ("i: a b", "i: a b", "i: a b"), "equal"),
    Case({"same": "j"}, ("j layer: c d",), "equal"),
    Case({"order": {"dim": 0, "to": [0, 2, 3, 1]}}, ("4*d c",)),
    Case({"order": {"dim": -1, "to": [2, 0, 1]}}, ("i: a b m",)),
    Case({"order": {"dim": 1, "to": [1, 0]}}, ("a 2*b+6",)),
    Case({"dequantize": {"block": [2, 3]}}, ("6 m", "3 4"), "found"),
    Case({"dequantize": {"block": [2, "b"]}}, ("i: d c", "i: (d+1)//2 (c+b-1)//b"), "found"),
    Case({"dequantize": {"block": [4, 9]}}, ("i: a d c", "i: a (d+3)//4 (c+8)//9"), None, 2),
    Case({"dequantize": {"block": [1, 5], "dtype": "float8_e5m2"}}, ("j i: a b", "j i: a (b+4)//5"), None, 2),
    Case({"quantize": {"block": [2, 3]}}, ("d c",)),
    Case({"quantize": {"block": [1, 1]}}, ("i: a b",)),
    Case({"quantize": {"block": ["d", "c"], "dtype": "float8_e5m2"}}, ("j: a d 2*c",)),
    Case({"quantize": {"block": [3, 4]}}, ("i: b d c", "i: b (d+2)//3 (c+3)//4")),
]

IDS = [str(c) for c in CASES]
each_case = pytest.mark.parametrize("case", CASES, ids=IDS)


# Cases as symbols, as numbers, as arrays.


def parts(text: str) -> tuple[list[str], list[str]]:
    bound, colon, shape = text.rpartition(":")
    return bound.split() if colon else [], shape.split()


def symbolic(case: Case) -> tuple[Value, ...]:
    flow = []
    for bound, shape in map(parts, case.flow):
        dims = tuple(parse(d).dim() for d in shape)
        flow.append(Value(tuple((i, SYMBOLS.counts[i]) for i in bound), dims))
    return tuple(flow)


def numeric(flow: tuple[Value, ...], sizes: dict[str, int] = SIZES) -> tuple[Value, ...]:
    return tuple(
        Value(
            tuple((i, substitute(n, sizes)) for i, n in v.bound),
            None if v.shape is None else tuple(number(d, sizes) for d in v.shape),
        )
        for v in flow
    )


def number(d: Any, sizes: dict[str, int]) -> Any:
    """Put sizes into a dim, also where it is an expression that is no polynomial."""
    texts = {n: parse(n) for n in names(d) - set(sizes) if not n.startswith("_")}
    return substitute(d, {**sizes, **{n: e.number(sizes) for n, e in texts.items()}})


def context_of(case: Case, context: OpContext) -> OpContext:
    return replace(context, parts=case.parts)


def no_fresh(name: str) -> Any:
    raise AssertionError(f"numbers leave nothing open, but a size for '{name}' was asked for")


@cache
def op_of(index: int) -> Op:
    case = CASES[index]
    return parse_op(case.yaml, context_of(case, NUMBERS)).bind(SIZES)


def read(case: Case) -> tuple[Op, tuple[Value, ...]]:
    """The op and its values, both with numbers only."""
    return op_of(CASES.index(case)), numeric(symbolic(case))


def bits(shape: tuple[int, ...], start: int) -> np.ndarray:
    """Distinct bit patterns, each of which is a NaN, so that nothing but moving keeps them."""
    words = np.arange(start, start + prod(shape), dtype=np.uint32) + np.uint32(0x7F800001)
    return words.view(np.float32).reshape(shape)


def numbers(shape: tuple[int, ...], start: int) -> np.ndarray:
    return (np.arange(start, start + prod(shape), dtype=np.float32) / 97 + 0.25).reshape(shape)


def families(case: Case, op: Op, flow: tuple[Value, ...]) -> tuple[Family[Eager], ...]:
    """Arrays for the values of a case, different in every element but where the case says that data are alike."""
    make, start, out = bits if op.lossless else numbers, 0, []
    for v in flow:
        items = []
        for _ in range(prod(n for _, n in v.bound)):
            items.append(make(v.shape, 0 if case.like == "equal" else start))
            start += prod(v.shape)
        if isinstance(op, Trim) and case.like is not None:
            for x in items:
                axis = op.dim % x.ndim
                x[(slice(None),) * axis + (slice(op.to, None),)] = case.like
        out.append(Family(v.bound, tuple(Eager(x) for x in items)))
    return tuple(out)


def by_index(family: Family) -> dict[tuple[int, ...], Any]:
    """The members by their index values, indices in alphabetical order: the order of the bound ones does not matter."""
    order = sorted(range(len(family.bound)), key=lambda k: family.bound[k])
    keys = np.ndindex(*(n for _, n in family.bound))
    assert prod(n for _, n in family.bound) == len(family.items)
    return {tuple(key[k] for k in order): item for key, item in zip(keys, family.items)}


def same_bytes(left: np.ndarray, right: np.ndarray) -> bool:
    return (left.dtype, left.shape) == (right.dtype, right.shape) and left.tobytes() == right.tobytes()


def holds(check: DataCheck[Eager]) -> bool:
    return same_bytes(check.left.array, check.right.array)


# The laws.


def test_every_op_has_cases():
    assert {type(op_of(k)) for k in range(len(CASES))} == set(OPS)


def test_every_op_is_listed_once_under_its_own_word():
    words = [op.word for op in OPS]
    assert len(set(words)) == len(words)


@each_case
def test_infer_agrees_with_apply(case):
    op, flow = read(case)
    found = op.infer(flow, no_fresh)
    assert all(left == right for left, right in found.equations)
    made = op.apply(families(case, op, flow)).families
    assert len(made) == len(found.flow)
    for family, value in zip(made, found.flow):
        assert family.bound == value.bound
        assert len(family.items) == prod(n for _, n in value.bound)
        assert {x.shape for x in family.items} == {value.shape}


@each_case
def test_symbols_agree_with_numbers(case):
    op, flow = read(case)
    plain = op.infer(flow, no_fresh)
    made: list[str] = []

    def fresh(name: str) -> Poly:
        made.append(f"_{name}~{len(made)}")
        return Poly.of(made[-1])

    found = parse_op(case.yaml, context_of(case, SYMBOLS)).infer(symbolic(case), fresh)
    sizes = solved(found.equations, made)
    assert all(number(left, sizes) == number(right, sizes) for left, right in found.equations)
    assert numeric(found.flow, sizes) == plain.flow
    assert (found.inverse and found.inverse.bind(sizes)) == plain.inverse


def solved(equations: tuple[tuple[Any, Any], ...], unknown: list[str]) -> dict[str, int]:
    """The sizes that follow from equations; each fresh name must get one."""
    sizes = dict(SIZES)
    for _ in unknown:
        for left, right in equations:
            d = substitute(left, sizes) - substitute(right, sizes)
            if len(names(d)) == 1:
                (name,) = names(d)
                value = solve(d, 0, name)
                assert value is not None, f"{left} = {right} has no solution for {name}"
                sizes[name] = value
    assert set(unknown) <= set(sizes), "a size that nothing names must follow from the equations"
    return sizes


@each_case
def test_shapes_may_be_unknown(case):
    op, flow = read(case)
    blank = tuple(Value(v.bound, None) for v in flow)
    found = op.infer(blank, lambda n: Poly.of(f"_{n}"))
    known = op.infer(flow, no_fresh)
    assert tuple(v.bound for v in found.flow) == tuple(v.bound for v in known.flow)
    assert type(found.inverse) is type(known.inverse)


@each_case
def test_inverse_gives_the_shapes_back(case):
    op, flow = read(case)
    found = op.infer(flow, no_fresh)
    if found.inverse is None:
        assert not op.exact
        return
    back = found.inverse.infer(found.flow, no_fresh)
    assert all(left == right for left, right in back.equations)
    assert [(sorted(v.bound), v.shape) for v in back.flow] == [(sorted(v.bound), v.shape) for v in flow]


@each_case
def test_inverse_of_the_inverse_is_the_op(case):
    op, flow = read(case)
    found = op.infer(flow, no_fresh)
    if found.inverse is None:
        return
    twice = found.inverse.infer(found.flow, no_fresh).inverse
    assert twice.yaml() == op.yaml()
    again = twice.infer(flow, no_fresh)
    assert (again.flow, again.inverse) == (found.flow, found.inverse)


@each_case
def test_inverse_after_apply(case):
    op, flow = read(case)
    inverse = op.infer(flow, no_fresh).inverse
    if inverse is None:
        return
    before = families(case, op, flow)
    forward = op.apply(before)
    assert all(map(holds, forward.checks))
    back = inverse.apply(forward.families)
    assert all(map(holds, back.checks))
    assert len(back.families) == len(before)
    if case.like == "found":
        before, back = forward.families, op.apply(back.families)
    for old, new in zip(before, back.families):
        olds, news = by_index(old), by_index(new)
        assert olds.keys() == news.keys()
        for key, x in olds.items():
            if op.lossless:
                assert same_bytes(news[key].array, x.array), key
            else:
                np.testing.assert_allclose(news[key].array, x.array, rtol=1e-5)


def test_a_trim_is_exact_only_where_it_checks():
    pad = parse_op({"pad": {"dim": 0, "to": 8, "value": 4}}, NUMBERS)
    trim = pad.infer((Value((), (5, 3)),), no_fresh).inverse
    assert isinstance(trim, Trim)
    assert trim.exact
    assert not parse_op({"trim": {"dim": 0, "to": 5, "fill": 4}}, NUMBERS).exact
    assert not parse_op({"trim": {"dim": 0, "to": 5}}, NUMBERS).exact


def test_the_way_back_of_a_pad_notices_what_is_no_padding():
    x = np.full((8, 3), 4, np.float32)
    x[:5] = 1
    trim = parse_op({"pad": {"dim": 0, "to": 8, "value": 4}}, NUMBERS).infer((Value((), (5, 3)),), no_fresh).inverse
    (check,) = trim.apply((Family((), (Eager(x),)),)).checks
    assert holds(check)
    x[7, 2] = 5
    (check,) = trim.apply((Family((), (Eager(x),)),)).checks
    assert not holds(check)
    assert "padding" in check.what


@pytest.mark.parametrize("over", [None, "j"])
def test_same_notices_each_member_that_differs(over):
    items = [np.arange(6, dtype=np.float32) for _ in range(2)]
    items[1][4] = np.nan
    arrays = tuple(map(Eager, items))
    bound = Family((("j", 2),), arrays), tuple(Family((), (x,)) for x in arrays)
    done = Same(over, 2).apply((bound[0],) if over else bound[1])
    assert [holds(c) for c in done.checks] == [False]


@each_case
def test_virtual_agrees_with_eager(case):
    op, flow = read(case)
    before = families(case, op, flow)
    sources = [x.array for f in before for x in f.items]
    slot, virtual = 0, []
    for f in before:
        virtual.append(Family(f.bound, tuple(Virtual.source(slot + k, x.shape) for k, x in enumerate(f.items))))
        slot += len(f.items)
    eager, lowered = op.apply(before), op.apply(tuple(virtual))
    check_books([x.shape for x in sources], lowered)  # every element is accounted for, on either side
    assert len(eager.families) == len(lowered.families)
    for plain, made in zip(eager.families, lowered.families):
        assert plain.bound == made.bound
        for x, v in zip(plain.items, made.items, strict=True):
            assert same_bytes(materialise(v, sources), x.array)
    for check, other in zip(eager.checks, lowered.checks, strict=True):
        assert check.what == other.what
        for x, v in ((check.left, other.left), (check.right, other.right)):
            assert same_bytes(materialise(v, sources), x.array)


def materialise(virtual: Virtual, sources: list[np.ndarray]) -> np.ndarray:
    """Follow the blocks element by element."""
    out = np.zeros(prod(virtual.shape), np.float32)

    def follow(origin: Any, b: Any, k: int) -> np.ndarray:
        """The elements of one origin of a block, the first or an operand, before the block's own arithmetic."""
        src = np.array([place_of(b.src, k)])
        for n, _, ss in b.dims:
            src = (src[:, None] + np.arange(n) * place_of(ss, k)).reshape(-1)
        if origin.slot == CONSTANT:
            return np.full(len(src), origin.value, np.float32)
        if origin.slot == COMPUTED:
            largest = np.abs(materialise(origin.of.value, sources)).max(axis=1)
            return (largest / np.float32(origin.of.largest)).astype(np.float32)[src]
        return sources[origin.slot].reshape(-1)[src].copy()

    for b in virtual.blocks:
        dst = np.array([b.dst])
        for n, ds, _ in b.dims:
            dst = (dst[:, None] + np.arange(n) * ds).reshape(-1)
        values = follow(b, b, 0)
        for step in b.chain:
            if step.operand is None:
                values = Eager(values).arith(step).array
                continue
            other = follow(b.operands[step.operand], b, step.operand + 1)
            assert not b.operands[step.operand].chain
            values = values * other if step.kind == "multiply" else values / other
        out[dst] = values
    return out.reshape(virtual.shape)


@each_case
def test_yaml_reads_back_as_the_op(case):
    for context in (context_of(case, NUMBERS), context_of(case, SYMBOLS)):
        op = parse_op(case.yaml, context)
        assert parse_op(copy.deepcopy(op.yaml()), context) == op
        assert str(op)


@each_case
def test_yaml_of_the_inverse_is_yaml_of_the_language(case):
    op, flow = read(case)
    found = op.infer(flow, no_fresh)
    if found.inverse is None:
        return
    written = parse_op(found.inverse.yaml(), OpContext(frozenset(SIZES), dict(COUNTS), len(flow)))
    assert type(written) is type(found.inverse)
    if isinstance(written, Trim) or not found.inverse.lossless:
        back = written.infer(found.flow, no_fresh).flow
        assert [v.shape for v in back] == [v.shape for v in flow]
    if not op.lossless:
        made = op.apply(families(case, op, flow)).families
        ours, theirs = ([x for f in o.apply(made).families for x in f.items] for o in (found.inverse, written))
        for x, y in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(x.array, y.array, rtol=1e-5)


@each_case
def test_bind_leaves_no_size_open(case):
    op, _ = read(case)
    assert op.sizes() == frozenset()
    assert op.bind({"zzz": 9}) == op
    assert parse_op(case.yaml, SYMBOLS).sizes() <= set(SIZES)
    assert hash(op) == hash(parse_op(case.yaml, context_of(case, NUMBERS)).bind(SIZES))


# Arithmetic, against what the design says of it.


@pytest.mark.parametrize(
    ("yaml", "there", "back"),
    [
        ({"add": 1}, lambda x: x + 1, lambda x: x - 1),
        ({"add": "a/b"}, lambda x: x + 2 / 3, lambda x: x - 2 / 3),
        ({"multiply": 3}, lambda x: x * 3, lambda x: x / 3),
        ({"multiply": "a/d"}, lambda x: x * (2 / 7), lambda x: x / (2 / 7)),
        ("exp", np.exp, np.log),
        ("log", np.log, np.exp),
    ],
    ids=["add", "add expression", "multiply", "multiply expression", "exp", "log"],
)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16], ids=lambda d: d.__name__)
def test_arithmetic_is_what_its_name_says(yaml, there, back, dtype):
    op = parse_op(yaml, NUMBERS).bind(SIZES)
    x = np.linspace(0.25, 4, 15).astype(dtype)
    wide = np.float64 if dtype == np.float64 else np.float32
    inverse = op.infer((Value((), x.shape),), no_fresh).inverse
    for op_, compute in ((op, there), (inverse, back)):
        (family,) = op_.apply((Family((), (Eager(x),)),)).families
        got = family.items[0].array
        assert got.dtype == wide
        np.testing.assert_allclose(got, compute(x.astype(wide)), rtol=1e-6)


def test_arithmetic_that_nobody_knows_is_no_logarithm():
    with pytest.raises((ValueError, AssertionError, KeyError)):
        Eager(np.ones(3, np.float32)).arith(Arith("frobnicate", 2.0))


# Schemas.

ITEM = jsonschema.Draft202012Validator({"anyOf": op_schemas()})
GARBAGE = [
    None,
    True,
    -1,
    1.5,
    "",
    "zzz",
    [],
    {},
    [[]],
    ["a"],
    {"dim": 0},
    {"zzz": 1},
    {"dim": "x", "over": 3},
    {1: 2, "z": 3},
]


@each_case
def test_schema_accepts_the_cases(case):
    assert ITEM.is_valid(case.yaml), list(ITEM.iter_errors(case.yaml))


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.word)
def test_schema_refuses_garbage(op):
    own = op.schema()
    if own is None:
        assert not ITEM.is_valid({op.word: 1})
        return
    refused = [x for x in GARBAGE if not jsonschema.Draft202012Validator(own).is_valid(x)]
    assert len(refused) > len(GARBAGE) // 2
    assert not ITEM.is_valid({op.word: {"zzz": 1}})
    assert not ITEM.is_valid({op.word: 1, "zzz": 2})


@pytest.mark.parametrize("op", [op for op in OPS if op.word != "rearrange"], ids=lambda op: op.word)
def test_a_word_with_nothing_after_its_colon_is_refused(op):
    with pytest.raises(OpError):
        parse_op({op.word: None}, NUMBERS)


# Bad input: the project's own error, whatever comes.


@pytest.mark.parametrize("argument", GARBAGE, ids=repr)
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.word)
def test_garbage_is_refused_or_in_the_schema(op, argument):
    value = argument if op.word == "rearrange" else {op.word: argument}
    try:
        parse_op(value, NUMBERS)
    except OpError:
        return
    assert ITEM.is_valid(value), f"the program takes {value!r}, the schema does not"


BAD_YAML = [
    (None, "unknown op"),
    (7, "unknown op"),
    ("", "unknown op"),
    ([], "unknown op"),
    ("transposse", "did you mean transpose"),
    ({}, "0 keys"),
    ({"add": 1, "exp": None}, "2 keys"),
    ({"rearrange": "a b -> b a"}, "unknown op"),
    ("stack", "argument"),
    ("concat", "argument"),
    ({"transpose": [0, 0]}, "permutation"),
    ({"transpose": [1, 2]}, "permutation"),
    ({"transpose": 1}, "permutation"),
    ({"transpose": ["1", "0"]}, "permutation"),
    ("a b -> b", "one side"),
    ("a b -> b a -> a", "one '->'"),
    ("a a -> a", "twice"),
    ("(a b -> a b", "bracket"),
    ("a) -> a", "out of place"),
    ("((a) b) -> a b", "out of place"),
    ("... a -> a ...", "out of place"),
    ("2 2 -> 2 2", "twice"),
    ("(² d) -> ² d", ""),
    ({"concat": "zero"}, "dim"),
    ({"concat": True}, "dim"),
    ({"concat": {"over": "i"}}, "needs dim"),
    ({"concat": {"dim": 0, "over": "zzz"}}, "index"),
    ({"concat": {"dim": 0, "over": "i", "axis": 1}}, "unknown key axis"),
    ({"split": 0}, "mapping"),
    ({"split": {"dim": 0}}, "sizes"),
    ({"split": {"dim": 0, "sizes": [1], "over": "i"}}, "not both"),
    ({"split": {"dim": 0, "sizes": []}}, "sizes"),
    ({"split": {"dim": 0, "sizes": 4}}, "sizes"),
    ({"split": {"dim": 0, "sizes": ["a+"]}}, "expression"),
    ({"split": {"dim": 0, "sizes": [1.5]}}, "size"),
    ({"split": {"dim": 0, "sizes": [-1, 5]}}, ""),
    ({"stack": {"dim": 1}}, "needs over"),
    ({"stack": {"over": "i", 1: 2, "z": 3}}, "unknown key"),
    ({"stack": "zzz"}, "index"),
    ({"stack": ["i"]}, "index"),
    ({"unstack": {"over": "i", "dim": None}}, "dim"),
    ({"add": "one two"}, "expression"),
    ({"add": [1]}, "number"),
    ({"add": True}, "number"),
    ({"multiply": "exec('1')"}, "call"),
    ({"exp": 2}, "no argument"),
    ({"pad": {"dim": 0}}, "needs to"),
    ({"pad": {"dim": 0, "to": 8, "value": "x"}}, "number"),
    ({"pad": {"dim": 0, "to": 8, "fill": 0}}, "unknown key fill"),
    ({"pad": {"dim": 0, "to": 8.5}}, "size"),
    ({"pad": {"dim": 0, "to": -8}}, ""),
    ({"trim": {"dim": 0, "to": 8, "value": 0}}, "unknown key value"),
    ({"trim": {"dim": 0, "to": -1, "fill": 0}}, ""),
    ({"replicate": "zzz"}, "index"),
    ({"replicate": 3}, "index"),
    ({"same": "zzz"}, "index"),
    ({"order": {"dim": 0, "to": [0, 0]}}, "order"),
    ({"order": {"dim": 0, "to": [1, 2]}}, "order"),
    ({"order": {"dim": 0, "to": ["1", "0"]}}, "order"),
    ({"order": {"dim": 0, "to": []}}, "order"),
    ({"order": {"dim": 0, "to": 3}}, "order"),
    ({"order": [0, 1]}, "mapping"),
    ({"order": {"dim": 0, "to": [0, True]}}, "order"),
    ({"order": {"dim": 0, "to": [0, "1"]}}, "order"),
    ({"order": {"dim": 0, "to": list(range(1001))}}, "a list of 1001 (at most 1000"),
    ({"transpose": []}, "permutation of 0..0"),
    ({"transpose": [True, False]}, "permutation of 0..n"),
    ({"pad": {"dim": 0, "to": True}}, "size"),
    ({"pad": {"dim": 0, "to": 8, "value": True}}, "number"),
    ({"trim": {"dim": 0, "to": 8, "fill": [0]}}, "number"),
    ({"add": float("inf")}, "finite"),
    ("dequantize", "argument"),
    ({"dequantize": [128, 128]}, "mapping"),
    ({"dequantize": {"dtype": "float8_e4m3fn"}}, "needs block"),
    ({"dequantize": {"block": 128}}, "block is 128"),
    ({"dequantize": {"block": [128]}}, "rows and columns"),
    ({"dequantize": {"block": [0, 128]}}, "or more"),
    ({"dequantize": {"block": [-1, 128]}}, "below 0"),
    ({"dequantize": {"block": [128, "x+"]}}, "expression"),
    ({"dequantize": {"block": [2, 2], "dtype": "float16"}}, "float8_e4m3fn"),
    ({"dequantize": {"block": [2, 2], "dtype": 8}}, "dtype is 8"),
    ({"quantize": {"block": [2, 2], "scale": 1}}, "unknown key scale"),
]


@pytest.mark.parametrize(("yaml", "says"), BAD_YAML, ids=[repr(y) for y, _ in BAD_YAML])
def test_bad_yaml(yaml, says):
    with pytest.raises(OpError) as caught:
        parse_op(yaml, NUMBERS)
    assert says in str(caught.value)


BAD_SHAPES = [
    ("transpose", ("a b c",), "two axes"),
    ("transpose", ("",), "two axes"),
    ({"transpose": [1, 0]}, ("a b c",), "2 axes"),
    ("x y -> y x", ("a b c",), "2 axes"),
    ("(x 2) -> x 2", ("d",), "not divisible"),
    ("a b -> b a", ("b a",), "axis 0 is 3"),
    ({"concat": 2}, ("a b", "a b"), "no axis 2"),
    ({"concat": 0}, ("a b", "a c"), "[2, 3] and [2, 5]"),
    ({"concat": 0}, ("a b", "b"), "[2, 3] and [3]"),
    ({"concat": 0}, ("i: a b", "j: a b"), "different indices"),
    ({"concat": {"dim": 0, "over": "i"}}, ("j: a b",), "not bound"),
    ({"concat": {"dim": 3, "over": "i"}}, ("i: a b",), "no axis 3"),
    ({"split": {"dim": 0, "sizes": [2, 4]}}, ("d a",), "add up to 6"),
    ({"split": {"dim": -3, "sizes": [2, 5]}}, ("d a",), "no axis -3"),
    ({"split": {"dim": 0, "over": "i"}}, ("d a",), "do not divide"),
    ({"split": {"dim": 0, "over": "i"}}, ("i: m a",), "bound already"),
    ({"split": {"dim": 0, "sizes": ["a-c", "b+d"]}}, ("d a",), ""),
    ({"stack": "i"}, ("a b",), "not bound"),
    ({"stack": {"over": "i", "dim": 3}}, ("i: a b",), "no axis 3"),
    ({"unstack": "i"}, ("i: b a",), "bound already"),
    ({"unstack": "i"}, ("d a",), "has 7"),
    ({"unstack": "i"}, ("",), "no axis 0"),
    ({"pad": {"dim": 0, "to": 6}}, ("d a",), "cannot be padded to 6"),
    ({"pad": {"dim": 2, "to": 9}}, ("d a",), "no axis 2"),
    ({"trim": {"dim": 0, "to": 8, "fill": 0}}, ("d a",), "cannot be trimmed to 8"),
    ({"trim": {"dim": 0, "to": "a-c", "fill": 0}}, ("d a",), ""),
    ({"replicate": "i"}, ("i: a",), "bound already"),
    ({"same": "i"}, ("j: a",), "not bound"),
    ("same", ("a b", "a c"), "[2, 3] and [2, 5]"),
    ("same", ("i: a b", "a b"), "different indices"),
    ({"order": {"dim": 0, "to": [1, 0]}}, ("d a",), "do not divide"),
    ({"order": {"dim": 4, "to": [1, 0]}}, ("d a",), "no axis 4"),
    ({"multiply": 0}, ("d a",), "0"),
    ({"multiply": "a-2"}, ("d a",), "0"),
    ({"add": "a/(b-3)"}, ("d a",), "zero"),
    ({"dequantize": {"block": [2, 3]}}, ("d c",), "takes a weight and its scale"),
    ({"dequantize": {"block": [2, 3]}}, ("d c", "4 2", "4 2"), "3 values"),
    ({"dequantize": {"block": [2, 3]}}, ("d c", "3 2"), "a weight of [7, 5] in blocks of 2 by 3 has a scale of [4, 2]"),
    ({"dequantize": {"block": [2, 3]}}, ("d c", "2"), "not [2]"),
    ({"dequantize": {"block": [2, 3]}}, ("d", "4"), "two axes or more"),
    ({"dequantize": {"block": [2, 3]}}, ("i: d c", "4 2"), "same indices"),
    ({"dequantize": {"block": ["a-2", 3]}}, ("d c", "4 2"), "has no elements"),
    ({"quantize": {"block": [2, "a-c"]}}, ("d c",), "has no elements"),
    ({"quantize": {"block": [2, 3]}}, ("",), "two axes or more"),
    ({"quantize": {"block": [2, 3]}}, ("d c", "4 2", "a"), "3 values"),
]


@pytest.mark.parametrize(("yaml", "flow", "says"), BAD_SHAPES, ids=[f"{y} on {f}" for y, f, _ in BAD_SHAPES])
def test_bad_shapes(yaml, flow, says):
    """An op that cannot do its work says so when it gets its numbers or infers, before any array is touched."""
    with pytest.raises(OpError) as caught:
        parse_op(yaml, NUMBERS).bind(SIZES).infer(numeric(symbolic(Case(yaml, flow))), no_fresh)
    assert says in str(caught.value)


def test_what_is_refused_is_said_in_these_words():
    """To write them anew: UPDATE_GOLDEN=1."""
    lines = []
    for yaml, _ in BAD_YAML:
        with pytest.raises(OpError) as caught:
            parse_op(yaml, NUMBERS)
        lines.append(f"{str(yaml)[:60]}: {caught.value}")
    for yaml, flow, _ in BAD_SHAPES:
        with pytest.raises(OpError) as caught:
            parse_op(yaml, NUMBERS).bind(SIZES).infer(numeric(symbolic(Case(yaml, flow))), no_fresh)
        lines.append(f"{yaml} on {' and '.join(flow)}: {caught.value}")
    text = "\n".join(line[:300] for line in lines) + "\n"
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_sizes_that_nobody_knows_are_said_when_data_come():
    symbols = OpContext(frozenset("n"), {"i": Poly.of("n")}, PARTS)
    family = Family((), (Eager(np.zeros((4, 2), "<f4")),))
    for yaml in (
        {"pad": {"dim": 0, "to": "n"}},
        {"trim": {"dim": 0, "to": "n", "fill": 0}},
        {"split": {"dim": 0, "over": "i"}},
        {"unstack": "i"},
        {"replicate": "i"},
        "(n x) d -> n x d",
    ):
        with pytest.raises(OpError, match="not known"):
            parse_op(yaml, symbols).apply((family,))


def test_numbers_that_are_none():
    known = OpContext(frozenset(["flag", "text"]), {}, PARTS)
    for value, says in (("a", "'text' is 'a', not a number"), ([1], "not a number")):
        with pytest.raises(OpError, match=says):
            parse_op({"add": "text"}, known).bind({"text": value})
    with pytest.raises(OpError, match="'flag' is True, not a number"):
        parse_op({"multiply": "flag"}, known).bind({"flag": True})


# Fuzz: mutations of the cases, on any shapes.

scalars = st.one_of(
    st.integers(-2, 4),
    st.booleans(),
    st.sampled_from(["i", "j", "a", "b*2", "1", "", "zzz", "over", "dim"]),
    st.just(1.5),
)
values = st.recursive(
    scalars, lambda s: st.lists(s, max_size=3) | st.dictionaries(scalars, s, max_size=2), max_leaves=4
)


@st.composite
def mutants(draw: st.DrawFn) -> Any:
    """The YAML of a case with one thing changed, added or taken away."""
    yaml = copy.deepcopy(draw(st.sampled_from(CASES)).yaml)
    if isinstance(yaml, str):
        words = yaml.split(" ")
        at = draw(st.integers(0, len(words) - 1))
        words[at] = draw(st.sampled_from(["", "a", "x", "(", ")", "1", "2", "->", "_z", words[at]]))
        return " ".join(words)
    ((_, argument),) = yaml.items()
    holders = [yaml, *(v for v in walk(argument) if isinstance(v, list | dict))]
    holder = draw(st.sampled_from(holders))
    keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
    change = draw(st.sampled_from(["replace", "replace", "delete", "add"]))
    if change == "add":
        key = draw(st.sampled_from(["zzz", "dim", "over", "sizes", "value", "fill", 0]))
        holder.update({key: draw(values)}) if isinstance(holder, dict) else holder.append(draw(values))
    elif keys:
        key = draw(st.sampled_from(keys))
        if change == "replace":
            holder[key] = draw(values)
        else:
            del holder[key]
    return yaml


def walk(value: Any) -> Iterator[Any]:
    yield value
    for v in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from walk(v)


@st.composite
def flows(draw: st.DrawFn) -> tuple[Value, ...]:
    bound = tuple((i, COUNTS[i]) for i in draw(st.lists(st.sampled_from(["i", "j"]), unique=True)))
    shape = draw(st.lists(st.integers(0, 6), max_size=4))
    out = []
    for _ in range(draw(st.integers(1, 3))):
        if draw(st.integers(0, 3)) == 0 and shape:
            shape = [*shape]
            shape[draw(st.integers(0, len(shape) - 1))] = draw(st.integers(0, 6))
        out.append(Value(bound, tuple(shape)))
    return tuple(out)


@settings(max_examples=600, deadline=None)
@given(mutants(), flows())
def test_any_yaml_on_any_shapes_works_or_is_refused(yaml, flow):
    try:
        op = parse_op(yaml, NUMBERS).bind(SIZES)
    except OpError:
        return
    assert ITEM.is_valid(yaml), f"the program takes {yaml!r}, the schema does not"
    if op.sizes():
        return
    flow = flow if joint(op) and op.word not in ("split", "replicate") else flow[:1]

    def fresh(name: str) -> Poly:
        return Poly.of(f"_{name}")

    try:
        found = op.infer(flow, fresh)
    except OpError:
        return
    sizes = [d for v in found.flow for d in (*v.shape, *(n for _, n in v.bound))]
    if any(isinstance(d, Poly) for d in sizes) or any(left != right for left, right in found.equations):
        return
    assert all(d >= 0 for d in sizes)
    arrays = tuple(
        Family(v.bound, tuple(Eager(np.zeros(v.shape, np.float32)) for _ in range(prod(n for _, n in v.bound))))
        for v in flow
    )
    made = op.apply(arrays).families
    assert [f.bound for f in made] == [v.bound for v in found.flow]
    assert [{x.shape for x in f.items} for f in made] == [{v.shape} for v in found.flow]


def test_members_along_an_index_without_values():
    empty = Family((("i", 0), ("j", 2)), ())
    assert empty.along("i") == ((("j", 2),), [])
    assert empty.along("j") == ((("i", 0),), [])


def test_a_number_that_is_not_known_is_named():
    op = parse_op({"multiply": "a * b"}, SYMBOLS)
    assert op.bind({"a": 2}) is op
    assert op.bind({"a": 2, "b": 3}).value() == 6
    with pytest.raises(OpError, match=r"multiply: .*a"):
        op.value()


def test_blocks_of_an_unknown_size_are_named():
    op = parse_op({"dequantize": {"block": ["a", 2]}}, SYMBOLS)
    with pytest.raises(OpError, match="the size of the block a by 2 is not known"):
        op.numbers()


def test_a_scale_that_stays_keeps_its_own_dtype():
    op = parse_op({"quantize": {"block": [2, 2]}}, NUMBERS)
    weight, scale = Result(frozenset({0}), "BF16", "none"), Result(frozenset({1}), "", "any")
    assert [(r.leaves, r.dtype) for r in op.results((weight, scale))] == [({0, 1}, "F8_E4M3"), ({1}, "")]


def test_an_axis_of_one_in_a_pattern_is_none():
    assert parse_side("a (b 1) 1 (1) (1 c d)") == (("a",), ("b",), (), (), ("c", "d"))
