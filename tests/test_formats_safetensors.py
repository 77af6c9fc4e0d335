"""Reading and laying out safetensors files: hostile headers, and agreement with the reference library."""

import json
import os
import struct
from pathlib import Path

import pytest
import safetensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from converter.errors import FormatError, UsageError
from converter.formats import Output, layout, open_checkpoint, read_header
from converter.formats.base import read_exactly
from converter.spec import DTYPES, TensorSpec, nbytes

QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def entry(dtype="F32", shape=(1,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def raw(path, doc, data=b"", length=None):
    """Write a file with that header (an object, or bytes as they stand), whatever it says."""
    text = doc if isinstance(doc, bytes) else json.dumps(doc).encode()
    Path(path).write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return str(path)


def refusal(path):
    """Give the text of the refusal: it names the file, and is short printable lines."""
    with pytest.raises(FormatError) as e:
        read_header(str(path))
    text = str(e.value)
    assert Path(path).name in text
    assert all(line.isprintable() for line in text.split("\n"))
    assert len(text) < 2000
    return text


def write(path, tensors, metadata=None, max_shard_size=None, **flags):
    """Write {name: (dtype, shape, bytes)} with the package's own writer."""
    plan = layout([TensorSpec(n, d, tuple(s)) for n, (d, s, _) in tensors.items()], metadata, max_shard_size)
    with Output(path, plan, **flags) as out:
        for name, (_, _, data) in tensors.items():
            file, offset = plan.place[name]
            os.pwrite(out.fd(file), data, offset)
        out.commit()
    return plan


def contents(path):
    """Read {name: (dtype, shape, bytes)} of a checkpoint."""
    with open_checkpoint(path) as c:
        c.check_unchanged()
        return {
            e.name: (e.dtype, e.shape, os.pread(c.fd(e.file), e.stop - e.start, e.start))
            for e in c.header.tensors.values()
        }


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "too short for a safetensors file: 0 bytes"),
        (b"1234567", "too short for a safetensors file: 7 bytes"),
        (bytes(8), "empty header"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 548105171\n", "Git LFS pointer"),
        (b"version https://git-lfs", "git lfs pull"),
        (b"PK\x03\x04" + bytes(60), "zip archive"),
        (b"\x80\x02}q\x00." + bytes(60), "pickle"),
        (b"<!DOCTYPE html><html>", "HTML page"),
        (struct.pack("<Q", 2**60) + b"{}", "1152921504606846976, more than the limit of 100000000"),
        (struct.pack("<Q", 9) + b"{}", "truncated: the header takes 9 bytes, the file has 2"),
    ],
)
def test_what_is_no_safetensors_file(tmp_path, data, said):
    (tmp_path / "in.safetensors").write_bytes(data)
    assert said in refusal(tmp_path / "in.safetensors")


def test_header_cap_is_checked_before_the_header_is_read(tmp_path):
    path = raw(tmp_path / "in.safetensors", b"{", length=100_000_001)
    os.truncate(path, 100_000_010)
    assert "100000001" in refusal(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"[" * 100_000, "begins with '['"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"a":' + b"[" * 100_000, "nested too deeply"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b"  {}", "begins with ' '"),
        (b"{}\0\0\0", "NUL"),
        (b"{}{}", "not valid JSON"),
        (b'{"a', "not valid JSON"),
        (b'{"a":' + b"9" * 5000 + b"}", "too many digits"),
        (b'{"\xff":1}', "not valid UTF-8: byte 0xff at position 2"),
        (b'{"a":1,"a":2}', "duplicate name a in the header"),
        (b'{"__metadata__":{"k":"1","k":"2"}}', "duplicate name k"),
        (b'{"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}', "duplicate name dtype"),
        (b'{"\\ud800":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', "unpaired surrogate in '\\ud800'"),
        (b'{"__metadata__":{"k":"\\udfff"}}', "unpaired surrogate"),
    ],
)
def test_malformed_json(tmp_path, text, said):
    assert said in refusal(raw(tmp_path / "in.safetensors", text, bytes(4)))


def test_duplicate_name_with_the_same_range(tmp_path):
    one, two = (json.dumps(entry(d)) for d in ("I32", "F32"))
    text = f'{{"w":{one},"w":{two}}}'.encode()
    assert "duplicate name w" in refusal(raw(tmp_path / "in.safetensors", text, bytes(4)))


@pytest.mark.parametrize(
    ("info", "said"),
    [
        (entry("F99"), "w: unknown dtype 'F99'"),
        (entry("f32"), "w: unknown dtype 'f32'"),
        (entry(["F32"]), "w: unknown dtype ['F32']"),
        (entry(shape=[3]), "w: F32 of shape [3] needs 12 bytes, data_offsets [0, 4] hold 4"),
        (entry(shape=[3], offsets=(4, 8)), "w: F32 of shape [3] needs 12 bytes, data_offsets [4, 8] hold 4"),
        (entry(shape=[-1]), "w: shape is [-1]: -1 is not an integer of 0 or more"),
        (entry(shape=[1.0]), "w: shape is [1.0]"),
        (entry(shape=[True]), "w: shape is [true]"),
        (entry(shape=["1"]), "w: shape is ['1']"),
        (entry(shape=[float("nan")]), "w: shape is [NaN]: NaN is not"),
        (entry(shape=[float("inf")]), "w: shape is [Infinity]"),
        (entry(shape=[None]), "w: shape is [null]"),
        (entry(shape=[[1]]), "w: shape is [[1]]"),
        ({"dtype": "F32", "shape": 1, "data_offsets": [0, 4]}, "w: shape is 1, not a list"),
        (entry(offsets=["0", "4"]), "w: data_offsets is ['0', '4'], not two integers"),
        (entry(offsets=[0, 4, 8]), "w: data_offsets is [0, 4, 8]"),
        (entry(offsets=[0.0, 4]), "w: data_offsets is [0.0, 4]"),
        (entry(offsets=[False, 4]), "w: data_offsets is [false, 4]"),
        (entry(offsets=[4, 0]), "w: data_offsets is [4, 0], not a range"),
        (entry(offsets=[-4, 0]), "w: data_offsets is [-4, 0], not a range"),
        (entry(shape=[2**62, 4], offsets=[0, 0]), "w: shape [4611686018427387904, 4] is too large"),
        (entry(shape=[2**62, 4, 0], offsets=[0, 0]), "is too large"),
        (entry(shape=[0, 2**62, 4], offsets=[0, 0]), "is too large"),
        (entry(shape=[2**63, 0], offsets=[0, 0]), "is too large"),
        (entry(shape=[2] * 100_000, offsets=[0, 0]), "is too large"),
        (entry("F4", [3], [0, 1]), "w: shape [3] of 4-bit elements does not fill whole bytes"),
        (entry("F4", [1], [0, 0]), "whole bytes"),
        ([], "w: its entry is [], not an object"),
        ("x" * 10_000, "not an object"),
        ({"dtype": "F32", "shape": [1]}, "w: its entry has no data_offsets"),
        (entry() | {"more": {"a": 1}}, "w: unknown field 'more'"),
    ],
)
def test_one_bad_tensor(tmp_path, info, said):
    assert said in refusal(raw(tmp_path / "in.safetensors", {"w": info}, bytes(4)))


def test_minus_zero_is_no_integer(tmp_path):
    text = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[-0,4]}}'
    assert "data_offsets is [-0, 4]" in refusal(raw(tmp_path / "in.safetensors", text, bytes(4)))
    text = b'{"-0":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    assert list(read_header(raw(tmp_path / "in.safetensors", text, bytes(4))).tensors) == ["-0"]
    for value, sound in (
        ("-0", True),
        ("1.5", True),
        ("-1e400", False),
        ("NaN", False),
        ("[1]", False),
        ("1" * 400, False),
    ):
        text = f'{{"w":{{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":{value}}}}}'.encode()
        if sound:
            assert list(read_header(raw(tmp_path / "in.safetensors", text, bytes(4))).tensors) == ["w"]
        else:
            assert "unknown field 'x' is " in refusal(raw(tmp_path / "in.safetensors", text, bytes(4)))


@pytest.mark.parametrize(
    ("a", "b", "size", "said"),
    [
        ((0, 8), (4, 12), 12, "data_offsets overlap: a [0, 8] and b [4, 12]"),
        ((0, 8), (0, 8), 8, "data_offsets overlap: a [0, 8] and b [0, 8]"),
        ((0, 8), (12, 20), 20, "a hole of 4 bytes between a [0, 8] and b [12, 20]"),
        ((4, 12), (12, 20), 20, "4 bytes before the first tensor, a [4, 12]"),
        ((0, 8), (8, 16), 20, "4 bytes after the last tensor"),
        ((0, 8), (8, 16), 15, "truncated: b ends at byte 16 of the data, the file has 15 (1 byte missing in all)"),
        ((0, 8), (2**62, 2**62 + 8), 16, "a hole of"),
    ],
)
def test_data_is_covered_exactly(tmp_path, a, b, size, said):
    doc = {"a": entry(shape=[2], offsets=a), "b": entry(shape=[2], offsets=b)}
    assert said in refusal(raw(tmp_path / "in.safetensors", doc, bytes(size)))


def test_huge_claims_are_refused_without_allocation(tmp_path):
    doc = {"w": entry("U8", [2**60], [0, 2**60])}
    assert "truncated: w ends at byte" in refusal(raw(tmp_path / "in.safetensors", doc, bytes(4)))
    assert "4 bytes of data, and no tensor" in refusal(raw(tmp_path / "in.safetensors", {}, bytes(4)))


@pytest.mark.parametrize("value", [{"step": 7}, {"a": {"b": "c"}}, [], "x", {"a": None}])
def test_metadata_must_be_text(tmp_path, value):
    doc = {"__metadata__": value, "w": entry()}
    assert "__metadata__" in refusal(raw(tmp_path / "in.safetensors", doc, bytes(4)))


def test_null_metadata_is_absent(tmp_path):
    assert read_header(raw(tmp_path / "in.safetensors", {"__metadata__": None, "w": entry()}, bytes(4))).metadata == {}


def test_hostile_names_are_escaped_and_cut(tmp_path):
    names = [f"\x1b[2J\n\u202e{i}" + "é" * 10_000 for i in range(50)] + ["", "\ue000" * 500, "\U000e0001" * 500]
    text = refusal(raw(tmp_path / "in.safetensors", {n: entry("F\x00" * 99) for n in names}, bytes(4)))
    assert "\\x1b[2J\\n\\u202e" in text
    assert "and 50 more faults" in text
    assert text.count("\n") == 3


def test_the_empty_name_is_refused(tmp_path):
    assert "the empty name" in refusal(raw(tmp_path / "in.safetensors", {"": entry()}, bytes(4)))


def test_what_is_allowed(tmp_path):
    doc = {
        "__metadata__": {"license": "x", "format": "pt"},
        "z": entry(shape=[], offsets=(4, 8)),
        "e2": entry("I64", [0], (4, 4)),
        "a": entry(offsets=(0, 4)),
        "e1": entry(shape=[2, 0], offsets=(0, 0)),
        "last": entry(shape=[0, 3], offsets=(8, 8)),
    }
    head = read_header(raw(tmp_path / "in.safetensors", json.dumps(doc).encode() + b" " * 6, bytes(8)))
    assert list(head.tensors) == ["e1", "a", "e2", "z", "last"]
    assert head.tensors["z"].shape == ()
    assert list(head.metadata.items()) == [("license", "x"), ("format", "pt")]
    assert head.files[0].data_start == head.tensors["a"].start
    assert head.files[0].size == head.tensors["z"].stop
    assert head.notes == ()


def test_order_of_the_json_text_means_nothing(tmp_path):
    doc = {"b": entry("U8", [0], (0, 0)), "a": entry("U8", [0], (0, 0)), "c": entry()}
    one = read_header(raw(tmp_path / "in.safetensors", doc, bytes(4)))
    two = read_header(raw(tmp_path / "in.safetensors", dict(reversed(doc.items())), bytes(4)))
    assert list(one.tensors.items()) == list(two.tensors.items())


def test_remarks_that_are_no_errors(tmp_path):
    head = read_header(raw(tmp_path / "in.safetensors", {"w": entry() | {"note": "x"}}, bytes(4)))
    assert "fields that the format does not have are ignored: w" in head.notes[0]
    head = read_header(raw(tmp_path / "in.safetensors", {"__metadata__": {"format": "pt"}}))
    assert "holds no tensors" in head.notes[0]
    assert head.tensors == {}


def test_faults_of_the_system(tmp_path):
    assert "no such file" in refusal(tmp_path / "absent.safetensors")
    (tmp_path / "d.safetensors").mkdir()
    assert "is a folder" in refusal(tmp_path / "d.safetensors")
    os.mkfifo(tmp_path / "f.safetensors")
    assert "not a regular file" in refusal(tmp_path / "f.safetensors")
    assert "no such file" in refusal(tmp_path / ("x" * 5) / "y.safetensors")
    with pytest.raises(FormatError, match="no such file"):
        open_checkpoint("a\0b")
    with pytest.raises(FormatError, match="file name too long"):
        open_checkpoint("x" * 5000)


def test_every_dtype_round_trips_and_is_aligned(tmp_path):
    tensors = {}
    for i, name in enumerate(reversed(DTYPES)):
        size = nbytes(name, (4, 2, 3))
        tensors[name] = (name, (4, 2, 3), bytes((i * 7 + k) % 256 for k in range(size)))
        tensors[f"{name}.empty"] = (name, (0, 4), b"")
    plan = write(tmp_path / "o.safetensors", tensors, {"b": "1", "a": "2"})
    assert contents(tmp_path / "o.safetensors") == tensors
    with open_checkpoint(tmp_path / "o.safetensors") as c:
        for e in c.header.tensors.values():
            assert e.start % max(1, DTYPES[e.dtype].bits // 8) == 0
        assert list(c.header.metadata) == ["b", "a"]
        assert c.header.files[0].data_start % 8 == 0
    assert plan.files[0].size == (tmp_path / "o.safetensors").stat().st_size


def test_wider_types_first_then_the_given_order():
    specs = [TensorSpec(n, d, (3,)) for n, d in [("b", "U8"), ("d", "F64"), ("h", "F16"), ("a", "F32"), ("c", "I32")]]
    plan = layout(specs, {})
    assert [e.name for e in plan.files[0].entries] == ["d", "a", "c", "h", "b"]
    text = plan.files[0].header_bytes[8:]
    assert text.startswith(b'{"__metadata__":{"format":"pt"},"d":')
    assert plan.place["d"] == (0, 8 + len(text))
    assert plan.files[0].header_bytes == layout(specs, {"format": "pt"}).files[0].header_bytes


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (TensorSpec("", "F32", (1,)), "''"),
        (TensorSpec("__metadata__", "F32", (1,)), "__metadata__"),
        (TensorSpec("a\ud800", "F32", (1,)), "unpaired surrogate"),
        (TensorSpec("a", "F4", (3,)), "do not fill whole bytes"),
        (TensorSpec("twice", "F32", (3,)), "would be written twice"),
    ],
)
def test_what_cannot_be_written(spec, said):
    with pytest.raises(FormatError, match=said):
        layout([TensorSpec("twice", "F32", (1,)), spec])


def test_metadata_that_cannot_be_written():
    for wrong in ({"step": 7}, {"a": "\ud800"}, {3: "x"}):
        with pytest.raises(FormatError):
            layout([], wrong)
    with pytest.raises(UsageError, match="at least 1"):
        layout([], {}, 0)


def test_header_cap_is_checked_before_anything_is_written(monkeypatch):
    monkeypatch.setattr("converter.formats.shards.MAX_HEADER", 1000)
    with pytest.raises(FormatError, match="its header would take 1088 bytes, more than the limit of 1000"):
        layout([TensorSpec("x" * 1000, "F32", (1,))])


def test_sixty_thousand_tensors(tmp_path):
    specs = [TensorSpec(f"layers.{i // 600}.experts.{i % 600}.w", "BF16", (2, 1 + i % 3)) for i in range(60_000)]
    plan = layout(specs, {"format": "pt"})
    with Output(tmp_path / "o.safetensors", plan) as out:
        out.commit()
    head = read_header(str(tmp_path / "o.safetensors"))
    assert [e.spec for e in head.tensors.values()] == specs
    assert {e.name: (e.file, e.start) for e in head.tensors.values()} == plan.place


names = st.one_of(st.sampled_from(["w", "a.b", "é", "\n", "\x7f", "-0", "日本", '"', "\\", ""]), st.text(max_size=6))
dims = st.lists(st.integers(0, 4), max_size=4)
tensor_lists = st.lists(st.tuples(names, st.sampled_from(list(DTYPES)), dims), max_size=6, unique_by=lambda t: t[0])


def reference(data):
    """What the reference library reads: {name: (dtype, shape, bytes)}, None if it refuses."""
    try:
        found = safetensors.deserialize(data)
    except safetensors.SafetensorError:
        return None
    return {n: (i["dtype"], tuple(i["shape"]), bytes(i["data"])) for n, i in found}


def compare(path):
    """Whatever the library refuses we refuse, and what both accept is equal. Gives whether we accept."""
    theirs = reference(Path(path).read_bytes())
    ours, said = None, ""
    try:
        ours = contents(path)
    except FormatError as e:
        said = str(e)
    assert all(line.isprintable() for line in said.split("\n"))
    if ours is None:
        return False
    assert theirs is not None
    assert {n: v[1:] for n, v in ours.items()} == {n: v[1:] for n, v in theirs.items()}
    assert all(same_dtype(ours[n][0], theirs[n][0]) for n in ours)
    return True


def same_dtype(ours, theirs):
    return ours.lower() == str(theirs).lower()


@settings(QUICK, max_examples=60)
@given(
    tensor_lists, st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=3), st.none() | st.integers(1, 40)
)
def test_the_library_reads_what_is_written(tmp_path_factory, listed, metadata, limit):
    folder = tmp_path_factory.mktemp("o")
    tensors = {}
    for i, (name, dtype, shape) in enumerate(listed):
        try:
            size = nbytes(dtype, tuple(shape))
            name.encode()
        except ValueError:
            continue
        if name:
            tensors[name] = (dtype, tuple(shape), bytes((i + k) % 256 for k in range(size)))
    try:
        for text in (*metadata, *metadata.values()):
            text.encode()
    except UnicodeEncodeError:
        metadata = {}
    write(folder / "o.safetensors" if limit is None else folder / "o", tensors, metadata, limit)
    assert contents(folder / "o.safetensors" if limit is None else folder / "o") == tensors
    together = {}
    for file in folder.rglob("*.safetensors"):
        if file.is_file():
            assert compare(file if limit is None else file.rename(folder / "one.safetensors"))
            path = file if file.exists() else folder / "one.safetensors"
            with safetensors.safe_open(path, "np") as f:
                assert f.metadata() == (metadata or {"format": "pt"})
            together |= {n: v[1:] for n, v in reference(path.read_bytes()).items()}
    assert together == {n: v[1:] for n, v in tensors.items()}


odd_numbers = st.one_of(
    st.integers(-2, 12),
    st.sampled_from([2**31, 2**62, 2**63, 2**64, 1.0, 4.0, True, None, "4", float("nan"), [], -0.0]),
)
odd_entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "U8", "F4", "F64", "x", None, 3]),
        "shape": st.lists(odd_numbers, max_size=3) | odd_numbers,
        "data_offsets": st.lists(odd_numbers, min_size=1, max_size=3) | odd_numbers,
    },
    optional={"more": st.integers()},
)
plain_entries = st.builds(
    lambda dtype, n, at: {"dtype": dtype, "shape": [n], "data_offsets": [at, at + n * (4 if dtype == "F32" else 1)]},
    st.sampled_from(["F32", "U8"]),
    st.integers(0, 2),
    st.integers(0, 8),
)


@QUICK
@given(st.dictionaries(names, plain_entries | odd_entries, max_size=4), st.binary(max_size=12))
def test_whatever_the_library_refuses_is_refused(tmp_path_factory, doc, data):
    compare(raw(tmp_path_factory.mktemp("i") / "in.safetensors", doc, data))


@QUICK
@given(st.integers(0, 200), st.binary(min_size=1, max_size=4), st.integers(0, 3))
def test_a_file_with_a_few_bytes_changed(tmp_path_factory, at, new, cut):
    doc = {
        "__metadata__": {"a": "b"},
        "v": entry("U8", [2], (4, 6)),
        "w": entry(offsets=(0, 4)),
        "z": entry("F16", [1], (6, 8)),
    }
    path = raw(tmp_path_factory.mktemp("i") / "in.safetensors", doc, bytes(8))
    data = bytearray(Path(path).read_bytes())
    data[at : at + len(new)] = new
    Path(path).write_bytes(data[: len(data) - cut])
    compare(path)


def test_same_input_gives_the_same_bytes():
    specs = [TensorSpec(f"t{i}", "F32", (i,)) for i in range(3)]
    metadata = {f"k{i * 7 % 16}": str(i) for i in range(16)}
    one, two = (layout(specs, dict(metadata)) for _ in range(2))
    assert one == two
    assert list(json.loads(one.files[0].header_bytes[8:])["__metadata__"]) == list(metadata)


@pytest.mark.parametrize("more", [0, 1, 2])
def test_a_header_that_ends_where_the_file_ends(tmp_path, more):
    path = tmp_path / "in.safetensors"
    path.write_bytes((2 + more).to_bytes(8, "little") + b"{}")
    if more:
        assert f"truncated: the header takes {2 + more} bytes, the file has 2" in refusal(path)
    else:
        assert not read_header(str(path)).tensors


def test_a_decoded_file_is_read_whole_and_never_written(tmp_path):
    from converter.formats.decode import Decoded

    (tmp_path / "a").write_bytes(bytes(range(8)))
    with open(tmp_path / "a", "rb") as f:
        decoded, buffer = Decoded(f.fileno(), "swap4"), memoryview(bytearray(8))
        decoded.read(buffer, 0)
        assert bytes(buffer) == bytes([3, 2, 1, 0, 7, 6, 5, 4])
        with pytest.raises(EOFError):
            decoded.read(buffer, 4)
        with pytest.raises(NotImplementedError):
            decoded.write(buffer, 0)


@pytest.mark.parametrize("offsets", [[0.0, 4], [0, 4.0], [False, 4], [0, True], ["0", 4], [0, None]])
def test_offsets_are_integers_both(tmp_path, offsets):
    path = raw(tmp_path / "x.safetensors", {"a": {"dtype": "U8", "shape": [4], "data_offsets": offsets}}, b"1234")
    with pytest.raises(FormatError, match="not two integers"):
        read_header(str(path))


def test_reading_past_the_end_is_an_error_not_a_wait(tmp_path):
    (tmp_path / "x").write_bytes(b"123")
    with open(tmp_path / "x", "rb") as file:
        assert read_exactly("x", file.fileno(), 2, 1) == b"23"
        with pytest.raises(FormatError, match="x: was cut short while it was being read"):
            read_exactly("x", file.fileno(), 3, 1)


@pytest.mark.parametrize("shape", [[0], [1]])
@pytest.mark.parametrize("at", [2**63, 10**4000, 10**4299])
def test_offsets_beyond_63_bits_are_told_in_a_short_line(tmp_path, shape, at):
    path = raw(tmp_path / "x.safetensors", {"a": entry("U8", shape, (at, at + shape[0]))})
    text = refusal(path)
    assert text.endswith(", beyond 63 bits")
    assert len(text) < 300
