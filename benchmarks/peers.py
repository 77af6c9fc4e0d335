"""What people use today, as processes of their own: python peers.py WAY INPUT OUTPUT.

The scripts are written as they are found in the wild: everything into memory, a dict of renames, `.t().contiguous()`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

GPT2 = (
    (r"^wte\.", "tok_embed."), (r"^wpe\.", "pos_embed."), (r"^h\.", "blocks."), (r"^ln_f\.weight", "final_ln.scale"),
    (r"^ln_f\.bias", "final_ln.shift"), (r"ln_(\d)\.weight", r"ln\1.scale"), (r"ln_(\d)\.bias", r"ln\1.shift"),
    (r"attn\.c_attn", "attn.qkv"), (r"attn\.c_proj", "attn.out_proj"), (r"mlp\.c_fc", "mlp.fc1"), (r"mlp\.c_proj", "mlp.fc2"),
)  # fmt: skip
RENAME = (
    ("^model.embed_tokens", "embed"), ("^model.layers", "blocks"), ("^model.norm", "final_norm"), ("input_layernorm", "norm1"),
    ("post_attention_layernorm", "norm2"), ("self_attn.o_proj", "attn.out"), (r"self_attn\.(.)_proj", r"attn.\1"), ("_proj", ""),
)  # fmt: skip
QWEN2 = {
    "input_layernorm.weight": "rms_att_weight", "post_attention_layernorm.weight": "rms_ffn_weight", "self_attn.q_proj.weight": "wq",
    "self_attn.q_proj.bias": "bq", "self_attn.k_proj.weight": "wk", "self_attn.k_proj.bias": "bk", "self_attn.v_proj.weight": "wv",
    "self_attn.v_proj.bias": "bv", "self_attn.o_proj.weight": "wo", "mlp.gate_proj.weight": "w1", "mlp.down_proj.weight": "w2",
    "mlp.up_proj.weight": "w3",
}  # fmt: skip


def renamed(name: str, table: tuple[tuple[str, str], ...]) -> str:
    for pattern, to in table:
        name = re.sub(pattern, to, name)
    return name


def gpt2(source: str, target: str) -> None:
    from safetensors.torch import load_file, save_file

    out = {}
    for name, tensor in load_file(source).items():
        if re.search(r"(c_attn|c_proj|c_fc)\.weight$", name):
            tensor = tensor.t().contiguous()
        out[renamed(name, GPT2)] = tensor
    save_file(out, target, metadata={"format": "pt"})


def rename(source: str, target: str) -> None:
    from safetensors.torch import load_file, save_file

    save_file({renamed(n, RENAME): t for n, t in load_file(source).items()}, target, metadata={"format": "pt"})


def qwen2(source: str, target: str) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    tensors = load_file(source)
    out = {"token_embedding_table": tensors["model.embed_tokens.weight"].float()}
    layers = 1 + max(int(n.split(".")[2]) for n in tensors if n.startswith("model.layers."))
    for name, to in QWEN2.items():
        out[to] = torch.stack([tensors[f"model.layers.{i}.{name}"].float() for i in range(layers)])
    out["rms_final_weight"] = tensors["model.norm.weight"].float()
    save_file(out, target, metadata={"format": "pt"})


def transformers(source: str, target: str) -> None:
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(Path(source).parent, dtype="auto").save_pretrained(target)


def mergekit(source: str, target: str) -> None:
    from mergekit.config import MergeConfiguration
    from mergekit.merge import run_merge
    from mergekit.options import MergeOptions

    doc = {"merge_method": "passthrough", "dtype": "bfloat16", "models": [{"model": str(Path(source).parent)}]}
    options = MergeOptions(copy_tokenizer=False, write_model_card=False, low_cpu_memory=True, quiet=True)
    run_merge(MergeConfiguration.model_validate(doc), target, options)


WAYS = {"gpt2": gpt2, "rename": rename, "qwen2": qwen2, "transformers": transformers, "mergekit": mergekit}

if __name__ == "__main__":
    WAYS[sys.argv[1]](*sys.argv[2:])
