"""Names: prefixes, boundaries, collisions, and the way back."""

import itertools
import random

import pytest
from lab import arr, read

from .field import KEEP, f32


def ones(**values):
    return {k: f32(v) for k, v in values.items()}


def each(text):
    """Tensors of one element: `a.b=1; c=2`."""
    return {k.strip(): f32(float(v)) for k, v in (item.split("=") for item in text.split(";"))}


def named(case):
    """The names of the output, none of which may hold a character that only patterns have."""
    names = sorted(read(case.output))
    assert not set("".join(names)) & set("()?!\\^")
    return names


GPT2 = """
indices: {layer: n_layer}
strip: {from: ['transformer.']}
rules:
  - {from: wte.weight, to: tok_embed.weight, shape: vocab d}
  - {from: 'h.{layer}.ln_1.weight', to: 'blocks.{layer}.ln1.scale', shape: d}
  - {from: lm_head.weight, to: lm_head.weight, shape: vocab d, tied: wte.weight}
"""


def test_rename_02_gpt2_prefix_optional(case):
    wte, ln = arr(3, 2), f32(1, 1)
    bare = {"wte.weight": wte, "h.0.ln_1.weight": ln}
    full = {f"transformer.{k}": v for k, v in bare.items()} | {"lm_head.weight": wte}
    want = {"tok_embed.weight": wte, "blocks.0.ln1.scale": ln}
    r = case.gives(GPT2, bare, want)
    assert "stripped" not in r.out
    first = case.output.read_bytes()
    r = case.gives(GPT2, full, want)
    assert "stripped: prefix 'transformer.' of 2 names" in r.out
    assert case.output.read_bytes() == first
    case.refused(GPT2, bare | full, 1, "transformer.wte.weight", " wte.weight", "tok_embed.weight")


def test_rename_04_module_prefix_once(case):
    text = "strip: {from: [module., head.]}\n" + KEEP
    given = each("module.encoder.module.weight=1; head.aux_head.weight=2; norm.weight=3")
    case.gives(text, given, each("encoder.module.weight=1; aux_head.weight=2; norm.weight=3"))


def test_rename_06_layer_1_vs_10(case):
    given = each("layers.1.w=1; layers.10.w=10; layers.11.w=11")
    want = each("first.w=1; rest.10.w=10; rest.11.w=11")
    odd = given | each("layersX1Xw=99")
    template = """
    indices: {i: n}
    rules:
      - {from: layers.1.w, to: first.w}
      - {from: 'layers.{i}.w', to: 'rest.{i}.w', when: i != 1, optional: true}
    """
    pattern = r"""
    rules:
      - {from: layers.1.w, to: first.w}
      - {match: 'layers\.(?P<i>\d+)\.w', to: 'rest.{i}.w'}
    """
    for text in (template, pattern):
        case.both(text, given, want)
        case.refused(text, odd, 1, "layersX1Xw: unexpected: no rule names it")
        case.gives("    drop: {from: [layersX1Xw]}\n" + text.lstrip("\n"), odd, want)


def test_rename_08_collision(case):
    text = r"rest: keep" + "\n" + r"rules: [{match: '(?P<p>.+)\.gamma', to: '{p}.weight'}]"
    case.refused(text, each("a.gamma=1; a.weight=2"), 1, "a.weight: is written twice, from a.gamma and from a.weight")


def test_rename_09_swap(case):
    text = """
    indices: {i: n}
    rules:
      - {from: 'h.{i}.ln_1.weight', to: 'h.{i}.ln_2.weight', shape: d}
      - {from: 'h.{i}.ln_2.weight', to: 'h.{i}.ln_1.weight', shape: d}
    """
    given = {"h.0.ln_1.weight": f32(1, 1), "h.0.ln_2.weight": f32(2, 2)}
    case.both(text, given, {"h.0.ln_1.weight": f32(2, 2), "h.0.ln_2.weight": f32(1, 1)})


def test_rename_10_run_twice(case):
    template = "indices: {i: n}\nrules: [{from: 'layers.{i}.w', to: 'encoder.layers.{i}.w'}]"
    pattern = r"rules: [{match: 'layers\.(?P<i>\d+)\.w', to: 'encoder.layers.{i}.w'}]"
    for text in (template, pattern):
        says = [
            "encoder.layers.0.w: unexpected",
            "1 of 1 name has the form of the 'to' side, 0 that of the 'from' side",
        ]
        case.refused(text, each("encoder.layers.0.w=1"), 1, *says)


def test_rename_12_reverse_of_a_regex(case):
    given = each("model.layers.0.w=1; model.visual.w=2; lm_head.w=3")
    want = each("model.language_model.layers.0.w=1; model.visual.w=2; lm_head.w=3")
    # The map of the report has a look-ahead. Patterns here are those of an engine that runs in linear time and has none:
    # the map is refused as a whole, and says which part. What it meant is one positive pattern, and then it turns around.
    ahead = (
        r"rest: keep"
        + "\n"
        + r"rules: [{match: 'model(?!\.(visual|language_model))(?P<r>.*)', to: 'model.language_model{r}'}]"
    )
    case.refused(ahead, given, 2, "map.yaml:4", "(?!", "no look-around")
    for part in ("layers", "(?P<r>layers|norm)"):
        to = part if part == "layers" else "{r}"
        text = f"rest: keep\nrules: [{{match: 'model\\.{part}\\.(?P<s>.+)', to: 'model.language_model.{to}.{{s}}'}}]"
        case.both(text, given, want)
        assert named(case) == sorted(given)
    one_way = (
        r"rest: keep"
        + "\n"
        + r"rules: [{match: 'model\.(?:layers|blocks)\.(?P<s>.+)', to: 'model.language_model.layers.{s}'%s}]"
    )
    case.gives(one_way % "", given, want)
    assert named(case) == sorted(want)
    case.refused(one_way % "", want, 2, "map.yaml:4", "has no inverse", "reverse:", flags=("--reverse",))
    back = r", reverse: {match: 'model\.language_model\.layers\.(?P<s>.+)', to: 'model.layers.{s}'}"
    case.both(one_way % back, given, want)
    assert named(case) == sorted(given)


def test_rename_15_extra_layer_by_number(case):
    text = r"""
    indices: {i: n_layers}
    drop: {from: [{match: 'model\.layers\.\d+\..*'}]}
    rules:
      - {from: 'model.layers.{i}.w', to: 'blocks.{i}.w'}
    """
    given = each("model.layers.0.w=0; model.layers.1.w=1; model.layers.2.w=2; model.layers.20.w=20")
    r = case.gives(text, given, each("blocks.0.w=0; blocks.1.w=1"), "--set", "n_layers=2")
    assert "dropped: model.layers.{2,20}.w (2)" in r.out
    case.refused(text, given, 1, "model.layers.{3..19}.w (17): missing", flags=("--set", "n_layers=21"))


def test_rename_18_diffusion_bundle_prefix(case):
    torch = pytest.importorskip("torch")
    text = r"""
    strip: {from: [model.diffusion_model., net.]}
    drop: {from: [betas, alphas_cumprod, {match: 'first_stage_model\..*'}]}
    rules:
      - {from: time_embed.0.weight, to: time_embed.0.weight}
    """
    name = "time_embed.0.weight"
    bundle = {"betas": 9, "alphas_cumprod": 8, f"model.diffusion_model.{name}": 1, "first_stage_model.decoder.w": 2}
    bundle = {k: torch.tensor([float(v)]) for k, v in bundle.items()}
    want = {name: f32(1)}
    r = case.gives(text, case.saved(bundle), want)
    assert [line for line in r.out.splitlines() if line.startswith("dropped")] == [
        "dropped: alphas_cumprod", "dropped: betas", "dropped: first_stage_model.decoder.w",
    ]  # fmt: skip
    first = case.output.read_bytes()
    for bare in (name, f"net.{name}"):
        case.gives(text, case.saved({bare: torch.ones(1)}), want)
        assert case.output.read_bytes() == first
    case.gives(text, case.saved({"state_dict": bundle}), want, "--root", "state_dict")
    assert case.output.read_bytes() == first
    case.refused(text, case.saved({"weights": bundle}), 3, "weights", flags=("--root", "state_dict"))


def test_rename_19_adapter_leftovers(case):
    rule = r"rules: [{match: 'base_model\.model\.(?P<p>.+)\.base_layer\.(?P<w>weight|bias)', to: '{p}.{w}'}]"
    q = "base_model.model.model.layers.0.q_proj"
    given = each(f"{q}.base_layer.weight=1; {q}.lora_A.default.weight=2; {q}.lora_B.default.weight=3")
    case.refused(rule, given, 1, f"{q}.lora_A.default.weight", f"{q}.lora_B.default.weight", "2 unexpected")
    drop = r"drop: {from: [{match: '.*\.lora_.*'}]}" + "\n"
    r = case.gives(drop + rule, given, each("model.layers.0.q_proj.weight=1"))
    assert f"dropped: {q}.lora_A.default.weight\ndropped: {q}.lora_B.default.weight\n" in r.out
    assert "1 tensor converted, 2 dropped" in r.out


def test_rename_20_weight_norm_names(case):
    text = r"""
    rest: keep
    rules:
      - {match: '(?P<p>.+)\.weight_g', to: '{p}.parametrizations.weight.original0'}
      - {match: '(?P<p>.+)\.weight_v', to: '{p}.parametrizations.weight.original1'}
    """
    g, v, b = f32([1], [2], [3]), arr(3, 2), f32(0, 0, 0)
    new = "conv.parametrizations.weight.original"
    given = {"conv.weight_g": g, "conv.weight_v": v, "conv.bias": b}
    case.both(text, given, {f"{new}0": g, f"{new}1": v, "conv.bias": b})


def test_rename_21_rule_that_matches_nothing(case):
    dead = "  - {from: backbone.embedding.weight, to: backbone.embeddings.weight}\n"
    live = "  - {from: backbone.embeddings.weight, to: backbone.embeddings.weight}\n"
    given = each("backbone.embeddings.weight=1")
    case.refused("rules:\n" + dead + live, given, 2, "map.yaml:5", "map.yaml:4", "backbone.embeddings.weight")
    r = case.run("check", case.map("rules:\n" + dead + live))
    assert r.code == 2
    assert "backbone.embeddings.weight" in r.err
    says = ["map.yaml:4: ", "backbone.embedding.weight", "backbone.embeddings.weight: unexpected", "1 unexpected"]
    case.refused("rules:\n" + dead, given, 1, *says)
    case.both("rules:\n" + live, given, given)


def test_rename_23_fsdp_markers(case):
    rules = "indices: {i: n}\nrules: [{from: 'enc.{i}.w', to: 'enc.{i}.w', shape: d}]"
    text = "strip: {from: [{segment: _fsdp_wrapped_module}, {segment: _checkpoint_wrapped_module}]}\n" + rules
    given = each("_fsdp_wrapped_module.enc.0._fsdp_wrapped_module.w=1; enc.1._checkpoint_wrapped_module.w=2")
    r = case.gives(text, given, each("enc.0.w=1; enc.1.w=2"))
    assert "stripped: segment '_checkpoint_wrapped_module' of 1 name\n" in r.out
    assert "stripped: segment '_fsdp_wrapped_module' of 1 name\n" in r.out
    flat = "enc._fsdp_wrapped_module._flat_param"
    says = [f"{flat}: unexpected", "flat parameter of FSDP", "renaming cannot take apart"]
    case.refused(text, given | {flat: f32(*[0] * 7)}, 1, *says)
    # Only whole segments are markers; and a map without the words is told which it lacks.
    near = each("enc.0.my_fsdp_wrapped_module.w=1")
    case.refused(text, near, 1, "enc.0.my_fsdp_wrapped_module.w: unexpected")
    case.refused(rules, each("enc.0._orig_mod.w=1; enc.1._orig_mod.w=2"), 1, "strip: {from: [{segment: _orig_mod}]}")


def test_rename_24_text_replace_order(case):
    pairs = {
        "layers.{i}.attention.wq.weight": "model.layers.{i}.self_attn.q_proj.weight",
        "layers.{i}.feed_forward.w1.weight": "model.layers.{i}.mlp.gate_proj.weight",
        "layers.{i}.feed_forward.w2.weight": "model.layers.{i}.mlp.down_proj.weight",
        "layers.{i}.feed_forward.w3.weight": "model.layers.{i}.mlp.up_proj.weight",
        "layers.{i}.attention_norm.weight": "model.layers.{i}.input_layernorm.weight",
        "layers.{i}.ffn_norm.weight": "model.layers.{i}.post_attention_layernorm.weight",
        "norm.weight": "model.norm.weight",
        "tok_embeddings.weight": "model.embed_tokens.weight",
        "output.weight": "lm_head.weight",
    }
    given = {a.format(i=0): f32(k) for k, a in enumerate(pairs, 1)}
    want = {b.format(i=0): f32(k) for k, b in enumerate(pairs.values(), 1)}
    rules = [f"  - {{from: '{a}', to: '{b}'}}" for a, b in pairs.items()]
    outputs = set()
    for seed in range(6):
        random.Random(seed).shuffle(rules)
        case.both("indices: {i: n}\nrules:\n" + "\n".join(rules), given, want)
        case.gives("indices: {i: n}\nrules:\n" + "\n".join(rules), given, want)
        outputs.add(case.output.read_bytes())
    assert len(outputs) == 1


def test_rename_25_longest_rule_wins(case):
    a = "  - {from: embed_tokens.weight, to: tok.w}"
    b = "  - {from: 'layers.{i}.embed_tokens.weight', to: 'mtp.{i}.tok.w'}"
    given = each("embed_tokens.weight=1; layers.61.embed_tokens.weight=2")
    for rules in itertools.permutations((a, b)):
        case.both("indices: {i: [61]}\nrules:\n" + "\n".join(rules), given, each("tok.w=1; mtp.61.tok.w=2"))
    case.refused("rules:\n" + a, given, 1, "layers.61.embed_tokens.weight: unexpected: no rule names it")
