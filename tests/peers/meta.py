"""Meta's Llama releases, as transformers 4.46 brought them into its own form: one file, or a file for each device."""

from __future__ import annotations

import inspect
import json
import tempfile
import textwrap
from pathlib import Path
from typing import Any

from .case import _lines, tensor, write_case

REQUIREMENTS = ("transformers==4.46.3", "accelerate==1.2.1", "safetensors==0.4.5", "torch==2.13.0")
CODE = "transformers.models.llama.convert_llama_weights_to_hf.write_model"


def given(params: dict[str, int], f: int) -> dict[str, Any]:
    """What Meta's file holds, as the whole model has it; params are those of params.json."""
    d, width = params["dim"], params["dim"] // params["n_heads"]
    kv = params.get("n_kv_heads", params["n_heads"]) * width
    shapes = {"tok_embeddings": (params["vocab_size"], d), "norm": (d,), "output": (params["vocab_size"], d)}
    for i in range(params["n_layers"]):
        shapes |= {f"layers.{i}.{n}": (d,) for n in ("attention_norm", "ffn_norm")}
        shapes |= {f"layers.{i}.attention.w{n}": (r, d) for n, r in (("q", d), ("k", kv), ("v", kv), ("o", d))}
        shapes |= {f"layers.{i}.feed_forward.w{n}": s for n, s in ((1, (f, d)), (2, (d, f)), (3, (f, d)))}
    return {f"{n}.weight": tensor(n, shape, "BF16") for n, shape in shapes.items()}


def cut(name: str, x: Any, ranks: int, llama3: bool) -> list[Any]:
    """Cut a tensor for several devices as fairscale's layers do: columns where a layer adds up, else rows."""
    if name.endswith("norm.weight"):
        return [x] * ranks
    columns = name.endswith(("attention.wo.weight", "w2.weight")) or (name.startswith("tok_") and not llama3)
    return [part.clone() for part in x.chunk(ranks, dim=1 if columns else 0)]


def convert(parts: list[dict[str, Any]], params: dict[str, Any], version: str) -> dict[str, Any]:
    """Run the script on files, as its users do, and read what it wrote."""
    import torch
    from safetensors.torch import load_file
    from transformers.models.llama.convert_llama_weights_to_hf import write_model

    with tempfile.TemporaryDirectory() as temporary:
        there, made = Path(temporary) / "meta", Path(temporary) / "hf"
        there.mkdir()
        (there / "params.json").write_text(json.dumps(params))
        for k, part in enumerate(parts):
            torch.save(part, there / f"consolidated.{k:02}.pth")
        write_model(
            str(made), str(there), llama_version=version, vocab_size=params["vocab_size"], num_shards=len(parts)
        )
        return load_file(made / "model.safetensors")


def weights_only(source: str) -> int:
    """Count the lines that move weights: the script writes configs too."""
    return _lines(textwrap.dedent(source[source.index("    # permute for") : source.index("        # Write configs")]))


def case(folder: Path, name: str, version: str, params: dict[str, Any], f: int, ranks: int = 0, **more: Any) -> None:
    from transformers.models.llama.convert_llama_weights_to_hf import compute_intermediate_size, write_model

    assert f == compute_intermediate_size(params["dim"], params["ffn_dim_multiplier"], params["multiple_of"])
    whole = given(params, f)
    if more.get("tied"):  # Meta stores the head all the same
        whole["output.weight"] = whole["tok_embeddings.weight"].clone()
    cuts = {n: cut(n, x, ranks or 1, version == "3") for n, x in whole.items()}
    parts = [{n: cuts[n][k] for n in whole} for k in range(ranks or 1)]
    made = convert(parts, params, version)
    read = {f"{k}/{n}": x for k, part in enumerate(parts) for n, x in part.items()} if ranks else dict(whole)
    if more.get("freqs"):  # the script does not look at it
        read["rope.freqs"] = tensor("rope.freqs", (params["dim"] // params["n_heads"] // 2,), "BF16")
    write_case(
        folder, f"meta/{name}", read, made, peer="transformers", code=CODE, count=weights_only(inspect.getsource(write_model)), config=params,
        back=read if more.get("tied") else None,
        flags={"forward": [], "reverse": ["--set", f"n_rank={ranks}"]} if ranks else (),
    )  # fmt: skip


def main(folder: Path) -> None:
    """Write the cases: 11 layers in one file, 12 devices with 3 layers; what differs otherwise, smaller."""
    one = {"dim": 24, "n_layers": 11, "n_heads": 4, "vocab_size": 10, "norm_eps": 1e-5}
    one |= {"multiple_of": 2, "ffn_dim_multiplier": 0.21}
    case(folder, "llama", "3", one | {"n_kv_heads": 2}, 14)
    case(folder, "llama@llama2", "2", one | {"n_layers": 3}, 14, freqs=True)
    case(folder, "llama_tied", "3.2", one | {"n_kv_heads": 2, "n_layers": 5}, 14, tied=True)
    many = {"dim": 48, "n_layers": 3, "n_heads": 24, "n_kv_heads": 12, "vocab_size": 36, "norm_eps": 1e-5}
    many |= {"multiple_of": 12, "ffn_dim_multiplier": 0.19}
    case(folder, "llama3_ranks", "3", many, 24, ranks=12)
    case(folder, "llama2_ranks", "2", many, 24, ranks=12)
