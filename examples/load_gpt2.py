"""Load a GPT-2 checkpoint into the model of gpt.py, and see that it is the same function as that of transformers.

    python examples/load_gpt2.py                        a small GPT-2 with invented weights
    python examples/load_gpt2.py --dtype bfloat16 DIR   a folder with config.json and weights, safetensors or pickled

It samples a continuation from random weights, loads, prints every assignment and the report, samples again, compares
the logits with those of GPT2LMHeadModel on the same files, and then shows what happens to a tensor of a wrong shape.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from gpt import GPT, generate
from safetensors.torch import load_file, save_file

import converter

PROMPT = [11, 7, 3, 5]
CLOSE = {"float32": 1e-5, "bfloat16": 0.1, "float16": 0.01}  # of the largest logit


def invent(folder: Path, layers: int, width: int) -> Path:
    """Save a GPT-2 of transformers whose weights are all different from what they begin as."""
    torch.manual_seed(1)
    config = transformers.GPT2Config(
        vocab_size=257, n_positions=64, n_embd=width, n_layer=layers, n_head=4, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.25)
    model.save_pretrained(folder)
    return folder


def local_model(config: transformers.GPT2Config, dtype: torch.dtype) -> GPT:
    torch.manual_seed(0)
    model = GPT(config.vocab_size, config.n_positions, config.n_embd, config.n_layer, config.n_head)
    return model.to(dtype).eval()


def refusal(folder: Path, model: GPT) -> str:
    """Give one matrix a column too few, and return what the converter says."""
    tensors = load_file(folder / "model.safetensors")
    name = next(n for n in tensors if n.endswith("h.1.mlp.c_fc.weight"))
    tensors[name] = tensors[name][:, :-1].contiguous()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with tempfile.TemporaryDirectory() as place:
        bad = Path(place) / "model.safetensors"
        save_file(tensors, bad, {"format": "pt"})
        try:
            converter.load(model, bad, map="gpt2")
        except converter.ConvertError as e:
            said = str(e)
        else:
            raise AssertionError("a wrong shape was not refused")
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    return said


def run(folder: Path, dtype: str) -> None:
    config = transformers.GPT2Config.from_pretrained(folder)
    model = local_model(config, getattr(torch, dtype))
    prompt = [i % config.vocab_size for i in PROMPT]
    before = generate(model, prompt, 8)
    print("random weights continue with", before[len(prompt) :])

    report = converter.load(model, folder, map="gpt2")
    print(report)
    after = generate(model, prompt, 8)
    print("loaded weights continue with", after[len(prompt) :])
    assert before != after

    reference = transformers.GPT2LMHeadModel.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    ids = torch.arange(32).reshape(2, 16) % config.vocab_size
    with torch.no_grad():
        logits = reference(ids).logits
        largest, difference = (x.abs().max().item() for x in (logits, model(ids) - logits))
    print(f"logits, up to {largest:.1f}, differ from those of transformers by {difference:.1e} at most ({dtype})")
    assert difference < CLOSE[dtype] * max(1.0, largest)
    if (folder / "model.safetensors").exists():
        print("a matrix with a column too few:", refusal(folder, model), sep="\n")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", nargs="?", type=Path)
    parser.add_argument("--dtype", choices=list(CLOSE), default="float32")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--width", type=int, default=32)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
    logging.getLogger("converter.live").setLevel(logging.INFO)  # every assignment
    with tempfile.TemporaryDirectory() as place:
        run(options.checkpoint or invent(Path(place), options.layers, options.width), options.dtype)


if __name__ == "__main__":
    main()
