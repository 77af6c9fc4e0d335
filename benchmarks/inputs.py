"""Inputs of real shapes, made once: names and shapes as published, values of the usual spread, invented here.

The writer is this file's own, so that inputs can be larger than memory and need nothing but numpy.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

SIZES = {"F32": 4, "BF16": 2}
POOL = 16_000_000  # distinct random values; every tensor begins somewhere else among them
SHARD = 2 * 10**9
SCRATCH = "scratch-"  # what the name of everything begins with that a run leaves and the next may remove

Tensors = Sequence[tuple[str, str, tuple[int, ...]]]  # name, dtype, shape


def gpt2() -> Tensors:
    """GPT-2 124M as released: 148 tensors, 48 of them matrices that nn.Linear holds the other way round."""
    d = 768
    out = [("wte.weight", (50257, d)), ("wpe.weight", (1024, d))]
    for i in range(12):
        for name, shape in (
            *((f"{n}.{p}", (d,)) for n in ("ln_1", "ln_2") for p in ("weight", "bias")),
            *(("attn.c_attn.weight", (d, 3 * d)), ("attn.c_attn.bias", (3 * d,))),
            *(("attn.c_proj.weight", (d, d)), ("attn.c_proj.bias", (d,))),
            *(("mlp.c_fc.weight", (d, 4 * d)), ("mlp.c_fc.bias", (4 * d,))),
            *(("mlp.c_proj.weight", (4 * d, d)), ("mlp.c_proj.bias", (d,))),
        ):
            out.append((f"h.{i}.{name}", shape))
    out += [("ln_f.weight", (d,)), ("ln_f.bias", (d,))]
    return [(n, "F32", s) for n, s in out]


def decoder(layers: int, vocab: int, d: int, kv: int, f: int, bias: bool, head: bool) -> Tensors:
    """A decoder of the Llama family in bfloat16 as Hugging Face names it; ``bias``: on q, k and v, as Qwen2 has it."""
    out: list[tuple[str, tuple[int, ...]]] = [("model.embed_tokens.weight", (vocab, d))]
    for i in range(layers):
        for name, shape in (
            *((n, (d,)) for n in ("input_layernorm.weight", "post_attention_layernorm.weight")),
            *((f"mlp.{n}_proj.weight", s) for n, s in (("down", (d, f)), ("gate", (f, d)), ("up", (f, d)))),
            *((f"self_attn.{n}_proj.weight", (rows, d)) for n, rows in (("k", kv), ("o", d), ("q", d), ("v", kv))),
            *((f"self_attn.{n}_proj.bias", (rows,)) for n, rows in (("k", kv), ("q", d), ("v", kv)) if bias),
        ):
            out.append((f"model.layers.{i}.{name}", shape))
    out.append(("model.norm.weight", (d,)))
    out += [("lm_head.weight", (vocab, d))] if head else []
    return [(n, "BF16", s) for n, s in out]


def experts() -> Tensors:
    """60,000 tensors: 26 layers of 768 small experts with three matrices each, and what is around them."""
    d, f = 64, 64
    out: list[tuple[str, tuple[int, ...]]] = [("model.embed_tokens.weight", (32000, d)), ("model.norm.weight", (d,))]
    for i in range(26):
        layer = f"model.layers.{i}"
        out += [(f"{layer}.input_layernorm.weight", (d,)), (f"{layer}.mlp.gate.weight", (768, d))]
        out += [(f"{layer}.mlp.experts.{e}.{n}.weight", (f, d)) for e in range(768) for n in ("w1", "w2", "w3")]
    return [(n, "BF16", s) for n, s in out]


INPUTS: Mapping[str, tuple[Tensors, int | None, Mapping[str, object]]] = {  # tensors, shard size, config.json
    "gpt2": (gpt2(), None, {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}),
    "qwen2": (
        decoder(24, 151936, 896, 128, 4864, bias=True, head=False),
        None,
        {
            "model_type": "qwen2",
            "architectures": ["Qwen2ForCausalLM"],
            "vocab_size": 151936,
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
            "dtype": "bfloat16",
        },
    ),
    "llama": (
        decoder(14, 128256, 4096, 1024, 14336, bias=False, head=True),
        SHARD,
        {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": 128256,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 14,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "tie_word_embeddings": False,
            "dtype": "bfloat16",
        },
    ),
    "experts": (experts(), None, {"model_type": "invented", "num_hidden_layers": 26}),
    "matrix": ([("weight", "F32", (32768, 32768))], None, {"model_type": "invented"}),
}


def make(name: str, data: Path) -> Path:
    """Make an input unless it is there; returns the file, or the folder of shards."""
    folder = data / name
    if not folder.is_dir():
        tensors, shard, config = INPUTS[name]
        making = data / f"{SCRATCH}{name}"
        making.mkdir(parents=True)
        groups = _shards(tensors, shard)
        where = {}
        for i, group in enumerate(groups):
            file = f"model-{i + 1:05d}-of-{len(groups):05d}" if shard else "model"
            _write(making / f"{file}.safetensors", group)
            where |= {n: f"{file}.safetensors" for n, _, _ in group}
        if shard:
            index = {"metadata": {"total_size": sum(map(_bytes, tensors))}, "weight_map": where}
            (making / "model.safetensors.index.json").write_text(json.dumps(index))
        (making / "config.json").write_text(json.dumps(config))
        os.sync()
        making.rename(folder)
    return folder if INPUTS[name][1] else folder / "model.safetensors"


def files(path: Path) -> list[Path]:
    """List the weight files of a checkpoint."""
    return sorted(path.glob("*.safetensors")) if path.is_dir() else [path]


def size(path: Path) -> int:
    """Give the bytes of a checkpoint's weight files."""
    return sum(f.stat().st_size for f in files(path))


def warm(path: Path) -> None:
    """Read a checkpoint once, so that its pages are in memory if they fit."""
    buffer = bytearray(8 << 20)
    for file in files(path):
        with open(file, "rb", buffering=0) as f:
            while f.readinto(buffer):
                pass


def _bytes(tensor: tuple[str, str, tuple[int, ...]]) -> int:
    return prod(tensor[2]) * SIZES[tensor[1]]


def _shards(tensors: Tensors, limit: int | None) -> list[list[tuple[str, str, tuple[int, ...]]]]:
    groups: list[list[tuple[str, str, tuple[int, ...]]]] = [[]]
    held = 0
    for tensor in tensors:
        if limit and groups[-1] and held + _bytes(tensor) > limit:
            groups.append([])
            held = 0
        groups[-1].append(tensor)
        held += _bytes(tensor)
    return groups


def _write(path: Path, tensors: Tensors) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, dtype, shape in tensors:
        size = _bytes((name, dtype, shape))
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, dtype, shape in tensors:
            for piece in _values(dtype, prod(shape), len(name)):
                file.write(piece)


def _values(dtype: str, many: int, seed: int) -> Iterator[memoryview]:
    """Give the bytes of that many normally distributed values, of which no two neighbouring tensors share the first."""
    values = _pool(dtype)
    at = (many * 31 + seed * 1009) % (len(values) // 2)
    while many:
        piece = values[at : at + many]
        yield memoryview(piece).cast("B")
        many -= len(piece)
        at = 0


@cache
def _pool(dtype: str) -> np.ndarray[Any, np.dtype[Any]]:
    """Give random values, of which bfloat16 is the upper half of the bits."""
    if dtype == "BF16":
        return (_pool("F32").view(np.uint32) >> 16).astype(np.uint16)
    return np.random.default_rng(0).standard_normal(POOL, np.float32) * np.float32(0.02)


if __name__ == "__main__":
    warm(make(sys.argv[1], Path(sys.argv[2])))
