"""Outputs appear whole or not at all, whatever happens on the way."""

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import safetensors
from test_formats_safetensors import contents, write

import converter
from converter.errors import FormatError, UsageError
from converter.formats import Output, check_target, layout, open_checkpoint, staging, swap
from converter.spec import TensorSpec

INDEX = "model.safetensors.index.json"
ROOT = str(Path(next(iter(converter.__path__))).parent)


def tensors(n=4, start=0):
    return {f"t{i}": ("U8", (4,), bytes([start + i] * 4)) for i in range(n)}


def plan(n=4, limit=None):
    return layout([TensorSpec(name, d, s) for name, (d, s, _) in tensors(n).items()], {}, limit)


def files(folder):
    return sorted(p.name for p in folder.iterdir())


def refusal(kind, *args, **flags):
    with pytest.raises(kind) as e, Output(*args, **flags):
        pass
    assert type(e.value) is kind
    assert "\n" not in str(e.value)
    return str(e.value)


@pytest.fixture(params=["umask 022", "umask 027"])
def umask(request):
    mask = int(request.param.split()[1], 8)
    old = os.umask(mask)
    yield mask
    os.umask(old)


def test_mode_follows_umask(tmp_path, umask):
    write(tmp_path / "o.safetensors", tensors())
    assert (tmp_path / "o.safetensors").stat().st_mode & 0o777 == 0o666 & ~umask
    write(tmp_path / "o", tensors(), max_shard_size=4)
    assert (tmp_path / "o").stat().st_mode & 0o777 == 0o777 & ~umask
    assert {p.stat().st_mode & 0o777 for p in (tmp_path / "o").iterdir()} == {0o666 & ~umask}


def test_force_keeps_the_mode(tmp_path, umask):
    path = tmp_path / "o.safetensors"
    path.write_bytes(b"abc")
    path.chmod(0o640)
    assert "--force" in refusal(UsageError, path, plan())
    assert path.read_bytes() == b"abc"
    write(path, tensors(), force=True)
    assert path.stat().st_mode & 0o777 == 0o640
    assert contents(path) == tensors()
    assert files(tmp_path) == ["o.safetensors"]


def test_nothing_is_visible_before_the_commit(tmp_path):
    with Output(tmp_path / "o.safetensors", plan()) as out:
        assert files(tmp_path) == [".o.safetensors.tmp-convert"]
        assert out.fds == (out.fd(0),)
    assert files(tmp_path) == []
    with pytest.raises(KeyboardInterrupt), Output(tmp_path / "o.safetensors", plan()):
        raise KeyboardInterrupt
    assert files(tmp_path) == []


@pytest.mark.parametrize("how", ["same", "dotted", "hardlink", "symlink"])
@pytest.mark.parametrize("force", [False, True])
def test_output_is_never_the_input(tmp_path, monkeypatch, how, force):
    monkeypatch.chdir(tmp_path)
    write("m.safetensors", tensors())
    before = Path("m.safetensors").read_bytes()
    path = {"same": "m.safetensors", "dotted": "./m.safetensors"}.get(how, "o.safetensors")
    if how == "hardlink":
        os.link("m.safetensors", path)
    elif how == "symlink":
        os.symlink("m.safetensors", path)
    said = refusal(UsageError, path, plan(), force=force, inputs=[str(tmp_path / "m.safetensors")])
    assert "the output is the input" in said
    assert Path("m.safetensors").read_bytes() == before


def test_output_folder_with_the_input_in_it(tmp_path):
    write(tmp_path / "model.safetensors", tensors())
    one = [str(tmp_path / "model.safetensors")]
    said = refusal(UsageError, tmp_path, plan(limit=4), force=True, inputs=one)
    assert "model.safetensors there is the input" in said
    for limit in (None, 4):
        with pytest.raises(UsageError, match="is the input"):
            check_target(str(tmp_path), limit is not None, True, one)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "s1.safetensors").write_bytes((tmp_path / "model.safetensors").read_bytes())
    sub = [str(tmp_path / "sub" / "s1.safetensors")]
    assert "holds the input" in refusal(UsageError, tmp_path, plan(limit=4), force=True, inputs=sub)
    (tmp_path / "model.safetensors").rename(tmp_path / "in.safetensors")
    write(tmp_path, tensors(), max_shard_size=4, inputs=[str(tmp_path / "in.safetensors")])
    assert contents(tmp_path) == contents(tmp_path / "in.safetensors") == tensors()


@pytest.mark.parametrize("name", ["o.bin", "o", "o.pt", "o.SAFETENSORS", ".safetensors.gz"])
def test_suffixes_that_are_not_written(tmp_path, name):
    said = refusal(UsageError, tmp_path / name, plan())
    assert "not written" in said
    assert "*.safetensors" in said
    assert files(tmp_path) == []


def test_where_nothing_can_be_written(tmp_path):
    assert "no such directory" in refusal(FormatError, tmp_path / "no" / "o.safetensors", plan())
    assert "no such directory" in refusal(FormatError, tmp_path / "no" / "o", plan(limit=4))
    (tmp_path / "f").write_text("")
    assert "is not a directory" in refusal(FormatError, tmp_path / "f" / "o.safetensors", plan())
    assert "exists and is not a directory" in refusal(UsageError, tmp_path / "f", plan(limit=4))
    assert "suffix of a file" in refusal(UsageError, tmp_path / "o.safetensors", plan(limit=4))
    assert "has no name" in refusal(UsageError, "", plan())
    os.mkfifo(tmp_path / "p.safetensors")
    assert "not a regular file" in refusal(UsageError, tmp_path / "p.safetensors", plan(), force=True)
    assert "file name too long" in refusal(FormatError, tmp_path / ("x" * 300 + ".safetensors"), plan())
    assert files(tmp_path) == ["f", "p.safetensors"]


def test_no_permission(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "no permission" in refusal(FormatError, tmp_path / "o.safetensors", plan())


def test_links_as_outputs(tmp_path):
    (tmp_path / "real.safetensors").write_bytes(b"abc")
    for goal in ("real.safetensors", "nowhere"):
        (tmp_path / "o.safetensors").unlink(missing_ok=True)
        (tmp_path / "o.safetensors").symlink_to(goal)
        assert "--force" in refusal(UsageError, tmp_path / "o.safetensors", plan())
        write(tmp_path / "o.safetensors", tensors(), force=True)
        assert not (tmp_path / "o.safetensors").is_symlink()
    assert (tmp_path / "real.safetensors").read_bytes() == b"abc"
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    write(tmp_path / "link", tensors(), max_shard_size=4)
    assert (tmp_path / "link").is_symlink()
    assert contents(tmp_path / "real") == tensors()


@pytest.mark.parametrize("limit", [None, 4])
def test_too_little_free_disk(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=1, f_frsize=100, f_blocks=7))
    said = refusal(FormatError, tmp_path / "o.safetensors" if limit is None else tmp_path / "o", plan(limit=limit))
    assert f"too little free disk: {plan(limit=limit).size} bytes are needed, 100 are free" in said
    assert files(tmp_path) == []
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=0, f_frsize=0, f_blocks=0))
    write(tmp_path / "o.safetensors", tensors())


def test_a_write_that_fails(tmp_path):
    big = layout([TensorSpec("w", "U8", (100_000,))], {})
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, old[1]))
    try:
        for reserve in (True, False):
            with pytest.MonkeyPatch.context() as m:
                if not reserve:
                    m.setattr(staging, "_libc", lambda: None)
                assert "cannot be written: file too large" in refusal(FormatError, tmp_path / "o.safetensors", big)
                assert files(tmp_path) == []
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.ENOSPC])
def test_file_systems_that_reserve_nothing(tmp_path, monkeypatch, code):
    def fallocate(fd, mode, offset, size):
        return -1

    monkeypatch.setattr(staging, "_libc", lambda: SimpleNamespace(fallocate=fallocate))
    monkeypatch.setattr(staging.ctypes, "get_errno", lambda: code)
    if code == errno.ENOSPC:
        assert "no space left" in refusal(FormatError, tmp_path / "o.safetensors", plan())
        assert files(tmp_path) == []
    else:
        write(tmp_path / "o.safetensors", tensors())
        assert contents(tmp_path / "o.safetensors") == tensors()


@pytest.mark.parametrize("what", ["fsync", "rename"])
@pytest.mark.parametrize("limit", [None, 4])
def test_a_commit_that_fails(tmp_path, monkeypatch, what, limit):
    def fail(*args):
        raise OSError(errno.EIO, "Input/output error")

    path = tmp_path / "o.safetensors" if limit is None else tmp_path / "o"
    write(path, tensors(start=50), max_shard_size=limit)
    before = contents(path)
    with Output(path, plan(limit=limit), force=True) as out:
        if what == "fsync":
            monkeypatch.setattr(os, "fsync", fail)
        else:
            monkeypatch.setattr(Path, "rename", fail)
            monkeypatch.setattr(Path, "replace", fail)
            monkeypatch.setattr(swap, "exchange", lambda a, b: False)
        with pytest.raises(FormatError, match="input/output error"):
            out.commit()
    monkeypatch.undo()
    assert contents(path) == before
    assert files(tmp_path) == [path.name]


def test_shards(tmp_path):
    t = {"big": ("U8", (16,), bytes(range(16))), "../../x": ("F32", (1,), b"abcd"), "w": ("F16", (3,), b"uvwxyz")}
    write(tmp_path / "o", t, {"k": "v"}, max_shard_size=8)
    names = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    assert files(tmp_path / "o") == [*names, INDEX]
    assert files(tmp_path) == ["o"]
    doc = json.loads((tmp_path / "o" / INDEX).read_text())
    assert doc["metadata"] == {"total_size": 26}
    assert doc["weight_map"] == {"../../x": names[0], "w": names[1], "big": names[2]}
    for name in names:
        with safetensors.safe_open(tmp_path / "o" / name, "np") as f:
            assert f.metadata() == {"k": "v"}
    assert contents(tmp_path / "o") == t
    with open_checkpoint(tmp_path / "o") as c:
        assert c.header.notes == ()


def test_filling_of_shards():
    def groups(sizes, limit):
        p = layout([TensorSpec(f"t{i}", "U8", (n,)) for i, n in enumerate(sizes)], {}, limit)
        return [[e.stop - e.start for e in f.entries] for f in p.files]

    assert groups([16, 4], 8) == [[16], [4]]
    assert groups([4, 16, 4, 4, 1], 8) == [[4], [16], [4, 4], [1]]
    assert groups([0, 8, 0, 8], 8) == [[0, 8, 0], [8]]
    assert groups([16, 4], 100) == [[16, 4]]
    assert groups([], 8) == [[]]


def test_one_file_in_a_folder(tmp_path):
    write(tmp_path / "a", tensors(), max_shard_size=100)
    write(f"{tmp_path}/b/", tensors())
    (tmp_path / "c").mkdir()
    write(tmp_path / "c", tensors())
    for name in "abc":
        assert files(tmp_path / name) == ["model.safetensors"]
        assert contents(tmp_path / name) == tensors()
    assert files(tmp_path) == ["a", "b", "c"]


def old_set(folder, kind):
    """Make an output folder with old weights of a kind, and files that are none of them."""
    limits = {"single": 100, "same count": 4, "other count": 8}
    write(folder, tensors(start=90), max_shard_size=limits[kind])
    for name in ("config.json", "model.fp16.safetensors", "tokenizer.json"):
        (folder / name).write_text(name)
    folder.chmod(0o750)
    return {p.name: p.read_bytes() for p in folder.iterdir()}


OTHERS = ["config.json", "model.fp16.safetensors", "tokenizer.json"]


@pytest.mark.parametrize("kind", ["single", "same count", "other count"])
@pytest.mark.parametrize("limit", [4, None])
@pytest.mark.parametrize("way", ["exchange", "no exchange", "sub-folder", "current folder", "no links"])
def test_an_old_set_is_replaced(tmp_path, monkeypatch, kind, limit, way):
    folder = tmp_path / "o"
    before = old_set(folder, kind)
    if way == "sub-folder":
        (folder / "onnx").mkdir()
    elif way == "current folder":
        monkeypatch.chdir(folder)
    elif way == "no exchange":
        monkeypatch.setattr(swap, "exchange", lambda a, b: False)
    elif way == "no links":
        monkeypatch.setattr(os, "link", lambda *a, **k: os.close(-1))
    path = "." if way == "current folder" else folder
    said = refusal(UsageError, path, plan(limit=limit))
    assert "holds weights already: model" in said
    assert "--force" in said
    assert before.items() <= {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}.items()
    inode = (folder / "config.json").stat().st_ino
    write(path, tensors(), max_shard_size=limit, force=True)
    want = ["model.safetensors"] if limit is None else [*(f.name for f in plan(limit=4).files), INDEX]
    assert files(folder) == sorted([*want, *OTHERS, *(["onnx"] if way == "sub-folder" else [])])
    assert contents(folder if limit else folder / "model.safetensors") == tensors()
    assert (folder / "config.json").stat().st_ino == inode
    assert folder.stat().st_mode & 0o777 == 0o750
    assert files(tmp_path) == ["o"]


@pytest.mark.parametrize("kind", ["single", "same count", "other count"])
@pytest.mark.parametrize("limit", [4, None])
def test_a_failure_at_any_step_leaves_the_old_set(tmp_path, monkeypatch, kind, limit):
    folder = tmp_path / "o"
    before = old_set(folder, kind)
    monkeypatch.setattr(swap, "exchange", lambda a, b: False)
    rename, steps = Path.rename, 0
    for fail_at in range(1, 40):
        count = 0

        def step(self, goal, fail_at=fail_at):
            nonlocal count
            count += 1
            if count == fail_at:
                raise KeyboardInterrupt
            return rename(self, goal)

        monkeypatch.setattr(Path, "rename", step)
        try:
            with Output(folder, plan(limit=limit), force=True) as out:
                out.commit()
        except KeyboardInterrupt:
            steps += 1
            assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
            assert files(tmp_path) == ["o"]
        else:
            break
    assert steps >= 2


KILLED = """
import os, signal, sys
from pathlib import Path
from converter.formats import Output, layout, swap
from converter.spec import TensorSpec
path, limit, at = sys.argv[1], int(sys.argv[2]) or None, int(sys.argv[3])
swap.exchange = lambda a, b: False
rename, count = Path.rename, 0
def step(self, goal):
    global count
    count += 1
    if count == at:
        os.kill(os.getpid(), signal.SIGKILL)
    return rename(self, goal)
Path.rename = step
with Output(path, layout([TensorSpec(f"t{i}", "U8", (4,)) for i in range(4)], {}, limit), force=True) as out:
    if at == 0:
        print("ready", flush=True)
        sys.stdin.read()
    out.commit()
"""


def killed(path, limit, at):
    command = [sys.executable, "-c", KILLED, str(path), str(limit or 0), str(at)]
    return subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": ROOT}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("kind", ["same count", "other count"])
def test_killed_between_two_steps(tmp_path, kind):
    folder = tmp_path / "o"
    before = old_set(folder, kind)
    for at in (2, 4):
        process = killed(folder, 4, at)
        assert process.wait(timeout=30) == -signal.SIGKILL
        process.communicate()
        assert {".o.tmp-convert", ".tmp-convert"} & {*files(tmp_path), *files(folder)}
        with Output(folder, plan(limit=4), force=True):  # it puts back what the killed run took away
            pass
        left = {p.name: p.read_bytes() for p in folder.iterdir()}
        assert before.items() <= left.items()
        assert files(tmp_path) == ["o"]
    write(folder, tensors(), max_shard_size=4, force=True)
    assert files(folder) == sorted([*(f.name for f in plan(limit=4).files), INDEX, *OTHERS])
    assert contents(folder) == tensors()


@pytest.mark.parametrize("limit", [None, 4])
def test_two_at_once_and_what_a_killed_run_left(tmp_path, limit):
    path = tmp_path / "o.safetensors" if limit is None else tmp_path / "o"
    process = killed(path, limit, 0)
    assert process.stdout.readline() == "ready\n"
    busy = refusal(UsageError, path, plan(limit=limit))
    assert "another conversion is writing it now" in busy
    process.kill()
    process.communicate()
    assert files(tmp_path) == [f".{path.name}.tmp-convert"]
    write(path, tensors(), max_shard_size=limit)
    assert files(tmp_path) == [path.name]
    assert contents(path) == tensors()


def test_something_else_in_the_way(tmp_path):
    (tmp_path / ".o.safetensors.tmp-convert").symlink_to("elsewhere")
    assert "is in the way" in refusal(FormatError, tmp_path / "o.safetensors", plan())
    (tmp_path / ".o.tmp-convert").write_text("")
    assert "is in the way" in refusal(FormatError, tmp_path / "o", plan(limit=4))
    assert not (tmp_path / "elsewhere").exists()


def test_a_file_that_appears_meanwhile_is_left(tmp_path):
    with Output(tmp_path / "o.safetensors", plan()) as out:
        (tmp_path / "o.safetensors").write_text("x")
        with pytest.raises(FormatError, match="made by another program"):
            out.commit()
    assert (tmp_path / "o.safetensors").read_text() == "x"
    assert files(tmp_path) == ["o.safetensors"]


def test_a_file_that_comes_into_the_folder_during_the_exchange_is_kept(tmp_path, monkeypatch):
    old_set(tmp_path / "o", "same count")
    exchange = swap.exchange

    def late(one, other):
        (other / "late.txt").write_text("x")
        return exchange(one, other)

    monkeypatch.setattr(swap, "exchange", late)
    write(tmp_path / "o", tensors(), max_shard_size=4, force=True)
    assert (tmp_path / "o" / "late.txt").read_text() == "x"
    assert files(tmp_path) == ["o"]


def test_old_index_with_names_of_its_own(tmp_path):
    folder = tmp_path / "o"
    folder.mkdir()
    for name in ("s1.safetensors", "keep.safetensors", "keep.txt"):
        (folder / name).write_text("x")
    names = ["s1.safetensors", "keep.txt", "sub/x.safetensors"]
    (folder / INDEX).write_text(json.dumps({"weight_map": dict(zip("abc", names))}))
    assert f"{INDEX}, s1.safetensors;" in refusal(UsageError, folder, plan())
    write(folder, tensors(), force=True)
    assert files(folder) == ["keep.safetensors", "keep.txt", "model.safetensors"]


def test_many_shards_and_few_descriptors(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (60, hard))
    try:
        write(tmp_path / "o", tensors(120), max_shard_size=4)
        with open_checkpoint(tmp_path / "o") as c:
            assert len(c.fds) == 120
            c.check_unchanged()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_other_file_system():
    shm = Path("/dev/shm")
    if not shm.is_dir():
        pytest.skip("no second file system")
    folder = shm / f"convert-test-{os.getpid()}"
    folder.mkdir()
    try:
        write(folder / "o.safetensors", tensors())
        write(folder / "o", tensors(), max_shard_size=4)
        write(folder / "o", tensors(), max_shard_size=4, force=True)
        assert contents(folder / "o") == contents(folder / "o.safetensors") == tensors()
        assert files(folder) == ["o", "o.safetensors"]
    finally:
        shutil.rmtree(folder)


def test_finish_syncs_one_file_early(tmp_path):
    t = tensors()
    with Output(tmp_path / "o", plan(limit=4)) as out:
        for i, (name, (_, _, data)) in enumerate(t.items()):
            file, offset = out.layout.place[name]
            assert file == i
            os.pwrite(out.fd(i), data, offset)
            out.finish(i)
        out.commit()
    assert contents(tmp_path / "o") == t


def test_sixty_thousand_tensors_in_shards(tmp_path):
    p = layout([TensorSpec(f"l.{i}.w", "BF16", (1,)) for i in range(60_000)], {}, 30_000)
    with Output(tmp_path / "o", p) as out:
        out.commit()
    with open_checkpoint(tmp_path / "o") as c:
        assert len(c.header.tensors) == 60_000
        assert {e.name: (e.file, e.start) for e in c.header.tensors.values()} == p.place


RACE = """
import os, sys
from converter.errors import ConvertError
from converter.formats import Output, layout
from converter.spec import TensorSpec
path, me, limit = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) or None
plan = layout([TensorSpec(n, "U8", (99,)) for n in "vw"], {}, limit)
for _ in range(15):
    try:
        with Output(path, plan, force=True) as out:
            for file, offset in plan.place.values():
                os.pwrite(out.fd(file), bytes([me]) * 99, offset)
            out.commit()
    except ConvertError as e:
        print(e)
"""


@pytest.mark.parametrize("limit", [0, 99])
def test_many_at_once_never_mix(tmp_path, limit):
    path = tmp_path / "o.safetensors" if limit == 0 else tmp_path / "o"
    env = {**os.environ, "PYTHONPATH": ROOT}
    command = [sys.executable, "-c", RACE, str(path)]
    runs = [
        subprocess.Popen(
            [*command, str(i), str(limit)], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for i in range(4)
    ]
    said = [run.communicate(timeout=60) for run in runs]
    assert [e for _, e in said] == [""] * 4
    lines = {line.removeprefix(f"{path}: ") for out, _ in said for line in out.splitlines()}
    assert lines <= {"another conversion is writing it now", "was made or removed by another program just now"}
    assert files(tmp_path) == [path.name]
    got = contents(path)
    assert len({data for _, _, data in got.values()}) == 1
    assert len(got) == 2


def test_the_data_of_a_large_file_begin_in_a_block_as_those_of_the_input():
    """File systems that share blocks can then share them (reflinks); small files are not padded for it."""
    large = layout([TensorSpec("w", "U8", (1 << 20,))], None, None, 4096 + 136)
    assert large.place["w"][1] % 4096 == 136
    assert layout([TensorSpec("w", "U8", (1 << 10,))], None, None, 4096 + 136).place["w"][1] < 136
    assert layout([TensorSpec("w", "U8", (1 << 20,))], None, None, 4097).place["w"][1] % 8 == 0


def test_elements_smaller_than_a_byte_lie_among_bytes_in_the_order_of_the_input():
    specs = [TensorSpec(n, d, (8,)) for n, d in (("a", "F4"), ("b", "U8"), ("c", "F4"), ("d", "F16"), ("e", "F8_E4M3"))]
    (file,) = layout(specs, {}, None).files
    assert [e.name for e in file.entries] == ["d", "a", "b", "c", "e"]


def test_names_and_metadata_beyond_ascii_stand_as_they_are(tmp_path):
    write(tmp_path / "a.safetensors", {"é.\u2028": ("U8", (1,), b"x")}, {"k": "ü\n"})
    data = (tmp_path / "a.safetensors").read_bytes()
    assert "é.\u2028".encode() in data
    assert '"k":"ü\\n"'.encode() in data


def test_a_header_beyond_the_limit_of_readers_is_refused(monkeypatch):
    from converter.formats import shards

    specs = [TensorSpec(f"t{k}", "U8", (1,)) for k in range(9)]
    size = len(layout(specs, {}, None).files[0].header_bytes) - 8
    monkeypatch.setattr(shards, "MAX_HEADER", size)
    assert len(layout(specs, {}, None).files) == 1
    monkeypatch.setattr(shards, "MAX_HEADER", size - 1)
    with pytest.raises(
        FormatError, match=f"the output: its header would take {size} bytes, more than .*: write it in shards"
    ):
        layout(specs, {}, None)
    monkeypatch.setattr(shards, "MAX_HEADER", 10)
    with pytest.raises(FormatError, match=r"model-00001-of-00009.safetensors: its header .* of 10$"):
        layout(specs, {}, 1)


# Durable before it is visible.


@pytest.mark.parametrize("way", ["a file", "a folder", "one file in a folder", "exchange", "one by one"])
def test_what_is_put_in_place_is_on_the_disk_before(tmp_path, monkeypatch, way):
    folder, events = tmp_path / "o", []
    if way in ("exchange", "one by one"):
        old_set(folder, "same count")
    if way == "one by one":
        (folder / "onnx").mkdir()

    def watched(word, call):
        def step(*args, **options):
            first = os.readlink(f"/proc/self/fd/{args[0]}") if isinstance(args[0], int) else os.fspath(args[0])
            events.append((word, Path(first)))
            return call(*args, **options)

        return step

    monkeypatch.setattr(os, "fsync", watched("sync", os.fsync))
    for name in ("rename", "replace"):
        monkeypatch.setattr(os, name, watched("move", getattr(os, name)))
    monkeypatch.setattr(swap, "exchange", watched("move", swap.exchange))
    if way == "a file":
        write(tmp_path / "model.safetensors", tensors())
    else:
        write(folder, tensors(), max_shard_size=100 if way == "one file in a folder" else 4, force=True)
    made = (
        {"model.safetensors"}
        if way in ("a file", "one file in a folder")
        else {INDEX, *(f.name for f in plan(limit=4).files)}
    )
    hidden = [
        k
        for k, (word, path) in enumerate(events)
        if word == "move" and path.name == ".tmp-convert" and way != "a folder"
    ]
    moves = [k for k, (word, _) in enumerate(events) if word == "move" and k not in hidden]
    synced = [path for word, path in events[: moves[0]] if word == "sync"]
    names = {p.name.removeprefix(".").removesuffix(".tmp-convert") if way == "a file" else p.name for p in synced}
    assert made <= names
    if way == "one by one":
        assert "new.json" in names
        last = max(k for k, (word, path) in enumerate(events) if word == "move" and path.name == INDEX)
        assert ("sync", folder) in events[last:]
        assert next(p.name for w, p in events if w == "move" and p.name in made) == INDEX, "the old index goes first"
    if way != "a file":
        assert synced[-1].name.endswith(".tmp-convert"), "the names in the new folder"
    assert events[-1] == ("sync", tmp_path)


def test_syncing_a_folder_forgives_what_cannot_be_synced_and_nothing_else(tmp_path, monkeypatch):
    def fails(code):
        def fsync(fd):
            assert os.path.samestat(os.fstat(fd), tmp_path.stat())
            raise OSError(code, os.strerror(code))

        return fsync

    for code in (errno.EINVAL, errno.EOPNOTSUPP):
        monkeypatch.setattr(os, "fsync", fails(code))
        staging.sync_folder(tmp_path)
    monkeypatch.setattr(os, "fsync", fails(errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        staging.sync_folder(tmp_path)
    with pytest.raises(NotADirectoryError):
        staging.sync_folder(Path(__file__))
    monkeypatch.setattr(os, "open", lambda *a, **k: (_ for _ in ()).throw(PermissionError()))
    staging.sync_folder(tmp_path)


def test_blocks_are_reserved_and_the_size_is_set(tmp_path):
    fd = os.open(tmp_path / "a", os.O_RDWR | os.O_CREAT)
    try:
        staging.allocate(fd, 1 << 20)
        found = os.fstat(fd)
        assert found.st_size == 1 << 20
        assert found.st_blocks * 512 >= 1 << 20
        staging.write_all(fd, b"abc", 5)
        assert os.pread(fd, 9, 0) == bytes(5) + b"abc" + bytes(1)
    finally:
        os.close(fd)


def test_a_short_write_goes_on_where_it_ended(tmp_path, monkeypatch):
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, bytes(data[:2]), at))
    staging.make_file(tmp_path / "a", b"abcdefg")
    assert (tmp_path / "a").read_bytes() == b"abcdefg"
    with pytest.raises(FileExistsError):
        staging.make_file(tmp_path / "a", b"")


def test_two_paths_change_places(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").write_text("b")
    assert staging.exchange(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").is_dir()
    assert (tmp_path / "a").read_text() == "b"
    assert not staging.exchange(tmp_path / "a", tmp_path / "c")


def test_what_a_killed_run_left_is_salvaged_and_then_removed(tmp_path):
    left, seen = tmp_path / ".t", []
    for folder in (True, False):
        (left.mkdir() if folder else left.write_text("left"))
        if folder:
            (left / "inside").write_text("x")
        claim = staging.claim(left, folder, "out", lambda: seen.append(left.exists()))
        assert seen.pop()
        assert left.is_dir() == folder
        assert not (list(left.iterdir()) if folder else left.read_text())
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(UsageError, match="another conversion is writing it now"):
            staging.claim(left, folder, "out")
        assert len(os.listdir("/proc/self/fd")) == before
        claim.release([tmp_path / "nowhere", left])
        assert not left.exists()
        assert not seen
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(claim.fd)


def test_a_temporary_that_is_replaced_meanwhile_is_left(tmp_path):
    claim = staging.claim(tmp_path / ".t", False, "out")
    (tmp_path / ".t").unlink()
    (tmp_path / ".t").write_text("of somebody else")
    claim.release([tmp_path / ".t"])
    assert (tmp_path / ".t").read_text() == "of somebody else"


def test_a_folder_is_locked_once(tmp_path):
    fd = staging.lock_folder(tmp_path, "out")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(UsageError, match="another conversion"):
        staging.lock_folder(tmp_path, "out")
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(fd)
    os.close(staging.lock_folder(tmp_path, "out"))


def test_what_a_journal_says_counts_only_of_the_very_same_files(tmp_path):
    target, left = tmp_path / "o", tmp_path / ".t"
    (left / "old").mkdir(parents=True)
    target.mkdir()
    for name in ("a", "b", "c", INDEX):
        (target / name).write_text(name)
    (left / "old" / "a").write_text("old a")
    (left / "old" / "z").write_text("old z")
    inode = {n: (target / n).stat().st_ino for n in ("a", "b", "c", INDEX)}
    (left / "new.json").write_text(
        json.dumps({"a": inode["a"], "b": inode["b"] + 1, "gone": 1, "../o/c": inode["c"], INDEX: inode[INDEX]})
    )
    assert swap.unfinished(left, target) == swap.Unfinished(frozenset("az"), frozenset(["a", INDEX]))
    swap.recover(left, target)
    assert {p.name: p.read_text() for p in target.iterdir()} == {"a": "old a", "z": "old z", "b": "b", "c": "c"}
    for text in ("", "[]", "[1]", '{"a": "x"}', "{"):
        (left / "new.json").write_text(text)
        assert swap.unfinished(left, target).put == frozenset()
    for odd in (left, left / "old"):
        odd.rename(tmp_path / "moved")
        odd.symlink_to(tmp_path / "moved")
        assert swap.unfinished(left, target) == swap.Unfinished()
        odd.unlink()
        (tmp_path / "moved").rename(odd)
    assert swap.unfinished(left, tmp_path / "nowhere") == swap.Unfinished()
    assert swap.unfinished(tmp_path / "nowhere", target) == swap.Unfinished()


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("model.safetensors", True),
        (INDEX, True),
        ("model-00001-of-00002.safetensors", True),
        ("model-1-of-1.safetensors", True),
        ("other-00001-of-00002.safetensors", False),
        ("model-00001-of-00002x.safetensors", False),
        ("model.fp16.safetensors", False),
        ("model-00001-of-00002.bin", False),
        ("named.safetensors", True),
        ("named.bin", False),
    ],
)
def test_what_counts_as_an_old_set(tmp_path, name, counts):
    (tmp_path / name).write_text("{}")
    if name.startswith("named"):
        (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": name}}))
    target = check_target(str(tmp_path), directory=True, force=True)
    assert (name in target.old) == counts
    assert target.exists
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    assert name not in check_target(str(tmp_path), directory=True, force=True).old


def test_a_file_that_is_there_says_so(tmp_path):
    (tmp_path / "a.safetensors").write_text("x")
    (tmp_path / "a.safetensors").chmod(0o640)
    there = check_target(str(tmp_path / "a.safetensors"), force=True)
    assert (there.exists, there.directory, there.mode) == (True, False, 0o640)
    new = check_target(str(tmp_path / "b.safetensors"))
    assert (new.exists, new.directory, new.mode) == (False, False, None)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs the rights to give files away")
def test_the_new_folder_has_the_owner_of_the_old_one(tmp_path):
    folder = tmp_path / "o"
    old_set(folder, "other count")
    os.chown(folder, 1234, 2345)
    write(folder, tensors(), max_shard_size=4, force=True)
    assert (folder.stat().st_uid, folder.stat().st_gid) == (1234, 2345)


def test_a_folder_with_attributes_is_kept_itself(tmp_path):
    folder = tmp_path / "o"
    old_set(folder, "other count")
    try:
        os.setxattr(folder, "user.note", b"x")
    except OSError:
        pytest.skip("no attributes here")
    inode = folder.stat().st_ino
    write(folder, tensors(), max_shard_size=4, force=True)
    assert folder.stat().st_ino == inode
    assert contents(folder) == tensors()


def test_a_temporary_that_goes_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
    path, lock, seen = tmp_path / ".t", staging._lock, []

    def late(fd):
        seen.append(fd)
        if len(seen) == 1:
            path.unlink()
        return lock(fd)

    monkeypatch.setattr(staging, "_lock", late)
    claim = staging.claim(path, False, "out")
    assert len(seen) == 2
    assert os.path.samestat(os.fstat(claim.fd), path.stat())
    claim.release([path])
    monkeypatch.setattr(staging, "_lock", lambda fd: (path.unlink(), True)[1])
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FormatError, match="keeps coming back"):
        staging.claim(path, False, "out")
    assert len(os.listdir("/proc/self/fd")) == before


def test_locks_that_a_file_system_does_not_have_are_done_without(tmp_path, monkeypatch):
    for code, goes in (
        (errno.ENOLCK, True),
        (errno.EOPNOTSUPP, True),
        (errno.ENOSYS, True),
        (errno.EINVAL, True),
        (errno.EIO, False),
    ):

        def flock(fd, how, code=code):
            assert how == staging.fcntl.LOCK_EX | staging.fcntl.LOCK_NB
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(staging.fcntl, "flock", flock)
        if goes:
            claim = staging.claim(tmp_path / ".t", False, "out")
            claim.release([tmp_path / ".t"])
        else:
            with pytest.raises(FormatError, match="input/output error"):
                staging.claim(tmp_path / ".t", False, "out")
        assert not list(tmp_path.iterdir())


def test_what_stands_in_the_way_of_a_temporary_is_named(tmp_path):
    path = tmp_path / ".t"
    for make, folder in (
        (lambda: path.symlink_to("x"), False),
        (lambda: path.symlink_to(tmp_path), True),
        (path.mkdir, False),
        (lambda: path.write_text("x"), True),
    ):
        make()
        with pytest.raises(FormatError, match="is in the way"):
            staging.claim(path, folder, "out")
        assert os.path.lexists(path)
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def test_a_failed_opening_leaves_no_folder(tmp_path, monkeypatch):
    real = os.open
    monkeypatch.setattr(
        os,
        "open",
        lambda p, *a, **k: (
            (_ for _ in ()).throw(OSError(errno.EMFILE, "few")) if str(p).endswith(".t") else real(p, *a, **k)
        ),
    )
    with pytest.raises(FormatError, match="few"):
        staging.claim(tmp_path / ".t", True, "out")
    assert not list(tmp_path.iterdir())


def test_one_file_in_place_of_one_leaves_the_folder_itself(tmp_path):
    folder = tmp_path / "o"
    old_set(folder, "single")
    inode = folder.stat().st_ino
    write(folder, tensors(), max_shard_size=100, force=True)
    assert folder.stat().st_ino == inode
    assert contents(folder / "model.safetensors") == tensors()


@pytest.mark.parametrize("length", [241, 242, 243, 246, 255])
def test_temporaries_of_long_names_have_names_that_may_be(tmp_path, length):
    """A dot before it and `.tmp-convert` behind leave 242 of 255 bytes."""
    name = "é" * 50 + "o" * (length - 100)
    target = check_target(f"{tmp_path}/{name}", directory=True)
    assert len(os.fsencode(target.sibling.name)) <= 255
    assert (name in target.sibling.name) == (length <= 242)


@pytest.mark.parametrize("force", [True, False])
def test_a_file_that_appears_meanwhile_is_replaced_only_by_force(tmp_path, force):
    path = tmp_path / "a.safetensors"
    with Output(path, plan(), force=force) as out:
        path.write_text("of somebody else")
        if force:
            out.commit()
        else:
            with pytest.raises(FormatError, match="was made by another program in the meantime"):
                out.commit()
    assert (path.read_bytes() == b"of somebody else") is not force


def test_links_beside_an_old_set_stay_links(tmp_path):
    folder = tmp_path / "o"
    old_set(folder, "other count")
    (tmp_path / "elsewhere").write_text("{}")
    (folder / "link.json").symlink_to("../elsewhere")
    write(folder, tensors(), max_shard_size=4, force=True)
    assert os.readlink(folder / "link.json") == "../elsewhere"


def test_the_size_of_a_layout_counts_headers_and_the_index(tmp_path):
    write(tmp_path / "o", tensors(), max_shard_size=4)
    assert plan(limit=4).size == sum(p.stat().st_size for p in (tmp_path / "o").iterdir())
    assert plan(limit=4).size > sum(f.size for f in plan(limit=4).files)


def test_a_refused_output_is_a_problem_of_its_own_kind(tmp_path):
    with pytest.raises(UsageError) as e:
        check_target(str(tmp_path / "o.bin"), False, False)
    assert [p.kind for p in e.value.problems] == ["output"]


def test_no_file_stays_open(tmp_path):
    def numbers():
        return sorted(os.listdir("/proc/self/fd"))

    before = numbers()
    write(tmp_path / "o", tensors(), max_shard_size=4)
    with suppress(ZeroDivisionError), Output(tmp_path / "p.safetensors", plan()):
        raise ZeroDivisionError
    assert numbers() == before


def test_a_temporary_that_cannot_be_opened_is_told_as_that(tmp_path, monkeypatch):
    def full(*args, **options):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(OSError, match="Too many open files"):
        staging._open_left(tmp_path, True, "o")
    with pytest.raises(OSError, match="Too many open files"):
        staging._make(tmp_path / "new", True)
    assert not (tmp_path / "new").exists()


def test_recovery_takes_new_files_away_and_puts_old_ones_back(tmp_path):
    target, left = tmp_path / "o", tmp_path / "o" / "left"
    (left / swap._OLD).mkdir(parents=True)
    for name in ("a", "b", "other"):
        (target / name).write_text("new")
    journal = {name: (target / name).lstat().st_ino for name in ("a", "b")}
    (left / swap._JOURNAL).write_text(json.dumps(journal))
    (left / swap._OLD / "a").write_text("old")
    swap.recover(left, target)
    assert {p.name: p.read_text() for p in target.iterdir() if p.is_file()} == {"a": "old", "other": "new"}
