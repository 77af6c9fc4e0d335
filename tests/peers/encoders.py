"""Encoders whose peers have no converter: a transcription, proved by the outputs of both models."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import timm.models.vision_transformer
import torch
import transformers as hf
from safetensors.torch import load_file
from torch import nn

from .case import lines, refill, write_case

REQUIREMENTS = ("torch==2.13.0", "transformers==5.24.0", "timm==1.0.31")
State = dict[str, torch.Tensor]
LAYERS = 3


def bert(x: State) -> State:
    """torch.nn.TransformerEncoderLayer (torch/nn/modules/transformer.py), torch.nn.MultiheadAttention."""
    out = {n: t for n, t in x.items() if n.startswith(("embeddings.", "pooler."))}
    for i in range(LAYERS):
        for p in ("weight", "bias"):
            theirs, ours = f"encoder.layer.{i}", f"encoder.layers.{i}"
            qkv = [x[f"{theirs}.attention.self.{q}.{p}"] for q in ("query", "key", "value")]
            out[f"{ours}.self_attn.in_proj_{p}"] = torch.cat(qkv)
            out[f"{ours}.self_attn.out_proj.{p}"] = x[f"{theirs}.attention.output.dense.{p}"]
            out[f"{ours}.norm1.{p}"] = x[f"{theirs}.attention.output.LayerNorm.{p}"]
            out[f"{ours}.linear1.{p}"] = x[f"{theirs}.intermediate.dense.{p}"]
            out[f"{ours}.linear2.{p}"] = x[f"{theirs}.output.dense.{p}"]
            out[f"{ours}.norm2.{p}"] = x[f"{theirs}.output.LayerNorm.{p}"]
    heads = {"transform.dense": "dense", "transform.LayerNorm": "norm"}
    for p in ("weight", "bias"):
        if "cls.predictions.bias" in x:
            out |= {f"lm_head.{ours}.{p}": x[f"cls.predictions.{theirs}.{p}"] for theirs, ours in heads.items()}
            out[f"next_sentence.{p}"] = x[f"cls.seq_relationship.{p}"]
    if "cls.predictions.bias" in x:
        out["lm_head.bias"] = x["cls.predictions.bias"]
    return out


def vit(x: State) -> State:
    """timm.models.vision_transformer.VisionTransformer (timm/models/vision_transformer.py, timm/layers/attention.py)."""
    out = {
        "cls_token": x["vit.embeddings.cls_token"],
        "pos_embed": x["vit.embeddings.position_embeddings"],
    }
    for p in ("weight", "bias"):
        out[f"patch_embed.proj.{p}"] = x[f"vit.embeddings.patch_embeddings.projection.{p}"]
        out[f"norm.{p}"] = x[f"vit.layernorm.{p}"]
        out[f"head.{p}"] = x[f"classifier.{p}"]
        for i in range(LAYERS):
            theirs, ours = f"vit.encoder.layer.{i}", f"blocks.{i}"
            qkv = [x[f"{theirs}.attention.attention.{q}.{p}"] for q in ("query", "key", "value")]
            out[f"{ours}.attn.qkv.{p}"] = torch.cat(qkv)
            out[f"{ours}.attn.proj.{p}"] = x[f"{theirs}.attention.output.dense.{p}"]
            out[f"{ours}.norm1.{p}"] = x[f"{theirs}.layernorm_before.{p}"]
            out[f"{ours}.norm2.{p}"] = x[f"{theirs}.layernorm_after.{p}"]
            out[f"{ours}.mlp.fc1.{p}"] = x[f"{theirs}.intermediate.dense.{p}"]
            out[f"{ours}.mlp.fc2.{p}"] = x[f"{theirs}.output.dense.{p}"]
    return out


def on_disk(model: hf.PreTrainedModel) -> State:
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(Path(folder) / "model.safetensors")


def agree(name: str, a: torch.Tensor, b: torch.Tensor) -> None:
    assert a.std() > 0.01, "outputs that hardly differ prove nothing"
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
    print(f"{name}: outputs differ by {float((a - b).abs().max()):.1e}")


class Embedded(nn.Module):
    """What is left of BERT around a torch.nn.TransformerEncoder: the embeddings that are summed up and normed."""

    def __init__(self, config: hf.BertConfig) -> None:
        super().__init__()
        self.embeddings = hf.models.bert.modeling_bert.BertEmbeddings(config)
        layer = nn.TransformerEncoderLayer(
            config.hidden_size, config.num_attention_heads, config.intermediate_size, activation="gelu",
            layer_norm_eps=config.layer_norm_eps, batch_first=True,
        )  # fmt: skip
        self.encoder = nn.TransformerEncoder(layer, config.num_hidden_layers, enable_nested_tensor=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.encoder(self.embeddings(ids))


def make_bert(folder: Path) -> None:
    config = hf.BertConfig(
        hidden_size=12, num_hidden_layers=LAYERS, num_attention_heads=3, intermediate_size=20, vocab_size=17,
        max_position_embeddings=9,
    )  # fmt: skip
    model = hf.BertForPreTraining(config).eval()
    model.load_state_dict(refill(model.state_dict()))
    saved = on_disk(model)
    given = {n.removeprefix("bert."): x for n, x in saved.items()}
    made = bert(given)
    peer = Embedded(config).eval()
    core = {n: x for n, x in made.items() if n.startswith(("embeddings.", "encoder."))}
    peer.load_state_dict(core, strict=True)
    ids = torch.arange(9)[None] % 17
    with torch.no_grad():
        agree("bert", model.bert(ids).last_hidden_state, peer(ids))
    case(folder, "torch/bert", given, made, bert, "torch.nn.TransformerEncoder", torch.__version__.partition("+")[0])
    old = {
        n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): x
        for n, x in saved.items()
    }
    old = {n: x for n, x in old.items() if not n.startswith("bert.pooler.")}
    back = {n: x for n, x in given.items() if not n.startswith("pooler.")}
    made = {n: x for n, x in made.items() if not n.startswith("pooler.")}
    case(
        folder,
        "torch/bert@old",
        old,
        made,
        bert,
        "torch.nn.TransformerEncoder",
        torch.__version__.partition("+")[0],
        back=back,
    )


def make_vit(folder: Path) -> None:
    config = hf.ViTConfig(
        hidden_size=12, num_hidden_layers=LAYERS, num_attention_heads=3, intermediate_size=20, image_size=8,
        patch_size=4, num_labels=7,
    )  # fmt: skip
    model = hf.ViTForImageClassification(config).eval()
    model.load_state_dict(refill(model.state_dict()))
    saved = on_disk(model)
    given = {n.removeprefix("vit."): x for n, x in saved.items()}
    made = vit(saved)
    peer = timm.models.vision_transformer.VisionTransformer(
        img_size=8, patch_size=4, num_classes=7, embed_dim=12, depth=LAYERS, num_heads=3, mlp_ratio=20 / 12,
        norm_layer=partial(nn.LayerNorm, eps=config.layer_norm_eps),
    ).eval()  # fmt: skip
    peer.load_state_dict(made, strict=True)
    image = torch.randn((2, 3, 8, 8), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        agree("vit", model(image).logits, peer(image))
    case(folder, "timm/vit", given, made, vit, "timm", timm.__version__)
    case(folder, "timm/vit@saved", saved, made, vit, "timm", timm.__version__, back=given)


def case(
    folder: Path,
    name: str,
    given: State,
    made: State,
    code: Callable[[State], State],
    peer: str,
    version: str,
    **more: Any,
) -> None:
    """Write a case of a transcription, whose docstring says where the peer's layout stands."""
    write_case(
        folder, name, given, made, peer=f"numpy oracle of {peer}", version=version, code=(code.__doc__ or "").rstrip("."),
        count=lines(code), **more,
    )  # fmt: skip


def main(folder: Path) -> None:
    make_bert(folder)
    make_vit(folder)
