"""OpenAI's Whisper and CLIP: a transcription, proved by the outputs of both models."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import open_clip.model
import torch
import transformers as hf
import whisper.model
from safetensors.torch import load_file

from .case import lines, refill, tensor, write_case

REQUIREMENTS = ("torch==2.13.0", "transformers==5.24.0", "openai-whisper==20250625", "open-clip-torch==3.3.0")
State = dict[str, torch.Tensor]

WHISPER = {
    "blocks": "layers", "mlp.0": "fc1", "mlp.2": "fc2", "mlp_ln": "final_layer_norm", "attn.query": "self_attn.q_proj",
    "attn.key": "self_attn.k_proj", "attn.value": "self_attn.v_proj", "attn.out": "self_attn.out_proj",
    "attn_ln": "self_attn_layer_norm", "cross_self_attn": "encoder_attn", "decoder.ln.": "decoder.layer_norm.",
    "encoder.ln_post.": "encoder.layer_norm.", "token_embedding": "embed_tokens",
    "positional_embedding": "embed_positions.weight",
}  # fmt: skip
CLIP = {
    "transformer.resblocks": "encoder.layers", "ln_1": "layer_norm1", "ln_2": "layer_norm2", "c_fc": "fc1",
    "c_proj": "fc2", "attn.out_proj": "self_attn.out_proj", "ln_final": "final_layer_norm", "ln_pre": "pre_layrnorm",
    "ln_post": "post_layernorm", "class_embedding": "embeddings.class_embedding",
    "conv1": "embeddings.patch_embedding", "token_embedding": "embeddings.token_embedding",
    "positional_embedding": "embeddings.position_embedding.weight",
}  # fmt: skip


def from_whisper(x: State) -> State:
    """Rename as whisper/model.py and transformers/models/whisper/modeling_whisper.py name their modules."""
    out = {}
    for name, w in x.items():
        new = name
        for theirs, ours in WHISPER.items():
            new = new.replace(theirs, ours)
        out[f"model.{new}"] = w
    return out


def from_clip(x: State) -> State:
    """Rename and part q, k and v as open_clip/model.py and transformers/models/clip/modeling_clip.py have them."""
    out = {}
    for name, w in x.items():
        if name in ("logit_scale", "text_projection", "visual.proj"):
            new = {"text_projection": "text_projection.weight", "visual.proj": "visual_projection.weight"}
            out[new.get(name, name)] = w.T.contiguous() if w.dim() == 2 else w
            continue
        new = name.removeprefix("visual.")
        for theirs, ours in CLIP.items():
            new = new.replace(theirs, ours)
        new = ("vision_model." if name.startswith("visual.") else "text_model.") + new
        if "attn.in_proj_" in new:
            front, part = new.split("attn.in_proj_")
            out |= {f"{front}self_attn.{q}_proj.{part}": p for q, p in zip("qkv", w.chunk(3))}
        else:
            out[new] = w
    return out


def saved(model: hf.PreTrainedModel) -> State:
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(Path(folder) / "model.safetensors")


def agree(name: str, a: torch.Tensor, b: torch.Tensor) -> None:
    assert a.std() > 0.01, "outputs that hardly differ prove nothing"
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
    print(f"{name}: outputs differ by {float((a - b).abs().max()):.1e}")


def make_whisper(folder: Path) -> None:
    sizes = {"n_mels": 8, "n_audio_ctx": 10, "n_audio_state": 12, "n_audio_head": 3, "n_audio_layer": 3}
    sizes |= {"n_vocab": 17, "n_text_ctx": 7, "n_text_state": 12, "n_text_head": 3, "n_text_layer": 2}
    theirs = whisper.model.Whisper(whisper.model.ModelDimensions(**sizes)).eval()
    given = refill(theirs.state_dict())
    theirs.load_state_dict(given)
    config = hf.WhisperConfig(
        d_model=12, encoder_layers=3, decoder_layers=2, encoder_attention_heads=3, decoder_attention_heads=3,
        encoder_ffn_dim=48, decoder_ffn_dim=48, vocab_size=17, num_mel_bins=8, max_source_positions=10,
        max_target_positions=7, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=3,
        begin_suppress_tokens=[], suppress_tokens=[],
    )  # fmt: skip
    ours = hf.WhisperForConditionalGeneration(config).eval()
    made = from_whisper(given)
    ours.load_state_dict({**made, "proj_out.weight": made["model.decoder.embed_tokens.weight"]}, strict=True)
    mel = torch.randn((1, 8, 20), generator=torch.Generator().manual_seed(0))
    ids = torch.arange(7)[None]
    with torch.no_grad():
        agree("whisper", ours(input_features=mel, decoder_input_ids=ids).logits, theirs(mel, ids))
    assert {n: x.shape for n, x in saved(ours).items()} == {n: x.shape for n, x in made.items()}
    case(folder, "huggingface/whisper", given, made, from_whisper, "openai-whisper", whisper.__version__)


def make_clip(folder: Path) -> None:
    theirs = open_clip.model.CLIP(
        embed_dim=9, quick_gelu=True,
        vision_cfg={"layers": 2, "width": 16, "head_width": 4, "patch_size": 4, "image_size": 8, "mlp_ratio": 1.5},
        text_cfg={"context_length": 7, "vocab_size": 17, "width": 12, "heads": 3, "layers": 3, "mlp_ratio": 20 / 12},
    ).eval()  # fmt: skip
    given = refill(theirs.state_dict())
    theirs.load_state_dict(given)
    config = hf.CLIPConfig(
        text_config={
            "hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 3, "num_attention_heads": 3,
            "vocab_size": 17, "max_position_embeddings": 7, "projection_dim": 9, "eos_token_id": 16,
            "bos_token_id": 15, "pad_token_id": 0,
        },
        vision_config={
            "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
            "image_size": 8, "patch_size": 4, "projection_dim": 9,
        },
        projection_dim=9,
    )  # fmt: skip
    ours = hf.CLIPModel(config).eval()
    made = from_clip(given)
    ours.load_state_dict(made, strict=True)
    ids = torch.tensor([[15, 3, 4, 5, 6, 7, 16]])
    image = torch.randn((2, 3, 8, 8), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = ours(input_ids=ids, pixel_values=image)
        agree("clip text", found.text_embeds, theirs.encode_text(ids, normalize=True))
        agree("clip image", found.image_embeds, theirs.encode_image(image, normalize=True))
    assert {n: x.shape for n, x in saved(ours).items()} == {n: x.shape for n, x in made.items()}
    case(folder, "huggingface/clip", given, made, from_clip, "open_clip", open_clip.__version__)
    extra = {n: tensor(n, (), "I64") + 7 for n in ("input_resolution", "context_length", "vocab_size")}
    case(folder, "huggingface/clip@released", given | extra, made, from_clip, "open_clip", open_clip.__version__)


def case(folder: Path, name: str, given: State, made: State, code: Any, peer: str, version: str) -> None:
    """Write a case of a transcription, whose docstring says where the layouts stand."""
    write_case(
        folder, name, given, made, peer=f"numpy oracle of {peer}", version=version, code=code.__doc__, count=lines(code)
    )


def main(folder: Path) -> None:
    make_whisper(folder)
    make_clip(folder)
