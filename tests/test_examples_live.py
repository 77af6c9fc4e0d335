"""The examples that load live models, run as their users run them."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name, *arguments):
    done = subprocess.run([sys.executable, EXAMPLES / name, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_gpt2(dtype):
    out = run("load_gpt2.py", "--dtype", dtype)
    code = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}[dtype]
    assert f"transformer.h.2.attn.c_attn.weight -> blocks.2.attn.qkv.weight {code} [96, 32] (transpose)" in out
    assert "40 tensors loaded, 0 dropped, 1 tied, 0 missing, 0 unexpected, 0 mismatched" in out
    assert "shape is [32, 127], expected [d, 4*d] with d = 32" in out


@pytest.mark.parametrize("arguments", [(), ("--tied",), ("--dtype", "bfloat16"), ("--dtype", "float16")])
def test_llama(arguments):
    out = run("load_llama.py", *arguments)
    assert "model.layers.2.self_attn.k_proj.weight + " in out
    assert "0 missing, 0 unexpected, 0 mismatched" in out
    assert "k_proj with a row too few:" in out


@pytest.mark.slow
def test_gpt2_of_full_size(tmp_path):
    """GPT-2 124M with invented weights, from a pickle: the logits are those of transformers."""
    import torch
    import transformers

    config = transformers.GPT2Config()
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config)
    config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    out = run("load_gpt2.py", tmp_path)
    assert "148 tensors loaded, 0 dropped, 1 tied, 0 missing" in out
