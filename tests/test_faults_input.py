"""Inputs that break, shrink, grow or change under the reader's hands, outputs that are elsewhere, and two at once."""

import ast
import errno
import json
import os
import shutil
import threading
from pathlib import Path

import pytest
from faultlab import WHOLE, Place, Warm, contents
from lab import Lab, arr, encode, read, shards, write

import converter
from converter import transfer
from converter.errors import FormatError

MAP = """
rules:
  - {from: a, to: x, shape: p q}
  - {from: b, to: y, shape: r s, ops: [transpose]}
"""
TENSORS = {"a": arr(64, 64), "b": arr(64, 64, start=9000)}
ROOT = Path(converter.__file__).parent


@pytest.fixture
def lab(tmp_path):
    lab = Lab(tmp_path)
    lab.map(MAP)
    write(lab.source, TENSORS)
    return lab


def told(lab, *says, source=None, flags=()):
    """The conversion fails with one line and exit code 3, and leaves nothing."""
    source = source or lab.source
    before = set(contents(lab.folder))
    r = lab.run("--map", lab / "map.yaml", source, lab.output, "--jobs", "1", *flags)
    assert (r.code, r.out) == (3, "")
    (line,) = r.err.splitlines()
    assert all(s in line for s in says), line
    assert set(contents(lab.folder)) == before
    return line


# Reads that fail.


@pytest.mark.parametrize("name", ["preadv", "pread", "copy_file_range", "sendfile"])
def test_a_read_that_fails_names_the_file(lab, monkeypatch, name):
    def broken(*args):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, name, broken)
    if name in ("copy_file_range", "sendfile"):  # another way does it
        monkeypatch.setattr(transfer, "COPIES", (getattr(transfer, f"by_{name}"), transfer.by_memory))
        assert lab.run("--map", lab / "map.yaml", lab.source, lab.output).code == 0
        assert read(lab.output)["x"].tobytes() == TENSORS["a"].tobytes()
    else:
        assert told(lab) == "in.safetensors: cannot be read: input/output error"


@pytest.mark.parametrize("ways", [("copy_file_range",), ("sendfile",), ()])
def test_a_sector_that_cannot_be_read(lab, monkeypatch, ways):
    """A broken place in the middle: every way of copying meets it, and the last one tells of it."""
    end = lab.source.stat().st_size - len(TENSORS["b"].tobytes()) - 100

    def limited(call, offset):
        def read_some(*args):
            if args[offset] + (args[1] if isinstance(args[1], int) else len(args[1][0])) > end > args[offset]:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return call(*args)

        return read_some

    monkeypatch.setattr(os, "pread", limited(os.pread, 2))
    copies = [getattr(transfer, f"by_{w}") for w in ways]

    def fails(*args):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(transfer, "COPIES", (*(fails for _ in copies), transfer.by_memory))
    assert told(lab) == "in.safetensors: cannot be read: input/output error"


def test_a_shard_that_cannot_be_read_is_named(lab, monkeypatch):
    source = shards(lab / "in", [{"a": TENSORS["a"]}, {"b": TENSORS["b"]}])
    real = os.preadv

    def broken(fd, buffers, offset):
        if os.readlink(f"/proc/self/fd/{fd}").endswith("00002-of-00002.safetensors"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", broken)
    said = told(lab, source=source)
    assert said == "in/model-00002-of-00002.safetensors: cannot be read: input/output error"


# Files that change while they are read.


def meanwhile(monkeypatch, lab, change, name="preadv"):
    """Do something to the input when the first data are read."""
    real, done = getattr(os, name), []

    def read_some(*args):
        if not done:
            done.append(change())
        return real(*args)

    monkeypatch.setattr(os, name, read_some)


@pytest.mark.parametrize("name", ["preadv", "copy_file_range"])
@pytest.mark.parametrize("size", [0, 300, -1, -20_000])
def test_a_file_that_shrinks_is_an_error_and_no_crash(lab, monkeypatch, name, size):
    full = lab.source.stat().st_size
    meanwhile(monkeypatch, lab, lambda: os.truncate(lab.source, size % full), name)
    line = told(lab, "in.safetensors: ")
    assert ("with " in line and "more to read: it has shrunk" in line) or "was changed while it was in use" in line


def test_a_file_that_grows_is_an_error(lab, monkeypatch):
    def grow():
        with open(lab.source, "ab") as f:
            f.write(b"x")

    size = lab.source.stat().st_size
    meanwhile(monkeypatch, lab, grow)
    told(lab, f"in.safetensors: was changed while it was in use: {size + 1} bytes, {size} when its header was read")


def keep_times(path, write_bytes):
    """Change a file so that neither its size nor its modification time tells."""
    found = path.stat()
    path.write_bytes(write_bytes(path.read_bytes()))
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (found.st_size, found.st_mtime_ns)


def swapped(data):
    return data.replace(b'"a"', b'"A"').replace(b'"b"', b'"a"').replace(b'"A"', b'"b"')


CHANGES = {
    "another modification time": (lambda p: os.utime(p, ns=(1, 1)), "its modification time is another"),
    "another header": (lambda p: keep_times(p, swapped), "its header is another"),
    "another file": (
        lambda p: (shutil.copy2(p, p.with_name("copy")), os.replace(p.with_name("copy"), p)),
        "was replaced while it was in use",
    ),
    "no file": (lambda p: p.unlink(), "no such file"),
}


@pytest.mark.parametrize("how", CHANGES)
def test_a_file_that_changes_while_it_is_read(lab, monkeypatch, how):
    change, says = CHANGES[how]
    meanwhile(monkeypatch, lab, lambda: change(lab.source))
    r = lab.run("--map", lab / "map.yaml", lab.source, lab.output, "--jobs", "1")
    assert (r.code, r.out, len(r.err.splitlines())) == (3, "", 1)
    assert r.err.startswith("in.safetensors: ")
    assert says in r.err
    assert not lab.output.exists()


@pytest.mark.parametrize("how", ["another modification time", "another header"])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_shard_or_index_that_changes_while_it_is_read(lab, monkeypatch, how, which):
    source = shards(lab / "in", [{"a": TENSORS["a"]}, {"b": TENSORS["b"]}])
    path = sorted(source.iterdir())[which]
    change, says = CHANGES[how]
    if how == "another header":
        change = lambda p: keep_times(p, lambda data: data.replace(b'"a"', b'"c"').replace(b'"b"', b'"d"'))  # noqa: E731
    meanwhile(monkeypatch, lab, lambda: change(path))
    told(lab, f"in/{path.name}: was changed while it was in use", says, source=source)


def test_nothing_is_read_through_a_memory_map():
    """A file that shrinks under a map ends the program with SIGBUS, and no handler can mend that."""
    found = []
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [node.attr] if isinstance(node, ast.Attribute) else []
            found += [f"{path.name}: {n}" for n in names if n in ("mmap", "memmap", "safe_open", "from_file")]
    assert found == []


# Files that change between planning and writing.


def planned(lab, source, **options):
    return converter.plan(source, lab / "map.yaml", **options)


@pytest.mark.parametrize("how", CHANGES)
def test_a_plan_of_a_file_that_has_changed_since_is_refused(lab, how):
    plan = planned(lab, lab.source)
    CHANGES[how][0](lab.source)
    if how == "another file":  # the same bytes and times: nothing tells, and nothing is wrong
        plan.write(lab.output)
        return
    says = "no such file" if how == "no file" else "has changed since it was planned: plan again"
    with pytest.raises(FormatError) as e:
        plan.write(lab.output)
    assert str(e.value) == f"{lab.source}: {says}"
    assert not lab.output.exists()


def remap(data):
    doc = json.loads(data)
    doc["weight_map"]["a"] = doc["weight_map"]["b"]
    return json.dumps(doc).encode()


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("how", ["time", "size", "header"])
def test_a_plan_of_shards_that_have_changed_since_is_refused(lab, how, which):
    source = shards(lab / "in", [{"a": TENSORS["a"], "c": arr(1)}, {"a": TENSORS["b"], "b": TENSORS["b"]}])
    doc = json.loads((source / "model.safetensors.index.json").read_text())
    doc["weight_map"]["a"] = "model-00001-of-00002.safetensors"
    (source / "model.safetensors.index.json").write_text(json.dumps(doc))
    path = sorted(source.iterdir())[which]
    plan = planned(lab, source, unmatched="drop")
    if how == "time":
        os.utime(path, ns=(1, 1))
    elif how == "size" and path.suffix == ".json":
        path.write_bytes(path.read_bytes() + b"\n")
    elif how == "size":
        path.write_bytes(encode({"a": arr(2, 2), "b": arr(2, 2), "c": arr(1)}))
    elif path.suffix == ".json":
        keep_times(path, remap)
    else:
        keep_times(path, lambda data: data.replace(b'"shape": [64, 64]', b'"shape": [32,128]'))
    with pytest.raises(FormatError, match="has changed since it was planned: plan again") as e:
        plan.write(lab.output)
    assert [p.subject for p in e.value.problems] == [str(path)]
    assert not lab.output.exists()


def test_a_shard_that_is_added_or_gone_is_a_change(lab):
    source = shards(lab / "in", [{"a": TENSORS["a"]}, {"b": TENSORS["b"]}])
    plan = planned(lab, source)
    shutil.rmtree(source)
    shards(lab / "in", [{"a": TENSORS["a"], "b": TENSORS["b"]}])
    with pytest.raises(FormatError, match="has changed since it was planned") as e:
        plan.write(lab.output)
    assert {Path(p.subject).name for p in e.value.problems} == {
        "model-00001-of-00001.safetensors",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    }


# Outputs that are somewhere else.


def test_a_link_to_a_file_is_replaced_and_what_it_points_to_stays(lab):
    """As `mv` does it; a cache of downloads is made of such links."""
    (lab / "real.safetensors").write_bytes(b"precious")
    for goal in ("real.safetensors", "nowhere"):
        lab.output.unlink(missing_ok=True)
        lab.output.symlink_to(goal)
        r = lab.run("--map", lab / "map.yaml", lab.source, lab.output)
        assert (r.code, "--force" in r.err) == (2, True)
        assert lab.run("--map", lab / "map.yaml", lab.source, lab.output, "--force").code == 0
        assert not lab.output.is_symlink()
        assert read(lab.output)["x"].tobytes() == TENSORS["a"].tobytes()
    assert (lab / "real.safetensors").read_bytes() == b"precious"
    assert not (lab / "nowhere").exists()


def test_a_link_to_a_folder_stands_for_it(lab):
    (lab / "real").mkdir()
    (lab / "link").symlink_to("real")
    assert lab.run("--map", lab / "map.yaml", lab.source, lab / "link", "--max-shard-size", "20kB").code == 0
    assert (lab / "link").is_symlink()
    assert len(list((lab / "real").iterdir())) == 3


def test_a_folder_that_is_not_there(lab):
    r = lab.run("--map", lab / "map.yaml", lab.source, lab / "no" / "out.safetensors")
    assert (r.code, r.err) == (3, "no: no such directory; the output would be in it\n")


def test_a_temporary_that_is_planted_leads_nowhere(lab, tmp_path):
    """A folder from a stranger may hold what looks like a killed run; nothing outside of it is moved or removed."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    planted = lab / "o" / ".tmp-convert"
    planted.mkdir(parents=True)
    (planted / "old").symlink_to(outside)
    inode = (outside / "precious").stat().st_ino
    (planted / "new.json").write_text(json.dumps({"../outside/precious": inode, "x": [], "..": inode}))
    assert lab.run("--map", lab / "map.yaml", lab.source, lab / "o").code == 0
    assert (outside / "precious").read_text() == "x"
    assert sorted(contents(lab / "o")) == ["model.safetensors"]
    (lab / "p").mkdir()
    (lab / "p" / ".tmp-convert").symlink_to(outside)
    r = lab.run("--map", lab / "map.yaml", lab.source, lab / "p")
    assert (r.code, r.err) == (3, "p: cannot be written: p/.tmp-convert is in the way\n")
    assert (outside / "precious").read_text() == "x"


# Two at once.


@pytest.fixture(scope="module")
def two():
    found = Warm(), Warm()
    yield found
    for warm in found:
        warm.close()


@pytest.mark.parametrize("name", ["a file", "shards", "a file in place of another", "shards in place of as many"])
def test_the_second_of_two_is_refused_and_the_first_goes_on(tmp_path, two, name):
    first, second = two
    (tmp_path / "here").mkdir()
    os.mkfifo(tmp_path / "go")
    place = Place(tmp_path / "here", first, WHOLE[name])
    for at in (place.filled, len(place.steps) - 2 if name.startswith("a") else place.filled + 4):
        place.reset()
        first.start(*place.command(), at=at, do=str(tmp_path / "go"))
        with open(tmp_path / "go", "wb"):  # it is there now
            done = second.run(*place.command())
        assert (done.code, done.out) == (2, "")
        assert done.err.endswith(": another conversion is writing it now\n")
        assert first.finish().code == 0
        assert contents(place.folder) == place.new


def test_threads_of_one_process_are_kept_apart_too(lab):
    """Two calls from Python to one output: one of them, or both one after the other, and never a mixture."""
    plans = [planned(lab, lab.source) for _ in range(6)]
    errors = []

    def run(plan):
        try:
            plan.write(lab / "o", max_shard_size=20_000, force=True)
        except converter.ConvertError as e:
            errors.append(str(e))

    threads = [threading.Thread(target=run, args=(p,)) for p in plans]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    allowed = ("another conversion is writing it now", "was made or removed by another program just now")
    assert len(errors) < 6
    assert all(e.endswith(allowed) for e in errors)
    assert len(list((lab / "o").iterdir())) == 3
    assert not list(lab.folder.glob(".*"))
