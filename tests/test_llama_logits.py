"""A Llama with grouped queries goes to fused qkv and back, and computes the same logits."""

import shutil

import numpy as np
import pytest
from plainfile import assert_same, read

import converter

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("tied", [True, False])
def test_there_and_back_gives_the_same_model(tied, tmp_path):
    config = transformers.LlamaConfig(
        vocab_size=61,
        hidden_size=36,
        intermediate_size=56,
        num_hidden_layers=11,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=32,
        tie_word_embeddings=tied,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.2)  # norms begin as ones, which would hide an exchange
    model.save_pretrained(tmp_path / "hf")
    given = read(tmp_path / "hf" / "model.safetensors").tensors
    assert ("lm_head.weight" in given) != tied

    converter.convert(tmp_path / "hf", tmp_path / "local.safetensors", map="llama")
    local = read(tmp_path / "local.safetensors").tensors
    attention = [given[f"model.layers.10.self_attn.{x}_proj.weight"] for x in "qkv"]
    assert np.array_equal(local["blocks.10.attn.qkv.weight"], np.concatenate(attention))
    assert local["blocks.10.attn.qkv.weight"].shape == ((6 + 2 + 2) * 8, 36)
    assert ("lm_head.weight" in local) != tied

    (tmp_path / "back").mkdir()
    converter.convert(
        tmp_path / "local.safetensors", tmp_path / "back" / "model.safetensors", map="llama", reverse=True
    )
    assert_same(read(tmp_path / "back" / "model.safetensors").tensors, given)
    shutil.copy(tmp_path / "hf" / "config.json", tmp_path / "back")
    again = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "back").eval()
    ids = torch.randint(0, 61, (2, 17))
    with torch.no_grad():
        assert torch.equal(model(ids).logits, again(ids).logits)
