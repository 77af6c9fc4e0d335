"""TransformerLens' conversion of BLOOM, and its logits beside those of transformers."""

from __future__ import annotations

from pathlib import Path

import torch
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformer_lens.pretrained.weight_conversions import convert_bloom_weights
from transformers import BloomConfig, BloomForCausalLM

from .case import refill, write_case

REQUIREMENTS = ("torch==2.13.0", "transformer-lens==3.9.0", "transformers==5.24.0")


def main(folder: Path) -> None:
    """Fill a tiny BLOOM with other values, convert it with the peer, compare logits, and write both sides."""
    model = BloomForCausalLM(BloomConfig(n_layer=3, n_head=4, hidden_size=20, vocab_size=17)).eval()
    model.load_state_dict(refill(model.state_dict()))
    lens = HookedTransformerConfig(
        n_layers=3, n_heads=4, d_model=20, d_head=5, d_mlp=80, d_vocab=17, n_ctx=7, eps=1e-5, device="cpu",
        act_fn="gelu_fast", normalization_type="LN", post_embedding_ln=True, positional_embedding_type="alibi",
    )  # fmt: skip
    peer = HookedTransformer(lens).eval()
    peer.load_state_dict(convert_bloom_weights(model, lens), strict=False)
    ids = torch.arange(7)[None]
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, peer(ids), atol=1e-5, rtol=1e-4)

    given = {n.removeprefix("transformer."): x for n, x in model.state_dict().items() if n != "lm_head.weight"}
    unused = {"pos_embed.W_pos", *(n for n, _ in peer.named_buffers())}
    made = {n: x for n, x in peer.state_dict().items() if n not in unused}
    name, config = "transformerlens/bloom", {"n_layer": 3, "n_head": 4}
    write_case(folder, name, given, made, peer="transformer-lens", code=[convert_bloom_weights], config=config)
