"""Where the numbers of a tensor go: transposes, fused matrices, heads, experts, layers, parts."""

import numpy as np
import pytest
from lab import arr, header, read

from .field import KEEP, column, f32


def flat(case, name):
    """The numbers of one tensor of the output."""
    return read(case.output)[name].ravel().tolist()


def test_layout_01_conv1d_square_matrix(case):
    text = """
    indices: {i: n_layer}
    rules:
      - {from: wte.weight, to: wte.weight, shape: vocab d}
      - {from: wpe.weight, to: wpe.weight, shape: ctx d}
      - from: h.{i}.
        to: h.{i}.
        rules:
          - {from: attn.c_attn.weight, to: attn.c_attn.weight, shape: d 3*d, ops: [transpose], optional: true}
          - {from: attn.c_proj.weight, to: attn.c_proj.weight, shape: d d, ops: [transpose]}
          - {from: mlp.c_fc.weight, to: mlp.c_fc.weight, shape: d 4*d, ops: [transpose]}
          - {from: mlp.c_proj.weight, to: mlp.c_proj.weight, shape: 4*d d, ops: [transpose]}
    """
    given = {
        "h.0.attn.c_proj.weight": f32([1, 2], [3, 4]),
        "h.0.mlp.c_fc.weight": arr(2, 8),
        "h.0.mlp.c_proj.weight": arr(8, 2),
        "wte.weight": arr(3, 2),
        "wpe.weight": arr(4, 2),
    }
    want = {
        "h.0.attn.c_proj.weight": f32([1, 3], [2, 4]),
        "h.0.mlp.c_fc.weight": f32(*([r, r + 8] for r in range(8))),
        "h.0.mlp.c_proj.weight": f32(range(0, 16, 2), range(1, 16, 2)),
        "wte.weight": arr(3, 2),
        "wpe.weight": arr(4, 2),
    }
    case.both(text, given, want)


def test_layout_03_qkv_thirds_axis(case):
    text = """
    rules:
      - from: c_attn.weight
        to: [q.weight, k.weight, v.weight]
        shape: d 3*d
        ops: [{split: {dim: 1, sizes: [d, d, d]}}, transpose]
      - {from: c_attn.bias, to: [q.bias, k.bias, v.bias], shape: 3*d, ops: [{split: {dim: 0, sizes: [d, d, d]}}]}
    """
    want = {
        "q.weight": f32([0, 6], [1, 7]),
        "k.weight": f32([2, 8], [3, 9]),
        "v.weight": f32([4, 10], [5, 11]),
        "q.bias": f32(0, 1),
        "k.bias": f32(2, 3),
        "v.bias": f32(4, 5),
    }
    case.both(text, {"c_attn.weight": arr(2, 6), "c_attn.bias": arr(6)}, want)


def test_layout_06_qkv_gqa_groups(case):
    text = """
    params: {groups: 2, hd: 2}
    rules:
      - from: {name: wqkv, shape: groups*(per+2)*hd d, ops: ['(groups x hd) d -> groups x hd d']}
        to:
          - {name: q, ops: ['groups x hd d -> (groups x hd) d']}
          - {name: k, ops: ['groups x hd d -> (groups x hd) d']}
          - {name: v, ops: ['groups x hd d -> (groups x hd) d']}
        ops: [{split: {dim: 1, sizes: [per, 1, 1]}}]
    """
    want = {"q": column(0, 1, 2, 3, 8, 9, 10, 11), "k": column(4, 5, 12, 13), "v": column(6, 7, 14, 15)}
    case.both(text, {"wqkv": column(*range(16))}, want)


def test_layout_09_split_does_not_divide(case):
    given = {"fused": column(*range(10))}
    equal = "indices: {p: [a, b, c]}\nrules: [{from: fused, to: '{p}', ops: [{split: {dim: 0, over: p}}]}]"
    case.refused(equal, given, 1, "fused: ", "10", "3 equal parts")
    sized = "rules: [{from: fused, to: [a, b, c], shape: 3*d 1, ops: [{split: {dim: 0, sizes: [d, d, d]}}]}]"
    case.refused(sized, given, 1, "fused: ", "[10, 1]", "[3*d, 1]")


ROPE = """
params: {h: 4, kv: 1}
rules:
  - {from: wq, to: q_proj, shape: h*half*2 d, ops: ['(h half 2) d -> (h 2 half) d']}
  - {from: wk, to: k_proj, shape: kv*half*2 d, ops: ['(kv half 2) d -> (kv 2 half) d']}
  - {from: wv, to: v_proj, shape: kv*half*2 d}
"""


def test_layout_10_rope_permute_kv_heads(case):
    head = [0, 2, 4, 6, 1, 3, 5, 7]
    want = {
        "q_proj": column(*(8 * h + k for h in range(4) for k in head)),
        "k_proj": column(*head),
        "v_proj": column(*range(8)),
    }
    given = {"wq": column(*range(32)), "wk": column(*range(8)), "wv": column(*range(8))}
    case.both(ROPE, given, want)
    # With the heads of q for k, each head of k would have two rows, and stay as it is. The shapes say that it is wrong:
    # half is 4 in wq and would be 1 in wk.
    wrong = ROPE.replace("kv*half*2 d, ops: ['(kv half 2) d -> (kv 2", "h*half*2 d, ops: ['(h half 2) d -> (h 2")
    case.refused(wrong, given, 1, "wk: shape is [8, 1], expected [h*half*2, d]", "half = 4 (from wq)")


def test_layout_11_rope_direction(case):
    text = "rules: [{from: w, to: w, shape: 2*half d, ops: ['(half 2) d -> (2 half) d']}]"
    small, large = column(0, 1, 2, 3), column(*range(8))
    case.gives(text, {"w": small}, {"w": column(0, 2, 1, 3)})
    case.gives(text, {"w": small}, {"w": column(0, 2, 1, 3)}, "--reverse")
    there, back = column(0, 2, 4, 6, 1, 3, 5, 7), column(0, 4, 1, 5, 2, 6, 3, 7)
    case.both(text, {"w": large}, {"w": there})
    case.gives(text, {"w": large}, {"w": back}, "--reverse")
    case.gives(text, {"w": there}, {"w": back})


def test_layout_12_gate_up_order(case):
    text = "rules: [{from: gate_up_proj.weight, to: [%s], shape: 2*f d, ops: [{split: {dim: 0, sizes: [f, f]}}]}]"
    given, low, high = {"gate_up_proj.weight": column(0, 1, 2, 3)}, column(0, 1), column(2, 3)
    case.both(text % "gate_proj, up_proj", given, {"gate_proj": low, "up_proj": high})
    case.both(text % "up_proj, gate_proj", given, {"gate_proj": high, "up_proj": low})


def test_layout_13_gate_up_interleaved(case):
    text = """
    rules:
      - from: {name: gate_up, shape: 2*f d, ops: ['(f 2) d -> 2 f d']}
        to: [{name: gate, ops: ['1 f d -> f d']}, {name: up, ops: ['1 f d -> f d']}]
        ops: [{split: {dim: 0, sizes: [1, 1]}}]
    """
    given = {"gate_up": column(*range(6))}
    want = {"gate": column(0, 2, 4), "up": column(1, 3, 5)}
    case.both(text, given, want)
    over = "indices: {p: [gate, up]}\nrules: [{from: gate_up, to: '{p}', shape: 2*f d, ops: ['(f 2) d -> 2 f d', {unstack: p}]}]"
    case.both(over, given, want)


def test_layout_14_expert_order_is_numeric(case):
    text = "indices: {j: n}\nrules: [{from: 'experts.{j}.w', to: experts.w, shape: d, ops: [{stack: j}]}]"
    given = {f"experts.{j}.w": f32(j) for j in sorted(range(12), key=str)}
    assert list(given)[1:3] == ["experts.1.w", "experts.10.w"]
    case.both(text, given, {"experts.w": column(*range(12))})


def test_layout_15_stack_with_gap(case):
    text = "indices: {i: n}\nrules: [{from: 'l.{i}.w', to: w%s, ops: [{stack: i}]}]"
    gap = {f"l.{i}.w": f32(i) for i in (0, 1, 3)}
    for shape in (", shape: d", ""):
        case.refused(text % shape, gap, 1, "l.2.w: missing from the input", flags=("--set", "n=4"))
        case.refused(text % shape, gap, 1, "l.2.w: missing from the input")
        case.refused(text % shape, {"l.0.w": f32(0), "l.1.w": f32(1, 2)}, 1, "l.1.w: shape is [2], ", "l.0.w", "1")


def test_layout_17_conv_permute_once(case):
    text = "rules: [{from: conv.kernel, to: conv.weight, shape: 2 3 4 5, ops: [{transpose: [3, 2, 0, 1]}]}]"
    given = arr(2, 3, 4, 5)
    case.both(text, {"conv.kernel": given}, {"conv.weight": np.transpose(given, (3, 2, 0, 1))})
    case.converts(text, {"conv.kernel": given})
    w = read(case.output)["conv.weight"]
    assert all(w[o, i, h, x] == ((h * 3 + x) * 4 + i) * 5 + o for o, i, h, x in np.ndindex(5, 4, 2, 3))
    assert [w[p] for p in ((0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 0, 1), (0, 0, 1, 0))] == [0, 1, 5, 20, 60]
    case.refused(text, {"conv.kernel": w}, 1, "conv.kernel: shape is [5, 4, 2, 3], expected [2, 3, 4, 5]")
    case.refused(text, {"conv.weight": w}, 1, "conv.weight: unexpected", "--reverse")


def test_layout_19_tp_shards_concat(case):
    # A folder of files that repeat each other's names is no checkpoint: one input is one set of names. That is said, with
    # all files in the order of their numbers, and with the path that reads them together, numbers before the names.
    torch = pytest.importorskip("torch")
    folder = case / "llama"
    folder.mkdir()
    for k in range(11):
        part = {"wq": [[2.0 * k, 2 * k + 1]], "wo": [[2.0 * k], [2 * k + 1]], "norm": [5.0, 6.0]}
        torch.save({n: torch.tensor(v) for n, v in part.items()}, folder / f"consolidated.{k:02d}.pth")
    says = [
        "norm",
        "wo",
        "wq",
        "consolidated.00.pth, consolidated.01.pth, ",
        "read together as llama/consolidated.{rank}.pth",
    ]
    case.refused(KEEP, folder, 3, *says)
    # As names of one checkpoint they join, in the order of the index, and a copy that differs is found.
    text = """
    indices: {rank: n}
    rules:
      - {from: '{rank}.wq', to: wq, shape: q d, ops: [{concat: {dim: 0, over: rank}}]}
      - {from: '{rank}.wo', to: wo, shape: d q, ops: [{concat: {dim: 1, over: rank}}]}
      - {from: '{rank}.norm', to: norm, shape: d, ops: [{same: rank}]}
    """
    together = text.replace("{rank}.", "{rank}/")
    numbers = np.arange(22, dtype="<f4")
    want = {"wq": numbers.reshape(11, 2), "wo": numbers.reshape(11, 2).T.reshape(2, 11).copy(), "norm": f32(5, 6)}
    case.gives(together, folder / "consolidated.{rank}.pth", want)
    parts = [{"wq": f32([0, 1]), "wo": column(0, 1)}, {"wq": f32([2, 3]), "wo": column(2, 3)}]
    given = {f"{k}.{n}": x for k, part in enumerate(parts) for n, x in (part | {"norm": f32(5, 6)}).items()}
    want = {"wq": f32([0, 1], [2, 3]), "wo": f32([0, 2], [1, 3]), "norm": f32(5, 6)}
    case.both(text, given, want, "--set", "n=2")
    odd = given | {"1.norm": f32(5, 7)}
    case.refused(text, odd, 1, "0.norm", "1.norm", "1 of 2 elements, first at [1]", data=True)


def test_layout_21_output_is_packed(case):
    torch = pytest.importorskip("torch")
    text = "rules: [{from: w, to: w, shape: a b, ops: [transpose]}]"
    given = arr(2, 3)
    view = torch.arange(6, dtype=torch.float32).reshape(3, 2).t()  # [2, 3], stored as [3, 2]
    for source, packed in (({"w": given}, [0, 3, 1, 4, 2, 5]), (case.saved({"w": view}), [0, 1, 2, 3, 4, 5])):
        case.converts(text, source)
        assert header(case.output)["w"]["shape"] == [3, 2]
        assert case.output.read_bytes()[-24:] == np.array(packed, "<f4").tobytes()
    case.gives(KEEP, case.saved({"w": view}), {"w": f32([0, 2, 4], [1, 3, 5])})


def test_layout_22_scales_follow_fused_weight(case):
    split = "to: [q.{p}, k.{p}, v.{p}], shape: q+2*kv d, ops: [{split: {dim: 0, sizes: [q, kv, kv]}}]".replace(
        "{p}", "%s"
    )
    rules = "params: {q: 4, kv: 2}\nrules:\n  - {from: qkv.weight, " + split % (("weight",) * 3) + "}\n"
    rules = rules.replace("q+2*kv d", "q+2*kv i")
    weight, scale = np.arange(16, dtype="u1").reshape(8, 2), column(*range(8))
    given = {"qkv.weight": weight, "qkv.weight_scale": scale}
    case.refused(rules, given, 1, "qkv.weight_scale: unexpected")
    both = rules + "  - {from: qkv.weight_scale, " + split % (("weight_scale",) * 3) + "}\n"
    both = both.replace("q+2*kv d", "q+2*kv 1")
    parts = {"q": slice(0, 4), "k": slice(4, 6), "v": slice(6, 8)}
    want = {f"{n}.weight": weight[s] for n, s in parts.items()} | {
        f"{n}.weight_scale": scale[s] for n, s in parts.items()
    }
    case.both(both, given, want)
    packed = {"qkv.weight": np.array([[7, 9]], "<i4")}
    case.refused(rules, packed, 1, "qkv.weight: shape is [1, 2], expected [q+2*kv, i]", "q = 4", "kv = 2")
    bare = rules.replace("shape: q+2*kv i, ", "")
    case.refused(bare, packed, 1, "qkv.weight: ", "axis 0 has 1, the parts [4, 2, 2] add up to 8")
