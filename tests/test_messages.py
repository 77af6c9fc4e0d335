"""What a user reads: the whole text of the situations that are met most, held against golden files.

`UPDATE_GOLDEN=1 python -m pytest tests/test_messages.py` writes them anew; read the difference before it is committed.
"""

import os
import re
from pathlib import Path

import numpy as np
import pytest
from lab import Lab, arr, encode, shards, write

GOLDEN = Path(__file__).parent / "golden"

GPT2 = """
sides: {from: hf, to: local}
params: {n_layer: {config: n_layer}}
indices: {layer: n_layer}
strip: {from: [transformer.]}
drop: {from: ['h.{layer}.attn.bias']}
rules:
  - {from: wte.weight, to: tok_embed.weight, shape: vocab d}
  - from: h.{layer}.
    to: blocks.{layer}.
    rules:
      - {from: ln_1.weight, to: ln1.scale, shape: d}
      - {from: attn.c_attn.weight, to: attn.qkv.weight, shape: d 3*d, ops: [transpose]}
      - {from: attn.c_attn.bias, to: attn.qkv.bias, shape: 3*d}
  - {from: lm_head.weight, to: lm_head.weight, shape: vocab d, tied: wte.weight}
"""


def gpt2(layers=12, d=4, prefix=""):
    t = {f"{prefix}wte.weight": arr(7, d, start=5)}
    for i in range(layers):
        p = f"{prefix}h.{i}."
        t |= {
            p + "ln_1.weight": arr(d, start=100 * i),
            p + "attn.c_attn.weight": arr(d, 3 * d, start=100 * i + 10),
            p + "attn.c_attn.bias": arr(3 * d, start=100 * i + 60),
        }
    return t


def without(t, *names):
    return {k: v for k, v in t.items() if k not in names}


def local(layers=3, d=4):
    t = {"tok_embed.weight": arr(7, d)}
    for i in range(layers):
        t |= {
            f"blocks.{i}.ln1.scale": arr(d),
            f"blocks.{i}.attn.qkv.weight": arr(3 * d, d),
            f"blocks.{i}.attn.qkv.bias": arr(3 * d),
        }
    return t


ONE = "rules: [{from: %s, to: b}]"
CAT = "rules: [{from: [u, v], to: y, shape: [p d, q d], ops: [{concat: 0}]}]"
TIE = "rules: [{from: e, to: E, shape: v d}, {from: h, to: H, shape: v d, tied: e}]"
EXPERTS = """
indices: {layer: n, expert: m}
rules: [{from: 'l.{layer}.e.{expert}.w', to: 'l.{layer}.w', shape: d, ops: [{stack: expert}]}]
"""
FILL = "rules: [{from: w, to: w, shape: d}, {to: m, fill: causal_mask, shape: d d, dtype: float32}]"

# The name of the golden file: (map, tensors, flags). The exit code stands in the file's first line.
CONVERT = {
    # names
    "a-layer-is-missing": (GPT2, without(gpt2(), "h.7.ln_1.weight"), []),
    "a-whole-layer-is-missing": (GPT2, {k: v for k, v in gpt2().items() if not k.startswith("h.7.")}, []),
    "an-extra-tensor": (GPT2, gpt2() | {"score.weight": arr(2)}, []),
    "masks-of-another-name": (GPT2, gpt2() | {f"h.{i}.attn.mask": arr(1) for i in range(12)}, []),
    "experts-are-missing": (EXPERTS, {f"l.{i}.e.{e}.w": arr(2) for i in range(3) for e in range(16) if (i, e) != (1, 5)}, []),
    "experts-of-another-name": (EXPERTS, {f"l.{i}.x.{e}.w": arr(2) for i in range(3) for e in range(12)}, []),
    "too-many-layers": (GPT2, gpt2(), ["--set", "n_layer=11"]),
    "too-few-layers": (GPT2, gpt2(), ["--set", "n_layer=13"]),
    "both-prefixes": (GPT2, gpt2(2) | {"transformer.wte.weight": arr(7, 4)}, []),
    "another-prefix": (GPT2, gpt2(3, prefix="model."), []),
    "the-other-direction": (GPT2, local(), []),
    "reversed-by-mistake": (GPT2, gpt2(3), ["--reverse"]),
    "a-near-miss": (GPT2, {k.replace("c_attn", "cattn"): v for k, v in gpt2(3).items()}, []),
    "a-wrong-map": (GPT2, {f"encoder.layer.{i}.q.weight": arr(2, 2) for i in range(12)} | {"embed.weight": arr(5, 2)}, []),
    "an-empty-checkpoint": (GPT2, {}, []),
    "two-spellings": ("rules: [{from: {any: [weight, gamma]}, to: scale}]", {"weight": arr(2), "gamma": arr(2)}, []),
    "written-twice": (r"rules: [{match: '(?P<p>.+)\.gamma', to: '{p}.weight'}, {from: a.weight, to: a.weight}]", {"a.gamma": arr(1), "a.weight": arr(1)}, []),
    "a-condition-is-false": (
        "params: {types: [full, window]}\nindices: {i: 2}\nrules: [{from: 'h.{i}.w', to: 'b.{i}.w', when: \"types[i] == 'window'\"}]",
        {"h.0.w": arr(1), "h.1.w": arr(1)},
        [],
    ),
    # shapes and sizes
    "a-wrong-shape": (GPT2, gpt2() | {"h.3.attn.c_attn.weight": arr(4, 13)}, []),
    "a-wrong-width-everywhere": (GPT2, gpt2() | {"wte.weight": arr(7, 6)}, []),
    "already-transposed": (GPT2, gpt2(3) | {f"h.{i}.attn.c_attn.weight": arr(12, 4) for i in range(3)}, []),
    "many-problems-at-once": (
        GPT2,
        without(gpt2(), "h.3.ln_1.weight", "h.4.ln_1.weight") | {"h.5.attn.c_attn.bias": arr(13), "extra": arr(2), "h.12.ln_1.weight": arr(4)},
        [],
    ),
    "an-unknown-size": (CAT, {"y": arr(6, 3)}, ["--reverse"]),
    "a-head-count-that-does-not-divide": ("rules: [{from: w, to: w, shape: h*hd d, ops: ['(h hd) d -> h hd d']}]", {"w": arr(10, 3)}, ["--set", "h=4"]),
    "a-split-that-does-not-divide": (
        "indices: {p: [q, k, v]}\nrules: [{from: qkv, to: '{p}', ops: [{split: {dim: 0, over: p}}]}]",
        {"qkv": arr(10, 3)},
        [],
    ),
    "a-size-of-text": ("rules: [{from: w, to: w, shape: d}]", {"w": arr(3)}, ["--set", "d=three"]),
    "a-shape-that-the-ops-do-not-give": (
        "rules: [{from: {name: x, shape: p q}, to: {name: y, shape: p q}, ops: [transpose]}]",
        {"x": arr(2, 4)},
        [],
    ),
    # dtypes and data
    "mixed-dtypes": (CAT, {"u": arr(2, 3), "v": arr(2, 3, dtype="<f2")}, []),
    "tied-but-different": (TIE, {"e": arr(3, 2), "h": arr(3, 2, start=1)}, []),
    "overflow": ("rules: [{from: a, to: a, dtype: {to: float16}}]", {"a": np.array([65504, 7e4, -1e6, 1], "<f4")}, []),
    "not-the-constant": (FILL, {"w": arr(3), "m": np.ones((3, 3), "<f4")}, ["--reverse"]),
    # maps
    "key-typo": ("rules:\n  - {from: a, too: b}", {"a": arr(1)}, []),
    "op-typo": ("rules: [{from: a, to: b, ops: [transpoze]}]", {"a": arr(1)}, []),
    "index-typo": ("indices: {layer: n}\nrules: [{from: 'h.{laye}.w', to: 'b.{layer}.w'}]", {"h.0.w": arr(1)}, []),
    "braces-without-quotes": ("indices: {i: n}\nrules: [{from: h.{i}.w, to: b}]", {"h.0.w": arr(1)}, []),
    "yaml-norway": (ONE % "no", {"no": arr(1)}, []),
    "bad-escape": ('rules: [{match: "h\\.(?P<r>.+)", to: "b.{r}"}]', {"h.a": arr(1)}, []),
    "no-way-back": (r"rules: [{match: '(?P<a>x|y)\.?b', to: '{a}'}]", {"x": arr(1)}, ["--reverse"]),
    "look-ahead": (r"rules: [{match: 'model(?!\.v).*', to: b}]", {"model": arr(1)}, []),
    "an-index-without-an-op": ("indices: {i: n}\nrules: [{from: 'h.{i}', to: all}]", {"h.0": arr(1)}, []),
    "two-rules-for-one-tensor": ("rules:\n  - {from: a, to: x}\n  - {from: a, to: y}\n  - {from: b, to: x}", {"a": arr(1)}, []),
    "a-tie-to-nothing": ("rules: [{from: wte.weight, to: e}, {from: head, to: h, tied: wte.wieght}]", {"wte.weight": arr(1)}, []),
    # flags
    "set-typo": (GPT2, gpt2(1), ["--set", "n_layers=1"]),
    "flag-typo": (GPT2, gpt2(1), ["--revers"]),
    "dtype-typo": (GPT2, gpt2(1), ["--dtype", "bflaot16"]),
}  # fmt: skip


def golden(name, code, text):
    """Compare a text with its golden file; times differ from run to run."""
    text = f"exit code {code}\n" + re.sub(r"in \d+\.\d s", "in 0.0 s", text)
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.exists(), f"no {path.name}: UPDATE_GOLDEN=1 writes it"
    assert text == path.read_text()


@pytest.fixture
def lab(tmp_path):
    return Lab(tmp_path)


@pytest.mark.parametrize("name", CONVERT)
def test_the_text_of_a_failure(lab, name):
    text, tensors, flags = CONVERT[name]
    r, _ = lab.convert(text, tensors, *flags)
    assert r.code in (1, 2)
    assert r.out == ""
    golden(name, r.code, r.err)


@pytest.mark.parametrize("name", CONVERT)
def test_the_form_of_a_failure(lab, name):
    text, tensors, flags = CONVERT[name]
    r, _ = lab.convert(text, tensors, *flags)
    lines = r.err.splitlines()
    assert "Traceback" not in r.err
    assert len(lines) < 20, "folded"
    assert max(map(len, lines)) < 250, "readable"
    if r.code == 1:
        assert lines[-1].startswith("nothing was written: ")


# Includes: files beside the map, by name.
LAYER = "params: {n: {config: n_layer}}\nindices: {i: n}\nrules: [{from: 'h.{i}.w', to: 'b.{i}.w', shape: d}]"
INCLUDES = {
    "an-include-that-is-missing": ("include: layers.yaml", {"layer.yaml": LAYER}),
    "an-include-that-leaves-the-folder": ("include: ../layer.yaml", {}),
    "an-include-by-a-wrong-name": ("include: shared/lama", {}),
    "includes-that-differ": ("include: [layer.yaml, other.yaml]", {"layer.yaml": LAYER, "other.yaml": "params: {n: 2}"}),
    "includes-in-a-circle": ("include: a.yaml", {"a.yaml": "include: b.yaml", "b.yaml": "params: {n: 2}\ninclude: a.yaml"}),
    "an-include-with-the-same-rule": ("include: layer.yaml\nrules: [{from: 'h.{i}.w', to: 'c.{i}', shape: d}]", {"layer.yaml": LAYER}),
    "an-exception-that-names-nothing": ("include: {file: layer.yaml, except: ['h.{i}.v']}", {"layer.yaml": LAYER}),
    "a-shape-in-an-included-file": ("include: layer.yaml", {"layer.yaml": LAYER}),
}  # fmt: skip


@pytest.mark.parametrize("name", INCLUDES)
def test_the_text_of_an_include(lab, name):
    text, others = INCLUDES[name]
    for file, content in others.items():
        (lab / file).write_text(f"version: 1\nfragment: true\n{content}\n")
    r, _ = lab.convert(text + "\n", {"h.0.w": arr(2), "h.1.w": arr(3)})
    assert "Traceback" not in r.err
    golden(name, r.code, r.err)


# Situations before a map is read, and texts that are no failures.


def convert(lab, *flags, source=None, output=None):
    return lab.run("--map", lab.map(GPT2), source or lab.source, output or lab.output, *flags)


FILES = {
    "a-truncated-file": encode(gpt2(2))[:-100],
    "a-git-lfs-pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n",
    "a-text-file": b"version: 1\nname: gpt2\nrules: []\n",
    "an-empty-file": b"",
    "a-pickle": b"PK\x03\x04" + bytes(50),
}


@pytest.mark.parametrize("name", FILES)
def test_the_text_of_a_bad_file(lab, name):
    lab.source.write_bytes(FILES[name])
    r = convert(lab)
    assert r.code == 3
    golden(name, r.code, r.err)


def test_the_text_of_a_missing_file(lab):
    r = convert(lab)
    golden("a-missing-file", r.code, r.err)


def test_the_text_of_an_existing_output(lab):
    write(lab.source, gpt2(2))
    write(lab.output, {})
    r = convert(lab)
    golden("an-existing-output", r.code, r.err)


def test_the_text_of_one_shard(lab):
    folder = shards(lab / "model", [gpt2(2), {"score": arr(1)}])
    r = convert(lab, source=folder / "model-00001-of-00002.safetensors")
    golden("one-shard-of-two", r.code, r.err)


def test_the_text_of_a_missing_shard(lab):
    folder = shards(lab / "model", [gpt2(2), {"score": arr(1)}])
    (folder / "model-00002-of-00002.safetensors").unlink()
    r = convert(lab, source=folder)
    golden("a-missing-shard", r.code, r.err)


def test_the_text_of_a_directory_without_an_index(lab):
    folder = shards(lab / "model", [gpt2(2), {"score": arr(1)}])
    (folder / "model.safetensors.index.json").unlink()
    r = convert(lab, source=folder)
    golden("a-directory-without-its-index", r.code, r.err)


def test_the_text_of_a_map_typo(lab):
    write(lab.source, gpt2(2))
    r = lab.run("--map", "gtp2", lab.source, lab.output)
    golden("map-typo", r.code, r.err)


def test_the_text_of_a_plan(lab):
    write(
        lab.source,
        gpt2() | {f"h.{i}.attn.bias": arr(1, 1, 4, 4) for i in range(12)} | {"lm_head.weight": arr(7, 4, start=5)},
    )
    r = convert(lab, "--dry-run", "--dtype", "bfloat16")
    assert r.err == ""
    golden("plan", r.code, r.out)
    r = convert(lab, "--tied", "copy", "--verify")
    assert r.err == ""
    golden("report", r.code, r.out)


def test_the_text_of_inspect_and_check(lab):
    write(lab.source, gpt2(2), {"format": "pt"})
    r = lab.run("inspect", lab.source)
    golden("inspect", r.code, r.out)
    r = lab.run("check", lab.map(GPT2))
    golden("check", r.code, r.out)


def test_no_golden_file_is_left_over():
    source = Path(__file__).read_text()
    assert not [p.stem for p in GOLDEN.glob("*.txt") if f'"{p.stem}"' not in source]
