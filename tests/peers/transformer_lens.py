"""TransformerLens' own conversions into HookedTransformer, and its logits beside those of transformers."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from safetensors.torch import load_file
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformer_lens.pretrained.weight_conversions import convert_gpt2_weights, convert_llama_weights

from .case import refill, write_case

REQUIREMENTS = ("torch==2.13.0", "transformer-lens==3.9.0", "transformers==5.24.0")
State = dict[str, torch.Tensor]
SIZES: dict[str, Any] = {"n_layers": 3, "n_ctx": 7, "d_head": 4, "d_mlp": 20, "d_vocab": 17, "device": "cpu"}


def on_disk(model: hf.PreTrainedModel) -> State:
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(Path(folder) / "model.safetensors")


def case(
    folder: Path, name: str, model: hf.PreTrainedModel, lens: HookedTransformerConfig, code: Callable[..., State]
) -> None:
    """Fill a model with other values, convert it with the peer, compare logits, and write what either side stores."""
    model.load_state_dict(refill(model.state_dict()))
    model.eval()
    peer = HookedTransformer(lens).eval()
    peer.load_state_dict(code(model, lens), strict=False)
    ids = torch.randint(0, 17, (2, 7), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        a, b = model(ids).logits, peer(ids)
    assert a.std() > 0.01, "logits that hardly differ prove nothing"
    torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)
    print(f"{name}: logits differ by {float((a - b).abs().max()):.1e}")
    buffers = {n for n, _ in peer.named_buffers()}
    made = {n: x for n, x in peer.state_dict().items() if n not in buffers}
    given = {n.removeprefix("transformer."): x for n, x in on_disk(model).items()}
    config = {k: v for k, v in model.config.to_dict().items() if k in ASKED}
    write_case(folder, f"transformerlens/{name}", given, made, peer="transformer-lens", code=[code], config=config)


ASKED = ("n_head", "n_layer", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "tie_word_embeddings")


def llama(kv: int, tied: bool) -> tuple[hf.PreTrainedModel, HookedTransformerConfig]:
    config = hf.LlamaConfig(
        hidden_size=18, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=kv, head_dim=4, vocab_size=17,
        intermediate_size=20, max_position_embeddings=7, tie_word_embeddings=tied, rms_norm_eps=1e-5,
    )  # fmt: skip
    lens = HookedTransformerConfig(
        **SIZES, d_model=18, n_heads=6, n_key_value_heads=None if kv == 6 else kv, act_fn="silu", gated_mlp=True,
        normalization_type="RMS", positional_embedding_type="rotary", rotary_dim=4, rotary_adjacent_pairs=False,
        final_rms=True, eps=1e-5, original_architecture="LlamaForCausalLM",
    )  # fmt: skip
    return hf.LlamaForCausalLM(config), lens


def main(folder: Path) -> None:
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    gpt2 = hf.GPT2LMHeadModel(
        hf.GPT2Config(n_layer=3, n_head=3, n_embd=12, n_inner=20, n_positions=7, vocab_size=17, bos_token_id=0)
    )
    lens = HookedTransformerConfig(
        **SIZES, d_model=12, n_heads=3, act_fn="gelu_new", normalization_type="LN", eps=1e-5,
        original_architecture="GPT2LMHeadModel",
    )  # fmt: skip
    case(folder, "gpt2", gpt2, lens, convert_gpt2_weights)
    case(folder, "llama", *llama(2, tied=False), convert_llama_weights)
    case(folder, "llama@heads", *llama(6, tied=True), convert_llama_weights)
