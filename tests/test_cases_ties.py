"""Ties as people have met them: reported situations, reduced to tiny inputs, each with the right result."""

import json

import numpy as np
import pytest
from lab import Lab, arr, read

EMBED = "model.embed_tokens.weight"
TIED = f"""
rules:
  - {{from: {EMBED}, to: tok.weight, shape: v d}}
  - {{from: lm_head.weight, to: head.weight, shape: v d, tied: {EMBED}}}
"""
NOT_TIED = TIED.replace(f", tied: {EMBED}", "")


def f32(*rows):
    return np.array(rows, "<f4")


@pytest.fixture
def lab(tmp_path):
    return Lab(tmp_path)


def written(lab):
    return {k: v.tolist() for k, v in read(lab / "out.safetensors").items()}


def test_tie_01_a_head_that_is_absent(lab):
    e = arr(3, 2)
    r, _ = lab.convert(TIED, {EMBED: e}, "--report", lab / "r.json")
    assert r.code == 0
    assert written(lab) == {"tok.weight": e.tolist()}
    assert [t["name"] for t in json.loads((lab / "r.json").read_text())["tied"]] == ["lm_head.weight"]
    r, _ = lab.convert(TIED, {EMBED: e}, "--tied", "copy")
    assert written(lab) == {"tok.weight": e.tolist(), "head.weight": e.tolist()}
    err = lab.fails(NOT_TIED, {EMBED: e}, 1, "lm_head.weight: missing from the input")
    assert f"tied: {EMBED}" in err, "the tie rule is suggested"


def test_tie_03_a_head_that_differs(lab):
    tensors = {EMBED: f32([1], [2]), "lm_head.weight": f32([1], [3])}
    lab.fails(
        TIED, tensors, 1, "lm_head.weight: differs from model.embed_tokens.weight", "1 of 2 elements, first at [1, 0]"
    )
    lab.convert(NOT_TIED, tensors)
    assert written(lab) == {"tok.weight": [[1], [2]], "head.weight": [[1], [3]]}


THREE = """
rules:
  - {from: shared.weight, to: shared, shape: v d}
  - {from: encoder.embed_tokens.weight, to: encoder, shape: v d, tied: {name: shared.weight, to: copy}}
  - {from: decoder.embed_tokens.weight, to: decoder, shape: v d, tied: {name: shared.weight, to: copy}}
  - {from: lm_head.weight, to: head, shape: v d}
"""


def test_tie_05_three_names_of_one_tensor(lab):
    e, head = f32([250], [251]), f32([1], [2])
    lab.convert(THREE, {"decoder.embed_tokens.weight": e, "lm_head.weight": head})
    assert written(lab) == {k: e.tolist() for k in ("shared", "encoder", "decoder")} | {"head": head.tolist()}
    two = {"decoder.embed_tokens.weight": e, "encoder.embed_tokens.weight": e + 1, "lm_head.weight": head}
    lab.fails(THREE, two, 1, "differs from")
    err = lab.fails(THREE, {"lm_head.weight": head}, 1, "shared.weight: missing from the input")
    assert "encoder.embed_tokens.weight, decoder.embed_tokens.weight" in err, "the whole set is listed"


def test_tie_08_bytes_are_compared_and_not_values(lab):
    flat = TIED.replace("shape: v d", "shape: v")
    nan = np.array([np.nan, 0.0], "<f4")
    lab.convert(flat, {EMBED: nan, "lm_head.weight": nan})
    lab.fails(flat, {EMBED: nan, "lm_head.weight": np.array([np.nan, -0.0], "<f4")}, 1, "1 of 2 elements")


@pytest.mark.parametrize("stored", [True, False])
def test_tie_09_the_way_back_stores_what_the_map_says(lab, stored):
    m = TIED.replace(f"tied: {EMBED}", f"tied: {{name: {EMBED}, from: copy}}") if stored else TIED
    e = f32([1], [2])
    lab.convert(m, {"tok.weight": e}, "--reverse")
    assert written(lab) == {EMBED: e.tolist()} | ({"lm_head.weight": e.tolist()} if stored else {})
