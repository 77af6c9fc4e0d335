"""`--verify`: a bit that flips anywhere in what was written is found, whatever the rule; what holds is summed up."""

import hashlib
import json
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from lab import Lab, arr, encode, read, write

import converter
from converter import proof
from converter.formats import Output

BF16 = np.dtype(ml_dtypes.bfloat16)
E = {"e": arr(3, 2, start=1)}
F8 = {"w": np.arange(1, 7).reshape(2, 3).astype(ml_dtypes.float8_e4m3fn), "s": arr(1, 2, start=2)}
PLAIN = "rules: [{from: e, to: E, shape: v d}]"

# For each way in which an output can come about: a map, an input, flags, and what the proof says of it.
CASES = {
    "rename": (PLAIN, E, [], "1 input tensor came back"),
    "drop": ("drop: {from: [x]}\n" + PLAIN, E | {"x": arr(2)}, [], "1 input tensor came back"),
    "kept by --unmatched": (PLAIN, E | {"x": arr(2)}, ["--unmatched", "keep"], "2 input tensors came back"),
    "transpose": ("rules: [{from: e, to: E, shape: v d, ops: [transpose]}]", E, [], "1 input tensor came back"),
    "concat": (
        "rules: [{from: [a, b], to: E, shape: [v d, v d], ops: [{concat: 1}]}]",
        {"a": arr(2, 2), "b": arr(2, 2, start=9)},
        [],
        "2 input tensors came back",
    ),
    "stack": (
        "indices: {i: n}\nrules: [{from: 'h.{i}', to: E, shape: d, ops: [{stack: {over: i, dim: 1}}]}]",
        {f"h.{i}": arr(2, start=5 * i) for i in range(11)},
        [],
        "11 input tensors came back",
    ),
    "split": (
        "rules: [{from: e, to: [a, b], shape: 3 d, ops: [{split: {dim: 0, sizes: [1, 2]}}]}]",
        E,
        [],
        "1 input tensor came back",
    ),
    "cast that rounds": (PLAIN, {"e": arr(3, 1) / 7}, ["--dtype", "bfloat16"], "1 output tensor was computed again"),
    "cast that widens": (PLAIN, {"e": arr(3, 1, dtype=BF16)}, ["--dtype", "float32"], "1 input tensor came back"),
    "widened and transposed": (
        "rules: [{from: [a, b], to: E, shape: [v d, v d], ops: [{concat: 0}, transpose], dtype: {to: float32}}]",
        {"a": arr(2, 2, dtype=BF16), "b": arr(2, 2, start=9)},
        [],
        "2 input tensors came back",
    ),
    "pad": ("rules: [{from: e, to: E, shape: v d, ops: [{pad: {dim: 0, to: 5, value: 2}}]}]", E, [], "1 input tensor"),
    "pad taken off": (
        "rules: [{from: E, to: e, shape: v d, ops: [{pad: {dim: 0, to: 3}}]}]",
        {"e": np.concatenate([arr(2, 2, start=1), np.zeros((1, 2), "<f4")])},
        ["--reverse", "--set", "v=2"],
        "1 input tensor came back",
    ),
    "replicate": ("rules: [{from: e, to: [a, b, c], shape: v d, ops: [replicate]}]", E, [], "1 input tensor came back"),
    "same": (
        "rules: [{from: [a, b], to: E, shape: [v d, v d], ops: [same]}]",
        {"a": E["e"], "b": E["e"]},
        [],
        "2 input tensors came back",
    ),
    "trim": (
        "rules: [{from: e, to: E, shape: v d, ops: [{trim: {dim: 0, to: 2}}]}]",
        E,
        [],
        "1 output tensor was computed again",
    ),
    "arithmetic": (
        "rules: [{from: e, to: E, shape: v d, ops: [{add: 1}]}]",
        E,
        [],
        "1 output tensor was computed again",
    ),
    "dequantize": (
        "rules: [{from: [w, s], to: W, shape: [r c, p q], dtype: {from: float8_e4m3fn, to: bfloat16},"
        " ops: [{dequantize: {block: [2, 2]}}]}]",
        F8,
        [],
        "1 output tensor was computed again",
    ),
    "dequantize and keep the scale": (
        "rules: [{from: [w, s], to: [W, {name: S, dtype: keep}], shape: [r c, p q],"
        " dtype: {from: float8_e4m3fn, to: bfloat16}, ops: [{dequantize: {block: [2, 2]}}]}]",
        F8,
        [],
        "2 input tensors came back",
    ),
    "fill": (
        "rules: [{from: e, to: E, shape: v d}, {to: m, shape: v v, fill: causal_mask, dtype: bool},"
        " {to: r, shape: v, fill: arange, dtype: int64}, {to: c, shape: v, fill: 0.5, dtype: float16}]",
        E,
        [],
        "1 input tensor came back from it bit for bit and 3 output tensors were computed again",
    ),
    "tied, an alias": (
        "rules: [{from: e, to: E, shape: v d}, {from: h, to: H, shape: v d, tied: e}]",
        E | {"h": E["e"]},
        [],
        "1 input tensor came back",
    ),
    "tied, a copy": (
        "rules: [{from: e, to: E, shape: v d}, {from: h, to: H, shape: v d, tied: e}]",
        E,
        ["--tied", "copy"],
        "2 input tensors came back",
    ),
    "tied with ops of its own": (
        "rules: [{from: e, to: E, shape: v d}, {from: h, to: H, shape: v d, ops: [transpose], tied: e}]",
        E,
        [],
        "2 input tensors came back",
    ),
    "a rename that is one-way": (
        r"rules: [{match: '(?P<a>[a-z])(?P<n>[0-9]*)', to: 'x{a}'}]",
        {"e12": E["e"]},
        [],
        "1 input tensor came back",
    ),
    "no tensors": (PLAIN.replace("v d}", "v d, optional: true}"), {}, [], "0 input tensors came back"),
    "an empty tensor": (PLAIN, {"e": np.zeros((0, 2), "<f4")}, [], "1 input tensor came back"),
}


def flip(fd, at, bit):
    (byte,) = os.pread(fd, 1, at)
    os.pwrite(fd, bytes([byte ^ 1 << bit]), at)


@pytest.fixture
def spoil(monkeypatch):
    """Prove again and again, each time with another bit flipped; gives the list of (file, byte) that were not found."""
    missed, tried = [], []
    real = proof.prove

    def prove(plan, lowering, checkpoint, output, jobs, memory):
        monkeypatch.setattr(Output, "settle", lambda self: None)
        for k, path in enumerate(output._paths):
            size = path.stat().st_size
            head = output.layout.files[k].header_bytes if k < len(output.layout.files) else b" " * size
            for at in [*range(0, len(head), 7), *range(len(head), size)]:
                flip(output.fd(k), at, at % 8)
                tried.append((k, at))
                if not real(plan, lowering, checkpoint, output, jobs, memory).problems:
                    missed.append((k, at))
                flip(output.fd(k), at, at % 8)
        return real(plan, lowering, checkpoint, output, jobs, memory)

    monkeypatch.setattr(proof, "prove", prove)
    return tried, missed


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_a_flipped_bit_is_found_wherever_it_is(tmp_path, spoil, name, shards):
    text, tensors, flags, says = CASES[name]
    tried, missed = spoil
    lab = Lab(tmp_path)
    write(lab.source, tensors)
    output = tmp_path / "o" if shards else lab.output
    r = lab.run(
        "--map", lab.map(text), lab.source, output, "--verify", "--jobs", "1", *flags,
        *(["--max-shard-size", "9B"] if shards else []),
    )  # fmt: skip
    assert r.code == 0, r.err
    assert f"verified: the output was read back: {says}" in r.out
    assert missed == []
    written = sorted(p for p in (output.iterdir() if shards else [output]))
    assert len(tried) > sum(p.stat().st_size for p in written) / 8
    assert {k for k, _ in tried} == set(range(len(written)))


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("size", [-1, 1, -20])
def test_a_lost_tail_is_found(tmp_path, monkeypatch, size, shards):
    lab = Lab(tmp_path)
    write(lab.source, E | {"f": arr(5)})
    lab.map("rules: [{match: '(?P<n>.+)', to: 'x.{n}'}]")
    real = Output.settle
    name = "model-00002-of-00002.safetensors" if shards else lab.output.name

    def cut(self):
        path = self._paths[1 if shards else 0]
        os.truncate(path, path.stat().st_size + size)
        real(self)

    monkeypatch.setattr(Output, "settle", cut)
    before = sorted(tmp_path.iterdir())
    output = tmp_path / "o" if shards else lab.output
    r = lab.run(
        "--map", lab / "map.yaml", lab.source, output, "--verify", *(["--max-shard-size", "24B"] if shards else [])
    )
    assert r.code == 3
    first, last = r.err.splitlines()
    name = name if shards else "model.safetensors"
    assert first.startswith(f"{name}: the file that was read back has ")
    assert last.startswith("nothing was written: ")
    assert sorted(tmp_path.iterdir()) == before


def test_what_is_found_is_told_and_nothing_is_left(tmp_path, monkeypatch):
    lab = Lab(tmp_path)
    write(lab.source, E)
    lab.map(PLAIN)
    real = Output.settle

    def spoil(self):
        flip(self.fd(0), self.layout.size - 1, 0)
        real(self)

    monkeypatch.setattr(Output, "settle", spoil)
    before = sorted(tmp_path.iterdir())
    r = lab.run("--map", lab / "map.yaml", lab.source, lab.output, "--verify", "--report", lab / "report.json")
    assert (r.code, r.out) == (3, "")
    problem = "e: the output, read back, differs from the input (1 of 6 elements, first at [2, 1])"
    assert r.err.splitlines()[0] == problem
    assert sorted(tmp_path.iterdir()) == sorted([*before, lab / "report.json"])
    doc = json.loads((lab / "report.json").read_text())
    assert (doc["problems"], doc["files"], doc["checksum"], doc["verified"]) == ([problem], [], "", "")


def test_the_report_has_the_checksum_of_each_file_and_of_the_run(tmp_path):
    lab = Lab(tmp_path)
    write(lab.source, E | {"f": arr(5)})
    lab.map("rules: [{match: '(?P<n>.+)', to: 'x.{n}'}]")
    one = converter.convert(lab.source, lab.output, lab / "map.yaml", verify=True)
    digest = hashlib.sha256(lab.output.read_bytes()).hexdigest()
    assert [tuple(vars(f).values()) for f in one.files] == [("", lab.output.stat().st_size, digest)]
    assert one.checksum == digest
    r = lab.run("--map", lab / "map.yaml", lab.source, lab.output, "--verify", "--force")
    assert f"sha256: {digest}\n" in r.out
    r = lab.run(
        "--map", lab / "map.yaml", lab.source, tmp_path / "o", "--verify", "--max-shard-size", "24B",
        "--report", lab / "r.json",
    )  # fmt: skip
    doc = json.loads((lab / "r.json").read_text())
    names = sorted(p.name for p in (tmp_path / "o").iterdir())
    assert len(names) == 3
    sums = {n: hashlib.sha256((tmp_path / "o" / n).read_bytes()).hexdigest() for n in names}
    assert {f["name"]: f["sha256"] for f in doc["files"]} == sums
    assert {f["name"]: f["bytes"] for f in doc["files"]} == {n: (tmp_path / "o" / n).stat().st_size for n in names}
    listing = "".join(f"{f['sha256']}  {f['name']}\n" for f in doc["files"])
    assert doc["checksum"] == hashlib.sha256(listing.encode()).hexdigest()
    assert f"sha256: {doc['checksum']} of the sums of 3 files\n" in r.out
    plain = converter.convert(lab.source, lab.output, lab / "map.yaml", force=True)
    assert (plain.files, plain.checksum) == ((), "")


def test_the_output_is_synced_and_forgotten_before_it_is_read(tmp_path, monkeypatch):
    lab = Lab(tmp_path)
    write(lab.source, E)
    calls, sync, advise, execute = [], os.fsync, os.posix_fadvise, proof.execute
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append("sync") or sync(fd))
    monkeypatch.setattr(os, "posix_fadvise", lambda *a: calls.append(("forget", a[3])) or advise(*a))
    monkeypatch.setattr(proof, "execute", lambda *a, **k: calls.append("compare") or execute(*a, **k))
    converter.convert(lab.source, lab.output, lab.map(PLAIN), verify=True)
    assert calls[:3] == ["sync", ("forget", os.POSIX_FADV_DONTNEED), "compare"]


def test_an_input_that_changes_during_the_proof_is_told_as_that(tmp_path, monkeypatch):
    lab = Lab(tmp_path)
    write(lab.source, E)
    real = proof.prove

    def prove(*args):
        lab.source.write_bytes(encode({"e": arr(3, 2, start=50)}))
        return real(*args)

    monkeypatch.setattr(proof, "prove", prove)
    r = lab.run("--map", lab.map(PLAIN), lab.source, lab.output, "--verify")
    assert r.code == 3
    assert r.err.startswith("in.safetensors: was changed while it was in use")
    assert not lab.output.exists()


def test_large_tensors_are_proved_in_parts(tmp_path, monkeypatch):
    """More data than memory, on several threads, with the only wrong bit in the last element."""
    lab = Lab(tmp_path)
    x = arr(1200, 700)
    write(lab.source, {"e": x})
    lab.map("rules: [{from: e, to: E, shape: v d, ops: [transpose]}]")
    flags = ["--verify", "--memory", "1MiB", "--jobs", "3", "--force"]
    assert lab.run("--map", lab / "map.yaml", lab.source, lab.output, *flags).code == 0
    assert read(lab.output)["E"].tobytes() == x.T.tobytes()
    real = Output.settle
    monkeypatch.setattr(Output, "settle", lambda self: (flip(self.fd(0), self.layout.size - 4, 0), real(self)))
    r = lab.run("--map", lab / "map.yaml", lab.source, lab.output, *flags)
    assert r.code == 3
    assert "1 of 840000 elements, first at [1199, 699]" in r.err
    assert Path(lab.output).exists(), "what was there before"
