"""Random maps on random checkpoints: forward and back is the identity, byte for byte, and equals plain numpy.

A world is a map and an input that it fits. Rules are drawn from a grammar of what a map can say; names, index
arithmetic, shapes and data are worked out here by the plainest means: the engine is held against something else.
"""

import tempfile
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lab import DTYPES, Lab, arr, read, same, write

import converter
from converter.eager import Eager
from converter.flow import apply
from converter.ops.base import Family

worlds_law = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)

KEPT = ["F32", "BF16", "F16", "I64", "U8", "BOOL", "F64", "F8_E4M3"]  # as they are: any bits
WIDENED = [
    ("BF16", "F32"),
    ("F16", "F32"),
    ("F32", "F64"),
    ("BF16", "F64"),
]  # exact on the way there and on the way back
WORDS = {
    "F32": "float32",
    "BF16": "bfloat16",
    "F16": "float16",
    "F64": "float64",
    "I64": "int64",
    "U8": "uint8",
    "BOOL": "bool",
}


class Dim(NamedTuple):
    """An axis: its text in a shape (None where only the ops know it), and its size."""

    text: str | None
    n: int


class World(NamedTuple):
    """A map as plain data, an input that fits it, and what is set beside."""

    map: dict[str, Any]
    tensors: dict[str, np.ndarray]
    set: dict[str, int]


class Rule(NamedTuple):
    """A rule as plain data with the input tensors that it reads."""

    doc: dict[str, Any]
    tensors: dict[str, np.ndarray]


class Ground:
    """What all rules of a world share: sizes, indices, labels; and the drawing of what rules are made of."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.sizes = {n: draw(st.integers(1, 4)) for n in "abce"}
        self.counts = {"i": draw(st.integers(1, 12)), "j": draw(st.integers(1, 3))}
        self.depths = [draw(st.integers(1, 2)) for _ in range(self.counts["i"])]
        self.told = draw(st.booleans())  # whether n and m are set, or counted from names
        self.keys = draw(st.sampled_from([["q", "k.v", "o"], ["1", "a.b", "10"], [3, 1, 2]]))
        self.images = draw(st.sampled_from([self.keys, ["x", "y.z", "w"], [0, 7, 1]]))
        self.rng = np.random.default_rng(draw(st.integers(0, 2**32)))

    def indices(self) -> dict[str, Any]:
        labels = self.keys if self.keys == self.images else dict(zip(self.keys, self.images))
        return {"i": "n", "j": "m", "w": labels, "sub": "depths[i]"}

    def chance(self, n: int) -> bool:
        return self.draw(st.integers(0, n)) == 0

    def pick(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    # Indices and names.

    def values(self, indices: list[str]) -> list[dict[str, Any]]:
        """All values of some indices, in the order of their names in `indices`."""
        rows: list[dict[str, Any]] = [{}]
        for name in indices:
            rows = [{**row, name: v} for row in rows for v in self.range(name, row)]
        return rows

    def range(self, name: str, row: dict[str, Any]) -> list[Any]:
        if name == "w":
            return list(self.keys)
        return list(range(self.depths[row["i"]] if name == "sub" else self.counts[name]))

    def holes(self, indices: list[str], side: int) -> list[str]:
        """Holes for some indices, in any order; with counts that are known also arithmetic."""
        out = []
        left = list(indices)
        if self.told and {"i", "j"} <= set(left) and self.chance(2):
            out.append("{m*i+j}")
            left = [n for n in left if n not in ("i", "j")]
        for n in left:
            if n == "w":
                out.append(self.pick("{w}", "{w:_}"))
            else:
                choices = [f"{{{n}}}", f"{{{n}:02}}", f"{{{n}+1}}", f"{{3*{n}+2}}"]
                choices += [f"{{n-1-{n}}}"] if n == "i" and self.told else []
                out.append(self.pick(*choices))
        return list(self.draw(st.permutations(out)))

    def template(self, prefix: str, indices: list[str], side: int, end: str = "") -> str:
        return prefix + "".join(self.pick(".", "/", "_x.") + h for h in self.holes(indices, side)) + end

    def render(self, template: str, row: dict[str, Any], side: int) -> str:
        """Write a name, by Python's own eval."""
        world = {"n": self.counts["i"], "m": self.counts["j"], **row}
        if "w" in row and side:
            world["w"] = self.images[self.keys.index(row["w"])]
        out = ""
        for k, piece in enumerate(template.replace("}", "{").split("{")):
            text, _, fmt = piece.partition(":") if k % 2 else (piece, "", "")
            value = eval(text, {}, world) if k % 2 else text
            out += str(value).replace(".", "_") if fmt == "_" else str(value).zfill(int(fmt or 0))
        return out

    # Shapes and ops.

    def dim(self) -> Dim:
        text = self.pick("a", "b", "c", "e", "2*c", "a*b", "e+1", "b+2*c", "3", "6")
        return Dim(text, eval(text, {}, self.sizes))

    def shape(self, low: int = 0, high: int = 3) -> list[Dim]:
        return [self.dim() for _ in range(self.draw(st.integers(low, high)))]

    def ops(self, shape: list[Dim], most: int = 3) -> tuple[list[Any], list[Dim]]:
        """A chain of exact ops on one tensor, and the shape that comes out."""
        ops: list[Any] = []
        for _ in range(self.draw(st.integers(0, most))):
            made = self.op(shape)
            if made is not None and prod(d.n for d in made[1]) <= 2000:
                ops.append(made[0])
                shape = made[1]
        return ops, shape

    def op(self, shape: list[Dim]) -> tuple[Any, list[Dim]] | None:
        rank = len(shape)
        kind = self.pick("transpose", "permute", "merge", "apart", "halves", "order", "pad", "ones")
        if kind == "transpose" and rank == 2:
            return "transpose", shape[::-1]
        if kind == "permute" and rank:
            axes = list(self.draw(st.permutations(range(rank))))
            return {"transpose": axes}, [shape[k] for k in axes]
        if kind == "ones":
            names = " ".join(f"x{k}" for k in range(rank))
            return f"{names} -> {names} 1", [*shape, Dim("1", 1)]
        if kind == "merge" and rank >= 2:
            axes = list(self.draw(st.permutations(range(rank))))
            left, right = " ".join(f"x{k}" for k in range(rank)), " ".join(f"x{k}" for k in axes[2:])
            a, b = shape[axes[0]], shape[axes[1]]
            text = f"({a.text})*({b.text})" if a.text and b.text else None
            return f"{left} -> (x{axes[0]} x{axes[1]}) {right}".rstrip(), [
                Dim(text, a.n * b.n),
                *(shape[k] for k in axes[2:]),
            ]
        if not rank:
            return None
        at = self.draw(st.integers(0, rank - 1))
        axis = shape[at]
        names = [f"x{k}" for k in range(rank)]
        if kind == "apart" and axis.text == "a*b":
            inside = self.pick("a b", "a y", "y b")
            left = " ".join([*names[:at], f"({inside})", *names[at + 1 :]])
            right = " ".join([*names[:at], *reversed(inside.split()), *names[at + 1 :]])
            first = Dim("a" if inside[0] == "a" else None, self.sizes["a"])
            second = Dim("b" if inside[-1] == "b" else None, self.sizes["b"])
            return f"{left} -> {right}", [*shape[:at], second, first, *shape[at + 1 :]]
        if kind == "halves" and axis.n % 2 == 0:
            left = " ".join([*names[:at], "(y 2)", *names[at + 1 :]])
            right = " ".join([*names[:at], "(2 y)", *names[at + 1 :]])
            return f"{left} -> {right}", shape
        if kind == "order":
            parts = next((p for p in (3, 2) if axis.n % p == 0), 1)
            dim = self.pick(at, at - rank)
            return (
                ({"order": {"dim": dim, "to": list(self.draw(st.permutations(range(parts))))}}, shape)
                if parts > 1
                else None
            )
        if kind == "pad":
            more = self.draw(st.integers(0, 2))
            value = self.pick(0, 1)
            to = f"{axis.text}+{more}" if axis.text and self.pick(True, False) else axis.n + more
            text = to if isinstance(to, str) else str(to)
            return {"pad": {"dim": at, "to": to, "value": value}}, [
                *shape[:at],
                Dim(text, axis.n + more),
                *shape[at + 1 :],
            ]
        return None

    # Data.

    def array(self, dtype: str, shape: list[Dim], finite: bool = False) -> np.ndarray:
        size = prod(d.n for d in shape)
        numbers = tuple(d.n for d in shape)
        if finite:
            return self.rng.standard_normal(size).astype(np.float32).astype(DTYPES[dtype]).reshape(numbers)
        words = self.rng.integers(0, 2 if dtype == "BOOL" else 256, size * DTYPES[dtype].itemsize, np.uint8)
        return words.view(DTYPES[dtype]).reshape(numbers)


def text_of(shape: list[Dim], as_list: bool) -> Any:
    dims = [d.text if d.text is not None else d.n for d in shape]
    return dims if as_list or not dims else " ".join(str(d).replace(" ", "") for d in dims)


# Rules. Each makes one rule of the map with its tensors; `k` makes its names differ from all others.


def dtype_of(g: Ground, doc: dict[str, Any]) -> tuple[str, bool]:
    """Draw a dtype, perhaps with an exact cast that the rule states; says whether data must be finite."""
    if g.chance(3):
        low, high = g.pick(*WIDENED)
        doc["dtype"] = {"from": WORDS[low], "to": WORDS[high]}
        return low, True
    return g.pick(*KEPT), False


def free_of(g: Ground, bound: str | None = None) -> list[str]:
    names = [n for n in ("i", "j", "w") if n != bound and g.chance(2)]
    return [*names, "sub"] if "i" in names and g.chance(3) else names


def condition(g: Ground, doc: dict[str, Any], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Perhaps let the rule hold for some index values only."""
    if not rows or not rows[0] or not g.chance(3):
        return rows
    name = g.pick(*rows[0])
    value = g.pick(*sorted({str(r[name]) if name == "w" else r[name] for r in rows}))
    if name == "w" and isinstance(g.keys[0], str):
        value = repr(value)
    text = f"{name} {g.pick('==', '!=')} {value}"
    doc["when"] = text
    return [r for r in rows if eval(text, {}, r)]


def present(g: Ground, doc: dict[str, Any], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Perhaps make the rule optional, and leave some instances out."""
    if not g.chance(4):
        return rows
    doc["optional"] = True
    return [r for r in rows if g.pick(True, False)]


def rename(g: Ground, k: int) -> Rule:
    """One tensor to one, over free indices, through ops."""
    free, shape = free_of(g), g.shape()
    doc: dict[str, Any] = {"from": g.template(f"r{k}", free, 0), "to": g.template(f"s{k}", free, 1, ".w")}
    dtype, finite = dtype_of(g, doc)
    ops, _ = g.ops(shape)
    doc |= {"shape": text_of(shape, g.pick(True, False))} | ({"ops": ops} if ops else {})
    rows = present(g, doc, condition(g, doc, g.values(free)))
    tensors = {g.render(doc["from"], r, 0): g.array(dtype, shape, finite) for r in rows}
    if g.chance(5):
        doc["from"] = {"any": [doc["from"], "other/" + doc["from"]]}
    return Rule(doc, tensors)


def spread(g: Ground, k: int) -> Rule:
    """One tensor for each value of a bound index, and one that holds them all; either side may be the `from` side."""
    bound = g.pick("i", "j", "w")
    free = free_of(g, bound)
    one, many = g.template(f"t{k}", free, 0), [*free, bound]
    shape = g.shape(1)
    at = g.draw(st.integers(0, len(shape) - 1))
    gather = g.pick(
        {"stack": bound}, {"stack": {"over": bound, "dim": -1}}, {"concat": {"dim": at, "over": bound}}, {"same": bound}
    )
    doc: dict[str, Any] = {}
    dtype, finite = dtype_of(g, doc)
    (word,) = gather
    if g.pick(True, False):
        heads, _ = g.ops(shape, 1) if word != "concat" else ([], shape)
        doc |= {"from": g.template(f"r{k}", many, 0), "to": one, "shape": text_of(shape, True), "ops": [*heads, gather]}
        rows = g.values(free)
        conditioned = condition(g, doc, g.values(many)) if word != "same" else g.values(many)
        if doc.get("optional"):
            conditioned = []
        return Rule(doc, tensors_of(g, doc["from"], rows, conditioned, dtype, shape, finite, word == "same"))
    count = len(g.keys) if bound == "w" else g.counts[bound]
    symbol = {"i": "n", "j": "m", "w": str(count)}[bound]
    if word == "concat":
        whole = [*shape[:at], Dim(f"{symbol}*({shape[at].text})", count * shape[at].n), *shape[at + 1 :]]
        part: Any = {"split": {"dim": at, "over": bound}}
    elif word == "stack":
        last = gather["stack"] != bound
        whole = [*shape, Dim(symbol, count)] if last else [Dim(symbol, count), *shape]
        part = {"unstack": gather["stack"]}
    else:
        whole, part = shape, {"replicate": bound}
    doc |= {"from": one, "to": g.template(f"s{k}", many, 1), "shape": text_of(whole, True), "ops": [part]}
    rows = condition_free(g, doc, free)
    return Rule(doc, {g.render(one, r, 0): g.array(dtype, whole, finite) for r in rows})


def condition_free(g: Ground, doc: dict[str, Any], free: list[str]) -> list[dict[str, Any]]:
    return present(g, doc, condition(g, doc, g.values(free)))


def tensors_of(
    g: Ground, template: str, rows: list[Any], many: list[Any], dtype: str, shape: list[Dim], finite: bool, equal: bool
) -> dict[str, np.ndarray]:
    out = {}
    for r in rows:
        first = g.array(dtype, shape, finite)
        for m in many:
            if all(m[n] == v for n, v in r.items()):
                out[g.render(template, m, 0)] = first if equal else g.array(dtype, shape, finite)
    return out


def join(g: Ground, k: int) -> Rule:
    """Several terms joined along an axis, each through its own ops, then ops of the whole."""
    free = free_of(g)
    terms: list[Any] = []
    common = g.shape(1)
    at = g.draw(st.integers(0, len(common) - 1))
    shapes = [[*common[:at], g.dim(), *common[at + 1 :]] for _ in range(g.draw(st.integers(1, 3)))]
    doc: dict[str, Any] = {}
    dtype, finite = dtype_of(g, doc)
    turned = len(common) == 2 and g.chance(2)
    for p, s in enumerate(shapes):
        before = s[::-1] if turned else s
        term = {"name": g.template(f"r{k}.{p}", free, 0), "shape": text_of(before, g.pick(True, False))}
        terms.append(term | ({"ops": ["transpose"]} if turned else {}))
    whole = [*common[:at], Dim(None, sum(s[at].n for s in shapes)), *common[at + 1 :]]
    ops, _ = g.ops(whole, 1)
    doc |= {"from": terms, "to": g.template(f"s{k}", free, 1), "ops": [{"concat": g.pick(at, at - len(common))}, *ops]}
    tensors = {}
    for r in condition_free(g, doc, free):
        for term, s in zip(terms, shapes):
            tensors[g.render(term["name"], r, 0)] = g.array(dtype, s[::-1] if turned else s, finite)
    return Rule(doc, tensors)


def part(g: Ground, k: int) -> Rule:
    """One tensor cut into terms, each with its own ops; or given to each of several names."""
    free, common = free_of(g), g.shape(1)
    at = g.draw(st.integers(0, len(common) - 1))
    sizes = [g.dim() for _ in range(g.draw(st.integers(1, 3)))]
    terms = [g.template(f"s{k}.{p}", free, 1) for p in range(len(sizes))]
    doc: dict[str, Any] = {"from": g.template(f"r{k}", free, 0), "to": list(terms)}
    dtype, finite = dtype_of(g, doc)
    if g.chance(4):
        doc |= {"shape": text_of(common, True), "ops": ["replicate"]}
        shape = common
    else:
        shape = [*common[:at], Dim("+".join(s.text for s in sizes), sum(s.n for s in sizes)), *common[at + 1 :]]
        doc |= {"shape": text_of(shape, True), "ops": [{"split": {"dim": at, "sizes": [s.text for s in sizes]}}]}
        if len(common) == 2:
            doc["to"] = [{"name": t, "ops": ["transpose"]} if g.pick(True, False) else t for t in terms]
    return Rule(doc, {g.render(doc["from"], r, 0): g.array(dtype, shape, finite) for r in condition_free(g, doc, free)})


def equal(g: Ground, k: int) -> Rule:
    """Several equal tensors that become one."""
    free, shape = free_of(g), g.shape()
    terms = [g.template(f"r{k}.{p}", free, 0) for p in range(g.draw(st.integers(1, 3)))]
    doc: dict[str, Any] = {"from": list(terms), "to": g.template(f"s{k}", free, 1), "ops": ["same"]}
    doc["shape"] = [text_of(shape, True) for _ in terms] if len(terms) > 1 else text_of(shape, True)
    dtype, finite = dtype_of(g, doc)
    tensors = {}
    for r in condition_free(g, doc, free):
        x = g.array(dtype, shape, finite)
        tensors |= {g.render(t, r, 0): x for t in terms}
    return Rule(doc, tensors)


def fill(g: Ground, k: int) -> Rule:
    """A constant that one side stores."""
    what = g.pick("zeros", "ones", "arange", "causal_mask", 3, -0.5, "a*2", "-.inf")
    floats = what in (-0.5, "-.inf")
    dtype = g.pick("F32", "F16", "BF16", "F64") if floats else g.pick("F32", "I64", "U8", "F16")
    shape = g.shape(2, 3) if what == "causal_mask" else g.shape(1, 3)
    free = free_of(g)
    side = g.pick("from", "to")
    number = float("-inf") if what == "-.inf" else what
    doc: dict[str, Any] = {side: g.template(f"f{k}", free, side == "to"), "fill": number}
    doc |= {"shape": text_of(shape, True), "dtype": WORDS[dtype]}
    if side == "to":
        return Rule(doc, {})
    numbers = tuple(d.n for d in shape)
    values = {
        "zeros": lambda: np.zeros(numbers),
        "ones": lambda: np.ones(numbers),
        "arange": lambda: np.broadcast_to(np.arange(numbers[-1]), numbers),
        "causal_mask": lambda: np.broadcast_to(np.tril(np.ones(numbers[-2:])), numbers),
        "a*2": lambda: np.full(numbers, g.sizes["a"] * 2),
    }
    x = values[what]() if what in values else np.full(numbers, number)
    return Rule(doc, {g.render(doc["from"], r, 0): x.astype(DTYPES[dtype]) for r in g.values(free)})


def regex(g: Ground, k: int) -> Rule:
    """A rename by pattern."""
    doc = {"match": rf"u{k}\.(?P<x>[a-z]+)\.(?P<y>\d+)", "to": f"v{k}/{{y}}-{{x}}"}
    return Rule(doc, {f"u{k}.{x}.{y}": g.array(g.pick(*KEPT), g.shape()) for x, y in [("ab", 3), ("c", 10), ("ab", 0)]})


def halved(g: Ground, k: int) -> Rule:
    """Two rules that share their names, each for some values of an index."""
    shape = [Dim("a", g.sizes["a"]), Dim("a", g.sizes["a"])]
    a, b = g.template(f"r{k}", ["i"], 0), g.template(f"s{k}", ["i"], 1)
    rules = [
        {"from": a, "to": b, "shape": "a a", "ops": ["transpose"], "when": "i % 2 == 0"},
        {"from": a, "to": b, "shape": "a a", "when": "i % 2 == 1"},
    ]
    doc = {"from": f"G{k}.", "to": f"H{k}.", "rules": rules}
    return Rule(doc, {f"G{k}." + g.render(a, r, 0): g.array("F32", shape) for r in g.values(["i"])})


def group(g: Ground, k: int) -> Rule:
    """A group over an index, whose tensors are there together or not at all."""
    shape = g.shape()
    names = [f"x{p}" for p in range(g.draw(st.integers(1, 3)))]
    prefix = g.template(f"r{k}", ["i"], 0, ".")
    doc: dict[str, Any] = {"from": prefix, "to": g.template(f"s{k}", ["i"], 1, ".")}
    rows = condition_free(g, doc, ["i"])
    doc["rules"] = [{"from": n, "to": n.upper(), "shape": text_of(shape, True)} for n in names]
    return Rule(doc, {g.render(prefix, r, 0) + n: g.array("F16", shape) for r in rows for n in names})


def tied(g: Ground, k: int) -> Rule:
    """A head that is the embedding: absent, a tensor of its own, or stored again on one side."""
    how = g.pick("absent", "own", "copy")
    shape = [Dim("a", g.sizes["a"]), Dim("b", g.sizes["b"])]
    doc: dict[str, Any] = {"from": f"head{k}", "to": f"out{k}", "shape": "a b", "tied": "base"}
    if how == "own":
        return Rule(doc | {"untied": "keep"}, {f"head{k}": g.array("F32", shape)})
    return Rule(doc | ({"tied": {"name": "base", "to": "copy"}} if how == "copy" else {}), {})


def quantised(g: Ground, k: int) -> Rule:
    """A float8 weight and its scale, which is kept: there and back every bit."""
    free, shape = free_of(g), g.shape(2, 3)
    block = [g.draw(st.integers(1, 4)), g.pick(1, 2, 3, shape[-1].text)]
    grid = [d.n for d in shape]
    grid[-2:] = (-(-n // (b if isinstance(b, int) else n)) for n, b in zip(grid[-2:], block))
    swap = {"transpose": [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]}
    turned, turned_scale, out = (g.pick(True, False) for _ in range(3))
    before = [*shape[:-2], shape[-1], shape[-2]] if turned else shape
    weight, scale = g.template(f"r{k}", free, 0, ".weight"), g.template(f"r{k}", free, 0, ".scale")
    doc: dict[str, Any] = {
        "from": [
            {"name": weight, "shape": text_of(before, True)} | ({"ops": [swap]} if turned else {}),
            {"name": scale} | ({"ops": [swap]} if turned_scale else {}),
        ],
        "to": [
            {"name": g.template(f"s{k}", free, 1, ".w"), "dtype": g.pick("bfloat16", "float32", "float64")}
            | ({"ops": [swap]} if out else {}),
            g.template(f"s{k}", free, 1, ".s"),
        ],
        "ops": [{"dequantize": {"block": block}}],
    }
    tensors = {}
    for r in condition_free(g, doc, free):
        tensors[g.render(weight, r, 0)] = g.array("F8_E4M3", before)
        numbers = np.exp(g.rng.standard_normal(grid) - 5).astype(np.float32)
        tensors[g.render(scale, r, 0)] = np.ascontiguousarray(numbers.swapaxes(-1, -2) if turned_scale else numbers)
    return Rule(doc, tensors)


KINDS = (rename, rename, spread, spread, join, part, equal, fill, regex, halved, group, tied, quantised)


@st.composite
def worlds(draw: st.DrawFn, kinds: tuple[Any, ...] = KINDS) -> World:
    g = Ground(draw)
    rules = [
        Rule({"from": f"size.{n}", "to": f"dim.{n}", "shape": n}, {f"size.{n}": g.array("U8", [Dim(n, v)])})
        for n, v in g.sizes.items()
    ]
    ones = {f"cnt.{r['i']}.{r['j']}": g.array("I64", []) for r in g.values(["i", "j"])}
    rules.append(Rule({"from": "cnt.{i}.{j}", "to": "count/{j}/{i}", "shape": []}, ones))
    base = [Dim("a", g.sizes["a"]), Dim("b", g.sizes["b"])]
    rules.append(Rule({"from": "base", "to": "Base", "shape": "a b"}, {"base": g.array("F32", base)}))
    rules += [draw(st.sampled_from(kinds))(g, k) for k in range(draw(st.integers(1, 5)))]
    doc = {
        "version": 1,
        "name": "random",
        "params": {"depths": {"default": g.depths}},
        "indices": g.indices(),
        "rules": [r.doc for r in rules],
    }
    tensors = {n: x for r in rules for n, x in r.tensors.items()}
    if g.chance(2):
        doc["rest"] = "keep"
        tensors |= {f"zz.{k}": g.array(g.pick(*KEPT), g.shape()) for k in range(2)}
    names = draw(st.permutations(list(tensors)))
    counts = {"n": g.counts["i"], "m": g.counts["j"]} if g.told else {}
    return World(doc, {n: tensors[n] for n in names}, counts)


def put(folder: Path, world: World, rules: list[Any] | None = None) -> tuple[Path, Path]:
    """Write map and input of a world."""
    map_file = folder / "map.yaml"
    map_file.write_text(
        yaml.safe_dump({**world.map, "rules": rules or world.map["rules"]}, sort_keys=False, allow_unicode=True)
    )
    return map_file, write(folder / "in.safetensors", world.tensors)


# The laws.


@worlds_law
@given(worlds(), st.sampled_from([None, 64, 4096]), st.booleans())
def test_forward_and_back_is_the_identity(world, shard, verify):
    there_and_back(world, shard, verify)


@pytest.mark.parametrize("kind", sorted(set(KINDS), key=lambda k: k.__name__), ids=lambda k: k.__name__)
@settings(worlds_law, max_examples=8)
@given(data=st.data())
def test_each_kind_of_rule_by_itself(kind, data):
    there_and_back(data.draw(worlds((kind,))))


def there_and_back(world: World, shard: int | None = None, verify: bool = False) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        map_file, source = put(folder, world)
        there = folder / ("there" if shard else "there.safetensors")
        converter.convert(source, there, map_file, set=world.set, max_shard_size=shard, verify=verify)
        converter.convert(there, folder / "back.safetensors", map_file, reverse=True, set=world.set, verify=verify)
        same(read(folder / "back.safetensors"), world.tensors)


def evaluate(plan: Any, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Do what a plan says, with whole arrays in memory."""
    out = {}
    for step in plan.steps:
        if step.kind != "move":
            continue
        groups = [
            Family(o.bound, tuple(Eager(tensors[n]) for n in g)) for o, g in zip(step.recipe.inputs, step.sources)
        ]
        done = apply(step.recipe.chain, tuple(groups))
        assert all(c.left.array.tobytes() == c.right.array.tobytes() for c in done.checks)
        for operand, family, names in zip(step.recipe.outputs, done.families, step.targets, strict=True):
            for x, n in zip(family.items, names, strict=True):
                dtype = DTYPES[operand.dtype]
                out[n] = x.array if x.array.dtype == dtype else x.array.astype(dtype)
    return out


@worlds_law
@given(worlds())
def test_forward_is_what_numpy_makes_of_it(world):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        map_file, source = put(folder, world)
        plan = converter.plan(source, map_file, set=world.set)
        plan.write(folder / "there.safetensors")
        got, want = read(folder / "there.safetensors"), evaluate(plan, world.tensors)
        fills = {n for step in plan.steps if step.kind == "fill" for n in step.target_names()}
        assert set(got) == set(want) | fills
        same({n: x for n, x in got.items() if n not in fills}, want)
        assert [(o.name, o.dtype, o.shape) for o in sorted(plan.outputs)] == [
            (n, next(k for k, d in DTYPES.items() if d == x.dtype), x.shape) for n, x in sorted(got.items())
        ]


@worlds_law
@given(worlds(), st.data())
def test_order_of_rules_jobs_and_memory_change_no_byte(world, data):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        map_file, source = put(folder, world)
        converter.convert(source, folder / "a.safetensors", map_file, set=world.set, jobs=1)
        order = data.draw(st.permutations(range(len(world.map["rules"]))))
        map_file, _ = put(folder, world, [world.map["rules"][k] for k in order])
        memory, jobs = data.draw(st.sampled_from([500, 5000, 1 << 20])), data.draw(st.integers(1, 4))
        converter.convert(source, folder / "b.safetensors", map_file, set=world.set, jobs=jobs, memory=memory)
        assert (folder / "b.safetensors").read_bytes() == (folder / "a.safetensors").read_bytes()


@worlds_law
@given(worlds(), st.data())
def test_a_plan_divides(world, data):
    """Parts of a plan, each made by itself, are the whole."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        map_file, source = put(folder, world)
        plan = converter.plan(source, map_file, set=world.set)
        whole = evaluate(plan, world.tensors)
        names = data.draw(st.permutations([o.name for o in plan.outputs]))
        cut = data.draw(st.integers(0, len(names)))
        parts = [plan.part(names[:cut]), plan.part(names[cut:])]
        made: dict[str, np.ndarray] = {}
        for k, p in enumerate(parts):
            assert {o.name for o in p.outputs} >= set((names[:cut], names[cut:])[k])
            made |= evaluate(p, world.tensors)
        same(made, whole)


# Arithmetic and casts: not exact, but the same as numpy's, and the same whatever the tiles are.

FLOATS = ["F64", "F32", "F16", "BF16"]


@st.composite
def computations(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, np.ndarray], int]:
    g = Ground(draw)
    rules, tensors = [], {}
    for k in range(draw(st.integers(1, 4))):
        shape = g.shape(1)
        ops, out = g.ops(shape, 2)
        steps = [
            g.pick({"add": 1}, {"multiply": "a/3"}, {"multiply": 0.5}, "exp", {"add": "-b"})
            for _ in range(draw(st.integers(1, 2)))
        ]
        after, _ = g.ops(out, 1)
        source, target = g.pick(*FLOATS), g.pick(None, *FLOATS)
        doc = {"from": f"r{k}", "to": f"s{k}", "shape": text_of(shape, True), "ops": [*ops, *steps, *after]}
        rules.append(doc | ({"dtype": {"to": WORDS[target]}} if target else {}))
        tensors[f"r{k}"] = g.array(source, shape, finite=True)
    for k in range(draw(st.integers(0, 2))):
        shape = g.shape(2, 3)
        numbers = [d.n for d in shape]
        block = [draw(st.integers(1, 4)), draw(st.integers(1, 4))]
        grid = [*shape[:-2], *(Dim(None, -(-n // b)) for n, b in zip(numbers[-2:], block))]
        kind, after = g.pick("F8_E4M3", "F8_E5M2"), g.ops(shape, 1)[0]
        word = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}[kind]
        if g.pick(True, False):
            doc = {"from": [{"name": f"q{k}", "shape": text_of(shape, True), "dtype": word}, f"q{k}.s"], "to": f"u{k}"}
            doc |= {"ops": [{"dequantize": {"block": block}}, *after]}
            tensors |= {f"q{k}": g.array(kind, shape), f"q{k}.s": g.array("F32", grid, finite=True)}
        else:
            doc = {"from": f"q{k}", "to": [{"name": f"u{k}", "dtype": word}, f"u{k}.s"], "shape": text_of(shape, True)}
            doc |= {"ops": [{"quantize": {"block": block}}]}
            tensors[f"q{k}"] = g.array(g.pick(*FLOATS), shape, finite=True)
        rules.append(doc)
    rules += [{"from": f"size.{n}", "to": f"dim.{n}", "shape": n} for n in g.sizes]
    tensors |= {f"size.{n}": g.array("U8", [Dim(n, v)]) for n, v in g.sizes.items()}
    return {"version": 1, "name": "random", "rules": rules}, tensors, draw(st.sampled_from([500, 1 << 20]))


@worlds_law
@given(computations())
def test_arithmetic_is_what_numpy_makes_of_it(computation):
    doc, tensors, memory = computation
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        map_file, source = put(folder, World(doc, tensors, {}))
        plan = converter.plan(source, map_file, allow_overflow=True)
        plan.write(folder / "there.safetensors", memory=memory)
        with np.errstate(all="ignore"):
            want = evaluate(plan, tensors)
        same(read(folder / "there.safetensors"), want)


def test_what_has_no_source_stands_in_an_order_of_its_own(tmp_path):
    """Fills and copies of one tensor share a place in the input: the order of their rules must not show in the file."""
    rules = [
        {"from": "a", "to": "b", "shape": "d"},
        {"to": "z", "fill": "ones", "shape": [3], "dtype": "float32"},
        {"to": "c.{i}", "fill": "zeros", "shape": [2], "dtype": "float32"},
        {"from": "t", "to": "y", "shape": "d", "tied": {"name": "a", "to": "copy"}},
        {"from": "s", "to": "x", "shape": "d", "tied": {"name": "a", "to": "copy"}},
    ]
    doc = {"version": 1, "name": "order", "indices": {"i": 11}, "rules": rules}
    world = World(doc, {"a": np.arange(5, dtype=np.float32)}, {})
    files = []
    for k, order in enumerate((rules, rules[::-1])):
        map_file, source = put(tmp_path, world, order)
        converter.convert(source, tmp_path / f"{k}.safetensors", map_file)
        files.append((tmp_path / f"{k}.safetensors").read_bytes())
    assert files[0] == files[1]


GATHERED = [
    ("2*d e", "'(y 2) e -> (2 y) e', {stack: i}", (4, 3)),
    ("2*d e", "'(d y) e -> y d e', {stack: {over: i, dim: 1}}", (6, 2)),
    ("d+e e", "{stack: i}", (5, 2)),
]


@pytest.mark.parametrize(("shape", "ops", "numbers"), GATHERED)
def test_a_condition_on_a_bound_index_leaves_sizes_to_be_solved(tmp_path, shape, ops, numbers):
    """The tensor that holds them all has no such index in its name, and yet it tells sizes on the way back."""
    lab = Lab(tmp_path)
    m = lab.map(f"""
        indices: {{i: n}}
        rules:
          - {{from: 'r.{{i}}', to: t, shape: {shape}, ops: [{ops}], when: 'i != 1'}}
    """)
    tensors = {f"r.{i}": arr(*numbers, start=100 * i) for i in (0, 2)}
    source = write(tmp_path / "in.safetensors", tensors)
    converter.convert(source, tmp_path / "there.safetensors", m, set={"n": 3})
    converter.convert(tmp_path / "there.safetensors", tmp_path / "back.safetensors", m, reverse=True, set={"n": 3})
    same(read(tmp_path / "back.safetensors"), tensors)


def test_layers_of_one_kind_in_one_array_come_back(tmp_path):
    """Attention in some layers only, q and k fused and stacked: the sizes to cut at are in the stacked tensor."""
    lab = Lab(tmp_path)
    m = lab.map("""
        indices: {i: n}
        rules:
          - from: ['q.{i}', 'k.{i}']
            to: qk
            shape: [2*d e, d e]
            ops: [{concat: 0}, {stack: i}]
            when: i % 2 == 1
    """)
    tensors = {f"{x}.{i}": arr(n, 5, start=100 * i) for i in (1, 3) for x, n in (("q", 4), ("k", 2))}
    source = write(tmp_path / "in.safetensors", tensors)
    converter.convert(source, tmp_path / "there.safetensors", m, set={"n": 4})
    converter.convert(tmp_path / "there.safetensors", tmp_path / "back.safetensors", m, reverse=True, set={"n": 4})
    same(read(tmp_path / "back.safetensors"), tensors)
