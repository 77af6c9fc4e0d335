"""Float8 checkpoints of DeepSeek-V3: transformers 5 where its blocks divide the weights, the published formula elsewhere.

The formula is that of `weight_dequant` in https://github.com/deepseek-ai/DeepSeek-V3, inference/kernel.py, which needs a
GPU: a tile of the weight in float32, times the one scale of the tile, rounded to bfloat16.
"""

from __future__ import annotations

import json
import tempfile
import zlib
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, DeepseekV3Config, DeepseekV3ForCausalLM, FineGrainedFP8Config, logging
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from .case import array, kind, lines, write_case

REQUIREMENTS = (
    "transformers==5.24.0", "accelerate==1.15.0", "safetensors==0.8.0", "numpy==2.4.6", "ml_dtypes==0.6.0",
    "torch==2.13.0",
)  # fmt: skip
KERNEL = "weight_dequant, https://github.com/deepseek-ai/DeepSeek-V3/blob/main/inference/kernel.py"
PLAIN = {"dtype": torch.bfloat16, "attn_implementation": "eager", "experts_implementation": "eager"}
Arrays = dict[str, np.ndarray]

CONFIG: dict[str, Any] = {
    "num_hidden_layers": 3, "first_k_dense_replace": 1, "n_routed_experts": 12, "num_nextn_predict_layers": 1,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [4, 6]},
}  # fmt: skip
SHORT = {"v": 13, "d": 14, "rq": 9, "rkv": 5, "rope": 2, "q": 16, "kv": 20, "o": 15, "ff": 18, "sf": 11, "f": 5}
WHOLE = {"v": 13, "d": 12, "rq": 28, "rkv": 4, "rope": 2, "q": 20, "kv": 48, "o": 32, "ff": 40, "sf": 16, "f": 8}
MODEL = {  # of sizes WHOLE
    "vocab_size": 13, "hidden_size": 12, "intermediate_size": 40, "moe_intermediate_size": 8, "n_shared_experts": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 28, "kv_lora_rank": 4, "qk_rope_head_dim": 2,
    "qk_nope_head_dim": 8, "v_head_dim": 16, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3,
    "max_position_embeddings": 32, "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"],
}  # fmt: skip


def weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Every finite number of float8 as often as any other, in an order that follows from the name."""
    bits = np.setdiff1d(np.arange(256), [0x7F, 0xFF]).astype(np.uint8)
    size = int(np.prod(shape))
    shuffle = np.random.default_rng(zlib.crc32(name.encode())).permutation
    return np.concatenate([shuffle(bits) for _ in range(-(-size // len(bits)))])[:size].reshape(shape)


def published(n: dict[str, int], config: dict[str, Any]) -> Arrays:
    """A checkpoint in the form of the published one: README_WEIGHTS.md of https://huggingface.co/deepseek-ai/DeepSeek-V3."""
    block = config["quantization_config"]["weight_block_size"]
    out: Arrays = {}

    def plain(name: str, *shape: int, dtype: str = "BF16") -> None:
        out[name] = array(name, shape, dtype)

    def scaled(name: str, *shape: int) -> None:
        out[f"{name}.weight"] = weight(name, shape).view(ml_dtypes.float8_e4m3fn)
        grid = [-(-n // b) for n, b in zip(shape, block)]
        out[f"{name}.weight_scale_inv"] = np.abs(array(f"{name}.scale", grid)) + np.float32(1e-3)

    def feed_forward(name: str, width: int) -> None:
        scaled(f"{name}.gate_proj", width, n["d"])
        scaled(f"{name}.up_proj", width, n["d"])
        scaled(f"{name}.down_proj", n["d"], width)

    layers = config["num_hidden_layers"] + config["num_nextn_predict_layers"]
    for i in range(layers):
        at = f"model.layers.{i}"
        plain(f"{at}.input_layernorm.weight", n["d"])
        plain(f"{at}.post_attention_layernorm.weight", n["d"])
        plain(f"{at}.self_attn.q_a_layernorm.weight", n["rq"])
        plain(f"{at}.self_attn.kv_a_layernorm.weight", n["rkv"])
        scaled(f"{at}.self_attn.q_a_proj", n["rq"], n["d"])
        scaled(f"{at}.self_attn.q_b_proj", n["q"], n["rq"])
        scaled(f"{at}.self_attn.kv_a_proj_with_mqa", n["rkv"] + n["rope"], n["d"])
        scaled(f"{at}.self_attn.kv_b_proj", n["kv"], n["rkv"])
        scaled(f"{at}.self_attn.o_proj", n["d"], n["o"])
        if i < config["first_k_dense_replace"]:
            feed_forward(f"{at}.mlp", n["ff"])
            continue
        plain(f"{at}.mlp.gate.weight", config["n_routed_experts"], n["d"])
        plain(f"{at}.mlp.gate.e_score_correction_bias", config["n_routed_experts"], dtype="F32")
        feed_forward(f"{at}.mlp.shared_experts", n["sf"])
        for e in range(config["n_routed_experts"]):
            feed_forward(f"{at}.mlp.experts.{e}", n["f"])
    for i in range(config["num_hidden_layers"], layers):
        at = f"model.layers.{i}"
        for name in ("enorm", "hnorm", "shared_head.norm"):
            plain(f"{at}.{name}.weight", n["d"])
        plain(f"{at}.eh_proj.weight", n["d"], 2 * n["d"])
        for name in ("embed_tokens", "shared_head.head"):
            plain(f"{at}.{name}.weight", n["v"], n["d"])
    plain("model.norm.weight", n["d"])
    plain("model.embed_tokens.weight", n["v"], n["d"])
    plain("lm_head.weight", n["v"], n["d"])
    return out


def weight_dequant(x: np.ndarray, s: np.ndarray, block: list[int]) -> np.ndarray:
    """Each tile of the weight times its scale."""
    y = np.empty(x.shape, ml_dtypes.bfloat16)
    for i in range(s.shape[0]):
        for j in range(s.shape[1]):
            tile = slice(i * block[0], (i + 1) * block[0]), slice(j * block[1], (j + 1) * block[1])
            y[tile] = (x[tile].astype(np.float32) * s[i, j]).astype(ml_dtypes.bfloat16)
    return y


def weight_quant(x: np.ndarray, block: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """The opposite: the largest magnitude of a tile becomes 448, the largest number of float8_e4m3fn."""
    q = np.empty(x.shape, ml_dtypes.float8_e4m3fn)
    s = np.ones([-(-n // b) for n, b in zip(x.shape, block)], np.float32)
    for i in range(s.shape[0]):
        for j in range(s.shape[1]):
            tile = slice(i * block[0], (i + 1) * block[0]), slice(j * block[1], (j + 1) * block[1])
            part = x[tile].astype(np.float32)
            s[i, j] = np.abs(part).max() / np.float32(448)
            q[tile] = (part / s[i, j]).astype(ml_dtypes.float8_e4m3fn)
    return q, s


def cast(x: Arrays, block: list[int]) -> Arrays:
    """What inference/fp8_cast_bf16.py does: names stay, scales go."""
    scaled = {n.removesuffix("_scale_inv") for n in x if n.endswith("_scale_inv")}
    out = {n: w for n, w in x.items() if not n.endswith("_scale_inv")}
    return {n: weight_dequant(w, x[f"{n}_scale_inv"], block) if n in scaled else w for n, w in out.items()}


def back(x: Arrays, like: Arrays, block: list[int]) -> Arrays:
    """The tensors of the float8 side from those of the other."""
    out: Arrays = {}
    for n, w in x.items():
        if f"{n}_scale_inv" in like:
            out[n], out[f"{n}_scale_inv"] = weight_quant(w, block)
        else:
            out[n] = w
    return out


def fuse(x: Arrays) -> Arrays:
    """The experts of a layer in two tensors, as transformers 5 has them."""
    out = {n: w for n, w in x.items() if ".experts." not in n}
    for at in sorted({n.partition(".experts.")[0] for n in x if ".experts." in n}):
        experts = range(sum(n.startswith(f"{at}.experts.") and n.endswith(".up_proj.weight") for n in x))
        both = [[x[f"{at}.experts.{e}.{p}_proj.weight"] for p in ("gate", "up")] for e in experts]
        out[f"{at}.experts.gate_up_proj"] = np.stack([np.concatenate(pair) for pair in both])
        out[f"{at}.gate.weight"] = x[f"{at}.gate.weight"].astype(np.float32)  # which it routes in
        out[f"{at}.experts.down_proj"] = np.stack([x[f"{at}.experts.{e}.down_proj.weight"] for e in experts])
    return out


def to_torch(x: np.ndarray) -> torch.Tensor:
    word = kind(x)[0]
    if word in ("BF16", "F8_E4M3"):
        dtype = torch.bfloat16 if word == "BF16" else torch.float8_e4m3fn
        return torch.from_numpy(x.view(f"i{x.itemsize}").copy()).view(dtype)
    return torch.from_numpy(x)


def to_numpy(x: torch.Tensor) -> np.ndarray:
    if x.dtype == torch.bfloat16:
        return x.detach().contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return x.detach().numpy()


def by_transformers(x: Arrays) -> Arrays:
    """Each weight through the op of transformers, alone."""
    op = Fp8Dequantize(None)
    out: Arrays = {}
    for n, w in x.items():
        if f"{n}_scale_inv" in x:
            weight, scale = to_torch(w), to_torch(x[f"{n}_scale_inv"])
            out[n] = to_numpy(op._dequantize_one(weight, scale, torch.bfloat16))
        elif not n.endswith("_scale_inv"):
            out[n] = w
    return out


def loaded(x: Arrays, config: dict[str, Any]) -> Arrays:
    """The checkpoint as `from_pretrained` makes a model in bfloat16 of it, whose logits are those of the formula's."""
    logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        save_file({n: to_torch(w) for n, w in x.items()}, Path(folder) / "model.safetensors", {"format": "pt"})
        (Path(folder) / "config.json").write_text(json.dumps(config))
        model = DeepseekV3ForCausalLM.from_pretrained(
            folder, quantization_config=FineGrainedFP8Config(dequantize=True), **PLAIN
        )
    state = {n: to_numpy(w).copy() for n, w in model.state_dict().items()}
    plain = DeepseekV3Config(**{k: v for k, v in config.items() if k != "quantization_config"})
    again = AutoModelForCausalLM.from_config(plain, **PLAIN)
    ours = fuse(cast(x, config["quantization_config"]["weight_block_size"]))
    missing, unexpected = again.load_state_dict({n: to_torch(w) for n, w in ours.items()}, strict=False)
    assert not missing
    assert all(n.startswith("model.layers.3.") for n in unexpected), unexpected
    ids = torch.tensor([[1, 7, 3, 12, 5]])
    with torch.no_grad():
        assert torch.equal(model.eval()(ids).logits, again.eval()(ids).logits)
    return state


def main(folder: Path) -> None:
    block = CONFIG["quantization_config"]["weight_block_size"]
    given = published(SHORT, CONFIG)
    made = cast(given, block)
    oracle = {"code": KERNEL, "count": lines(weight_dequant, weight_quant, cast, back), "version": "2024-12"}
    oracle |= {"peer": "numpy oracle of DeepSeek-V3's fp8_cast_bf16.py", "config": CONFIG}
    write_case(folder, "dequantized/deepseek_v3", given, made, back=back(made, given, block), **oracle)

    main_layers = {n: x for n, x in given.items() if not n.startswith("model.layers.3.")}
    less, name = cast(main_layers, block), "dequantized/deepseek_v3@without_mtp"
    flags = ["--set", "keep_mtp=0"]
    write_case(folder, name, given, less, back=back(less, given, block), flags=flags, **oracle)
    oracle["count"] += lines(fuse)
    name, flags = "dequantized/deepseek_v3_fused@mtp", ["--set", "keep_mtp=1"]
    write_case(folder, name, given, fuse(made), back=back(made, given, block), flags=flags, **oracle)

    config = {**CONFIG, **MODEL, "quantization_config": {"quant_method": "fp8", "weight_block_size": [2, 4]}}
    alone = {**config, "num_nextn_predict_layers": 0}
    given = published(WHOLE, alone)
    made = by_transformers(given)
    peer = {"peer": "transformers", "code": [Fp8Dequantize._dequantize_one]}
    again = back(made, given, [2, 4])
    write_case(folder, "dequantized/deepseek_v3@transformers", given, made, back=again, config=alone, **peer)

    given = published(WHOLE, config)
    again = back(cast({n: x for n, x in given.items() if not n.startswith("model.layers.3.")}, [2, 4]), given, [2, 4])
    write_case(folder, "dequantized/deepseek_v3_fused", given, loaded(given, config), back=again, config=config, **peer)
