"""Maps of Stable Diffusion: real sizes, and files of kohya that spell the same modules in other ways."""

import re
from math import prod
from pathlib import Path

import pytest
from lab import arr, read, run, same, write
from test_maps import rules_of

from converter.stub import invent, stub_settings

CASES = Path(__file__).parent / "peers" / "cases"

# What the published files hold: tensors, and numbers in all.
PUBLISHED = {
    ("diffusers/unet", "Stable-Diffusion-1.5"): (686, 859_520_964),
    ("diffusers/unet", "Stable-Diffusion-2.1"): (686, 865_910_724),
    ("diffusers/unet", "Stable-Diffusion-XL"): (1680, 2_567_463_684),
    ("diffusers/vae", "Stable-Diffusion"): (248, 83_653_863),
    ("diffusers/clip_text", "Stable-Diffusion-1.5"): (197, 123_060_557),
    ("diffusers/open_clip_text", "Stable-Diffusion-XL"): (389, 694_659_840),
}


@pytest.mark.parametrize(("name", "model"), PUBLISHED)
def test_a_stub_has_the_tensors_of_the_published_model(name, model):
    rules = rules_of(name)
    specs = invent(rules, stub_settings(rules, rules.published[model])).specs
    assert (len(specs), sum(prod(s.shape) for s in specs)) == PUBLISHED[name, model]


def original(name: str) -> str:
    """The name that kohya gives a module of XL, from the one that it gives a module of SD 1, two blocks a level."""
    inner = {"conv1": "in_layers_2", "conv2": "out_layers_3", "conv_shortcut": "skip_connection"}
    inner["time_emb_proj"] = "emb_layers_1"
    ends = {"conv_in": "input_blocks_0_0", "conv_out": "out_2", "time_embedding_linear_1": "time_embed_0"}
    ends["time_embedding_linear_2"] = "time_embed_2"
    module, dot, rest = name.removeprefix("lora_unet_").partition(".")
    if m := re.fullmatch(r"(down|up)_blocks_(\d)_(attentions|resnets)_(\d)_(.+)", module):
        number = 3 * int(m[2]) + int(m[4]) + (m[1] == "down")
        at = f"{'input' if m[1] == 'down' else 'output'}_blocks_{number}_{int(m[3] == 'attentions')}"
        module = f"{at}_{inner.get(m[5], m[5])}"
    elif m := re.fullmatch(r"mid_block_(attentions|resnets)_(\d)_(.+)", module):
        module = f"middle_block_{1 if m[1] == 'attentions' else 2 * int(m[2])}_{inner.get(m[3], m[3])}"
    elif m := re.fullmatch(r"down_blocks_(\d)_downsamplers_0_conv", module):
        module = f"input_blocks_{3 * int(m[1]) + 3}_0_op"
    elif m := re.fullmatch(r"up_blocks_(\d)_upsamplers_0_conv", module):
        module = f"output_blocks_{3 * int(m[1]) + 2}_2_conv"
    return f"lora_unet_{ends.get(module, module)}{dot}{rest}"


def test_kohya_names_the_modules_of_xl_as_the_original_does(tmp_path):
    case = CASES / "kohya" / "lora_unet@all"
    there = {original(n): x for n, x in read(case / "to.safetensors").items()}
    assert not [n for n in there if "down_blocks" in n or "resnets" in n or "samplers" in n]
    out = tmp_path / "out.safetensors"
    r = run("--map", "kohya/lora_unet", "--reverse", write(tmp_path / "in.safetensors", there), out)
    assert r.code == 0, r.err
    same(read(out), read(case / "from.safetensors"))


def test_kohya_names_a_single_text_encoder_in_two_ways(tmp_path):
    case = CASES / "kohya" / "lora_text_encoder@alpha"
    there = {n.replace("lora_te1_", "lora_te_"): x for n, x in read(case / "to.safetensors").items()}
    there |= {"lora_unet_conv_in.alpha": arr(1)}
    out = tmp_path / "out.safetensors"
    flags = ("--map", "kohya/lora_text_encoder", "--reverse", "--set", "alpha=8")
    r = run(*flags, write(tmp_path / "in.safetensors", there), out)
    assert r.code == 0, r.err
    assert "dropped: lora_unet_conv_in.alpha" in r.out
    same(read(out), read(case / "from.safetensors"))


def test_an_alpha_that_is_neither_the_rank_nor_stated_is_refused(tmp_path):
    there = read(CASES / "kohya" / "lora_unet@alphas" / "to.safetensors")
    r = run(
        "--map", "kohya/lora_unet", "--reverse", write(tmp_path / "in.safetensors", there), tmp_path / "out.safetensors"
    )
    assert r.code == 1
    assert "alpha" in r.err
    assert not (tmp_path / "out.safetensors").exists()
    for name in [n for n in there if n.endswith(".alpha")]:
        del there[name]
    r = run(
        "--map", "kohya/lora_unet", "--reverse", write(tmp_path / "in.safetensors", there), tmp_path / "out.safetensors"
    )
    assert r.code == 0, r.err
    assert not [n for n in read(tmp_path / "out.safetensors") if n.endswith("alpha")]
