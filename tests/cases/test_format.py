"""A safetensors file, byte by byte: what is none, what is refused, what is kept."""

import io
import json
import os
import struct
import subprocess
import sys
import zipfile

import ml_dtypes
import numpy as np
import pytest
from lab import arr, encode, header, metadata, read

from .field import KEEP, f32, raw
from .test_shard import folder

ONE = raw("<f4", "0000803f", 1)


def blob(text, data=""):
    """A file with this header, as it is, and these bytes in hex."""
    text = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(text)) + text + bytes.fromhex(data)


def tensor(name, dtype, shape, offsets):
    return f'"{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}'


def test_format_01_empty_and_tiny(case):
    for data, says in (
        (b"", "too short for a safetensors file: 0 bytes"),
        (bytes(7), "too short for a safetensors file: 7 bytes"),
        (bytes(8), "empty header"),
    ):
        err = case.refused(KEEP, data, 3, "in.safetensors: ", says)
        assert len(err.splitlines()) == 1


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 548105171\n"


def test_format_02_lfs_pointer(case):
    assert len(POINTER) == 134
    says = ["is a Git LFS pointer, not the weights", "git lfs pull", "download it again"]
    case.refused(KEEP, POINTER, 3, "in.safetensors: ", *says)
    (case / "pytorch_model.bin").write_bytes(POINTER)
    case.refused(KEEP, case / "pytorch_model.bin", 3, "pytorch_model.bin: ", *says)
    for kind in ("safetensors", "bin"):
        given = folder(case, {"w": f"s1.{kind}"}, {})
        (given / "model.safetensors.index.json").rename(given / f"model.{kind}.index.json")
        (given / f"s1.{kind}").write_bytes(POINTER)
        case.refused(KEEP, given, 3, f"s1.{kind}: ", *says)


def test_format_06_header_cap(case, monkeypatch):
    case.source.write_bytes(struct.pack("<Q", 100_000_001))
    os.truncate(case.source, 8 + 100_000_001)
    case.refused(KEEP, case.source, 3, "100000001", "limit of 100000000 bytes")
    # What is written is held to the same limit, before anything is: here names grow.
    monkeypatch.setattr("converter.formats.shards.MAX_HEADER", 1000)
    text = r"rules: [{match: '(?P<n>.+)', to: '{n}{n}{n}{n}{n}'}]"
    case.refused(text, {"x" * 200: f32(1)}, 3, "its header would take ", "more than the limit of 1000")


def test_format_07_duplicate_name_same_range(case):
    twice = "{" + tensor("w", "I32", [1], "[0,4]") + "," + tensor("w", "F32", [1], "[0,4]") + "}"
    case.refused(KEEP, blob(twice, "0000803f"), 3, "duplicate name w")
    case.refused(KEEP, blob(twice.replace("[0,4]", "[4,8]", 1), "0000803f 00000040"), 3, "duplicate name w")


def test_format_09_overlap(case):
    for b, data in (("[4,12]", "0000803f 00000040 00004040"), ("[0,8]", "0000803f 00000040")):
        text = "{" + tensor("a", "F32", [2], "[0,8]") + "," + tensor("b", "F32", [2], b) + "}"
        case.refused(KEEP, blob(text, data), 3, "data_offsets overlap: a [0, 8] and b ")


def test_format_11_trailing_bytes(case):
    data = blob("{" + tensor("a", "F32", [1], "[0,4]") + "}", "0000803f") + b"JUNK"
    err = case.refused(KEEP, data, 3, "4 bytes after the last tensor")
    assert "truncated" not in err


def test_format_13_size_vs_shape(case):
    short = blob("{" + tensor("a", "F32", [3], "[0,8]") + "}", "0000803f 00000040")
    case.refused(KEEP, short, 3, "a: F32 of shape [3] needs 12 bytes", "hold 8")
    turned = blob("{" + tensor("a", "F32", [1], "[4,0]") + "}", "0000803f")
    case.refused(KEEP, turned, 3, "a: ", "[4, 0]")


def test_format_14_shape_overflow(case):
    for shape in (f"[{2**62},4]", f"[{2**62},4,0]", f"[{2**63},0]", f"[0,{2**62},4]"):
        case.refused(KEEP, blob("{" + tensor("a", "F32", shape, "[0,0]") + "}"), 3, "a: shape ", "63 bits")


def test_format_15_json_number_kinds(case):
    for shape in ("[-1]", "[1.0]", "[1e0]", "[true]", "[NaN]", '["4"]', "[Infinity]", "[-0]"):
        err = case.refused(KEEP, blob("{" + tensor("a", "F32", shape, "[0,4]") + "}", "0000803f"), 3, "a", "shape")
        assert len(err.splitlines()) == 1
    for offsets in ('["0","4"]', "[0,4,8]", "[0]", "[false,4]", "[0,4.0]"):
        case.refused(KEEP, blob("{" + tensor("a", "F32", [1], offsets) + "}", "0000803f"), 3, "a", "data_offsets")


EMPTY = (
    "{"
    + tensor("a", "F32", "[2,0]", "[0,0]")
    + ","
    + tensor("b", "F32", [1], "[0,4]")
    + ","
    + tensor("c", "I64", [0], "[4,4]")
    + "}"
)


def test_format_16_zero_size(case):
    nothing, c = f32().reshape(2, 0), np.zeros(0, "<i8")
    given = blob(EMPTY, "0000803f")
    case.gives(KEEP, given, {"a": nothing, "b": ONE, "c": c})
    for offsets in ("[0,0]", "[4,4]"):
        case.gives(KEEP, blob(EMPTY.replace("[4,4]", offsets), "0000803f"), {"a": nothing, "b": ONE, "c": c})
    turn = "rules: [{from: a, to: a, shape: x y, ops: [transpose]}, {from: b, to: b}, {from: c, to: c}]"
    case.gives(turn, given, {"a": f32().reshape(0, 2), "b": ONE, "c": c})
    stack = "indices: {i: n}\nrules: [{from: 'e.{i}', to: e, shape: d, ops: [{stack: i}]}]"
    case.both(stack, {"e.0": f32().reshape(0), "e.1": f32().reshape(0)}, {"e": nothing})


def test_format_17_scalar(case):
    given = blob("{" + tensor("s", "F32", "[]", "[0,4]") + "}", "00401cc6")
    case.gives(KEEP, given, {"s": np.array(-10000.0, "<f4")})
    assert header(case.output)["s"]["shape"] == []
    case.gives(KEEP, given, {"s": np.array(-10000.0, "<f2")}, "--dtype", "float16")
    case.gives("rules: [{from: s, to: t, shape: []}]", given, {"t": np.array(-10000.0, "<f4")})
    case.refused("rules: [{from: s, to: s, ops: [transpose]}]", given, 1, "s: ", "[]", "transpose")
    case.refused("rules: [{from: s, to: [a, b], ops: [{split: {dim: 0, sizes: [1, 1]}}]}]", given, 1, "s: ", "[]")


def test_format_18_metadata_not_text(case):
    def given(value):
        return blob(f'{{"__metadata__":{value},' + tensor("w", "F32", [1], "[0,4]") + "}", "0000803f")

    for value, says in (('{"step":7}', "step"), ('{"a":{"b":"c"}}', "a"), ("[]", "[]"), ("7", "7")):
        err = case.refused(KEEP, given(value), 3, "__metadata__", says)
        assert len(err.splitlines()) == 1
    case.gives(KEEP, given("null"), {"w": ONE})
    assert metadata(case.output) == {"format": "pt"}
    # A map has no word for metadata: they are the file's. A number cannot get there.
    case.refused("metadata: {step: 7}\n" + KEEP, given("null"), 2, "map.yaml:3: unknown key 'metadata'")
    case.texts.pop()  # it lists every key that there is


def test_format_19_metadata_kept(case):
    torch = pytest.importorskip("torch")
    w = tensor("w", "F32", [1], "[0,4]")
    case.gives(KEEP, blob('{"__metadata__":{"format":"pt","license":"x"},' + w + "}", "0000803f"), {"w": ONE})
    assert metadata(case.output) == {"format": "pt", "license": "x"}
    for given in (blob("{" + w + "}", "0000803f"), case.saved({"w": torch.ones(1)})):
        case.gives(KEEP, given, {"w": ONE})
        assert metadata(case.output) == {"format": "pt"}


def test_format_21_header_order(case):
    text = "{" + tensor("z", "F32", [1], "[4,8]") + "," + tensor("a", "F32", [1], "[0,4]") + "}"
    case.gives(KEEP, blob(text, "0000803f 00000040"), {"a": f32(1), "z": f32(2)})
    first = case.output.read_bytes()
    text = "{" + tensor("a", "F32", [1], "[0,4]") + "," + tensor("z", "F32", [1], "[4,8]") + "}"
    case.gives(KEEP, blob(text, "0000803f 00000040"), {"a": f32(1), "z": f32(2)})
    assert case.output.read_bytes() == first


def test_format_22_header_padding(case):
    text = ("{" + tensor("a", "F32", [1], "[0,4]") + "}").encode()
    case.gives(KEEP, blob(text + b" " * 6, "0000803f"), {"a": ONE})
    for odd, says in (
        (text + bytes(3), "NUL"),
        (b"\xef\xbb\xbf" + text, "byte order mark"),
        (b"  " + text, "must begin with '{'"),
    ):
        err = case.refused(KEEP, blob(odd, "0000803f"), 3, "in.safetensors: ", says)
        assert len(err.splitlines()) == 1


def test_format_26_no_tensors(case):
    for text, kept in (('{"__metadata__":{"format":"pt"}}', {"format": "pt"}), ("{}", {"format": "pt"})):
        r = case.gives(KEEP, blob(text), {})
        assert "note: in.safetensors: holds no tensors" in r.err
        assert metadata(case.output) == kept
        named = "rules: [{from: a, to: b}, {from: c, to: d}]"
        case.refused(named, blob(text), 1, "a: missing from the input", "c: missing from the input", "2 missing")


def test_format_28_endianness(case):
    torch = pytest.importorskip("torch")
    text = "{" + ",".join(
        [tensor("a", "F32", [1], "[0,4]"), tensor("b", "BF16", [1], "[4,6]"), tensor("c", "I64", [1], "[6,14]")]
    ) + "}"  # fmt: skip
    want = {"a": f32(1), "b": np.ones(1, ml_dtypes.bfloat16), "c": np.array([258], "<i8")}
    case.gives(KEEP, blob(text, "0000803f 803f 0201000000000000"), want)
    # There is no input in memory; what comes in big-endian order is a pickle that says so.
    buffer = io.BytesIO()
    torch.save({"a": torch.ones(1), "c": torch.tensor([258])}, buffer)
    with zipfile.ZipFile(buffer) as given, zipfile.ZipFile(case / "in.pt", "w") as made:
        swapped = {
            "byteorder": b"big",
            "data/0": bytes.fromhex("3f800000"),
            "data/1": bytes.fromhex("0000000000000102"),
        }
        for info in given.infolist():
            made.writestr(info.filename, swapped.get(info.filename.split("/", 1)[1], given.read(info)))
    case.gives(KEEP, case / "in.pt", {"a": f32(1), "c": np.array([258], "<i8")})
    case.gives(
        "rules: [{from: a, to: a}, {from: c, to: c, dtype: int32}]",
        case / "in.pt",
        {"a": f32(1), "c": np.array([258], "<i4")},
    )


def test_format_29_deterministic(case):
    text = {f"key-{k}": str(k) for k in range(16)}
    case.source.write_bytes(encode({"b": arr(3), "a": arr(2, dtype="<f2"), "c": arr(4)}, text))
    outputs = set()
    for seed in ("1", "77"):
        command = [sys.executable, "-m", "converter", "--map", case.map(KEEP), "--force", case.source, case.output]
        subprocess.run(
            list(map(str, command)), env=os.environ | {"PYTHONHASHSEED": seed}, check=True, capture_output=True
        )
        outputs.add(case.output.read_bytes())
    assert len(outputs) == 1
    assert metadata(case.output) == text
    assert list(read(case.output)) == ["b", "c", "a"]
    assert json.dumps(metadata(case.output)) == json.dumps(text)
