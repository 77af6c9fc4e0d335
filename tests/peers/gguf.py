"""GGUF: names by the table of the package gguf, the formulas of llama.cpp's convert_hf_to_gguf.py, read by transformers.

llama.cpp's converter is no package. What it does to tensors beside their names is written here again from
https://github.com/ggml-org/llama.cpp/blob/master/convert_hf_to_gguf.py. That this is right is shown by the other way: the
tensors go into a real GGUF file, and what transformers makes of it is the checkpoint that they came from.
"""

from __future__ import annotations

import importlib.metadata
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers import modeling_gguf_pytorch_utils as reader

from .case import array, lines, write_case

REQUIREMENTS = (
    "gguf==0.19.0", "transformers==5.24.0", "safetensors==0.8.0", "numpy==2.4.6", "ml_dtypes==0.6.0", "torch==2.13.0",
)  # fmt: skip
SOURCE = "https://github.com/ggml-org/llama.cpp/blob/master/convert_hf_to_gguf.py"
Arrays = dict[str, np.ndarray]

WIDE = {
    "vocab_size": 13, "hidden_size": 12, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10,
    "intermediate_size": 14, "num_hidden_layers": 3, "max_position_embeddings": 16, "pad_token_id": 0,
}  # fmt: skip
EXPERTS = {"num_local_experts": 12, "num_experts": 12, "num_experts_per_tok": 2, "moe_intermediate_size": 14}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {  # by case: the architecture here and there, its config
    "llama": ("llama", "llama", {**WIDE, "num_hidden_layers": 11}),
    "llama@tied": ("llama", "llama", {**WIDE, "num_attention_heads": 3, "num_key_value_heads": 1, "tie_word_embeddings": True}),
    "mixtral": ("mixtral", "llama", {**WIDE, **EXPERTS}),
    "qwen2": ("qwen2", "qwen2", {**WIDE, "hidden_size": 20, "num_attention_heads": 5, "num_key_value_heads": 1}),
    "qwen3": ("qwen3", "qwen3", WIDE),
    "qwen3_moe": ("qwen3_moe", "qwen3moe", {**WIDE, **EXPERTS}),
    "gemma2": ("gemma2", "gemma2", {**WIDE, "tie_word_embeddings": True}),
    "phi3": ("phi3", "phi3", {**WIDE, "hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2}),
    "gpt2": ("gpt2", "gpt2", {"vocab_size": 13, "n_positions": 7, "n_embd": 12, "n_layer": 3, "n_head": 3}),
}  # fmt: skip
ALONE = {"mixtral"}  # which transformers does not read


def published(config: Any) -> Arrays:
    """A checkpoint as it is published: experts one by one, a tied head left out, norms that are no ones."""
    out: Arrays = {}
    for name, x in AutoModelForCausalLM.from_config(config).state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        at, _, fused = name.partition(".mlp.experts.")
        if not fused:
            plain = name.replace(".mlp.gate.", ".block_sparse_moe.gate.") if config.model_type == "mixtral" else name
            plain = plain.removeprefix("transformer.")  # GPT-2 as it was released
            out[plain] = array(plain, x.shape, "BF16")
            continue
        many = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}[fused]
        words = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
        for e in range(x.shape[0]):
            for part in many:
                single = f"{at}.mlp.experts.{e}.{part}.weight"
                if config.model_type == "mixtral":
                    single = f"{at}.block_sparse_moe.experts.{e}.{words[part]}.weight"
                out[single] = array(single, (x.shape[1] // len(many), x.shape[2]), "BF16")
    return out


def permute(weights: np.ndarray, heads: int) -> np.ndarray:
    """`LlamaModel.permute`: from halves of a head that rotate with each other to neighbours."""
    parts = weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
    return parts.swapaxes(1, 2).reshape(weights.shape)


def modify(name: str, x: np.ndarray, config: Any) -> np.ndarray:
    """`modify_tensors` of LlamaModel, Gemma2Model and GPT2Model."""
    kind = config.model_type
    if kind in ("llama", "mixtral") and name.endswith("q_proj.weight"):
        return permute(x, config.num_attention_heads)
    if kind in ("llama", "mixtral") and name.endswith("k_proj.weight"):
        return permute(x, config.num_key_value_heads)
    if kind == "gemma2" and name.endswith("norm.weight"):
        return x.astype(np.float32) + 1
    if kind == "gpt2" and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
        return x.T
    return x


def converted(given: Mapping[str, np.ndarray], config: Any, arch: str) -> Arrays:
    """The tensors of the GGUF file: experts merged, names by the table."""
    (number,) = (k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == arch)
    table = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    experts: dict[str, dict[int, np.ndarray]] = {}
    out: Arrays = {}
    for name, x in given.items():
        single = re.sub(r"\.experts\.\d+\.", ".experts.", name)
        new = table.get_name(single, try_suffixes=(".weight", ".bias"))
        assert new is not None, name
        if single != name:
            experts.setdefault(new, {})[int(re.search(r"\.experts\.(\d+)\.", name)[1])] = x
        else:
            out[new] = modify(name, x, config)
    return out | {new: np.stack([x for _, x in sorted(many.items())]) for new, many in experts.items()}


def write(made: Arrays, config: Any, arch: str, path: Path) -> None:
    """A GGUF file with the tensors in float32 and the numbers that a reader asks for."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name("tiny")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    if arch != "gpt2":
        writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_vocab_size(config.vocab_size)
    for name, x in made.items():
        writer.add_tensor(name, np.ascontiguousarray(x, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_by_transformers(path: Path, config: Any) -> Arrays:
    """The file as transformers reads it, its experts taken apart again."""
    model = AutoModelForCausalLM.from_config(config)
    tensors = reader.load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    out: Arrays = {}
    for name, x in tensors.items():
        at, _, fused = name.partition(".mlp.experts.")
        if not fused:
            out[name.removeprefix("transformer.")] = x.numpy()
            continue
        many = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}[fused.removesuffix(".weight")]
        for e, expert in enumerate(x):
            for part, half in zip(many, expert.chunk(len(many))):
                out[f"{at}.mlp.experts.{e}.{part}.weight"] = half.numpy()
    return out


def main(folder: Path) -> None:
    torch.manual_seed(0)
    for case, (kind, arch, numbers) in MODELS.items():
        config = AutoConfig.for_model(kind, **numbers)
        given = published(config)
        made = converted(given, config, arch)
        code = [permute, modify, converted]
        if kind not in ALONE:
            with tempfile.TemporaryDirectory() as temporary:
                write(made, config, arch, Path(temporary) / "tiny.gguf")
                again = read_by_transformers(Path(temporary) / "tiny.gguf", config)
            tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
            assert again.keys() - tied == given.keys(), again.keys() ^ given.keys()
            assert all(np.array_equal(again[n], x.astype(np.float32)) for n, x in given.items())
            code += [reader.TENSOR_PROCESSORS[arch]] if arch in reader.TENSOR_PROCESSORS else []
        facts = ("num_hidden_layers", "n_layer", "num_attention_heads", "num_key_value_heads", "num_experts",
                 "num_local_experts", "tie_word_embeddings")  # fmt: skip
        write_case(
            folder, f"gguf/{case}", given, made,
            peer="numpy oracle of llama.cpp's convert_hf_to_gguf.py, names of the package gguf",
            version=f"gguf {importlib.metadata.version('gguf')}",
            code=SOURCE, count=lines(*code), config={k: numbers[k] for k in facts if k in numbers},
        )  # fmt: skip
