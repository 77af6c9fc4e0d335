"""The command line: what each flag and verb does, exit codes, and what is never left behind, touched or lost."""

import io
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from lab import Lab, arr, encode, header, metadata, read, run, same, shards, write

MAP = """
indices: {i: n}
rules:
  - {from: 'h.{i}.w', to: 'b.{i}.w', shape: p q, ops: [transpose]}
  - {from: e, to: embed, shape: v q}
"""
TENSORS = {"e": arr(7, 3, start=900)} | {f"h.{i}.w": arr(2, 3, start=10 * i) for i in range(12)}
WANT = {"embed": TENSORS["e"]} | {f"b.{i}.w": TENSORS[f"h.{i}.w"].T for i in range(12)}
SUMMARY = "13 tensors converted, 0 dropped, 0 tied, 0 missing, 0 unexpected, 0 mismatched; "


@pytest.fixture
def lab(tmp_path):
    lab = Lab(tmp_path)
    lab.map(MAP)
    write(lab.source, TENSORS)
    return lab


def convert(lab, *flags, source=None, output=None):
    return lab.run("--map", lab / "map.yaml", source or lab.source, output or lab.output, *flags)


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def split(lab, name="shards"):
    names = list(TENSORS)
    return shards(lab / name, [{k: TENSORS[k] for k in names[:5]}, {k: TENSORS[k] for k in names[5:]}])


# The main job


def test_the_last_line_is_one_sentence(lab):
    r = convert(lab)
    assert (r.code, r.err) == (0, "")
    assert r.out.splitlines()[-1].startswith(SUMMARY)
    same(read(lab.output), WANT)


def test_quiet_says_problems_only(lab):
    assert convert(lab, "--quiet") == (0, "", "")
    r = convert(lab, "--quiet")
    assert (r.code, r.out) == (2, "")
    assert "--force" in r.err


def test_dry_run_prints_the_plan_and_writes_nothing(lab):
    before = files(lab.folder)
    for output in ([lab.output], []):
        r = lab.run("--map", lab / "map.yaml", lab.source, *output, "--dry-run")
        assert r.code == 0
        assert "h.{0..11}.w (12) [2, 3] F32" in r.out
        assert "transpose" in r.out
        assert "n = 12 (counted from names" in r.out
        assert "q = 3 (from " in r.out
        assert files(lab.folder) == before


def test_dry_run_counts_one_tensor_as_one(lab):
    write(lab.source, {"a": arr(3)})
    r = lab.run("--map", lab.map("rules: [{from: a, to: b, shape: d}]"), "--dry-run", lab.source)
    assert r.out.splitlines()[-1] == "  1 tensor, 12 bytes"


def test_dry_run_names_what_is_dropped_and_the_data_checks_left(lab):
    lab.map("drop: {from: [x]}\nrules: [{from: e, to: E, shape: v d}, {from: h, to: H, shape: v d, tied: e}]")
    write(lab.source, {"e": arr(3, 2), "h": arr(3, 2, start=1), "x": arr(1)})
    r = lab.run("--map", lab / "map.yaml", lab.source, "--dry-run")
    assert r.code == 0, "the exit code is that of the header checks"
    assert "dropped" in r.out
    assert "x" in r.out
    assert "h" in r.out
    assert convert(lab).code == 1


def test_dry_run_has_the_exit_code_of_the_real_run(lab):
    write(lab.source, {"e": arr(2)})
    assert convert(lab, "--dry-run").code == 1
    assert convert(lab, "--dry-run", output=lab / "o.bin").code == 2
    lab.source.write_bytes(b"abc")
    assert convert(lab, "--dry-run").code == 3


def test_verify(lab):
    r = convert(lab, "--verify")
    assert r.code == 0
    assert "verified" in r.out


def test_verify_claims_no_way_back_where_there_is_none(lab):
    lab.map("rules: [{from: e, to: E, shape: v d, ops: [{trim: {dim: 0, to: 2}}]}]")
    write(lab.source, {"e": arr(3, 2)})
    r = convert(lab, "--verify")
    assert r.code == 0
    assert "turned around" not in r.out


@pytest.mark.parametrize("jobs", ["1", "3", "64"])
@pytest.mark.parametrize("memory", ["1B", "1MB", "2GiB"])
def test_the_output_is_the_same_whatever_the_resources(lab, jobs, memory):
    big = {"e": arr(700, 30), "h.0.w": arr(130, 30)}
    write(lab.source, big)
    assert convert(lab, "--jobs", jobs, "--memory", memory).code == 0
    same(read(lab.output), {"embed": big["e"], "b.0.w": big["h.0.w"].T})


@pytest.mark.parametrize("memory", ["1TB", "99999999TB"])
def test_memory_is_a_bound_and_not_a_wish(lab, memory):
    assert convert(lab, "--memory", memory).code == 0


def test_metadata_is_kept_and_invented_where_there_is_none(lab):
    assert convert(lab).code == 0
    assert metadata(lab.output) == {"format": "pt"}
    write(lab.source, TENSORS, {"license": "x"})
    assert convert(lab, "--force").code == 0
    assert metadata(lab.output) == {"license": "x"}


def test_tensors_lie_by_element_size_and_then_in_the_order_of_the_input(lab):
    lab.map("rules: [{match: '(?P<n>.+)', to: 'x.{n}'}]")
    write(
        lab.source,
        {"b": arr(3, dtype="u1"), "d": arr(2, dtype="<f8"), "h": arr(1, dtype="<f2"), "z": arr(1), "a": arr(1)},
    )
    assert convert(lab).code == 0
    entries = {k: v["data_offsets"][0] for k, v in header(lab.output).items() if k != "__metadata__"}
    assert sorted(entries, key=entries.get) == ["x.d", "x.z", "x.a", "x.h", "x.b"]


# Flags and arguments that are wrong


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "INPUT"),
        (["--map", "map.yaml"], "INPUT"),
        (["in.safetensors", "out.safetensors"], "--map"),
        (["--map", "map.yaml", "in.safetensors"], "OUTPUT"),
        (["--map", "map.yaml", "in.safetensors", "out.safetensors", "x"], "x"),
        (["--map", "map.yaml", "in.safetensors", "out.safetensors", "--revers"], "--reverse"),
        (["--map", "map.yaml", "in.safetensors", "out.safetensors", "--unmatched", "kep"], "keep"),
        (["--map", "map.yaml", "in.safetensors", "out.safetensors", "--tied", "coppy"], "copy"),
        (["--map", "map.yaml", "in.safetensors", "out.safetensors", "--dtype", "flaot32"], "float32"),
        (["--map", "map.yaml", "in.safetensors", "out.safetensors", "--dtype", "int8"], "int8"),
        (["--map", "map.yaml", "in.safetensors", "out.safetensors", "--set", "n"], "NAME=VALUE"),
        (["--map", "map.yaml", "in.safetensors", "out.safetensors", "--set", "nn=3"], "nn"),
        (["--map", "map.yaml", "in.safetensors", "out.safetensors", "--set", "n=12", "--set", "n=12"], "twice"),
        (["--map", "map.yaml", "in.safetensors", "out.safetensors", "--set", "n=[1,"], "JSON"),
        (["--map", "map.yaml", "in.safetensors", "out.safetensors", "--config", "nope.json"], "nope.json"),
        (["--map", "map.yaml", "in.safetensors", "out.safetensors", "--max-shard-size", "5XB"], "5XB"),
        (["--map", "map.yaml", "in.safetensors", "out.safetensors", "--max-shard-size", "0"], "0"),
        (["--map", "map.yaml", "in.safetensors", "out.safetensors", "--max-shard-size", "5GB"], "directory"),
        (["--map", "map.yaml", "in.safetensors", "out.safetensors", "--memory", "lots"], "lots"),
        (["--map", "map.yaml", "in.safetensors", "out.safetensors", "--jobs", "0"], "--jobs"),
        (["--map", "map.yaml", "in.safetensors", "out.safetensors", "--report", "r.txt"], "r.txt"),
        (["--map", "map.yaml", "in.safetensors", "out.safetensors", "--report", "r"], "json"),
        (["--map", "map.yaml", "in.safetensors", "o.bin"], "*.safetensors"),
        (["--map", "map.yaml", "in.safetensors", "o"], "*.safetensors"),
        (["--map", "map.yaml", "in.safetensors", ""], "output"),
        (["--map", "map.yaml", "in.safetensors", "in.safetensors"], "input"),
        (["--map", "map.yaml", "in.safetensors", "./in.safetensors", "--force"], "input"),
        (["--map", "gtp2", "in.safetensors", "out.safetensors"], "gpt2"),
        (["--map", "gpt2.yaml", "in.safetensors", "out.safetensors"], "gpt2"),
        (["--map", ".", "in.safetensors", "out.safetensors"], "folder"),
        (["--map", "in.safetensors", "in.safetensors", "out.safetensors"], "checkpoint"),
        (["--map", "in.safetensors", "map.yaml", "out.safetensors"], "checkpoint"),
        (["inspct", "in.safetensors"], "inspect"),
        (["inspect"], "PATH"),
        (["inspect", "--jsn", "in.safetensors"], "--json"),
        (["check"], "MAPS"),
        (["check", "nope"], "nope"),
        (["maps", "gpt", "no such word"], "no such word"),
        (["stub", "--map", "gpt2"], "OUTPUT"),
        (["stub", "--map", "gpt2", "--side", "hff", "s.safetensors"], "hf"),
        (["stub", "--map", "gpt2", "--set", "dd=4", "s.safetensors"], "dd"),
        (["stub", "--map", "gpt2", "in.safetensors"], "--force"),
    ],
)
def test_a_wrong_command_line_is_2_and_touches_nothing(lab, monkeypatch, arguments, says):
    monkeypatch.chdir(lab.folder)
    before = files(lab.folder)
    r = lab.run(*arguments)
    assert (r.code, r.out) == (2, ""), r
    assert says in r.err, r.err
    assert files(lab.folder) == before


@pytest.mark.parametrize("flag", ["--help", "-h", "--version"])
def test_help(lab, flag):
    r = lab.run(flag)
    assert r.code == 0
    assert r.out


@pytest.mark.parametrize("verb", ["inspect", "check", "stub", "maps"])
def test_help_of_verbs(lab, verb):
    r = lab.run(verb, "--help")
    assert r.code == 0
    assert f"convert {verb}" in r.out


def test_a_file_named_like_a_verb(lab, monkeypatch):
    monkeypatch.chdir(lab.folder)
    shutil.copy(lab.source, lab / "inspect")
    assert lab.run("--map", "map.yaml", "./inspect", "out.safetensors").code == 0


# Inputs


@pytest.mark.parametrize("how", ["directory", "index", "one file in a directory"])
def test_what_an_input_may_be(lab, how):
    source = split(lab)
    if how == "index":
        source = source / "model.safetensors.index.json"
    elif how != "directory":
        source = write(lab / "one" / "x.safetensors", TENSORS).parent
    assert convert(lab, source=source).code == 0
    same(read(lab.output), WANT)


def test_one_shard_of_several(lab):
    source = split(lab)
    r = convert(lab, source=source / "model-00001-of-00002.safetensors")
    assert r.code == 2
    assert "directory" in r.err
    (source / "model.safetensors.index.json").unlink()
    assert convert(lab, source=source / "model-00001-of-00002.safetensors").code == 2
    r = convert(lab, source=source)
    assert r.code == 3
    assert "index" in r.err
    assert "pass one of them" not in r.err, "which would be refused"


def test_weight_files_beside_the_index_are_mentioned(lab):
    source = split(lab)
    write(source / "extra.safetensors", {"z": arr(1)})
    r = convert(lab, source=source)
    assert r.code == 0
    assert "note: " in r.err
    assert "extra.safetensors" in r.err


def test_safetensors_of_another_name_is_read_with_a_note(lab):
    shutil.copy(lab.source, lab / "x.bin")
    r = convert(lab, source=lab / "x.bin")
    assert r.code == 0
    assert "note: x.bin: " in r.err


TEXTS = {
    "empty": b"",
    "short": b"1234567",
    "lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n",
    "html": b"<!DOCTYPE html><html><body>404</body></html>",
    "yaml": b"version: 1\nname: test\nrules: []\n",
    "json": b'{"weight_map": {"a": "b"}}' + b" " * 80,
    "zip": b"PK\x03\x04" + bytes(100),
    "pickle": b"\x80\x02}q\x00." + bytes(100),
    "gguf": b"GGUF\x03\0\0\0" + bytes(100),
    "truncated": encode(TENSORS)[:-1],
    "longer": encode(TENSORS) + b"x",
    "cut header": encode(TENSORS)[:60],
}


@pytest.mark.parametrize("content", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("verb", [[], ["inspect"]], ids=["convert", "inspect"])
def test_files_that_are_no_checkpoint(lab, content, verb):
    lab.source.write_bytes(content)
    r = lab.run("inspect", lab.source) if verb else convert(lab)
    assert r.code == 3
    assert r.err.startswith("in.safetensors: ")
    assert len(r.err.splitlines()) == 1
    assert not lab.output.exists()


@pytest.mark.parametrize("what", ["missing", "empty directory", "fifo", "pickles"])
def test_inputs_that_are_not_there(lab, what):
    path = lab / "x"
    if what == "empty directory":
        path.mkdir()
    elif what == "fifo":
        os.mkfifo(path)
    elif what == "pickles":
        path.mkdir()
        (path / "pytorch_model.bin").write_bytes(b"PK\x03\x04")
    r = convert(lab, source=path)
    assert r.code == 3
    assert r.err.startswith("x")
    assert not lab.output.exists()


# Outputs


def test_an_existing_output_needs_force(lab):
    lab.output.write_bytes(b"abc")
    assert convert(lab).code == 2
    assert lab.output.read_bytes() == b"abc"
    assert convert(lab, "--force").code == 0
    same(read(lab.output), WANT)


def test_a_failure_in_the_data_leaves_what_was_there(lab):
    lab.map("rules: [{from: e, to: E, shape: v d}, {from: h, to: H, shape: v d, tied: e}]")
    write(lab.source, {"e": arr(3, 2), "h": arr(3, 2, start=1)})
    lab.output.write_bytes(b"abc")
    before = files(lab.folder)
    assert convert(lab, "--force").code == 1
    assert files(lab.folder) == before


def test_shards_are_written_and_read(lab):
    assert convert(lab, "--max-shard-size", "50B", output=lab / "o").code == 0
    index = json.loads((lab / "o" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(x.nbytes for x in WANT.values())
    got = {}
    for name in set(index["weight_map"].values()):
        got |= read(lab / "o" / name)
    same(got, WANT)
    r = lab.run("--map", lab / "map.yaml", "--reverse", lab / "o", lab / "back.safetensors")
    assert r.code == 0, r.err
    same(read(lab / "back.safetensors"), TENSORS)


def test_a_shard_for_a_larger_tensor_and_none_where_all_fit(lab):
    lab.map("rules: [{match: '(?P<n>.+)', to: '{n}'}]")
    write(lab.source, {"big": arr(4), "small": arr(1)})
    assert convert(lab, "--max-shard-size", "8", output=lab / "o").code == 0
    assert sorted(p.name for p in (lab / "o").iterdir()) == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]
    assert convert(lab, "--max-shard-size", "100", output=lab / "p").code == 0
    assert [p.name for p in (lab / "p").iterdir()] == ["model.safetensors"]


def test_shards_replace_the_weights_of_a_directory_and_nothing_else(lab):
    folder = split(lab, "o")
    (folder / "config.json").write_text("{}")
    before = files(folder)
    r = convert(lab, "--max-shard-size", "500B", output=folder)
    assert r.code == 2
    assert "--force" in r.err
    assert files(folder) == before
    assert convert(lab, "--max-shard-size", "100B", "--force", output=folder).code == 0
    names = set(files(folder))
    assert "config.json" in names
    assert not [n for n in names if "-of-00002" in n]


def test_shards_never_replace_the_input(lab):
    folder = split(lab)
    before = files(folder)
    for output, flags in ((folder, ["--max-shard-size", "50B"]), (folder / "model-00001-of-00002.safetensors", [])):
        r = convert(lab, "--force", *flags, source=folder, output=output)
        assert r.code == 2
        assert files(folder) == before


def test_the_mode_of_a_replaced_file_stays(lab):
    lab.output.write_bytes(b"abc")
    lab.output.chmod(0o640)
    assert convert(lab, "--force").code == 0
    assert lab.output.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("output", ["no/such/out.safetensors", "map.yaml/out.safetensors"])
def test_outputs_that_cannot_be(lab, output):
    before = files(lab.folder)
    assert convert(lab, output=lab / output).code in (2, 3)
    assert files(lab.folder) == before


def test_too_little_disk_is_known_from_the_plan(lab):
    lab.map("rules: [{from: e, to: E}, {to: m, fill: zeros, shape: d d, dtype: float32}]")
    write(lab.source, {"e": arr(2)})
    before = files(lab.folder)
    r = convert(lab, "--set", "d=100000000")
    assert r.code == 3
    assert "disk" in r.err
    assert files(lab.folder) == before


# Reports


def report(lab, *flags):
    r = convert(lab, "--report", lab / "r.json", *flags)
    return r, json.loads((lab / "r.json").read_text())


def test_the_report_has_every_fate(lab):
    lab.map("""
    strip: {from: [m.]}
    drop: {from: [x]}
    dtype: {to: float16}
    params: {up: [1, 2]}
    indices: {i: n}
    rules:
      - {from: e, to: E, shape: v d}
      - {from: h, to: H, shape: v d, tied: e}
      - {from: o, to: O, optional: true}
      - {to: f, fill: zeros, shape: d, dtype: float32}
      - {from: 'l.{i}', to: s, shape: d, ops: [{stack: i}], when: 'up[0] == 1'}
    """)
    write(lab.source, {"m.e": arr(3, 2), "x": arr(1), "l.0": arr(2), "l.1": arr(2), "h": arr(3, 2), "rest": arr(1)})
    r, doc = report(lab, "--unmatched", "keep")
    assert r.code == 0, r.err
    pairs = {(x["source"], x["destination"]) for x in doc["loaded"]}
    assert pairs >= {("m.e", "E"), ("l.0", "s"), ("l.1", "s")}
    stacked = next(x for x in doc["loaded"] if x["source"] == "l.1")
    assert (stacked["ops"], stacked["dtype"], stacked["shape"]) == ([{"stack": "i"}], "F16", [2, 2])
    assert doc["dropped"] == ["x"]
    assert doc["absent"] == ["o"]
    assert doc["kept"] == ["rest"]
    assert doc["filled"] == ["f"]
    assert doc["assumed"] == [["up", [1, 2]]]
    assert [(x["name"], x["of"]) for x in doc["tied"]] == [("h", "m.e")]
    assert ("m.e", "F32", "F16") in {(x["source"], x["dtype"], x["to"]) for x in doc["cast"]}
    assert [doc[k] for k in ("missing", "unexpected", "shape_mismatch", "untied")] == [[]] * 4


def test_the_report_of_what_does_not_fit(lab):
    write(lab.source, {"e": arr(7, 3), "h.0.w": arr(2, 4), "h.2.w": arr(2, 3), "odd": arr(1)})
    r, doc = report(lab)
    assert r.code == 1
    assert not lab.output.exists()
    names = {k: [x["name"] for x in doc[k]] for k in ("missing", "unexpected", "shape_mismatch")}
    assert names == {"missing": ["h.1.w"], "unexpected": ["odd"], "shape_mismatch": ["h.0.w"]}
    assert len(doc["problems"]) == 3


def test_a_constant_that_was_checked_has_a_fate(lab):
    lab.map("rules: [{from: e, to: E, shape: v d}, {to: f, fill: zeros, shape: d, dtype: float32}]")
    write(lab.source, {"E": arr(3, 2), "f": np.zeros(2, "<f4")})
    r, doc = report(lab, "--reverse")
    assert r.code == 0
    assert '"f"' in json.dumps({k: v for k, v in doc.items() if k != "summary"})


def test_all_names_are_in_the_report_where_the_screen_is_capped(lab):
    write(lab.source, TENSORS | {f"odd{'x' * i}": arr(1) for i in range(300)})
    r, doc = report(lab)
    assert r.code == 1
    assert len(r.err.splitlines()) < 100
    assert "more" in r.err
    assert len(doc["unexpected"]) == 300


@pytest.mark.parametrize("victim", ["map", "config", "index", "input", "output"])
def test_a_report_never_replaces_what_the_run_reads_or_writes(lab, victim):
    source, name = lab.source, lab / "map.json"
    shutil.copy(lab / "map.yaml", name)
    paths = {"map": name, "config": lab / "config.json", "input": lab / "in.json", "output": lab / "r.json"}
    if victim == "config":
        paths[victim].write_text("{}")
    if victim == "input":
        source = shutil.copy(lab.source, paths[victim])
    if victim == "index":
        source = split(lab)
        paths[victim] = source / "model.safetensors.index.json"
    output = paths["output"] if victim == "output" else lab.output
    before = files(lab.folder)
    r = lab.run("--map", name, source, output, "--report", paths[victim])
    assert r.code == 2
    assert files(lab.folder) == before


def test_a_report_that_cannot_be_written_is_known_first(lab):
    before = files(lab.folder)
    assert convert(lab, "--report", lab / "no" / "r.json").code in (2, 3)
    assert files(lab.folder) == before


# Verbs


def test_inspect_json(lab):
    write(lab.source, {"b": arr(2, 3), "a": arr(2, dtype="<f2")}, {"format": "pt"})
    r = lab.run("inspect", "--json", lab.source)
    assert r.code == 0
    assert json.loads(r.out) == {
        "tensors": [
            {"name": "b", "dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
            {"name": "a", "dtype": "F16", "shape": [2], "data_offsets": [24, 28]},
        ],
        "metadata": {"format": "pt"},
    }


def test_inspect_makes_control_characters_visible(lab):
    write(lab.source, {"a\nb\x1b[31m": arr(1)})
    r = lab.run("inspect", lab.source)
    assert r.code == 0
    assert "\x1b" not in r.out
    assert len(r.out.splitlines()) == 3
    write(lab.source, TENSORS | {"a\nb\x1b[31m": arr(1)})
    r = convert(lab)
    assert r.code == 1
    assert "\x1b" not in r.err
    assert len(r.err.splitlines()) == 2
    r = convert(lab, "--unmatched", "keep")
    assert "\x1b" not in r.out


def test_inspect_a_directory(lab):
    r = lab.run("inspect", split(lab))
    assert r.code == 0
    assert all(name in r.out for name in TENSORS)
    assert "2 files" in r.out


def test_maps_and_their_checks(lab):
    r = lab.run("maps")
    assert r.code == 0
    names = [line.split()[0] for line in r.out.splitlines()]
    assert {"gpt2", "qwen2", "llama"} <= set(names)
    r = lab.run("check", *names)
    assert r.code == 0
    assert r.out.count("invertible") == len(names)


def test_check_goes_on_after_a_bad_map(lab):
    lab.map("rules: [{from: a, too: b}]", "bad.yaml")
    r = lab.run("check", lab / "bad.yaml", "nope", lab / "map.yaml")
    assert r.code == 2
    assert "bad.yaml:3: " in r.err
    assert "nope: " in r.err
    assert "map.yaml: invertible" in r.out


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("{from: a, to: b, shape: d, ops: [exp]}", "inexact"),
        ("{from: a, to: b, shape: p d, ops: [{trim: {dim: 0, to: 2}}]}", "one-way"),
        (r"{match: '(?P<a>x|y)\.?b', to: '{a}'}", "one-way"),
        ("{from: a, to: b}", "without a shape, so that nothing is checked there: 1 rule (line 3)"),
        (
            "{from: p., to: q., rules: &r [{from: a, to: b}]}, {from: s., to: t., rules: *r}",
            "without a shape, so that nothing is checked there: 2 rules (line 3)",
        ),
    ],
)
def test_check_says_what_is_special(lab, rule, says):
    r = lab.run("check", lab.map(f"rules: [{rule}]"))
    assert r.code == 0
    assert says in r.out


@pytest.mark.parametrize("side", ["from", "hf", "to", "local"])
def test_a_stub_of_a_side(lab, side):
    assert lab.run("stub", "--map", "gpt2", "--side", side, "--set", "d=12", lab / "s.safetensors").code == 0
    names = read(lab / "s.safetensors")
    weight = names["wte.weight" if side in ("from", "hf") else "tok_embed.weight"]
    assert weight.shape[1] == 12
    assert len({x.tobytes() for x in names.values()}) == len(names)


def test_a_stub_in_a_directory(lab):
    assert lab.run("stub", "--map", "gpt2", "--max-shard-size", "500B", lab / "s").code == 0
    assert (lab / "s" / "model.safetensors.index.json").is_file()


@pytest.mark.parametrize("value", ["-4", "abc", "100000000000"])
def test_stubs_of_impossible_sizes(lab, value):
    before = files(lab.folder)
    r = lab.run("stub", "--map", "gpt2", "--set", f"d={value}", lab / "s.safetensors")
    assert r.code in (1, 2, 3)
    assert files(lab.folder) == before


def test_shipped_maps_are_found_by_name_from_anywhere(lab, monkeypatch):
    monkeypatch.chdir("/")
    assert lab.run("stub", "--map", "gpt2", lab / "s.safetensors").code == 0
    assert lab.run("--map", "gpt2", lab / "s.safetensors", lab / "t.safetensors").code == 0
    assert Path(lab / "t.safetensors").is_file()


def test_maps_where_people_read_them(monkeypatch, lab):
    """On a terminal, folders stand apart and long texts are wrapped; a test has no terminal, so it says it is one."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    plain = lab.run("maps").out.splitlines()
    monkeypatch.setattr(io, "StringIO", Terminal)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((80, 24)))
    shown = lab.run("maps").out
    assert max(map(len, shown.splitlines())) <= 80
    assert "\n\nlitgpt/" in shown
    assert sorted(shown.split()) == sorted(word for line in plain for word in line.split())


# The report as a page.


def test_a_report_as_html_shows_every_fate_and_runs_nothing(tmp_path):
    evil = "<script>alert(1)</script>"
    write(tmp_path / "in.safetensors", {"a": arr(2), evil: arr(3), "b": arr(2), "bad\x1b[2J": arr(1)})
    (tmp_path / "map.yaml").write_text("version: 1\nname: m\nrules: [{from: a, to: x, shape: d}]\ndrop: {from: [b]}\n")
    page = tmp_path / "r.html"
    r = run(
        "--map",
        tmp_path / "map.yaml",
        "--unmatched",
        "keep",
        "--report",
        page,
        tmp_path / "in.safetensors",
        tmp_path / "o.safetensors",
    )
    assert r.code == 0
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "\x1b" not in text
    for word in ("loaded (", "kept (2)", "dropped (1)", "<td>a</td><td>x</td>", "1 dropped"):
        assert word in text, word


def test_a_report_as_html_of_what_failed_says_why(tmp_path):
    write(tmp_path / "in.safetensors", {"a": arr(2), "b": arr(3)})
    (tmp_path / "map.yaml").write_text("version: 1\nname: m\nrules: [{from: a, to: x, shape: d}]\n")
    page = tmp_path / "r.html"
    r = run("--map", tmp_path / "map.yaml", "--report", page, tmp_path / "in.safetensors", tmp_path / "o.safetensors")
    assert r.code == 1
    text = page.read_text()
    assert "unexpected (1)" in text
    assert "no rule names it" in text
    assert 'class="bad"' in text
