"""Tensors that are one: absent or stored, equal or not, in a file, a pickle or on the way back."""

import json

import numpy as np
import pytest
from lab import arr, metadata, read

from .field import KEEP, column, f32

EMBED = "model.embed_tokens.weight"
TIED = f"""
rules:
  - {{from: {EMBED}, to: tok.weight, shape: v d}}
  - {{from: lm_head.weight, to: head.weight, shape: v d, tied: {EMBED}}}
"""
NOT_TIED = TIED.replace(f", tied: {EMBED}", "")


def data_bytes(case):
    return sum(x.nbytes for x in read(case.output).values())


def test_tie_01_head_absent(case):
    e = arr(3, 2)
    case.gives(TIED, {EMBED: e}, {"tok.weight": e}, "--report", case / "r.json")
    assert [t["name"] for t in json.loads((case / "r.json").read_text())["tied"]] == ["lm_head.weight"]
    r = case.gives(TIED, {EMBED: e}, {"tok.weight": e})
    assert f"tied: lm_head.weight = {EMBED}" in r.out
    assert metadata(case.output)["head.weight"] == "tok.weight"
    case.gives(TIED, {EMBED: e}, {"tok.weight": e, "head.weight": e}, "--tied", "copy")
    stored = TIED.replace(f"tied: {EMBED}", f"tied: {{name: {EMBED}, to: copy}}")
    case.gives(stored, {EMBED: e}, {"tok.weight": e, "head.weight": e})
    case.refused(NOT_TIED, {EMBED: e}, 1, "lm_head.weight: missing from the input", f"tied: {EMBED}")


def test_tie_03_head_differs(case):
    given = {EMBED: column(1, 2), "lm_head.weight": column(1, 3)}
    says = [f"lm_head.weight: differs from {EMBED}", "1 of 2 elements, first at [1, 0]", "the map ties them"]
    case.refused(TIED, given, 1, *says, data=True)
    want = {"tok.weight": column(1, 2), "head.weight": column(1, 3)}
    case.gives(NOT_TIED, given, want)
    # What says that they are two, after all.
    case.gives(TIED, given, want, "--untie")
    case.gives(TIED.replace(f"tied: {EMBED}", f"tied: {EMBED}, untied: keep"), given, want)
    (case / "config.json").write_text('{"tie_word_embeddings": false}')
    case.gives(TIED, given, want)
    case.refused(TIED, {EMBED: column(1, 2)}, 1, "lm_head.weight: missing from the input", "tie_word_embeddings")


THREE = """
rules:
  - {from: shared.weight, to: shared, shape: v d}
  - {from: encoder.embed_tokens.weight, to: encoder, shape: v d, tied: {name: shared.weight, to: copy}}
  - {from: decoder.embed_tokens.weight, to: decoder, shape: v d, tied: {name: shared.weight, to: copy}}
  - {from: lm_head.weight, to: head, shape: v d}
"""


def test_tie_05_three_way(case):
    e, head = column(250, 251), column(1, 2)
    given = {"decoder.embed_tokens.weight": e, "lm_head.weight": head}
    case.gives(THREE, given, {"shared": e, "encoder": e, "decoder": e, "head": head})
    two = given | {"encoder.embed_tokens.weight": e + 1}
    case.refused(THREE, two, 1, "differs from", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", data=True)
    says = ["shared.weight: missing from the input", "encoder.embed_tokens.weight, decoder.embed_tokens.weight"]
    case.refused(THREE, {"lm_head.weight": head}, 1, *says)


def test_tie_06_shared_storage_pickle(case):
    torch = pytest.importorskip("torch")
    e = torch.arange(6, dtype=torch.float32).reshape(3, 2)
    path = case.saved({"wte.weight": e, "lm_head.weight": e})
    r = case.gives(KEEP, path, {"wte.weight": arr(3, 2), "lm_head.weight": arr(3, 2)})
    assert r.err == ""
    assert data_bytes(case) == 48
    tied = "rules: [{from: wte.weight, to: wte.weight}, {from: lm_head.weight, to: lm_head.weight, tied: wte.weight}]"
    r = case.gives(tied, path, {"wte.weight": arr(3, 2)})
    assert data_bytes(case) == 24
    assert "1 tied" in r.out


def test_tie_07_empty_is_not_shared(case):
    torch = pytest.importorskip("torch")
    path = case.saved({"a": torch.empty(0), "b": torch.empty(0, 4), "c": torch.ones(1)})
    r = case.gives(KEEP, path, {"a": f32().reshape(0), "b": f32().reshape(0, 4), "c": f32(1)})
    assert "tied:" not in r.out
    assert "0 tied" in r.out
    case.refused(
        KEEP, case.saved({"m": torch.ones(2, device="meta"), "n": torch.ones(2, device="meta")}), 3, "m: is meta"
    )


def test_tie_08_compare_on_bytes(case):
    text = TIED.replace("shape: v d", "shape: v")
    nan, negative = f32(np.nan, 0.0), f32(np.nan, -0.0)
    case.gives(text, {EMBED: nan, "lm_head.weight": nan}, {"tok.weight": nan})
    says = "1 of 2 elements, first at [1]: -0.0 and 0.0"
    case.refused(text, {EMBED: nan, "lm_head.weight": negative}, 1, says, data=True)


def test_tie_09_reverse_direction(case):
    e = column(1, 2)
    for text, want in (
        (TIED.replace(f"tied: {EMBED}", f"tied: {{name: {EMBED}, from: copy}}"), {EMBED: e, "lm_head.weight": e}),
        (TIED, {EMBED: e}),
    ):
        case.gives(text, {"tok.weight": e}, want, "--reverse")
        case.gives(text, want, {"tok.weight": e})
        case.converts(text, read(case.output), "--reverse")
        assert read(case.output).keys() == want.keys()
    # A file that stores the head, of a map that leaves it out: the way back with copies has the names of the input again.
    both = {EMBED: e, "lm_head.weight": e}
    case.gives(TIED, both, {"tok.weight": e})
    case.gives(TIED, read(case.output), both, "--reverse", "--tied", "copy")
