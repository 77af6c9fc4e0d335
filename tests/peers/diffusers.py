"""Stable Diffusion's files as diffusers reads them: its single-file loaders, and its ways from and to LoRA of kohya."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, StableDiffusionPipeline, UNet2DConditionModel
from diffusers.loaders import lora_conversion_utils as kohya
from diffusers.loaders import single_file_utils as single
from diffusers.utils import state_dict_utils as states
from peft import LoraConfig
from peft.utils import get_peft_model_state_dict
from safetensors.torch import load_file
from transformers import CLIPTextConfig, CLIPTextModelWithProjection

from .case import refill, tensor, write_case

REQUIREMENTS = ("torch==2.13.0", "diffusers==0.42.1", "transformers==5.24.0", "peft==0.21.2", "accelerate==1.15.0")
Shapes = Iterator[tuple[str, tuple[int, ...]]]
State = dict[str, torch.Tensor]

UNET = [
    single.convert_ldm_unet_checkpoint,
    single.update_unet_resnet_ldm_to_diffusers,
    single.update_unet_attention_ldm_to_diffusers,
]
VAE = [
    single.convert_ldm_vae_checkpoint,
    single.update_vae_resnet_ldm_to_diffusers,
    single.update_vae_attentions_ldm_to_diffusers,
    single.conv_attn_to_linear,
]
TO_KOHYA = [states.convert_state_dict_to_kohya, states.convert_state_dict]
FROM_KOHYA = [
    kohya._convert_non_diffusers_lora_to_diffusers,
    kohya._convert_unet_lora_key,
    kohya._convert_text_encoder_lora_key,
    kohya._get_alpha_name,
]


# The original modules, as the constructors of CompVis/latent-diffusion (ldm/modules/diffusionmodules/openaimodel.py,
# model.py, ldm/modules/attention.py) number them.


def layer(name: str, *shape: int) -> Shapes:
    """A convolution or a linear layer."""
    yield f"{name}.weight", shape
    yield f"{name}.bias", shape[:1]


def norm(name: str, size: int) -> Shapes:
    yield f"{name}.weight", (size,)
    yield f"{name}.bias", (size,)


def resnet(name: str, i: int, o: int, time: int) -> Shapes:
    yield from norm(f"{name}.in_layers.0", i)
    yield from layer(f"{name}.in_layers.2", o, i, 3, 3)
    yield from layer(f"{name}.emb_layers.1", o, time)
    yield from norm(f"{name}.out_layers.0", o)
    yield from layer(f"{name}.out_layers.3", o, o, 3, 3)
    if i != o:
        yield from layer(f"{name}.skip_connection", o, i, 1, 1)


def transformer(name: str, c: int, depth: int, ctx: int, linear: bool) -> Shapes:
    yield from norm(f"{name}.norm", c)
    kernel = () if linear else (1, 1)
    yield from layer(f"{name}.proj_in", c, c, *kernel)
    for t in range(depth):
        at = f"{name}.transformer_blocks.{t}"
        for attention, keys in (("attn1", c), ("attn2", ctx)):
            yield f"{at}.{attention}.to_q.weight", (c, c)
            yield f"{at}.{attention}.to_k.weight", (c, keys)
            yield f"{at}.{attention}.to_v.weight", (c, keys)
            yield from layer(f"{at}.{attention}.to_out.0", c, c)
        yield from layer(f"{at}.ff.net.0.proj", 8 * c, c)
        yield from layer(f"{at}.ff.net.2", c, 4 * c)
        for n in (1, 2, 3):
            yield from norm(f"{at}.norm{n}", c)
    yield from layer(f"{name}.proj_out", c, c, *kernel)


def unet(config: Mapping[str, Any]) -> Shapes:
    ch, res, ctx = config["block_out_channels"], config["layers_per_block"], config["cross_attention_dim"]
    layers = config.get("transformer_layers_per_block", 1)
    depth = [layers] * len(ch) if isinstance(layers, int) else layers
    has = [kind == "CrossAttnDownBlock2D" for kind in config["down_block_types"]]
    linear, time = config.get("use_linear_projection", False), 4 * ch[0]
    yield from layer("time_embed.0", time, ch[0])
    yield from layer("time_embed.2", time, time)
    if "projection_class_embeddings_input_dim" in config:
        yield from layer("label_emb.0.0", time, config["projection_class_embeddings_input_dim"])
        yield from layer("label_emb.0.2", time, time)
    yield from layer("input_blocks.0.0", ch[0], config["in_channels"], 3, 3)
    skips, at, number = [ch[0]], ch[0], 1
    for b, o in enumerate(ch):
        for _ in range(res):
            yield from resnet(f"input_blocks.{number}.0", at, o, time)
            if has[b]:
                yield from transformer(f"input_blocks.{number}.1", o, depth[b], ctx, linear)
            at, number = o, number + 1
            skips.append(at)
        if b < len(ch) - 1:
            yield from layer(f"input_blocks.{number}.0.op", at, at, 3, 3)
            number += 1
            skips.append(at)
    yield from resnet("middle_block.0", at, at, time)
    yield from transformer("middle_block.1", at, depth[-1], ctx, linear)
    yield from resnet("middle_block.2", at, at, time)
    number = 0
    for b in reversed(range(len(ch))):
        for k in range(res + 1):
            yield from resnet(f"output_blocks.{number}.0", at + skips.pop(), ch[b], time)
            at = ch[b]
            if has[b]:
                yield from transformer(f"output_blocks.{number}.1", at, depth[b], ctx, linear)
            if k == res and b > 0:
                yield from layer(f"output_blocks.{number}.{2 if has[b] else 1}.conv", at, at, 3, 3)
            number += 1
    yield from norm("out.0", at)
    yield from layer("out.2", config["out_channels"], at, 3, 3)


def vae_resnet(name: str, i: int, o: int) -> Shapes:
    yield from norm(f"{name}.norm1", i)
    yield from layer(f"{name}.conv1", o, i, 3, 3)
    yield from norm(f"{name}.norm2", o)
    yield from layer(f"{name}.conv2", o, o, 3, 3)
    if i != o:
        yield from layer(f"{name}.nin_shortcut", o, i, 1, 1)


def vae_middle(name: str, c: int, kernel: tuple[int, ...]) -> Shapes:
    yield from vae_resnet(f"{name}.block_1", c, c)
    yield from norm(f"{name}.attn_1.norm", c)
    for part in ("q", "k", "v", "proj_out"):
        yield from layer(f"{name}.attn_1.{part}", c, c, *kernel)
    yield from vae_resnet(f"{name}.block_2", c, c)


def vae(config: Mapping[str, Any], kernel: tuple[int, ...]) -> Shapes:
    ch, res, z = config["block_out_channels"], config["layers_per_block"], config["latent_channels"]
    yield from layer("encoder.conv_in", ch[0], config["in_channels"], 3, 3)
    at = ch[0]
    for b, o in enumerate(ch):
        for j in range(res):
            yield from vae_resnet(f"encoder.down.{b}.block.{j}", at, o)
            at = o
        if b < len(ch) - 1:
            yield from layer(f"encoder.down.{b}.downsample.conv", at, at, 3, 3)
    yield from vae_middle("encoder.mid", at, kernel)
    yield from norm("encoder.norm_out", at)
    yield from layer("encoder.conv_out", 2 * z, at, 3, 3)
    yield from layer("decoder.conv_in", at, z, 3, 3)
    yield from vae_middle("decoder.mid", at, kernel)
    for b in reversed(range(len(ch))):
        for k in range(res + 1):
            yield from vae_resnet(f"decoder.up.{b}.block.{k}", at, ch[b])
            at = ch[b]
        if b > 0:
            yield from layer(f"decoder.up.{b}.upsample.conv", at, at, 3, 3)
    yield from norm("decoder.norm_out", at)
    yield from layer("decoder.conv_out", config["out_channels"], at, 3, 3)
    if config.get("use_quant_conv", True):
        yield from layer("quant_conv", 2 * z, 2 * z, 1, 1)
        yield from layer("post_quant_conv", z, z, 1, 1)


def open_clip(layers: int, d: int, f: int, e: int) -> Shapes:
    """The text half of open_clip's CLIP (open_clip/transformer.py)."""
    yield "positional_embedding", (5, d)
    yield "text_projection", (d, e)
    yield "logit_scale", ()
    yield "token_embedding.weight", (11, d)
    for i in range(layers):
        at = f"transformer.resblocks.{i}"
        yield from norm(f"{at}.ln_1", d)
        yield f"{at}.attn.in_proj_weight", (3 * d, d)
        yield f"{at}.attn.in_proj_bias", (3 * d,)
        yield from layer(f"{at}.attn.out_proj", d, d)
        yield from norm(f"{at}.ln_2", d)
        yield from layer(f"{at}.mlp.c_fc", f, d)
        yield from layer(f"{at}.mlp.c_proj", d, f)
    yield from norm("ln_final", d)


def checkpoint(shapes: Shapes, prefix: str, dtype: str) -> State:
    return {prefix + name: tensor(prefix + name, shape, dtype) for name, shape in shapes}


def alike(made: Mapping[str, torch.Tensor], model: torch.nn.Module) -> None:
    """What was made is what the model of these settings has, so that it would load."""
    wanted = {name: tuple(x.shape) for name, x in model.state_dict().items()}
    assert {name: tuple(x.shape) for name, x in made.items()} == wanted


# The cases.

OTHERS = {  # what else is in a whole file
    "first_stage_model.encoder.conv_in.weight": (2, 3),
    "cond_stage_model.transformer.text_model.final_layer_norm.weight": (3,),
    "model_ema.diffusion_modeloutput_blocks00in_layers0bias": (4,),
    "model_ema.decay": (),
    "alphas_cumprod": (6,),
    "sqrt_one_minus_alphas_cumprod": (5,),
}


def unet_case(
    folder: Path, variant: str, prefix: str, dtype: str, config: dict[str, Any], others: bool = False, say: bool = True
) -> None:
    base = {"sample_size": 8, "in_channels": 4, "out_channels": 3, "norm_num_groups": 1, "attention_head_dim": 1}
    config = {**base, **config}
    given = checkpoint(unet(config), prefix, dtype)
    whole = {n if prefix else f"model.diffusion_model.{n}": x for n, x in given.items()}
    made = single.convert_ldm_unet_checkpoint(dict(whole), config)
    alike(made, UNet2DConditionModel(**config))
    if others:
        given |= {name: tensor(name, shape, "F32") for name, shape in OTHERS.items()}
    back = None if prefix else whole
    flags = [] if say or config["layers_per_block"] == 2 else [f"--set=res={config['layers_per_block']}"]
    write_case(
        folder, f"diffusers/unet@{variant}", given, made, peer="diffusers", code=UNET, back=back, flags=flags,
        config=config if say else None,
    )  # fmt: skip


def unets(folder: Path) -> None:
    cross, plain, up, cross_up = "CrossAttnDownBlock2D", "DownBlock2D", "UpBlock2D", "CrossAttnUpBlock2D"
    sd15 = {
        "block_out_channels": [2, 3, 4], "layers_per_block": 2, "cross_attention_dim": 5,
        "down_block_types": [cross, cross, plain], "up_block_types": [up, cross_up, cross_up],
    }  # fmt: skip
    unet_case(folder, "sd15", "model.diffusion_model.", "F16", sd15, others=True, say=False)
    sd2 = {
        "block_out_channels": [2, 3], "layers_per_block": 2, "cross_attention_dim": 5, "use_linear_projection": True,
        "down_block_types": [cross, plain], "up_block_types": [up, cross_up],
    }  # fmt: skip
    unet_case(folder, "sd2", "model.diffusion_model.", "F32", sd2, say=False)
    unclip = {
        **sd2,
        "layers_per_block": 1,
        "class_embed_type": "projection",
        "projection_class_embeddings_input_dim": 6,
    }
    unet_case(folder, "unclip", "", "F16", unclip)
    sdxl = {
        "block_out_channels": [2, 3, 4], "layers_per_block": 1, "cross_attention_dim": 5, "use_linear_projection": True,
        "down_block_types": [plain, cross, cross], "up_block_types": [cross_up, cross_up, up],
        "transformer_layers_per_block": [1, 1, 3], "addition_embed_type": "text_time", "addition_time_embed_dim": 2,
        "projection_class_embeddings_input_dim": 7,
    }  # fmt: skip
    unet_case(folder, "sdxl", "model.diffusion_model.", "BF16", sdxl)
    refiner = {
        **sdxl, "down_block_types": [plain, cross, plain], "up_block_types": [up, cross_up, up],
        "transformer_layers_per_block": 2,
    }  # fmt: skip
    unet_case(folder, "refiner", "model.diffusion_model.", "F16", refiner, say=False)


def vaes(folder: Path) -> None:
    config: dict[str, Any] = {
        "block_out_channels": [2, 3, 4, 5], "layers_per_block": 2, "latent_channels": 3, "in_channels": 4,
        "out_channels": 2, "norm_num_groups": 1, "down_block_types": ["DownEncoderBlock2D"] * 4,
        "up_block_types": ["UpDecoderBlock2D"] * 4,
    }  # fmt: skip
    for variant, prefix, kernel, dtype, more in (
        ("conv", "first_stage_model.", (1, 1), "F16", {}),
        ("linear", "vae.", (), "BF16", {}),
        ("bare", "", (1, 1), "F32", {"block_out_channels": [3, 2, 3], "layers_per_block": 1, "use_quant_conv": False}),
    ):
        some: dict[str, Any] = {**config, **more}
        some |= {k: some[k][: len(some["block_out_channels"])] for k in ("down_block_types", "up_block_types")}
        if not some.get("use_quant_conv", True):
            some["use_post_quant_conv"] = False
        given = checkpoint(vae(some, kernel), prefix, dtype)
        made = single.convert_ldm_vae_checkpoint(dict(given), some)
        alike(made, AutoencoderKL(**some))
        back = {f"first_stage_model.{n.removeprefix(prefix)}": conv(n, x) for n, x in given.items()}
        if variant == "conv":
            given |= {f"{prefix}loss.logvar": tensor("logvar", (), "F32"), "model.x.y": tensor("y", (3,), "F32")}
        write_case(
            folder, f"diffusers/vae@{variant}", given, made, peer="diffusers", code=VAE, back=back,
            config=some if variant == "bare" else None,
        )  # fmt: skip


def conv(name: str, x: torch.Tensor) -> torch.Tensor:
    """The form in which the original keeps it."""
    return x[:, :, None, None] if ".attn_1." in name and x.ndim == 2 else x


def text_encoders(folder: Path) -> None:
    settings = {
        "hidden_size": 6, "intermediate_size": 10, "num_hidden_layers": 3, "num_attention_heads": 2, "vocab_size": 11,
        "max_position_embeddings": 5, "projection_dim": 7, "bos_token_id": 0, "eos_token_id": 1,
    }  # fmt: skip
    model = CLIPTextModelWithProjection(CLIPTextConfig(**settings))
    clip = {n: x for n, x in refill(model.state_dict()).items() if n != "text_projection.weight"}
    clip["text_model.embeddings.position_ids"] = torch.arange(5)[None]
    for variant, prefix in (
        ("sd15", "cond_stage_model.transformer."),
        ("sdxl", "conditioner.embedders.0.transformer."),
    ):
        given = {prefix + n: x for n, x in clip.items()}
        made = single.convert_ldm_clip_checkpoint(dict(given))
        back = {f"cond_stage_model.transformer.{n}": x for n, x in clip.items()}
        write_case(
            folder, f"diffusers/clip_text@{variant}", given, made, peer="diffusers",
            code=[single.convert_ldm_clip_checkpoint], back=back,
        )  # fmt: skip
    for variant, prefix, sizes, dtype in (
        ("sdxl", "conditioner.embedders.1.model.", (3, 6, 10, 7), "F32"),
        ("sd2", "cond_stage_model.model.", (24, 2, 3, 2), "F16"),
    ):
        given = checkpoint(open_clip(*sizes), prefix, dtype)
        made = single.convert_open_clip_checkpoint(model, dict(given), prefix=prefix)
        if variant == "sdxl":
            alike(made, model)
        ignored = {*single.SD_2_TEXT_ENCODER_KEYS_TO_IGNORE, f"{prefix}logit_scale"}
        kept = {n.removeprefix(prefix): x for n, x in given.items() if n not in ignored}
        back = {f"conditioner.embedders.1.model.{n}": x for n, x in kept.items()}
        write_case(
            folder, f"diffusers/open_clip_text@{variant}", given, made, peer="diffusers",
            code=[single.convert_open_clip_checkpoint], back=back,
        )  # fmt: skip


# Adapters, with the names that diffusers saves.


def saved(unet_layers: Any, text_layers: Any, dtype: str = "") -> State:
    """What a pipeline saves of adapters, with values of its own."""
    with tempfile.TemporaryDirectory() as folder:
        StableDiffusionPipeline.save_lora_weights(folder, unet_layers, text_layers)
        state = load_file(Path(folder) / "pytorch_lora_weights.safetensors")
    out = refill(state)
    return {n: tensor(n, tuple(x.shape), dtype) for n, x in out.items()} if dtype else out


def back_to_peft(state: State) -> tuple[State, dict[str, float]]:
    """What diffusers makes of a file of kohya before it hands it to PEFT: tensors, and alphas by module."""
    made, alphas = kohya._convert_non_diffusers_lora_to_diffusers(dict(state))
    text = {n: x for n, x in made.items() if not n.startswith("unet.")}
    image = {n: x for n, x in made.items() if n.startswith("unet.")}
    out = states.convert_unet_state_dict_to_peft(image)
    out |= states.convert_state_dict_to_peft(states.convert_state_dict_to_diffusers(text)) if text else {}
    named = states.convert_unet_state_dict_to_peft(alphas)
    return out, {n.removesuffix(".alpha").removesuffix(".lora_A.weight"): a for n, a in named.items()}


def lora_unets(folder: Path) -> None:
    model = UNet2DConditionModel(
        block_out_channels=[2, 3, 4], layers_per_block=2, cross_attention_dim=5, in_channels=4, out_channels=3,
        norm_num_groups=1, attention_head_dim=1, sample_size=8,
        down_block_types=["CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"],
        up_block_types=["UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"],
    )  # fmt: skip
    every = ["to_q", "to_k", "to_v", "to_out.0", "proj_in", "proj_out", "ff.net.0.proj", "ff.net.2", "conv1", "conv2",
             "conv_shortcut", "time_emb_proj", "downsamplers.0.conv", "upsamplers.0.conv", "conv_in", "conv_out",
             "time_embedding.linear_1", "time_embedding.linear_2"]  # fmt: skip
    few = r"(down_blocks\.1\.attentions\.1|up_blocks\.2\.attentions\.0)\..*(attn2\.to_k|to_out\.0|ff\.net\.0\.proj|proj_out)"
    for variant, targets, ranks in (("all", every, {"to_q": 3, "conv1": 1}), ("some", few, {r".*to_k": 5})):
        model.add_adapter(LoraConfig(r=2, target_modules=targets, rank_pattern=ranks), variant)
        given = saved(get_peft_model_state_dict(model, adapter_name=variant), None, "F16" if variant == "all" else "")
        made = states.convert_state_dict_to_kohya(dict(given))
        back, alphas = back_to_peft(made)
        assert set(back) == set(given)
        assert all(torch.equal(back[n], x) for n, x in given.items())
        assert all(given[f"{n}.lora_A.weight"].shape[0] == a for n, a in alphas.items())
        write_case(folder, f"kohya/lora_unet@{variant}", given, made, peer="diffusers", code=TO_KOHYA + FROM_KOHYA)
        model.delete_adapters(variant)
    # A file of kohya with an alpha of its own for each module: the peer keeps them beside the tensors.
    own = {n: torch.tensor(0.5 + k) if n.endswith(".alpha") else x for k, (n, x) in enumerate(made.items())}
    back, alphas = back_to_peft(own)
    given = back | {f"{n}.alpha": torch.tensor(a) for n, a in alphas.items()}
    write_case(
        folder, "kohya/lora_unet@alphas", given, own, peer="diffusers", code=TO_KOHYA + FROM_KOHYA,
        flags=["--set=alpha=keep"],
    )  # fmt: skip
    # The names that diffusers' own training scripts save.
    old = states.convert_state_dict_to_diffusers({n: x for n, x in back.items() if "attn" in n})
    assert any(".lora.down." in n for n in old)
    made = states.convert_state_dict_to_kohya(states.convert_all_state_dict_to_peft(dict(old)))
    again, _ = back_to_peft(made)
    write_case(folder, "kohya/lora_unet@training", old, made, peer="diffusers", code=TO_KOHYA + FROM_KOHYA, back=again)


def lora_text_encoders(folder: Path) -> None:
    names = [f"self_attn.{p}_proj" for p in "qkv"] + ["self_attn.out_proj", "mlp.fc1", "mlp.fc2"]
    sizes = {"self_attn": (6, 6), "mlp.fc1": (6, 10), "mlp.fc2": (10, 6)}
    given: State = {}
    for encoder, layers, wider in (("text_encoder", 11, 0), ("text_encoder_2", 3, 3)):
        for i in range(layers):
            for k, name in enumerate(names if encoder == "text_encoder_2" else names[i % 3 :: 3]):
                i_, o = (n + wider for n in next(s for part, s in sizes.items() if name.startswith(part)))
                at, rank = f"{encoder}.text_model.encoder.layers.{i}.{name}", 2 + k
                given[f"{at}.lora_A.weight"] = tensor(f"{at}A", (rank, i_), "BF16")
                given[f"{at}.lora_B.weight"] = tensor(f"{at}B", (o, rank), "BF16")
    made = states.convert_state_dict_to_kohya(dict(given))
    back, _ = back_to_peft(made)
    assert set(back) == set(given)
    assert all(torch.equal(back[n], x) for n, x in given.items())
    write_case(folder, "kohya/lora_text_encoder@sdxl", given, made, peer="diffusers", code=TO_KOHYA + FROM_KOHYA)
    # A file of kohya whose modules share an alpha, which is a setting of PEFT.
    first = {n: x for n, x in given.items() if n.startswith("text_encoder.")}
    own = states.convert_state_dict_to_kohya(dict(first))
    own |= {n: torch.tensor(8) for n in own if n.endswith(".alpha")}
    back, alphas = back_to_peft(own)
    assert set(alphas.values()) == {8}
    write_case(
        folder, "kohya/lora_text_encoder@alpha", back, own, peer="diffusers", code=TO_KOHYA + FROM_KOHYA,
        config={"lora_alpha": 8, "r": 4},
    )  # fmt: skip


def main(folder: Path) -> None:
    torch.manual_seed(0)
    unets(folder)
    vaes(folder)
    text_encoders(folder)
    lora_unets(folder)
    lora_text_encoders(folder)
