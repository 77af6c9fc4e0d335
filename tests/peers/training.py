"""Layouts of training stacks that need accelerators to be imported: their mappings, written down in numpy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .case import array, lines, write_case

REQUIREMENTS = ("numpy==2.4.6", "ml_dtypes==0.6.0")
State = dict[str, np.ndarray]
LAYERS, EXPERTS = 3, 12


def megatron(x: State, groups: int, multiple: int) -> State:
    """https://github.com/NVIDIA-NeMo/Megatron-Bridge: models/llama, qwen, mixtral; conversion/param_mapping.py."""

    def padded(w: np.ndarray) -> np.ndarray:
        return np.concatenate([w, np.zeros((-len(w) % multiple, *w.shape[1:]), w.dtype)])

    def by_groups(at: str, kind: str) -> np.ndarray:
        parts = [np.split(x[f"{at}.self_attn.{p}_proj.{kind}"], groups) for p in "qkv"]
        return np.concatenate([part[g] for g in range(groups) for part in parts])

    out = {"embedding.word_embeddings.weight": padded(x["model.embed_tokens.weight"])}
    out["decoder.final_layernorm.weight"] = x["model.norm.weight"]
    if "lm_head.weight" in x:
        out["output_layer.weight"] = padded(x["lm_head.weight"])
    for i in range(LAYERS):
        hf, mc = f"model.layers.{i}", f"decoder.layers.{i}"
        out[f"{mc}.self_attention.linear_qkv.layer_norm_weight"] = x[f"{hf}.input_layernorm.weight"]
        out[f"{mc}.self_attention.linear_proj.weight"] = x[f"{hf}.self_attn.o_proj.weight"]
        for kind in ("weight", "bias"):
            if f"{hf}.self_attn.q_proj.{kind}" in x:
                out[f"{mc}.self_attention.linear_qkv.{kind}"] = by_groups(hf, kind)
        norm, moe = x[f"{hf}.post_attention_layernorm.weight"], f"{hf}.block_sparse_moe"
        if f"{moe}.gate.weight" in x:
            out[f"{mc}.pre_mlp_layernorm.weight"], out[f"{mc}.mlp.router.weight"] = norm, x[f"{moe}.gate.weight"]
            for e in range(EXPERTS):
                gate, down, up = (x[f"{moe}.experts.{e}.w{k}.weight"] for k in (1, 2, 3))
                out[f"{mc}.mlp.experts.linear_fc1.weight{e}"] = np.concatenate([gate, up])
                out[f"{mc}.mlp.experts.linear_fc2.weight{e}"] = down
        else:
            out[f"{mc}.mlp.linear_fc1.layer_norm_weight"] = norm
            gate, up = (x[f"{hf}.mlp.{p}_proj.weight"] for p in ("gate", "up"))
            out[f"{mc}.mlp.linear_fc1.weight"] = np.concatenate([gate, up])
            out[f"{mc}.mlp.linear_fc2.weight"] = x[f"{hf}.mlp.down_proj.weight"]
    return out


def maxtext(x: State, hd: int) -> State:
    """https://github.com/AI-Hypercomputer/maxtext: utils/ckpt_conversion/utils/param_mapping.py, LLAMA31_*, scanned."""

    def kernel(w: np.ndarray, rope: bool = False, scale: float = 1.0) -> np.ndarray:
        w = w.T.reshape(w.shape[1], -1, hd)
        if rope:
            first, second = w[..., : hd // 2], w[..., hd // 2 :]
            w = np.stack([first, second], axis=-1).reshape(w.shape)
        return (w.astype(np.float32) * np.float32(scale)).astype(w.dtype)

    def layer(at: str) -> State:
        q, k, v, o = (x[f"{at}.self_attn.{p}_proj.weight"] for p in "qkvo")
        return {
            "pre_self_attention_layer_norm-scale": x[f"{at}.input_layernorm.weight"],
            "post_self_attention_layer_norm-scale": x[f"{at}.post_attention_layernorm.weight"],
            "self_attention-query-kernel": kernel(q, rope=True, scale=1 / np.sqrt(hd)),
            "self_attention-key-kernel": kernel(k, rope=True),
            "self_attention-value-kernel": kernel(v),
            "self_attention-out-kernel": o.T.reshape(-1, hd, o.shape[0]),
            "mlp-wi_0-kernel": x[f"{at}.mlp.gate_proj.weight"].T,
            "mlp-wi_1-kernel": x[f"{at}.mlp.up_proj.weight"].T,
            "mlp-wo-kernel": x[f"{at}.mlp.down_proj.weight"].T,
        }

    layers = [layer(f"model.layers.{i}") for i in range(LAYERS)]
    out = {f"params-decoder-layers-{n}": np.stack([w[n] for w in layers], axis=1) for n in layers[0]}
    out["params-token_embedder-embedding"] = x["model.embed_tokens.weight"]
    out["params-decoder-decoder_norm-scale"] = x["model.norm.weight"]
    if "lm_head.weight" in x:
        out["params-decoder-logits_dense-kernel"] = x["lm_head.weight"].T
    return out


def levanter(x: State, heads: int) -> State:
    """https://github.com/stanford-crfm/levanter: models/gpt2.py, Gpt2Attention; haliax/nn/scan.py, Stacked."""
    out = {
        "embeddings.token_embeddings.weight": x["wte.weight"],
        "embeddings.position_embeddings.weight": x["wpe.weight"],
    }
    out |= {f"transformer.ln_f.{p}": x[f"ln_f.{p}"] for p in ("weight", "bias")}
    for name in [n.removeprefix("h.0.") for n in x if n.startswith("h.0.")]:
        w = np.stack([x[f"h.{i}.{name}"] for i in range(LAYERS)])
        if name.startswith("attn.c_attn"):
            w = w.reshape(*w.shape[:-1], 3, heads, -1)
        elif name == "attn.c_proj.weight":
            w = w.reshape(LAYERS, heads, -1, w.shape[-1])
        out[f"transformer.blocks.stacked.{name}"] = w
    return out


def decoder(dtype: str, d: int, q: int, kv: int, f: int, biases: bool = False, experts: int = 0) -> State:
    """A decoder as Hugging Face stores it, without a head."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (13, d), "model.norm.weight": (d,)}
    for i in range(LAYERS):
        at = f"model.layers.{i}"
        shapes |= {f"{at}.{n}.weight": (d,) for n in ("input_layernorm", "post_attention_layernorm")}
        for p, n in (("q", q), ("k", kv), ("v", kv)):
            shapes |= {f"{at}.self_attn.{p}_proj.weight": (n, d)} | (
                {f"{at}.self_attn.{p}_proj.bias": (n,)} if biases else {}
            )
        shapes |= {f"{at}.self_attn.o_proj.weight": (d, q)}
        if experts:
            shapes[f"{at}.block_sparse_moe.gate.weight"] = (experts, d)
            for e in range(experts):
                sizes = {"w1": (f, d), "w2": (d, f), "w3": (f, d)}
                shapes |= {f"{at}.block_sparse_moe.experts.{e}.{w}.weight": s for w, s in sizes.items()}
        else:
            shapes |= {f"{at}.mlp.gate_proj.weight": (f, d), f"{at}.mlp.up_proj.weight": (f, d)}
            shapes |= {f"{at}.mlp.down_proj.weight": (d, f)}
    return {name: array(name, shape, dtype) for name, shape in shapes.items()}


def gpt2() -> State:
    d, f = 12, 20
    shapes = {"wte.weight": (17, d), "wpe.weight": (7, d), "ln_f.weight": (d,), "ln_f.bias": (d,)}
    for i in range(LAYERS):
        shapes |= {f"h.{i}.{n}.{p}": (d,) for n in ("ln_1", "ln_2") for p in ("weight", "bias")}
        for name, a, b in (("attn.c_attn", d, 3 * d), ("attn.c_proj", d, d), ("mlp.c_fc", d, f), ("mlp.c_proj", f, d)):
            shapes |= {f"h.{i}.{name}.weight": (a, b), f"h.{i}.{name}.bias": (b,)}
    return {name: array(name, shape) for name, shape in shapes.items()}


def main(folder: Path) -> None:
    def case(
        name: str, given: State, made: State, fn: Any, peer: str, config: Mapping[str, int], flags: Any = ()
    ) -> None:
        write_case(
            folder, name, given, made, peer=f"numpy oracle of {peer}", version="1", code=fn.__doc__, count=lines(fn),
            config=config, flags=flags,
        )  # fmt: skip

    config = {"num_hidden_layers": LAYERS, "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 13}
    head = {"lm_head.weight": array("lm_head.weight", (13, 10), "BF16")}
    flags = ["--set", "multiple=8"]
    for name, sizes, untied in (
        ("llama", {}, True),
        ("llama@tied", {}, False),
        ("qwen2", {"biases": True}, False),
        ("mixtral", {"experts": EXPERTS}, True),
    ):
        files = decoder("BF16", d=10, q=24, kv=8, f=14, **sizes) | (head if untied else {})
        known = config | ({"num_local_experts": EXPERTS} if sizes.get("experts") else {})
        case(f"megatron/{name}", files, megatron(files, 2, 8), megatron, "Megatron-Bridge", known, flags)
    files = decoder("F32", d=10, q=24, kv=8, f=14) | {"lm_head.weight": array("lm_head.weight", (13, 10))}
    case("maxtext/llama", maxtext(files, 4), files, maxtext, "MaxText", config)
    files = gpt2()
    case("levanter/gpt2", files, levanter(files, 3), levanter, "Levanter", {"n_layer": LAYERS, "n_head": 3})
