"""Several files that are one checkpoint: what the index says, what is there, and what is written."""

import json
import shutil

from lab import arr, read, same, write

from .field import KEEP, column, f32, state

INDEX = "model.safetensors.index.json"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def folder(case, weight_map, shards, name="model", **metadata):
    """A checkpoint of shards: an index (a mapping, or its text) and files of tensors."""
    path = case / name
    shutil.rmtree(path, ignore_errors=True)
    for file, tensors in shards.items():
        write(path / file, tensors)
    path.mkdir(exist_ok=True)
    doc = {"metadata": metadata, "weight_map": weight_map} if metadata else {"weight_map": weight_map}
    (path / INDEX).write_text(weight_map if isinstance(weight_map, str) else json.dumps(doc))
    return path


def test_shard_01_missing_shard(case):
    where = {"a": "s1.safetensors", "b": "s2.safetensors", "c": "s3.safetensors"}
    given = folder(case, where, {"s1.safetensors": {"a": f32(1)}})
    case.refused(KEEP, given, 3, "s2.safetensors", "s3.safetensors", "2 of 3 shards missing")
    case.refused(KEEP, given / INDEX, 3, "s2.safetensors", "s3.safetensors")


def test_shard_02_key_not_in_its_shard(case):
    given = folder(case, {"a": "s1.safetensors", "b": "s1.safetensors"}, {"s1.safetensors": {"a": f32(1)}})
    case.refused(KEEP, given, 3, "b is mapped to s1.safetensors but is not in its header")


def test_shard_03_overlay(case):
    where = {"a": "s1.safetensors", "w": "overlay.safetensors"}
    for stale in (f32(2), f32([2, 3], [4, 5])):
        base = {"a": f32(1), "w": stale}
        given = folder(case, where, {"s1.safetensors": base, "overlay.safetensors": {"w": f32(9)}})
        r = case.gives(KEEP, given, {"a": f32(1), "w": f32(9)})
        assert "s1.safetensors: 1 tensor shadowed, the index takes another file's: w" in r.err


def test_shard_04_same_tensor_no_index(case):
    for other in (2, 1):
        given = case / f"two-{other}"
        write(given / "x.safetensors", {"w": f32(1)})
        write(given / "y.safetensors", {"w": f32(other)})
        case.refused(KEEP, given, 3, "w: is in x.safetensors, y.safetensors", "no index")
    # One input a run: several files on the command line are no checkpoint either.
    case.refused(
        KEEP,
        given / "x.safetensors",
        2,
        "3 paths are given, one INPUT and one OUTPUT",
        "folder",
        flags=(given / "y.safetensors",),
    )


def test_shard_06_extra_in_shard(case):
    given = folder(case, {"a": "s1.safetensors"}, {"s1.safetensors": {"a": f32(1), "z": f32(2)}})
    r = case.gives(KEEP, given, {"a": f32(1)})
    assert "s1.safetensors: 1 tensor that the index does not name, left out: z" in r.err
    case.gives("rules: [{from: a, to: a}]", given, {"a": f32(1)})


def test_shard_07_total_size(case):
    a, b = arr(8), arr(8, start=8)
    where = {"a": "s1.safetensors", "b": "s2.safetensors"}
    given = folder(case, where, {"s1.safetensors": {"a": a}, "s2.safetensors": {"b": b}}, total_size=96)
    text = "rules: [{from: a, to: a, dtype: {to: float16}}, {from: b, to: b}]"
    r = case.converts(text, given, "--max-shard-size", "32", output=case / "out")
    assert "total_size is 96, the tensors have 64 bytes" in r.err
    index = json.loads((case / "out" / INDEX).read_text())
    assert index["metadata"]["total_size"] == 48
    assert set(index["weight_map"]) == {"a", "b"}
    same(
        {k: v for f in set(index["weight_map"].values()) for k, v in read(case / "out" / f).items()},
        {"a": a.astype("<f2"), "b": b},
    )


def test_shard_09_oversized_first_tensor(case):
    given = {"big": arr(4), "small": f32(7)}
    out = case / "out"
    case.converts(KEEP, given, "--max-shard-size", "8", output=out)
    assert sorted(state(out)) == [FIRST, SECOND, INDEX]
    same(read(out / FIRST), {"big": arr(4)})
    same(read(out / SECOND), {"small": f32(7)})
    assert json.loads((out / INDEX).read_text()) == {
        "metadata": {"total_size": 20},
        "weight_map": {"big": FIRST, "small": SECOND},
    }
    case.converts(KEEP, given, "--max-shard-size", "100", output=case / "one")
    assert sorted(state(case / "one")) == ["model.safetensors"]
    same(read(case / "one" / "model.safetensors"), given)


def test_shard_10_stale_output_dir(case):
    old = {FIRST: {"w": f32(1)}, SECOND: {"v": f32(2)}}
    where = {"w": FIRST, "v": SECOND}
    out = folder(case, where, old, "out")
    (out / "config.json").write_text("{}")
    write(out / "adapter.safetensors", {"x": f32(3)})
    given = {"w": column(8, 9)}
    for flags in ((), ("--max-shard-size", "1GB")):
        case.refused(KEEP, given, 2, INDEX, FIRST, SECOND, "--force", flags=flags, output=out)
    # A run that fails leaves the old set whole, with or without --force.
    before = state(out)
    r = case.run("--map", case.map("rules: [{from: nothing, to: w}]"), "--force", case.source, out)
    assert r.code == 1
    tied = "rules: [{from: w, to: w}, {from: u, to: u, tied: w}]"
    r = case.run("--map", case.map(tied), "--force", case.put(given | {"u": column(8, 8)}), out)
    assert r.code == 1
    assert state(out) == before
    case.converts(KEEP, given, "--force", output=out)
    assert sorted(state(out)) == ["adapter.safetensors", "config.json", "model.safetensors"]
    same(read(out / "model.safetensors"), given)
    assert {k: v for k, v in state(out).items() if k != "model.safetensors"} == {
        k: before[k] for k in ("adapter.safetensors", "config.json")
    }


def test_shard_11_index_json_malformed(case):
    for suffix in ("safetensors", "bin"):
        given = case / suffix
        given.mkdir()
        for text, says in (
            ("{}", "the index has no weight_map"),
            ('{"weight_map": []}', "weight_map is [], not an object"),
            ('{"weight_map": {"a": 1}}', "weight_map: a is 1, not a file name"),
            ('{"weight_map": {"a": "s1.safetensors", "a": "s2.safetensors"}}', "duplicate name a"),
        ):
            (given / f"model.{suffix}.index.json").write_text(text)
            err = case.refused(KEEP, given, 3, says)
            assert len(err.splitlines()) == 1
