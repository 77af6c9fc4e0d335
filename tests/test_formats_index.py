"""What a path means: files, folders, indexes and shards."""

import json
import os
import pickle
import zipfile

import pytest
from test_formats_safetensors import contents, entry, raw, write

from converter.errors import ConvertError, FormatError, UsageError
from converter.formats import FORMATS, open_checkpoint

INDEX = "model.safetensors.index.json"


def one(value):
    return ("U8", (1,), bytes([value]))


def shard(path, **tensors):
    path.parent.mkdir(exist_ok=True, parents=True)
    write(path, {n: one(v) for n, v in tensors.items()}, force=True)
    return path


def index(folder, weight_map, **metadata):
    folder.mkdir(exist_ok=True)
    text = weight_map if isinstance(weight_map, str) else json.dumps({"metadata": metadata, "weight_map": weight_map})
    (folder / INDEX).write_text(text)
    return folder


def refusal(path, kind=FormatError):
    with pytest.raises(kind) as e:
        open_checkpoint(path)
    assert type(e.value) is kind
    return str(e.value)


def notes(path):
    with open_checkpoint(path) as c:
        return c.header.notes


def test_all_ways_to_name_a_sharded_checkpoint(tmp_path, monkeypatch):
    shard(tmp_path / "s2.safetensors", a=1, b=2)
    shard(tmp_path / "sub" / "s1.safetensors", c=3)
    index(tmp_path, {"c": "sub/s1.safetensors", "b": "s2.safetensors", "a": "s2.safetensors"}, total_size=3)
    want = {"a": one(1), "b": one(2), "c": one(3)}
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path, str(tmp_path) + "/", tmp_path / INDEX, ".", INDEX):
        assert contents(path) == want
        with open_checkpoint(path) as c:
            assert list(c.header.tensors) == ["a", "b", "c"]
            assert [os.path.basename(f.path) for f in c.header.files] == ["s2.safetensors", "s1.safetensors"]
            assert [e.file for e in c.header.tensors.values()] == [0, 0, 1]
            assert len(c.fds) == 2
            assert c.header.notes == ()
            assert os.path.samefile(c.folder, tmp_path)


def test_metadata_of_shards_is_merged(tmp_path):
    write(tmp_path / "s1.safetensors", {"a": one(1)}, {"k": "1", "x": "1"})
    write(tmp_path / "s2.safetensors", {"b": one(1)}, {"k": "2", "y": "2"})
    with open_checkpoint(index(tmp_path, {"b": "s2.safetensors", "a": "s1.safetensors"})) as c:
        assert c.header.metadata == {"k": "1", "x": "1", "y": "2"}


def test_all_missing_shards_are_listed(tmp_path):
    shard(tmp_path / "s1.safetensors", a=1)
    text = refusal(index(tmp_path, {"a": "s1.safetensors", "b": "s2.safetensors", "c": "s3.safetensors"}))
    assert "s2.safetensors, which is not there (2 of 3 shards missing)" in text
    assert "names s3.safetensors" in text
    assert "names s1.safetensors" not in text


def test_a_name_that_its_shard_lacks(tmp_path):
    shard(tmp_path / "s1.safetensors", a=1)
    text = refusal(index(tmp_path, {"a": "s1.safetensors", "b": "s1.safetensors"}))
    assert text.endswith("b is mapped to s1.safetensors but is not in its header")


def test_the_index_decides_over_a_stale_copy(tmp_path):
    write(tmp_path / "s1.safetensors", {"a": one(1), "w": ("F32", (2,), bytes(8))})
    shard(tmp_path / "overlay.safetensors", w=9)
    index(tmp_path, {"a": "s1.safetensors", "w": "overlay.safetensors"}, total_size=2)
    assert contents(tmp_path) == {"a": one(1), "w": one(9)}
    assert [n.split(": ", 1)[1] for n in notes(tmp_path)] == ["1 tensor shadowed, the index takes another file's: w"]


def test_a_tensor_that_the_index_does_not_name(tmp_path):
    shard(tmp_path / "s1.safetensors", a=1, **{f"z{i}": i for i in range(9)})
    index(tmp_path, {"a": "s1.safetensors"})
    assert contents(tmp_path) == {"a": one(1)}
    assert "9 tensors that the index does not name, left out: z0, z1, z2, z3, z4, ... and 4 more" in notes(tmp_path)[0]


def test_total_size_and_strays_are_remarks(tmp_path):
    for name in ("s1", "old"):
        shard(tmp_path / f"{name}.safetensors", a=1)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    said = notes(index(tmp_path, {"a": "s1.safetensors"}, total_size=96))
    assert any("total_size is 96, the tensors have 1 byte" in n for n in said)
    assert any("not part of this checkpoint: old.safetensors, pytorch_model.bin" in n for n in said)
    assert any("total_size is 'x'" in n for n in notes(index(tmp_path, {"a": "s1.safetensors"}, total_size="x")))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "no weight_map"),
        ('{"weight_map": []}', "weight_map is [], not an object"),
        ('{"weight_map": null}', "weight_map is null, not an object"),
        ('{"weight_map": {}}', "weight_map names no tensors"),
        ('{"weight_map": {"a": 1}}', "weight_map: a is 1, not a file name"),
        ('{"weight_map": {"a": "s1.safetensors", "a": "s2.safetensors"}}', "duplicate name a"),
        ("[]", "the index begins with '['"),
        ("", "the index is empty"),
        ('{"weight_map": {', "the index is not valid JSON"),
        ('{"a":' * 100_000, "nested too deeply"),
        ("version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
    ],
)
def test_malformed_indexes(tmp_path, text, said):
    shard(tmp_path / "s1.safetensors", a=1)
    text = refusal(index(tmp_path, text))
    assert said in text
    assert "\n" not in text
    assert INDEX in text


@pytest.mark.parametrize(
    "name",
    [
        "../outside/secret.safetensors",
        "{outside}/secret.safetensors",
        "C:\\x.safetensors",
        "C:x.safetensors",
        "..\\outside\\secret.safetensors",
        "sub/../../outside/secret.safetensors",
        "./s1.safetensors",
        "sub//s1.safetensors",
        "sub/",
        "",
        ".",
        "..",
        "s1.safetensors\0",
        "\ud800",
    ],
)
def test_file_names_stay_inside(tmp_path, name):
    shard(tmp_path / "outside" / "secret.safetensors", w=1)
    folder = index(tmp_path / "in", {"w": name.format(outside=tmp_path / "outside")})
    shard(folder / "s1.safetensors", w=1)
    text = refusal(folder)
    assert "weight_map: w is in " in text or "surrogate" in text


def test_links_are_followed_as_in_a_hub_cache(tmp_path):
    shard(tmp_path / "blobs" / "abc.safetensors", a=1)
    folder = index(tmp_path / "snapshot", {"a": "s1.safetensors"})
    (folder / "s1.safetensors").symlink_to("../blobs/abc.safetensors")
    assert contents(folder) == {"a": one(1)}
    (folder / "s1.safetensors").unlink()
    (folder / "s1.safetensors").symlink_to("../blobs/gone")
    assert "s1.safetensors, which is not there" in refusal(folder)


def test_the_index_decides_what_its_shards_are(tmp_path):
    shard(tmp_path / "s1.safetensors", a=1).rename(tmp_path / "s1.bin")
    assert contents(index(tmp_path, {"a": "s1.bin"})) == {"a": one(1)}
    (tmp_path / "s1.bin").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    assert "s1.bin: is a Git LFS pointer" in refusal(tmp_path)
    (tmp_path / "s1.bin").write_bytes(pickle.dumps({}))
    assert "s1.bin: is a pickle" in refusal(tmp_path)


def test_one_shard_of_several_is_refused(tmp_path, monkeypatch):
    shard(tmp_path / "model-00001-of-00003.safetensors", a=1)
    text = refusal(tmp_path / "model-00001-of-00003.safetensors", UsageError)
    assert "shard 1 of 3" in text
    assert "no index" in text
    assert "only model-00001-of-00003.safetensors" in refusal(tmp_path)
    shard(tmp_path / "s2.safetensors", b=1)
    index(tmp_path, {"a": "model-00001-of-00003.safetensors", "b": "s2.safetensors"})
    for name in ("model-00001-of-00003.safetensors", "s2.safetensors"):
        assert f"pass the directory {tmp_path}" in refusal(tmp_path / name, UsageError)
    monkeypatch.chdir(tmp_path)
    assert "pass the directory ." in refusal("s2.safetensors", UsageError)
    shard(tmp_path / "model-00001-of-00001.safetensors", a=1)
    assert contents(tmp_path / "model-00001-of-00001.safetensors") == {"a": one(1)}


def test_a_file_beside_an_index_that_is_not_its_shard(tmp_path):
    shard(tmp_path / "s1.safetensors", a=1)
    shard(tmp_path / "other.safetensors", b=1)
    index(tmp_path, "{")
    assert contents(tmp_path / "other.safetensors") == {"b": one(1)}
    index(tmp_path, {"a": "s1.safetensors"})
    assert contents(tmp_path / "other.safetensors") == {"b": one(1)}
    assert contents(tmp_path / "s1.safetensors") == {"a": one(1)}


def test_folders(tmp_path):
    assert refusal(tmp_path).endswith("; found nothing")
    (tmp_path / "config.json").write_text("{}")
    text = refusal(tmp_path)
    assert "looked for *.safetensors.index.json, *.safetensors" in text
    assert "found config.json" in text
    for k in range(8):
        (tmp_path / f"{k}.txt").touch()
    assert refusal(tmp_path).endswith("found 0.txt, 1.txt, 2.txt, 3.txt, 4.txt, 5.txt, 6.txt, 7.txt, ... and 1 more")
    shard(tmp_path / "x.safetensors", w=1)
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK\x03\x04")
    assert contents(tmp_path) == {"w": one(1)}
    assert "not part of this checkpoint: pytorch_model.bin" in notes(tmp_path)[0]
    shard(tmp_path / "y.safetensors", w=2, v=3)
    text = refusal(tmp_path)
    assert "2 safetensors files and no index, pass one of them: x.safetensors, y.safetensors" in text
    assert text.endswith("w: is in x.safetensors, y.safetensors")
    index(tmp_path, {"w": "x.safetensors"})
    (tmp_path / "model.fp16.safetensors.index.json").write_text("{}")
    assert "several indexes" in refusal(tmp_path)


def test_content_decides(tmp_path):
    shard(tmp_path / "m.safetensors", a=1).rename(tmp_path / "m.bin")
    assert contents(tmp_path / "m.bin") == contents(tmp_path) == {"a": one(1)}
    assert "its content is safetensors, whatever its name says" in notes(tmp_path / "m.bin")[0]
    with zipfile.ZipFile(tmp_path / "z.safetensors", "w") as z:
        z.writestr("archive/data.pkl", pickle.dumps({}))
    assert "is a zip archive" in refusal(tmp_path / "z.safetensors")
    (tmp_path / "p.safetensors").write_bytes(pickle.dumps({"a": 1}, protocol=2))
    assert "is a pickle" in refusal(tmp_path / "p.safetensors")


@pytest.mark.parametrize("name", ["m.bin", "m.pt", "m.pth", "m", "m.ckpt"])
def test_pickles_that_torch_did_not_write(tmp_path, name):
    (tmp_path / name).write_bytes(pickle.dumps({"a": 1}, protocol=2))
    assert "is a pickle, but not one that torch.save wrote" in refusal(tmp_path / name)
    (tmp_path / name).write_bytes(b"PK\x03\x04" + bytes(40))
    assert "truncated or damaged zip archive" in refusal(tmp_path / name)
    if "." in name:
        assert "truncated or damaged zip archive" in refusal(tmp_path)
        (tmp_path / name).write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
        assert "Git LFS pointer" in refusal(tmp_path / name)


def test_lengths_that_look_like_other_formats(tmp_path):
    text = json.dumps({"w": entry()}).encode().ljust(int.from_bytes(b"\x80\x02", "little"))
    assert list(open_checkpoint(raw(tmp_path / "in.safetensors", text, bytes(4))).header.tensors) == ["w"]
    assert FORMATS[0].claims(b'PK\x03\x04\0\0\0\0{"w":')


def test_other_indexes(tmp_path):
    (tmp_path / "x.index.json").write_text("{}")
    assert "an index is named *.safetensors.index.json" in refusal(tmp_path / "x.index.json")
    (tmp_path / "a.bin").write_bytes(pickle.dumps({}))
    (tmp_path / "pytorch_model.bin.index.json").write_text('{"weight_map": {"a": "a.bin"}}')
    assert "is a pickle, but not one that torch.save wrote" in refusal(tmp_path / "pytorch_model.bin.index.json")
    assert "begins with" not in refusal(tmp_path)


def test_a_file_that_changes_is_noticed(tmp_path):
    path = shard(tmp_path / "m.safetensors", a=1)
    with open_checkpoint(path) as c:
        c.check_unchanged()
        assert c.fds == (c.fd(0),)
        c.check_unchanged()
        os.utime(path, ns=(1, 1))
        with pytest.raises(FormatError, match="modification time"):
            c.check_unchanged()
        os.utime(path, ns=(1, c.header.files[0].mtime_ns))
        c.check_unchanged()
        os.truncate(path, 20)
        with pytest.raises(FormatError, match="20 bytes, "):
            c.check_unchanged()
        path.unlink()
        with pytest.raises(FormatError, match="no such file"):
            c.check_unchanged()
    fresh = shard(tmp_path / "m.safetensors", a=1)
    with open_checkpoint(fresh) as c:
        os.utime(fresh, ns=(1, 1))
        with pytest.raises(FormatError, match="changed"):
            c.fd(0)


def test_a_replaced_file_is_noticed(tmp_path):
    path = shard(tmp_path / "m.safetensors", a=1)
    with open_checkpoint(path) as c:
        assert c.fds
        other = shard(tmp_path / "n.safetensors", a=2)
        os.utime(other, ns=(1, c.header.files[0].mtime_ns))
        other.rename(path)
        with pytest.raises(FormatError, match="was replaced"):
            c.check_unchanged()


def test_hostile_names_in_an_index_stay_short(tmp_path):
    name = "\x1b[2J" + "x" * 50_000
    for weight_map in ({name: name}, {name: 1}, {"a": f"../{name}"}):
        with pytest.raises(ConvertError) as e:
            open_checkpoint(index(tmp_path, weight_map))
        assert len(str(e.value)) < 2000
        assert str(e.value).isprintable()


SIGNATURES = {
    b"version https://git-lfs.github.com/spec/v1\n": "is a Git LFS pointer",
    b"PK\3\4" + bytes(20): "is a zip archive",
    b"\x89HDF\r\n\x1a\n": "is an HDF5 file",
    b"GGUF\3\0\0\0": "is a GGUF file",
    b"\x93NUMPY\1\0": "is a numpy file",
    b"\x1f\x8b\x08\0": "is compressed with gzip",
    b"<!DOCTYPE html><p>": "is an HTML page",
    b"<HTML><p>": "is an HTML page",
    b"<?xml version=": "is an XML text",
    b"\x80\2}": "is a pickle",
    b"\x80\3}": "is a pickle",
    b"\x80\4}": "is a pickle",
    b"\x80\5}": "is a pickle",
}


@pytest.mark.parametrize("head", SIGNATURES)
def test_what_a_file_is_instead_is_said(tmp_path, head):
    (tmp_path / "a.safetensors").write_bytes(head.ljust(40, b"\n"))
    said = refusal(tmp_path / "a.safetensors")
    assert SIGNATURES[head] in said
    assert ", not " in said


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"notes: a", "is a text file"),
        (b"notes: ", "too short for a safetensors file: 7 bytes"),
        (b"\t\r\n \x7f~{}", "is a text file"),
        (b"notes\0 a", "the header length is"),
        (b"\x1fotes: a", "the header length is"),
        (b"\x80\1.aaaaaaa", "the header length is"),
        (b"\x80\6.aaaaaaa", "the header length is"),
        (b"a" * 700 + b"\0", "is a text file"),
    ],
)
def test_text_has_no_length_field(tmp_path, data, says):
    (tmp_path / "a.safetensors").write_bytes(data)
    assert says in refusal(tmp_path / "a.safetensors")


def test_an_index_beyond_all_measure(tmp_path, monkeypatch):
    shard(tmp_path / "a.safetensors", w=1)
    index(tmp_path, {"w": "a.safetensors"})
    path = tmp_path / "model.safetensors.index.json"
    size = path.stat().st_size
    monkeypatch.setattr("converter.formats.index.MAX_INDEX", size)
    with open_checkpoint(tmp_path) as c:
        assert list(c.header.tensors) == ["w"]
    monkeypatch.setattr("converter.formats.index.MAX_INDEX", size - 1)
    assert f"an index of {size} bytes, more than the limit of {size - 1}" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("name", "lone"),
    [
        ("model-00001-of-00002", True),
        ("model-00001-of-00001", False),
        ("model-00002-of-00012x", False),
        ("xmodel-00002-of-00012", True),
        ("model-0001-of-00002.old", False),
    ],
)
def test_which_names_are_of_shards(tmp_path, name, lone):
    path = tmp_path / f"{name}.safetensors"
    shard(path, w=1)
    if lone:
        assert "is shard " in refusal(path, UsageError)
    else:
        with open_checkpoint(path) as c:
            assert list(c.header.tensors) == ["w"]


def test_a_broken_index_does_not_hide_another(tmp_path):
    shard(tmp_path / "s1.safetensors", a=1)
    shard(tmp_path / "s2.safetensors", b=1)
    (tmp_path / "a.safetensors.index.json").write_text("{")
    where = {"a": "s1.safetensors", "b": "s2.safetensors"}
    (tmp_path / "b.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    said = refusal(tmp_path / "s2.safetensors", UsageError)
    assert "is one shard of 2 that b.safetensors.index.json names" in said


def test_a_broken_file_does_not_hide_what_others_have_in_common(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(b"broken...")
    shard(tmp_path / "b.safetensors", w=1)
    shard(tmp_path / "c.safetensors", w=2, v=1)
    said = refusal(tmp_path)
    assert "3 safetensors files and no index, pass one of them: a.safetensors, b.safetensors, c.safetensors" in said
    assert "w: is in b.safetensors, c.safetensors" in said
