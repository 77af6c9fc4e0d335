"""The layouts that only this project has, from the numpy code that their users would write."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .case import array, lines, write_case

REQUIREMENTS = ("numpy==2.4.6", "ml_dtypes==0.6.0")
LAYERS = 11


def gpt2(x: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """examples/gpt.py: nn.Linear keeps [out, in]."""
    out = {"tok_embed.weight": x["wte.weight"], "pos_embed.weight": x["wpe.weight"]}
    for i in range(LAYERS):
        for ours, theirs in (("ln1", "ln_1"), ("ln2", "ln_2")):
            out[f"blocks.{i}.{ours}.scale"] = x[f"h.{i}.{theirs}.weight"]
            out[f"blocks.{i}.{ours}.shift"] = x[f"h.{i}.{theirs}.bias"]
        linear = {
            "attn.qkv": "attn.c_attn",
            "attn.out_proj": "attn.c_proj",
            "mlp.fc1": "mlp.c_fc",
            "mlp.fc2": "mlp.c_proj",
        }
        for ours, theirs in linear.items():
            out[f"blocks.{i}.{ours}.weight"] = x[f"h.{i}.{theirs}.weight"].T
            out[f"blocks.{i}.{ours}.bias"] = x[f"h.{i}.{theirs}.bias"]
    out["final_ln.scale"], out["final_ln.shift"] = x["ln_f.weight"], x["ln_f.bias"]
    return out


def llama(x: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """examples/load_llama.py: one matrix for q, k and v."""
    out = {"tok_embed.weight": x["model.embed_tokens.weight"], "final_norm.scale": x["model.norm.weight"]}
    for i in range(LAYERS):
        theirs, ours = f"model.layers.{i}", f"blocks.{i}"
        out[f"{ours}.norm1.scale"] = x[f"{theirs}.input_layernorm.weight"]
        out[f"{ours}.norm2.scale"] = x[f"{theirs}.post_attention_layernorm.weight"]
        out[f"{ours}.attn.qkv.weight"] = np.concatenate([x[f"{theirs}.self_attn.{p}_proj.weight"] for p in "qkv"])
        out[f"{ours}.attn.out_proj.weight"] = x[f"{theirs}.self_attn.o_proj.weight"]
        for part in ("gate", "up", "down"):
            out[f"{ours}.mlp.{part}.weight"] = x[f"{theirs}.mlp.{part}_proj.weight"]
    if "lm_head.weight" in x:
        out["lm_head.weight"] = x["lm_head.weight"]
    return out


def qwen2(x: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """examples/read_qwen2.c: an array for all layers, in float32."""
    parts = {
        "rms_att_weight": "input_layernorm.weight", "wq": "self_attn.q_proj.weight", "bq": "self_attn.q_proj.bias",
        "wk": "self_attn.k_proj.weight", "bk": "self_attn.k_proj.bias", "wv": "self_attn.v_proj.weight",
        "bv": "self_attn.v_proj.bias", "wo": "self_attn.o_proj.weight", "rms_ffn_weight": "post_attention_layernorm.weight",
        "w1": "mlp.gate_proj.weight", "w2": "mlp.down_proj.weight", "w3": "mlp.up_proj.weight",
    }  # fmt: skip
    out = {ours: np.stack([x[f"model.layers.{i}.{p}"] for i in range(LAYERS)]) for ours, p in parts.items()}
    out |= {"token_embedding_table": x["model.embed_tokens.weight"], "rms_final_weight": x["model.norm.weight"]}
    if "lm_head.weight" in x:
        out["wcls"] = x["lm_head.weight"]
    return {name: w.astype(np.float32) for name, w in out.items()}


def glassllm(x: dict[str, np.ndarray], heads: int, kv: int) -> dict[str, np.ndarray]:
    """The package computes x @ W and rotates neighbours; Hugging Face rotates halves."""

    def halves(w: np.ndarray, n: int) -> np.ndarray:
        rows = w.T.reshape(n, -1, 2, w.shape[0])
        return np.concatenate([rows[:, :, 0], rows[:, :, 1]], axis=1).reshape(-1, w.shape[0])

    out = {"model.embed_tokens.weight": x["E"], "model.norm.weight": x["norm_f.gamma"]}
    for i in range(LAYERS):
        theirs, ours = f"blocks.{i}", f"model.layers.{i}"
        out[f"{ours}.self_attn.q_proj.weight"] = halves(x[f"{theirs}.attn.W_Q"], heads)
        out[f"{ours}.self_attn.k_proj.weight"] = halves(x[f"{theirs}.attn.W_K"], kv)
        out[f"{ours}.self_attn.v_proj.weight"] = x[f"{theirs}.attn.W_V"].T
        out[f"{ours}.self_attn.o_proj.weight"] = x[f"{theirs}.attn.W_O"].T
        for name, part in (("gate", "W1"), ("down", "W2"), ("up", "W3")):
            out[f"{ours}.mlp.{name}_proj.weight"] = x[f"{theirs}.ffn.{part}"].T
        out[f"{ours}.input_layernorm.weight"] = x[f"{theirs}.norm1.gamma"]
        out[f"{ours}.post_attention_layernorm.weight"] = x[f"{theirs}.norm2.gamma"]
    return {name: w.astype(np.float32) for name, w in out.items()}


def decoder(dtype: str, d: int, q: int, kv: int, f: int, biases: bool = False) -> dict[str, np.ndarray]:
    """A decoder as Hugging Face stores it, without a head."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (13, d), "model.norm.weight": (d,)}
    for i in range(LAYERS):
        at = f"model.layers.{i}"
        shapes |= {f"{at}.{n}.weight": (d,) for n in ("input_layernorm", "post_attention_layernorm")}
        for p, n in (("q", q), ("k", kv), ("v", kv)):
            shapes[f"{at}.self_attn.{p}_proj.weight"] = (n, d)
            if biases:
                shapes[f"{at}.self_attn.{p}_proj.bias"] = (n,)
        shapes |= {f"{at}.self_attn.o_proj.weight": (d, q), f"{at}.mlp.down_proj.weight": (d, f)}
        shapes |= {f"{at}.mlp.{n}_proj.weight": (f, d) for n in ("gate", "up")}
    return {name: array(name, shape, dtype) for name, shape in shapes.items()}


def gpt2_files() -> dict[str, np.ndarray]:
    d, shapes = 6, {"wte.weight": (13, 6), "wpe.weight": (7, 6), "ln_f.weight": (6,), "ln_f.bias": (6,)}
    for i in range(LAYERS):
        shapes |= {f"h.{i}.{n}.{p}": (d,) for n in ("ln_1", "ln_2") for p in ("weight", "bias")}
        for name, a, b in (
            ("attn.c_attn", d, 3 * d),
            ("attn.c_proj", d, d),
            ("mlp.c_fc", d, 4 * d),
            ("mlp.c_proj", 4 * d, d),
        ):
            shapes |= {f"h.{i}.{name}.weight": (a, b), f"h.{i}.{name}.bias": (b,)}
    return {name: array(name, shape) for name, shape in shapes.items()}


def glassllm_files(d: int, h: int, kv: int, hd: int, f: int) -> dict[str, np.ndarray]:
    shapes: dict[str, tuple[int, ...]] = {"E": (13, d), "norm_f.gamma": (d,)}
    for i in range(LAYERS):
        at = f"blocks.{i}"
        shapes |= {f"{at}.attn.W_Q": (d, h * hd), f"{at}.attn.W_K": (d, kv * hd), f"{at}.attn.W_V": (d, kv * hd)}
        shapes |= {f"{at}.attn.W_O": (h * hd, d), f"{at}.norm1.gamma": (d,), f"{at}.norm2.gamma": (d,)}
        shapes |= {f"{at}.ffn.W1": (d, f), f"{at}.ffn.W2": (f, d), f"{at}.ffn.W3": (d, f)}
    return {name: array(name, shape, "F16") for name, shape in shapes.items()}


def main(folder: Path) -> None:
    oracle = {"peer": "numpy oracle", "version": "1"}

    def case(name: str, given: dict[str, np.ndarray], made: dict[str, np.ndarray], fn: object, **more: object) -> None:
        write_case(folder, name, given, made, code=fn.__doc__.partition(":")[0], count=lines(fn), **oracle, **more)

    files = gpt2_files()
    case("gpt2", files, gpt2(files), gpt2)
    masks = {f"transformer.h.{i}.attn.bias": np.tril(np.ones((1, 1, 7, 7), np.uint8)) for i in range(LAYERS)}
    saved = {f"transformer.{n}": x for n, x in files.items()} | masks | {"lm_head.weight": files["wte.weight"]}
    case("gpt2@saved", saved, gpt2(files), gpt2, back=files)
    for name, fn, dtype, biases in (("llama", llama, "BF16", False), ("qwen2", qwen2, "BF16", True)):
        files = decoder(dtype, d=10, q=12, kv=4, f=14, biases=biases)
        case(name, files, fn(files), fn)
        files["lm_head.weight"] = array("lm_head.weight", (13, 10), dtype)
        case(f"{name}@head", files, fn(files), fn)
    files = glassllm_files(d=10, h=4, kv=2, hd=6, f=14)
    config = {"n_layers": LAYERS, "n_heads": 4, "n_kv_heads": 2}
    case("glassllm", files, glassllm(files, 4, 2), glassllm, config=config)
