"""float8 weights and their scales, held against the formula in plain numpy, in memory that holds next to nothing."""

import threading
from itertools import product

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lab import DTYPES, Lab, metadata, read, same, write

import converter
from converter.blockwise import scales_of, slabs
from converter.casts import convert
from converter.eighths import from_eighth, to_eighth
from converter.kernels import numpy_dtype
from converter.ops.base import OpError
from converter.ops.blocks import LARGEST
from converter.ops.quantize import Quantize
from converter.shared import Shared

E4M3, E5M2, BF16 = DTYPES["F8_E4M3"], DTYPES["F8_E5M2"], DTYPES["BF16"]
SINGLE = """
    rules:
      - from: [{{name: w, shape: {shape}, dtype: {f8}}}, s]
        to: {{name: W, dtype: {to}}}
        ops: [{{dequantize: {{block: {block}}}}}]
    """
KEPT = """
    rules:
      - from: [{name: w, shape: r c}, s]
        to: [{name: W, dtype: bfloat16}, S]
        ops: [{dequantize: {block: [2, 3]}}]
    """
FOUND = """
    rules:
      - {from: W, to: [w, s], shape: r c, ops: [{quantize: {block: [2, 3]}}]}
    """


@pytest.fixture
def lab(tmp_path):
    return Lab(tmp_path)


def grid(shape, block):
    return (*shape[:-2], -(-shape[-2] // block[0]), -(-shape[-1] // block[1]))


def spread(scale, shape, block):
    """Each scale on every element of its block."""
    rows, columns = (np.arange(n) // b for n, b in zip(shape[-2:], block))
    return scale.astype(np.float32)[..., rows[:, None], columns]


def dequantized(w, s, block, dtype):
    with np.errstate(all="ignore"):
        return (w.astype(np.float32) * spread(s, w.shape, block)).astype(dtype)


def quantized(x, block, dtype, largest):
    """README_WEIGHTS.md of DeepSeek-V3 the other way: the largest magnitude of a block becomes the largest number."""
    x = x.astype(np.float32)
    found = np.ones(grid(x.shape, block), np.float32)
    for at in np.ndindex(found.shape):
        *lead, i, j = at
        part = x[(*lead, slice(i * block[0], (i + 1) * block[0]), slice(j * block[1], (j + 1) * block[1]))]
        amax = np.abs(part[np.isfinite(part)]).max(initial=0)
        if amax:
            found[at] = amax / np.float32(largest)
    return (x / spread(found, x.shape, block)).astype(dtype), found


def weights(shape, dtype=E4M3, seed=0):
    """Any bits but those of what is no number."""
    bits = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    bits[~np.isfinite(bits.view(dtype).astype(np.float32))] = 5
    return bits.view(dtype)


def scales(shape, seed=1, dtype=np.float32):
    return (np.random.default_rng(seed).random(shape) * 0.01 + 1e-4).astype(np.float32).astype(dtype)


# The formula.

SHAPES = [((12, 15), (4, 5)), ((7, 11), (2, 3)), ((1, 1), (128, 128)), ((130, 3), (128, 1)), ((2, 3, 9, 7), (4, 9))]


@pytest.mark.parametrize(("shape", "block"), SHAPES, ids=str)
@pytest.mark.parametrize("f8", ["F8_E4M3", "F8_E5M2"])
def test_both_ways_are_the_formula(lab, shape, block, f8):
    m = SINGLE.format(shape=[f"a{k}" for k in range(len(shape))], f8=f8.lower(), to="bfloat16", block=list(block))
    t = {"w": weights(shape, DTYPES[f8]), "s": scales(grid(shape, block))}
    if f8 == "F8_E5M2":
        t["s"] /= 1000
    there = {"W": dequantized(t["w"], t["s"], block, BF16)}
    lab.gives(m, t, there, "--memory", "100B")
    q, found = quantized(there["W"], block, DTYPES[f8], LARGEST[f8])
    lab.gives(m, there, {"w": q, "s": found}, "--reverse", "--memory", "100B")
    lab.gives(m, {"w": q, "s": found}, {"W": dequantized(q, found, block, BF16)})
    again = quantized(dequantized(q, found, block, BF16), block, DTYPES[f8], LARGEST[f8])
    same({"w": again[0], "s": again[1]}, {"w": q, "s": found})  # a second trip changes nothing


@pytest.mark.parametrize("to", ["F32", "F64", "F16", None])
def test_the_product_is_rounded_once_to_what_is_stated(lab, to):
    m = SINGLE.format(shape="r c", f8="float8_e4m3fn", to=(to or "keep").lower(), block=[2, 3])
    w, s = weights((7, 11)), scales((4, 4))
    lab.gives(m, {"w": w, "s": s}, {"W": dequantized(w, s, (2, 3), DTYPES[to or "F32"])})


@pytest.mark.parametrize("kind", ["BF16", "F16", "F8_E8M0"])
def test_scales_of_other_dtypes(lab, kind):
    dtype = numpy_dtype(kind)
    m = SINGLE.format(shape="r c", f8="float8_e4m3fn", to="float32", block=[2, 3])
    s = (2.0 ** np.arange(-8, 8)).reshape(4, 4).astype(dtype)
    w = weights((7, 11))
    write_any(lab.source, {"w": ("F8_E4M3", w), "s": (kind, s)})
    converter.convert(lab.source, lab.output, lab.map(m))
    same(read(lab.output), {"W": dequantized(w, s, (2, 3), np.float32)})


def write_any(path, tensors):
    """A file of dtypes that the laboratory does not know."""
    import json
    import struct

    head, at = {}, 0
    for name, (dtype, x) in tensors.items():
        head[name] = {"dtype": dtype, "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    text = json.dumps(head).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(x.tobytes() for _, x in tensors.values()))


def test_experts_stacked_before_and_after(lab):
    m = """
        indices: {e: n, k: [up, down]}
        rules:
          - from: [{name: 'e.{e}.{k}', shape: r c}, 'e.{e}.{k}.scale']
            to: {name: '%s', dtype: bfloat16}
            ops: [%s]
        """
    t = {}
    for e, k in product(range(11), ("up", "down")):
        seed = 2 * e + (k == "up")
        t |= {f"e.{e}.{k}": weights((5, 7), seed=seed), f"e.{e}.{k}.scale": scales((3, 3), seed)}
    made = {n: dequantized(t[n], t[f"{n}.scale"], (2, 3), BF16) for n in t if "scale" not in n}
    stacked = {k: np.stack([made[f"e.{e}.{k}"] for e in range(11)]) for k in ("up", "down")}
    block = "{dequantize: {block: [2, 3]}}"
    want = {f"all.{k}": x for k, x in stacked.items()}
    for ops in (f"{block}, {{stack: e}}", f"{{stack: e}}, {block}"):
        lab.gives(m % ("all.{k}", ops), t, want)
        back = {n: quantized(x, (2, 3), E4M3, 448) for n, x in made.items()}
        want_back = {n: q for n, (q, _) in back.items()} | {f"{n}.scale": s for n, (_, s) in back.items()}
        lab.gives(m % ("all.{k}", ops), want, want_back, "--reverse", "--memory", "200B")
    fused = {"all": np.concatenate([stacked["up"], stacked["down"]], 1).transpose(0, 2, 1)}
    ops = f"{block}, {{stack: e}}, {{concat: {{dim: 1, over: k}}}}, {{transpose: [0, 2, 1]}}"
    lab.gives(m % ("all", ops), t, fused, "--memory", "200B", "--verify")
    lab.gives(m % ("all", ops), fused, want_back, "--reverse", "--verify")


def test_a_scale_for_each_row_and_one_for_all(lab):
    m = """
        rules:
          - from: [{name: w, shape: r c}, {name: s, ops: ['r -> r 1']}]
            to: W
            ops: [{dequantize: {block: [1, c]}}]
          - from: [{name: v, shape: r c}, {name: t, ops: [' -> 1 1']}]
            to: V
            ops: [{dequantize: {block: [r, c]}}]
        """
    w, s = weights((3, 5)), scales((3, 1))
    t = {"w": w, "s": s[:, 0], "v": w, "t": s[0, 0]}
    lab.gives(m, t, {"W": w.astype("f4") * s, "V": w.astype("f4") * s[0, 0]})


def test_ops_and_arithmetic_around(lab):
    m = """
        rules:
          - from: [{name: w, shape: c r, ops: [transpose]}, {name: s, ops: [{multiply: 2}]}]
            to: {name: W, dtype: bfloat16, ops: [transpose]}
            ops: [{dequantize: {block: [2, 3]}}, {add: 1}]
        """
    w, s = weights((11, 7)), scales((4, 4))
    want = (w.T.astype("f4") * spread(s * 2, (7, 11), (2, 3)) + 1).astype(BF16).T
    lab.gives(m, {"w": w, "s": s}, {"W": want}, "--memory", "100B")
    q, found = quantized(want.T.astype("f4") - 1, (2, 3), E4M3, 448)
    lab.gives(m, {"W": want}, {"w": q.T, "s": found / 2}, "--reverse")


def test_nothing_at_all(lab):
    m = SINGLE.format(shape="r c", f8="float8_e4m3fn", to="bfloat16", block=[2, 3])
    t = {"w": np.zeros((0, 5), E4M3), "s": np.zeros((0, 2), "<f4")}
    lab.both(m, t, {"W": np.zeros((0, 5), BF16)})


# A scale that is kept gives every bit back.


def test_every_byte_comes_back_from_a_kept_scale(lab):
    t = {"w": np.arange(256, dtype=np.uint8).reshape(2, 128).view(E4M3), "s": scales((1, 43))}
    there = {"W": dequantized(t["w"], t["s"], (2, 3), BF16), "S": t["s"]}
    r = lab.gives(KEPT, t, there, "--verify")
    assert "2 input tensors came back from it bit for bit" in r.out
    assert "cast: F8_E4M3 -> BF16: 1 tensor\n" in r.out
    lab.gives(KEPT, there, t, "--reverse", "--verify")


def test_nan_of_the_other_float8_stays_nan(lab):
    """It has six of them, and arithmetic knows one of each sign."""
    t = {"w": np.arange(256, dtype=np.uint8).reshape(2, 128).view(E5M2), "s": scales((1, 43)) / 1000}
    m = KEPT.replace("shape: r c", "shape: r c, dtype: float8_e5m2")
    (r, _) = lab.convert(m, t)
    assert r.code == 0
    r = lab.run("--map", lab / "map.yaml", "--reverse", lab.output, lab / "back.safetensors")
    got, want = (x.view(np.uint8).reshape(-1) for x in (read(lab / "back.safetensors")["w"], t["w"]))
    nan = (want & 0x7F) > 0x7C
    assert np.array_equal(got[~nan], want[~nan])
    assert np.array_equal(got[nan], want[nan] & 0x80 | 0x7E)


def test_what_a_kept_scale_cannot_give_back_is_said(lab):
    t = {"w": weights((2, 6)), "s": np.array([[0, 2]], "<f4")}
    there = {"W": dequantized(t["w"], t["s"], (2, 3), BF16), "S": t["s"]}
    r = lab.gives(KEPT, t, there)
    lost = np.count_nonzero(t["w"][:, :3].astype("f4"))
    assert f"cast: W: {lost} values became zero in BF16" in r.out
    lab.fails(
        KEPT, t, 1, f"w: the output, read back, differs from the input ({lost} of 12 elements", flags=["--verify"]
    )
    back = {"w": np.concatenate([np.copysign(np.zeros((2, 3)), there["W"][:, :3].astype("f4")), t["w"][:, 3:]], 1)}
    lab.gives(KEPT, there, {"w": back["w"].astype(E4M3), "s": t["s"]}, "--reverse")
    there["W"][0, 0] = 1
    lab.fails(KEPT, there, 1, "w: 1 value does not fit F8_E4M3", flags=["--reverse"])


def test_a_scale_is_cast_by_its_own_term_only(lab):
    m = """
        dtype: {to: bfloat16}
        rules:
          - {from: [{name: w, shape: r c}, s], to: [W, %s], dtype: {from: float8_e4m3fn, to: bfloat16}, ops: [%s]}
        """
    op = "{dequantize: {block: [2, 3]}}"
    t = {"w": weights((2, 3)), "s": scales((1, 1))}
    there = {"W": dequantized(t["w"], t["s"], (2, 3), BF16), "S": t["s"]}
    lab.both(m % ("S", op), t, there, "--dtype", "bfloat16")
    r = lab.gives(m % ("{name: S, dtype: bfloat16}", op), t, {**there, "S": t["s"].astype(BF16)}, "--verify")
    assert "computed again" in r.out
    assert "cast: F32 -> BF16: 1 tensor" in r.out


# A scale that is found.


def test_zeros_numbers_too_small_and_what_is_no_number(lab):
    inf, nan = np.inf, np.nan
    x = np.array([[0, -0.0, 0, 1e-44, 0, 0, nan, 2, -4], [0, 0, 0, 0, 0, -3e-44, 1, 0, nan]], "<f4")
    r = lab.gives(FOUND, {"W": x}, {"w": quantized_by_hand(x), "s": np.array([[1, 2**-126, 4 / 448]], "<f4")})
    assert "cast: w: 2 values became zero in F8_E4M3" in r.out
    x[0, 0] = -inf
    lab.fails(FOUND, {"W": x}, 1, "w: 1 value does not fit F8_E4M3")
    (r, _) = lab.convert(FOUND, {"W": x}, "--allow-overflow")
    assert read(lab.output)["w"].view(np.uint8)[0, 0] == 0xFE
    wide = FOUND.replace("[2, 3]", "[2, 3], dtype: float8_e5m2")
    lab.gives(wide, {"W": x}, {"w": (x / spread(*found(x, 57344))).astype(E5M2), "s": found(x, 57344)[0]})


def found(x, largest):
    amax = np.array([[0, 3e-44, 4]], np.float32)
    s = np.maximum(amax / np.float32(largest), np.float32(2**-126))
    s[0, 0] = 1
    return s, x.shape, (2, 3)


def quantized_by_hand(x):
    return (x / spread(*found(x, 448))).astype(E4M3)


@settings(max_examples=200, deadline=None)
@given(st.floats(2.0**-149, 2.0**127, width=32), st.sampled_from(sorted(LARGEST)))
def test_nothing_saturates(largest, kind):
    """Whatever the largest magnitude of a block is, it becomes the largest number of the dtype, or less."""
    values = np.float32(largest) * np.array([1, -1, 0.999, 0.5, 1e-3], np.float32)
    scale = scales_of(np.array([largest], np.float32), LARGEST[kind])
    assert scale >= np.float32(2**-126)
    out = np.empty(5, numpy_dtype(kind))
    assert convert(values / scale, "F32", out, kind, (), False).overflow == 0
    assert np.abs(out.astype(np.float32)).max() <= LARGEST[kind]


@pytest.mark.parametrize("kind", LARGEST)
def test_largest_numbers(kind):
    assert LARGEST[kind] == float(ml_dtypes.finfo(numpy_dtype(kind)).max)


def test_one_scale_for_a_matrix_that_is_larger_than_the_memory(lab):
    """Parts of a block are read one by one, and what they give is kept for all tiles."""
    m = "rules: [{from: W, to: [w, s], shape: r c, ops: [{quantize: {block: [r, c]}}]}]"
    x = np.random.default_rng(2).standard_normal((700, 600)).astype(np.float32)
    q, s = quantized(x, x.shape, E4M3, 448)
    lab.gives(m, {"W": x}, {"w": q, "s": s}, "--memory", "1000B", "--jobs", 3)


@pytest.mark.parametrize("memory", ["1B", "64MiB"])
@pytest.mark.parametrize("shape", [(300, 500), (256, 512)])
def test_large_blocks_in_any_memory(lab, shape, memory):
    m = SINGLE.format(shape="r c", f8="float8_e4m3fn", to="bfloat16", block=[128, 128])
    t = {"w": weights(shape), "s": scales(grid(shape, (128, 128)))}
    there = {"W": dequantized(t["w"], t["s"], (128, 128), BF16)}
    lab.gives(m, t, there, "--memory", memory, "--verify")
    q, s = quantized(there["W"], (128, 128), E4M3, 448)
    lab.gives(m, there, {"w": q, "s": s}, "--reverse", "--memory", memory, "--verify")


# What is refused.


@pytest.mark.parametrize(
    ("w", "s", "says"),
    [
        (np.ones((7, 11), BF16), scales((4, 4)), "w: is BF16, and dequantize takes a weight of F8_E4M3 here"),
        (weights((7, 11), E5M2), scales((4, 4)), "w: is F8_E5M2, and dequantize takes a weight of F8_E4M3 here"),
        (weights((7, 11)), np.ones((4, 4), "<i4"), "w: has a scale of I32, and dequantize takes F32, BF16, F16"),
        (weights((7, 11)), scales((4, 5)), "s: shape is [4, 5], expected [(r + 1) // 2, (c + 2) // 3] with c = 11"),
        (weights((7, 11)), scales((4,)), "s: shape is [4], expected [(r + 1) // 2, (c + 2) // 3]"),
    ],
    ids=["plain", "another float8", "integers", "too many", "one axis"],
)
def test_what_does_not_fit(lab, w, s, says):
    m = SINGLE.format(shape="r c", f8="float8_e4m3fn", to="bfloat16", block=[2, 3])
    lab.fails(m, {"w": w, "s": s}, 1, says)
    lab.fails(m.replace("shape: r c, ", ""), {"w": w, "s": s}, 1)


def test_sizes_of_one_rule(lab):
    m = SINGLE.format(shape="_r _c", f8="float8_e4m3fn", to="bfloat16", block=[2, 3])
    lab.gives(m, t := {"w": weights((7, 11)), "s": scales((4, 4))}, {"W": dequantized(t["w"], t["s"], (2, 3), BF16)})
    lab.fails(m, {**t, "s": scales((4, 3))}, 1, "a weight of [7, 11] in blocks of 2 by 3 has a scale of [4, 4]")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("dtype: float8_e4m3fn", "dtype: bfloat16", "the weight is stated to be BF16, not float8_e4m3fn"),
        (
            ", s]",
            ", {name: s, dtype: bfloat16}]",
            "the scale is stated to be BF16, and one that has to be found is F32",
        ),
        ("[2, 3]", "[2, 3], dtype: float8_e5m2", "dtype is F8_E5M2 here and F8_E4M3 on the term of the weight"),
        (", s]", "]", "dequantize takes a weight and its scale, there are 1 values"),
        ("shape: r c", "shape: r", "two axes or more"),
    ],
)
def test_maps_that_cannot_be(lab, old, new, says):
    m = SINGLE.format(shape="r c", f8="float8_e4m3fn", to="bfloat16", block=[2, 3])
    lab.fails(m.replace(old, new), {"w": weights((7, 11)), "s": scales((4, 4))}, 2, says)


def test_float8_is_still_never_cast_without_its_scale(lab):
    m = "rules: [{from: w, to: W, shape: r c, dtype: {to: float32}}, {from: s, to: S, shape: a b}]"
    lab.fails(m, {"w": weights((7, 11)), "s": scales((4, 4))}, 1, "not cast to F32 without its scale")


# What is said.


def test_the_plan_the_report_and_the_check(lab):
    write(lab.source, {"w": weights((7, 11)), "s": scales((4, 4))}, {"format": "pt"})
    m = lab.map(SINGLE.format(shape="r c", f8="float8_e4m3fn", to="bfloat16", block=[2, 3]))
    plan = converter.plan(lab.source, m)
    assert "w [7, 11] F8_E4M3  ->  W [7, 11] BF16  {dequantize: {block: [2, 3]}}  (inexact)" in str(plan)
    report = plan.write(lab.output)
    assert [(x.source, x.destination, x.dtype) for x in report.loaded] == [("w", "W", "BF16"), ("s", "W", "BF16")]
    assert [(x.name, x.source, x.dtype, x.to) for x in report.cast] == [("W", "w", "F8_E4M3", "BF16")]
    assert metadata(lab.output) == {"format": "pt"}
    back = converter.plan(lab.output, m, reverse=True)
    assert "->  w [7, 11] F8_E4M3  {quantize: {block: [2, 3]}}  (inexact)" in str(back)
    assert [(x.source, x.destination) for x in back.report.loaded] == [("W", "w"), ("W", "s")]
    assert [(x.name, x.dtype, x.to) for x in back.report.cast] == [("w", "BF16", "F8_E4M3")]
    assert "inexact at line 4: {dequantize: {block: [2, 3]}} gives back rounded values" in lab.run("check", m).out
    assert "inexact" not in lab.run("check", lab.map(KEPT)).out


def test_values_that_vanish_are_counted_once_for_all_layers(lab):
    m = "indices: {i: n}\nrules: [{from: 'W.{i}', to: ['w.{i}', 's.{i}'], shape: r c, ops: [{quantize: {block: [2, 3]}}]}]"
    x = np.array([[448, 0.0001, 1]], "<f4")
    r, _ = lab.convert(m, {f"W.{i}": x * (i + 1) for i in range(12)})
    assert "cast: w.{0..11} (12): 12 values became zero in F8_E4M3\n" in r.out


@pytest.mark.parametrize("side", ["from", "to"])
@pytest.mark.parametrize("text", [SINGLE.format(shape="r _c", f8="f8_e5m2", to="bfloat16", block=[2, 3]), KEPT, FOUND])
def test_a_stub_comes_back(lab, text, side):
    m = lab.map("example: {r: 7, c: 11}\n" + text.replace("\n    ", "\n"))
    if "_c" in text:
        m.write_text(m.read_text().replace(", c: 11", ""))
    first, second, third = (lab / f"{n}.safetensors" for n in "abc")
    assert lab.run("stub", "--map", m, "--side", side, first).code == 0
    way = ["--reverse"] if side == "to" else []
    for source, target in ((first, second), (second, third)):
        r = lab.run("--map", m, *way, "--verify", source, target)
        assert r.code == 0, r.err
        way = [] if way else ["--reverse"]
    same(read(third), read(first))
    assert any(x.dtype.itemsize == 1 for x in (*read(first).values(), *read(second).values()))


# Live models.


def test_a_live_model_takes_the_weights_and_gives_them_back(lab):
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(11, 7, bias=False, dtype=torch.bfloat16)
    m = lab.map(SINGLE.format(shape="r c", f8="float8_e4m3fn", to="bfloat16", block=[2, 3]).replace("W", "weight"))
    t = {"w": weights((7, 11)), "s": scales((4, 4))}
    write(lab.source, t)
    for stage in (True, False):
        with torch.no_grad():
            model.weight.zero_()
        report = converter.load(model, lab.source, m, stage=stage)
        assert [(x.source, x.destination) for x in report.loaded] == [("w", "weight"), ("s", "weight")]
        want = dequantized(t["w"], t["s"], (2, 3), BF16)
        assert model.weight.detach().view(torch.uint16).numpy().tobytes() == want.tobytes()
    converter.export(model, lab.output, m)
    q, s = quantized(want, (2, 3), E4M3, 448)
    same(read(lab.output), {"w": q, "s": s})
    wide = torch.nn.Linear(11, 7, bias=False)
    converter.load(wide, lab.source, m)
    same({"W": wide.weight.detach().numpy()}, {"W": dequantized(t["w"], t["s"], (2, 3), np.float32)})


def test_a_live_model_that_keeps_its_scale(lab):
    torch = pytest.importorskip("torch")
    model = torch.nn.Module()
    model.register_buffer("w", torch.zeros(7, 11).to(torch.float8_e4m3fn))
    model.register_buffer("s", torch.zeros(4, 4))
    x = np.random.default_rng(3).standard_normal((7, 11)).astype(BF16)
    write(lab.source, {"W": x})
    converter.load(model, lab.source, lab.map(FOUND))
    q, s = quantized(x, (2, 3), E4M3, 448)
    assert model.w.view(torch.uint8).numpy().tobytes() == q.tobytes()
    assert model.s.numpy().tobytes() == s.tobytes()


# The pieces.


@pytest.mark.parametrize("kind", ["F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E8M0"])
@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 1023])
def test_float8_is_widened_exactly(kind, size):
    values = np.arange(size).astype(np.uint8)[: size or None].view(numpy_dtype(kind))
    assert from_eighth(values, kind).tobytes() == values.astype(np.float32).tobytes()


@pytest.mark.parametrize("kind", ["F8_E4M3", "F8_E5M2"])
def test_float8_is_rounded_as_ml_dtypes_rounds(kind):
    """Around every number and every middle of two, and where most values are beyond the table."""
    dtype = numpy_dtype(kind)
    with np.errstate(all="ignore"):
        numbers = np.unique(np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32))
        numbers = numbers[np.isfinite(numbers)]
        near = np.concatenate([numbers, (numbers[1:] + numbers[:-1]) / 2]).view(np.int32)
        values = np.concatenate([near - 1, near, near + 1]).astype(np.int32).view(np.float32)
        odd = np.array([np.nan, -np.nan, np.inf, -np.inf, 1e30, 465, 448.5, 61440, 1e-30, -0.0], np.float32)
        for some in (np.concatenate([values, odd]), odd):
            out = np.empty(len(some), dtype)
            to_eighth(some, out, kind)
            assert out.tobytes() == some.astype(dtype).tobytes()


@pytest.mark.parametrize("shape", [(), (5,), (7, 3), (2, 3, 4, 5), (0, 3)])
@pytest.mark.parametrize("size", [1, 4, 17, 1000])
def test_slabs_are_contiguous_and_cover(shape, size):
    x = np.arange(int(np.prod(shape))).reshape(shape)
    seen = np.zeros(x.size, int)
    for at, piece in slabs(shape, size):
        part = x[piece] if shape else x
        assert part.flags.c_contiguous
        assert part.size <= max(size, 1)
        assert np.array_equal(part.reshape(-1), np.arange(at, at + part.size))
        seen[at : at + part.size] += 1
    assert (seen == 1).all()


def test_what_is_shared_is_made_once_and_kept_while_there_is_room():
    shared, made = Shared(80), []
    gate = threading.Barrier(4)

    def make(key):
        def f():
            made.append(key)
            return np.full(5, key, np.int64)  # 40 bytes

        return f

    def ask():
        gate.wait()
        assert shared.get(1, make(1))[0] == 1

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert made == [1]
    assert [int(shared.get(k, make(k))[0]) for k in (2, 1, 3, 1, 2)] == [2, 1, 3, 1, 2]
    assert made == [1, 2, 3, 2]


@pytest.mark.parametrize("name", ["F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"])
def test_the_largest_number_of_each_kind(name):
    assert LARGEST[name] == float(ml_dtypes.finfo(numpy_dtype(name)).max)


@pytest.mark.parametrize(
    ("stated", "kept", "want"),
    [
        ((None, None), False, "F8_E4M3"),
        (("keep", "keep"), False, "F8_E4M3"),
        (("F8_E5M2", "F32"), False, "F8_E5M2"),
        (("F8_E5M2",), True, "F8_E5M2"),
        (("keep", "F16"), True, "F8_E4M3"),
        ((None, "F16"), False, "the scale is stated to be F16, and one that has to be found is F32"),
        (("F32", None), False, "the weight is stated to be F32, not "),
    ],
)
def test_what_terms_may_state(stated, kept, want):
    if " " in want:
        with pytest.raises(OpError, match=want):
            Quantize.read({"block": [1, 2]}, stated, kept)
    else:
        assert Quantize.read({"block": [1, 2]}, stated, kept) == (1, 2, want)


def test_what_quantize_takes():
    op = Quantize(1, 2)
    floats, odd = frozenset(["F64", "F32", "F16", "BF16"]), frozenset(["F32", "I8"])
    assert op.objection((floats,)) is None
    assert op.objection((odd,)) == "is I8, and quantize takes F64, F32, F16 and BF16"
    assert op.objection((floats, frozenset(["F32", "F8_E8M0"]))) is None
    assert op.objection((floats, frozenset(["F32", "I8"]))).startswith("has a scale of I8, and quantize takes F32")
