"""Load a Llama-style checkpoint into a decoder with fused qkv, and see that it is the same function as transformers'.

    python examples/load_llama.py                        a small Llama with grouped queries and invented weights
    python examples/load_llama.py --dtype bfloat16 DIR   a folder with config.json and weights (Llama, SmolLM2)

As load_gpt2.py does, it samples from random weights, loads, reports, samples again, compares logits, and shows a
refusal. The names on the `local` side of maps/llama.yaml are those of the parameters of this model.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from gpt import generate
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

import converter

PROMPT = [11, 7, 3, 5]
CLOSE = {"float32": 1e-5, "bfloat16": 0.1, "float16": 0.01}  # of the largest logit


class Norm(nn.Module):
    def __init__(self, d: int, eps: float) -> None:
        super().__init__()
        self.scale, self.eps = nn.Parameter(torch.ones(d)), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.scale * y.to(x.dtype)


class Attention(nn.Module):
    """Attention over groups of query heads: the rows of qkv are all of q, then k, then v."""

    def __init__(self, d: int, heads: int, groups: int, head: int, theta: float) -> None:
        super().__init__()
        self.sizes, self.head, self.theta = (heads * head, groups * head, groups * head), head, theta
        self.qkv = nn.Linear(d, sum(self.sizes), bias=False)
        self.out_proj = nn.Linear(heads * head, d, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, _ = x.shape
        parts = self.qkv(x).split(self.sizes, dim=-1)
        q, k, v = (t.view(batch, time, -1, self.head).transpose(1, 2) for t in parts)
        repeat = q.shape[1] // k.shape[1]
        q, k = self.rotate(q), self.rotate(k)
        k, v = (t.repeat_interleave(repeat, dim=1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out_proj(y.transpose(1, 2).reshape(batch, time, -1))

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        half = self.head // 2
        rates = 1.0 / self.theta ** (torch.arange(0, self.head, 2).float() / self.head)
        angles = torch.arange(x.shape[2]).float()[:, None] * rates
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class MLP(nn.Module):
    def __init__(self, d: int, f: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(d, f, bias=False), nn.Linear(d, f, bias=False)
        self.down = nn.Linear(f, d, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, c: transformers.LlamaConfig) -> None:
        super().__init__()
        d, theta = c.hidden_size, float(c.rope_parameters["rope_theta"])
        head = getattr(c, "head_dim", None) or d // c.num_attention_heads
        self.norm1, self.norm2 = Norm(d, c.rms_norm_eps), Norm(d, c.rms_norm_eps)
        self.attn = Attention(d, c.num_attention_heads, c.num_key_value_heads, head, theta)
        self.mlp = MLP(d, c.intermediate_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Llama(nn.Module):
    def __init__(self, c: transformers.LlamaConfig) -> None:
        super().__init__()
        self.tok_embed = nn.Embedding(c.vocab_size, c.hidden_size)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.num_hidden_layers))
        self.final_norm = Norm(c.hidden_size, c.rms_norm_eps)
        self.lm_head = nn.Linear(c.hidden_size, c.vocab_size, bias=False)
        if c.tie_word_embeddings:
            self.lm_head.weight = self.tok_embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tok_embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.final_norm(x))


def invent(folder: Path, tied: bool) -> Path:
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=257, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=64, tie_word_embeddings=tied, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.25)
    model.save_pretrained(folder)
    return folder


def local_model(folder: Path, dtype: torch.dtype) -> Llama:
    """Build the model without memory of its own: the checkpoint's tensors become its parameters."""
    config = transformers.LlamaConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = Llama(config)
    return model.to(dtype).eval()


def refusal(folder: Path, model: Llama) -> str:
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.self_attn.k_proj.weight"
    tensors[name] = tensors[name][:-1].contiguous()
    with tempfile.TemporaryDirectory() as place:
        save_file(tensors, Path(place) / "model.safetensors", {"format": "pt"})
        try:
            converter.load(model, Path(place) / "model.safetensors", map="llama")
        except converter.ConvertError as e:
            return str(e)
    raise AssertionError("a wrong shape was not refused")


def run(folder: Path, dtype: str) -> None:
    config = transformers.LlamaConfig.from_pretrained(folder)
    prompt = [i % config.vocab_size for i in PROMPT]
    torch.manual_seed(0)
    before = generate(Llama(config).to(getattr(torch, dtype)).eval(), prompt, 8)
    print("random weights continue with", before[len(prompt) :])

    model = local_model(folder, getattr(torch, dtype))
    print(converter.load(model, folder, map="llama"))
    after = generate(model, prompt, 8)
    print("loaded weights continue with", after[len(prompt) :])
    assert before != after

    reference = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    ids = torch.arange(32).reshape(2, 16) % config.vocab_size
    with torch.no_grad():
        logits = reference(ids).logits
        largest, difference = (x.abs().max().item() for x in (logits, model(ids) - logits))
    print(f"logits, up to {largest:.1f}, differ from those of transformers by {difference:.1e} at most ({dtype})")
    assert difference < CLOSE[dtype] * max(1.0, largest)
    if (folder / "model.safetensors").exists():
        print("k_proj with a row too few:", refusal(folder, model), sep="\n")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", nargs="?", type=Path)
    parser.add_argument("--dtype", choices=list(CLOSE), default="float32")
    parser.add_argument("--tied", action="store_true", help="invent a checkpoint whose head is the embedding")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
    logging.getLogger("converter.live").setLevel(logging.INFO)  # every assignment
    with tempfile.TemporaryDirectory() as place:
        run(options.checkpoint or invent(Path(place), options.tied), options.dtype)


if __name__ == "__main__":
    main()
