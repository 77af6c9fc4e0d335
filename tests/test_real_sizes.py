"""Real sizes: GPT-2 124M and a Qwen2.5-0.5B as transformers saves them, converted and converted back, byte for byte."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from plainfile import assert_same, read

import converter

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path):
    """A folder whose gigabytes do not outlive the test."""
    yield tmp_path
    shutil.rmtree(tmp_path)


def save_random(kind: type, config: object, dtype: "torch.dtype", folder: Path) -> dict[str, np.ndarray]:
    """Save a model as its users would, with random values all over: equal biases and norms would hide an exchange."""
    torch.manual_seed(0)
    with torch.device("meta"):  # the values that a constructor gives would take longer than all the rest
        model = kind(config).to(dtype)
    model.to_empty(device="cpu").tie_weights()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.02)
    model.save_pretrained(folder)
    return read(folder / "model.safetensors").tensors


def test_gpt2(folder):
    given = save_random(transformers.GPT2LMHeadModel, transformers.GPT2Config(), torch.float32, folder / "hf")
    report = converter.convert(folder / "hf", folder / "local.safetensors", map="gpt2")
    assert len(report.loaded) == 148
    assert not any([report.missing, report.unexpected, report.shape_mismatch])
    local = read(folder / "local.safetensors").tensors
    assert np.array_equal(local["blocks.11.attn.qkv.weight"], given["transformer.h.11.attn.c_attn.weight"].T)
    assert np.array_equal(local["blocks.10.attn.out_proj.weight"], given["transformer.h.10.attn.c_proj.weight"].T)
    assert np.array_equal(local["blocks.2.mlp.fc2.weight"], given["transformer.h.2.mlp.c_proj.weight"].T)
    assert np.array_equal(local["blocks.1.ln2.shift"], given["transformer.h.1.ln_2.bias"])

    converter.convert(folder / "local.safetensors", folder / "back.safetensors", map="gpt2", reverse=True)
    # A stripped prefix is never written: what comes back has the names of the released file.
    released = {k.removeprefix("transformer."): v for k, v in given.items()}
    assert_same(read(folder / "back.safetensors").tensors, released)


def test_qwen2(folder):
    config = transformers.Qwen2Config(
        vocab_size=151936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    given = save_random(transformers.Qwen2ForCausalLM, config, torch.bfloat16, folder / "hf")
    converter.convert(folder / "hf", folder / "engine.safetensors", map="qwen2")
    engine = read(folder / "engine.safetensors").tensors
    assert {x.dtype for x in engine.values()} == {np.dtype("<f4")}
    assert len(engine) == 3 - 1 + 12, "twelve arrays for all layers, embedding and norm; no wcls"
    sources = {
        "rms_att_weight": "input_layernorm.weight",
        "wq": "self_attn.q_proj.weight",
        "bk": "self_attn.k_proj.bias",
        "wv": "self_attn.v_proj.weight",
        "wo": "self_attn.o_proj.weight",
        "w1": "mlp.gate_proj.weight",
        "w2": "mlp.down_proj.weight",
        "w3": "mlp.up_proj.weight",
    }
    for name, source in sources.items():
        for layer in (0, 2, 11, 23):
            want = widened(given[f"model.layers.{layer}.{source}"])
            assert engine[name].shape == (24, *want.shape)
            assert np.sum(engine[name][layer], dtype=np.float64) == np.sum(want, dtype=np.float64)
            assert engine[name][layer].flat[-1] == want.flat[-1]
    assert np.array_equal(engine["token_embedding_table"][-5], widened(given["model.embed_tokens.weight"][-5]))

    converter.convert(folder / "engine.safetensors", folder / "back.safetensors", map="qwen2", reverse=True)
    assert_same(read(folder / "back.safetensors").tensors, given)


def widened(x: np.ndarray) -> np.ndarray:
    """Widen bfloat16 by its definition: the upper half of a float32."""
    return (x.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
