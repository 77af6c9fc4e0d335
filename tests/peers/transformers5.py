"""transformers 5: what `save_pretrained` writes against `model.state_dict()`, and what `from_pretrained` reads again.

Each model is tiny, made from its config, and all its tensors, buffers too, get values that follow from their names.
"""

from __future__ import annotations

import ast
import inspect
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, conversion_mapping, logging
from transformers.core_model_loading import (
    Chunk,
    Concatenate,
    ErnieFuseAndSplitTextVisionExperts,
    ErnieSplitAndDecoupleTextVisionExperts,
    MergeModulelist,
    SplitModulelist,
    Transpose,
)

from .case import lines, refill, tensor, write_case

REQUIREMENTS = ("transformers==5.24.0", "safetensors==0.8.0", "numpy==2.4.6", "torch==2.13.0")
# Ops of the entries below, and what undoes them.
BACK = {
    MergeModulelist: SplitModulelist,
    Concatenate: Chunk,
    Chunk: Concatenate,
    Transpose: Transpose,
    ErnieFuseAndSplitTextVisionExperts: ErnieSplitAndDecoupleTextVisionExperts,
}
Tensors = dict[str, torch.Tensor]
PLAIN = {"dtype": torch.bfloat16, "attn_implementation": "eager", "experts_implementation": "eager"}

WIDE = {
    "vocab_size": 19,
    "hidden_size": 10,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
}
SQUARE = WIDE | {"hidden_size": 8}  # these have no head_dim of their own
FF = {"intermediate_size": 14, "moe_intermediate_size": 6, "shared_expert_intermediate_size": 22}
LINEAR = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 3, "linear_value_head_dim": 5,
    "linear_conv_kernel_dim": 7,
}  # fmt: skip
MLA = {"qk_nope_head_dim": 6, "qk_rope_head_dim": 2, "v_head_dim": 5, "kv_lora_rank": 7, "num_key_value_heads": 4}
MAMBA = {"mamba_d_state": 5, "mamba_d_conv": 3, "mamba_expand": 3, "mamba_dt_rank": 7, "use_mamba_kernels": False}
ROUTED = {"n_routed_experts": 12, "n_shared_experts": 3, "first_k_dense_replace": 1}
ERNIE = SQUARE | {"intermediate_size": 14, "moe_intermediate_size": 6, "moe_num_experts": 12, "moe_k": 2}
NEMOTRON = WIDE | {
    "head_dim": 8, "intermediate_size": 9, "ssm_state_size": 5, "mamba_num_heads": 6, "mamba_head_dim": 4,
    "n_groups": 2, "conv_kernel": 3, "n_routed_experts": 12, "moe_intermediate_size": 14,
    "moe_shared_expert_intermediate_size": 11,
}  # fmt: skip
FULL, LIN = "full_attention", "linear_attention"
TIED = {"tie_word_embeddings": True}

# What differs from the defaults of each model's config: the shape, and whatever decides which tensors there are.
MODELS: dict[str, dict[str, Any]] = {
    "mixtral": {
        **WIDE, "hidden_size": 6, "head_dim": 4, "intermediate_size": 10, "num_hidden_layers": 11,
        "num_local_experts": 12,
    },
    "mixtral@tied": {
        **WIDE, "head_dim": 8, "intermediate_size": 6, "num_hidden_layers": 3, "num_local_experts": 12, **TIED,
    },
    "qwen2_moe": {**SQUARE, **FF, "num_hidden_layers": 4, "num_experts": 12, "mlp_only_layers": [1]},
    "qwen2_moe@sparse": {
        **SQUARE, **FF, "num_hidden_layers": 5, "num_experts": 12, "decoder_sparse_step": 2, "qkv_bias": False, **TIED,
    },
    "qwen3_moe": {**WIDE, **FF, "head_dim": 8, "num_hidden_layers": 4, "num_experts": 12, "mlp_only_layers": [1]},
    "qwen3_moe@sparse": {
        **WIDE, **FF, "head_dim": 8, "num_hidden_layers": 5, "num_experts": 12, "decoder_sparse_step": 2,
        "attention_bias": True, **TIED,
    },
    "deepseek_v3": {
        **WIDE, **FF, **MLA, "q_lora_rank": 9, "num_hidden_layers": 4, "n_routed_experts": 12, "n_shared_experts": 3,
        "first_k_dense_replace": 1, "n_group": 3, "topk_group": 2,
    },
    "deepseek_v3@moonlight": {
        **WIDE, **FF, **MLA, "q_lora_rank": None, "num_hidden_layers": 4, "n_routed_experts": 12,
        "n_shared_experts": 3, "first_k_dense_replace": 2, "n_group": 1, "topk_group": 1, "attention_bias": True, **TIED,
    },
    "qwen3_next": {
        **WIDE, **FF, **LINEAR, "head_dim": 8, "num_hidden_layers": 4, "num_experts": 12,
        "layer_types": [LIN, FULL, LIN, FULL], "mlp_only_layers": [2],
    },
    "olmoe": {**SQUARE, "intermediate_size": 14, "num_hidden_layers": 3, "num_experts": 12},
    "olmoe@bias": {
        **SQUARE, "intermediate_size": 14, "num_hidden_layers": 3, "num_experts": 12, "attention_bias": True, **TIED,
    },
    "jamba": {
        **SQUARE, **MAMBA, "intermediate_size": 14, "num_hidden_layers": 5, "num_experts": 12, "attn_layer_period": 3,
        "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1,
    },
    "jamba@dense": {
        **SQUARE, **MAMBA, "intermediate_size": 14, "num_hidden_layers": 3, "num_experts": 1, "attn_layer_period": 2,
        "attn_layer_offset": 1, "mamba_conv_bias": False, "mamba_proj_bias": True, **TIED,
    },
    "minimax": {
        **WIDE, "head_dim": 8, "intermediate_size": 6, "num_hidden_layers": 4, "num_local_experts": 12, "block_size": 5,
        "layer_types": [LIN, LIN, FULL, LIN],
    },
    "minimax@tied": {
        **WIDE, "head_dim": 8, "intermediate_size": 6, "num_hidden_layers": 3, "num_local_experts": 12, "block_size": 5,
        "layer_types": [FULL, LIN, FULL], **TIED,
    },
    "ernie4_5_moe": {
        **ERNIE, "num_hidden_layers": 5, "moe_layer_start_index": 1, "moe_layer_end_index": 3,
        "moe_num_shared_experts": 0,
    },
    "ernie4_5_moe@bias": {
        **ERNIE, "num_hidden_layers": 4, "moe_layer_start_index": 0, "moe_layer_end_index": -1, "moe_layer_interval": 2,
        "moe_num_shared_experts": 3, "use_bias": True, "tie_word_embeddings": False,
    },
    "ernie4_5_vl_moe": {
        "text_config": {
            "vocab_size": 19, "hidden_size": 12, "intermediate_size": 14, "num_hidden_layers": 4,
            "num_attention_heads": 2, "num_key_value_heads": 1, "moe_intermediate_size": [6, 10], "moe_num_experts": 11,
            "moe_num_shared_experts": 3, "moe_k": 2, "mlp_layer_types": ["dense", "sparse", "dense", "sparse"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 1]},
        },
        "vision_config": {"depth": 3, "hidden_size": 8, "num_heads": 2, "intermediate_size": 20, "patch_size": 3},
    },
    "dots1": {**WIDE, **FF, **ROUTED, "head_dim": 8, "num_hidden_layers": 4},
    "dots1@bias": {**WIDE, **FF, **ROUTED, "head_dim": 8, "num_hidden_layers": 3, "attention_bias": True, **TIED},
    "glm4_moe": {
        **WIDE, **FF, **ROUTED, "head_dim": 8, "num_hidden_layers": 4, "use_qk_norm": True, "attention_bias": True,
    },
    "glm4_moe@plain": {**WIDE, **FF, **ROUTED, "head_dim": 8, "num_hidden_layers": 3, **TIED},
    "phimoe": {
        **SQUARE, "intermediate_size": 14, "num_hidden_layers": 3, "num_local_experts": 12, "attention_bias": True,
        "lm_head_bias": True,
    },
    "phimoe@plain": {**SQUARE, "intermediate_size": 14, "num_hidden_layers": 3, "num_local_experts": 12, **TIED},
    "minimax_m2": {
        **WIDE, "head_dim": 8, "intermediate_size": 6, "num_hidden_layers": 3, "num_local_experts": 12,
    },
    "granitemoe": {**SQUARE, "intermediate_size": 7, "num_hidden_layers": 3, "num_local_experts": 12},
    "granitemoe@bias": {
        **SQUARE, "intermediate_size": 7, "num_hidden_layers": 3, "num_local_experts": 12, "attention_bias": True, **TIED,
    },
    "lfm2_moe": {
        **SQUARE, **FF, "num_hidden_layers": 4, "num_experts": 12, "num_dense_layers": 1, "conv_L_cache": 5,
        "layer_types": ["conv", "conv", FULL, "conv"],
    },
    "lfm2_moe@bias": {
        **SQUARE, **FF, "num_hidden_layers": 3, "num_experts": 12, "num_dense_layers": 1, "conv_L_cache": 5,
        "layer_types": ["conv", FULL, "conv"], "conv_bias": True, "use_expert_bias": False,
        "tie_word_embeddings": False,
    },
    "deepseek_v2": {**SQUARE, **FF, **MLA, **ROUTED, "q_lora_rank": 9, "num_hidden_layers": 4},
    "deepseek_v2@lite": {
        **SQUARE, **FF, **MLA, **ROUTED, "q_lora_rank": None, "num_hidden_layers": 3, "attention_bias": True,
        "mlp_bias": True, **TIED,
    },
    "nemotron_h": {**NEMOTRON, "layers_block_type": [LIN, "moe", FULL, "mlp", "moe"]},
    "nemotron_h@latent": {
        **NEMOTRON, "layers_block_type": ["moe", LIN, FULL, "mlp"], "moe_latent_size": 7, "mlp_bias": True,
        "use_bias": True, "use_conv_bias": False,
    },
}  # fmt: skip


def entries(kind: str, seen: frozenset[str] = frozenset()) -> set[int]:
    """Give the line numbers of what conversion_mapping.py says of one kind of model, and of those it refers to."""
    source = inspect.getsource(conversion_mapping)
    values: list[ast.expr] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Dict):
            values += [v for k, v in zip(node.keys, node.values) if isinstance(k, ast.Constant) and k.value == kind]
        elif isinstance(node, ast.Assign | ast.AugAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            values += [node.value] if ast.unparse(target) == f"mapping['{kind}']" else []
    assert values, f"conversion_mapping has no {kind}"
    text = ["", *source.splitlines()]
    out = {n for v in values for n in range(v.lineno, (v.end_lineno or v.lineno) + 1)}
    out = {n for n in out if text[n].strip() and not text[n].strip().startswith("#")}
    for v in values:
        words = {n.value for n in ast.walk(v) if isinstance(n, ast.Constant)} if len(ast.unparse(v)) < 40 else set()
        for other in words & set(conversion_mapping._build_checkpoint_conversion_mapping()) - seen - {kind}:
            out |= entries(other, seen | {kind})
    return out


def write(
    folder: Path, name: str, model: Any, given: Tensors, saved: dict[str, Any], back: Tensors | None = None
) -> None:
    kind = name.partition("@")[0]
    state = model.state_dict()
    used = {
        type(op)
        for t in conversion_mapping.get_checkpoint_conversion_mapping(kind)
        for op in getattr(t, "operations", ())
    }
    ops = list(dict.fromkeys(x for op, undone in BACK.items() if op in used for x in (op, undone)))
    assert used <= BACK.keys()
    code = f"transformers.conversion_mapping, the entries of {kind}"
    code += f", and of core_model_loading {', '.join(op.__name__ for op in ops)}" if ops else ""
    write_case(
        folder, f"transformers5/{name}", given, state, peer="transformers", back=back, config=saved, code=code,
        count=len(entries(kind)) + lines(*ops),
    )  # fmt: skip


def auto(kind: str) -> Any:
    return AutoModelForImageTextToText if "vl" in kind.split("_") else AutoModelForCausalLM


def reload(given: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> tuple[Any, Tensors, dict[str, Any]]:
    """Give the model that `from_pretrained` makes of some files, what it saves, and the config that it saves."""
    with tempfile.TemporaryDirectory() as place:
        save_file(dict(given), f"{place}/model.safetensors", {"format": "pt"})
        Path(place, "config.json").write_text(json.dumps(config))
        model = auto(config["model_type"]).from_pretrained(place, **PLAIN).eval()
    return model, *save(model)


def save(model: Any) -> tuple[Tensors, dict[str, Any]]:
    with tempfile.TemporaryDirectory() as place:
        model.save_pretrained(place)
        return load_file(f"{place}/model.safetensors"), json.loads(Path(place, "config.json").read_text())


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        out: torch.Tensor = model(torch.tensor([[1, 5, 3, 2, 8, 13, 4]])).logits
    assert bool(torch.isfinite(out).all())
    assert len(out.unique()) > out.numel() // 4
    return out


def equal(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys(), sorted(a.keys() ^ b.keys())
    for n in a:
        assert a[n].dtype == b[n].dtype, n
        assert torch.equal(a[n], b[n]), n


def make(folder: Path, name: str, config: Mapping[str, Any]) -> tuple[Any, Tensors, dict[str, Any]]:
    """Write the case of one model; what it saves must be read again as the same state, with the same logits."""
    kind = name.partition("@")[0]
    made = AutoConfig.for_model(kind, **config)
    model = auto(kind).from_config(made, **PLAIN).eval()
    model.load_state_dict(refill(model.state_dict()))
    given, saved = save(model)
    again, twice, _ = reload(given, saved)
    equal(again.state_dict(), model.state_dict())
    equal(twice, given)
    assert torch.equal(logits(again), logits(model))
    write(folder, name, model, given, saved)
    return model, given, saved


def published(folder: Path, name: str, given: Tensors, config: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Write the case of a checkpoint as it is published: routers in bfloat16, and tensors that are not read."""
    routers = {
        n: x.to(torch.bfloat16) for n, x in given.items() if n.endswith(".gate.weight") and x.dtype == torch.float32
    }
    extra = {n: tensor(n, shape, dtype) for n, (shape, dtype) in more.items()}
    model, back, _ = reload({**given, **routers, **extra}, config)
    write(folder, name, model, {**given, **routers, **extra}, config, back)


def mtp_layer(given: Tensors, layer: int) -> dict[str, Any]:
    """The layer that predicts one more token: a layer like the last one, and what joins it to the others."""
    d, vocab = given["model.embed_tokens.weight"].shape[1], given["model.embed_tokens.weight"].shape[0]
    own = {"embed_tokens": (vocab, d), "enorm": (d,), "hnorm": (d,), "eh_proj": (d, 2 * d), "shared_head.norm": (d,)}
    own["shared_head.head"] = (vocab, d)
    last, this = f"model.layers.{layer - 1}.", f"model.layers.{layer}."
    kinds = {torch.bfloat16: "BF16", torch.float32: "F32"}
    like = {n.replace(last, this): (tuple(x.shape), kinds[x.dtype]) for n, x in given.items() if n.startswith(last)}
    return like | {f"{this}{n}.weight": (shape, "BF16") for n, shape in own.items()}


def main(folder: Path) -> None:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(0)
    done = {name: make(folder, name, config)[1:] for name, config in MODELS.items()}
    for name in ("deepseek_v3", "glm4_moe"):
        given, config = done[name]
        published(folder, f"{name}@published", given, config, mtp_layer(given, 4))
    given, config = done["nemotron_h"]
    config = {k: v for k, v in config.items() if k != "layers_block_type"} | {"hybrid_override_pattern": "ME*-E"}
    published(folder, "nemotron_h@published", given, config, {"mtp.layers.0.norm.weight": ((10,), "BF16")})
    given, config = done["qwen3_next"]
    config = {k: v for k, v in config.items() if k != "layer_types"} | {"full_attention_interval": 2}
    d = config["hidden_size"]
    more = {"mtp.fc.weight": (d, 2 * d), "mtp.norm.weight": (d,), "mtp.pre_fc_norm_hidden.weight": (d,)}
    more["mtp.pre_fc_norm_embedding.weight"] = (d,)
    more |= {n.replace("model.layers.3", "mtp.layers.0"): tuple(x.shape) for n, x in given.items() if "layers.3." in n}
    published(folder, "qwen3_next@published", given, config, {n: (shape, "BF16") for n, shape in more.items()})
