"""Whole layouts: GPT-2 as it is published, constants that one side has, biases that may be absent."""

import numpy as np
import pytest
from lab import arr

import converter

from .field import f32


def gpt2(layers=12, d=4, ctx=8, vocab=11):
    """The names and shapes of GPT-2 small, with other sizes; all values differ."""
    shapes = {"wte.weight": (vocab, d), "wpe.weight": (ctx, d), "ln_f.weight": (d,), "ln_f.bias": (d,)}
    for i in range(layers):
        inner = {"attn.c_attn": (d, 3 * d), "attn.c_proj": (d, d), "mlp.c_fc": (d, 4 * d), "mlp.c_proj": (4 * d, d)}
        for name in ("ln_1", "ln_2"):
            shapes |= {f"h.{i}.{name}.weight": (d,), f"h.{i}.{name}.bias": (d,)}
        for name, shape in inner.items():
            shapes |= {f"h.{i}.{name}.weight": shape, f"h.{i}.{name}.bias": shape[1:]}
    out, at = {}, 0
    for name, shape in shapes.items():
        out[name] = arr(*shape, start=at)
        at += out[name].size
    mask = np.tril(np.ones((1, 1, ctx, ctx), "u1"))
    return out | {f"h.{i}.attn.bias": mask for i in range(layers)}


def test_other_02_real_gpt2_inventory(case):
    torch = pytest.importorskip("torch")
    nn = torch.nn

    def norm(d):
        return nn.ParameterDict({"scale": nn.Parameter(torch.ones(d)), "shift": nn.Parameter(torch.zeros(d))})

    def block(d):
        return nn.ModuleDict({
            "ln1": norm(d),
            "ln2": norm(d),
            "attn": nn.ModuleDict({"qkv": nn.Linear(d, 3 * d), "out_proj": nn.Linear(d, d)}),
            "mlp": nn.ModuleDict({"fc1": nn.Linear(d, 4 * d), "fc2": nn.Linear(4 * d, d)}),
        })  # fmt: skip

    model = nn.ModuleDict({
        "tok_embed": nn.Embedding(11, 4),
        "pos_embed": nn.Embedding(8, 4),
        "blocks": nn.ModuleList(block(4) for _ in range(12)),
        "final_ln": norm(4),
        "lm_head": nn.Linear(4, 11, bias=False),
    })  # fmt: skip
    model["lm_head"].weight = model["tok_embed"].weight
    given = gpt2()
    assert len(given) == 160
    report = converter.load(model, case.put(given), map="gpt2")
    assert len({x.source for x in report.loaded}) == 148
    assert sum(x.ops == ("transpose",) for x in report.loaded) == 48
    assert sorted(report.dropped) == sorted(f"h.{i}.attn.bias" for i in range(12))
    assert [(t.name, t.of) for t in report.tied] == [("lm_head.weight", "wte.weight")]
    assert not [*report.missing, *report.unexpected, *report.shape_mismatch]
    assert (
        str(report)
        .splitlines()[-1]
        .startswith("148 tensors loaded, 12 dropped, 1 tied, 0 missing, 0 unexpected, 0 mismatched")
    )
    assert model["lm_head"].weight is model["tok_embed"].weight
    got = {k: v.numpy() for k, v in model.state_dict().items()}
    assert len(got) == 149
    for i in range(12):
        for there, here in (
            ("attn.c_attn", "attn.qkv"),
            ("attn.c_proj", "attn.out_proj"),
            ("mlp.c_fc", "mlp.fc1"),
            ("mlp.c_proj", "mlp.fc2"),
        ):
            assert got[f"blocks.{i}.{here}.weight"].tolist() == given[f"h.{i}.{there}.weight"].T.tolist()
            assert got[f"blocks.{i}.{here}.bias"].tolist() == given[f"h.{i}.{there}.bias"].tolist()
    r = case.run("--map", "gpt2", case.source, case.output)
    assert r.out.splitlines()[-1].startswith("148 tensors converted, 12 dropped, 1 tied, 0 missing")


CONSTANTS = """
rules:
  - {from: w, to: w, shape: 1}
  - {to: position_ids, shape: [1, 4], fill: arange, dtype: int64}
  - {to: masked_bias, shape: [], fill: -10000, dtype: float32}
  - {to: attn.bias, shape: [1, 1, 3, 3], fill: causal_mask, dtype: uint8}
"""


def test_other_03_constants(case):
    want = {
        "w": f32(1),
        "position_ids": np.array([[0, 1, 2, 3]], "<i8"),
        "masked_bias": np.array(-10000, "<f4"),
        "attn.bias": np.array([[[[1, 0, 0], [1, 1, 0], [1, 1, 1]]]], "u1"),
    }
    case.both(CONSTANTS, {"w": f32(1)}, want)
    for name, value, says in (
        ("masked_bias", np.array(-1e9, "<f4"), "1 of 1 element, first at []: -1000000000.0 and -10000.0"),
        ("position_ids", np.array([[0, 1, 3, 2]], "<i8"), "2 of 4 elements, first at [0, 2]: 3 and 2"),
        ("attn.bias", np.ones((1, 1, 3, 3), "u1"), "3 of 9 elements, first at [0, 0, 0, 1]: 1 and 0"),
    ):
        wrong = want | {name: value}
        says = [f"{name}: is not the constant that the map states", says]
        case.refused(CONSTANTS, wrong, 1, *says, flags=("--reverse",), data=True)
    del want["masked_bias"]
    case.refused(CONSTANTS, want, 1, "masked_bias: missing from the input", flags=("--reverse",))


def test_other_05_optional_biases(case):
    text = """
    indices: {i: n_layer}
    rules:
      - {from: 'h.{i}.ln_1.weight', to: 'b.{i}.ln.scale', shape: d}
      - from: ''
        to: ''
        optional: true
        rules:
          - {from: 'h.{i}.ln_1.bias', to: 'b.{i}.ln.shift', shape: d}
    """
    weight, bias = {"h.0.ln_1.weight": f32(1, 2)}, {"h.0.ln_1.bias": f32(3, 4)}
    case.both(text, weight | bias, {"b.0.ln.scale": f32(1, 2), "b.0.ln.shift": f32(3, 4)})
    r = case.gives(text, weight, {"b.0.ln.scale": f32(1, 2)})
    assert "absent: h.0.ln_1.bias" in r.out
    case.both(text, weight, {"b.0.ln.scale": f32(1, 2)})
    two = weight | {"h.1.ln_1.weight": f32(5, 6)}
    case.refused(text, two | bias, 1, "h.1.ln_1.bias: missing from the input")
    case.gives(text, two, {"b.0.ln.scale": f32(1, 2), "b.1.ln.scale": f32(5, 6)})
