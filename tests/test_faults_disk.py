"""Disks that are full, slow to say so, broken or not ours: one line, exit code 3, the old output, nothing left over."""

import os
import resource
import shutil
import subprocess
from types import SimpleNamespace

import pytest
from faultlab import NAMES, READS, WHOLE, WRITES, Place, contents, settled
from lab import Lab, arr, read, write

from converter.formats import staging, target

MAKING = [*WRITES, "fallocate", "open", "mkdir", "link", "rename", "replace", "renameat2"]
CLEANING = ["unlink", "rmdir"]
RULES = "rules: [{match: '(?P<n>.+)', to: 'x.{n}'}]"


def check(place, done, failed):
    """A run that met a fault: all or nothing; temporaries stay only where removing is what failed."""
    assert "Traceback" not in done.err
    lines = done.err.splitlines()
    state, left = settled(place.folder), contents(place.folder).keys() - settled(place.folder).keys()
    if done.code == 0:
        assert (state, lines) == (place.new, [])
    elif "is in place" in done.err:
        assert (done.code, state, len(lines)) == (3, place.new, 1)
    else:
        assert (done.code, state, len(lines)) == (3, place.old, 1), done
    # The old set goes when the new one is known to be on the disk.
    assert not left or failed in CLEANING or "is in place" in done.err, (failed, left)
    return done.err


@pytest.mark.parametrize("code", ["ENOSPC", "EIO"])
@pytest.mark.parametrize(
    "name", ["a file in place of another", "shards in place of as many", "shards among other files"]
)
def test_any_step_may_fail(quick, warm, name, code):
    """Each step of a run once: reading, making, syncing, renaming, removing."""
    place = Place(quick / "here", warm, WHOLE[name])
    told = set()
    every = 1 if name == "shards in place of as many" else 2
    for at in range(1, len(place.steps) + 1, every):
        place.reset()
        step = place.steps[at - 1]
        told.add(check(place, place.convert(at=at, do=code), step))
        if step in CLEANING:
            place.again()
    words = {"ENOSPC": "no space left on device", "EIO": "input/output error"}[code]
    assert len(told - {""}) >= 3
    assert all(t.endswith(f"{words}\n") for t in told if t)


@pytest.mark.parametrize(
    "name", ["a file in place of another", "shards in place of as many", "shards among other files"]
)
def test_a_disk_that_is_full_from_some_step_on(quick, warm, name):
    """Nothing more can be made or written, whatever is tried instead; only removing works."""
    place = Place(quick / "here", warm, WHOLE[name])
    kinds = [name for name in MAKING if name != "open"]
    count = sum(step in kinds for step in place.steps)
    for at in range(1, count + 1, 2):
        place.reset()
        done = place.convert(at=at, do="ENOSPC", times=10**6, only=kinds)
        said = check(place, done, "")
        assert not said or said.startswith(place.situation.output) or f"{place.folder}/{place.situation.output}" in said


@pytest.mark.parametrize("lacks", [[], ["fallocate"], ["fallocate", "copy_file_range"]])
def test_a_limit_for_the_size_of_files(quick, warm, lacks):
    """Met while blocks are reserved, in the header, or in the middle of the data."""
    for name in ("a file in place of another", "shards in place of as many"):
        place = Place(quick / "here", warm, WHOLE[name])
        sizes = [len(d) for n, d in place.new.items() if d and n.split("/")[0] == place.situation.output]
        for limit in {1, 100, min(sizes) - 1, max(sizes) // 2, max(sizes) - 1}:
            place.reset()
            done = place.convert(file_size=limit, lacks=lacks)
            assert check(place, done, "").endswith(": cannot be written: file too large\n")
        place.reset()
        assert check(place, place.convert(file_size=max(sizes), lacks=lacks), "") == ""
        shutil.rmtree(quick / "template")
        shutil.rmtree(quick / "here")
        (quick / "here").mkdir()


def test_what_cannot_be_put_back_now_is_put_back_by_the_next_run(quick, warm):
    """Renames fail half-way, and so do those that would undo it: the old files wait, and nothing removes them."""
    from faultlab import ONE_BY_ONE

    place = Place(quick / "here", warm, ONE_BY_ONE["as many, and a sub-folder"])
    renames = [*(n for n in place.steps if n in ("rename", "replace"))]
    waiting = 0
    for at in range(2, len(renames) + 1):
        place.reset()
        done = place.convert(at=at, do="EIO", times=10**6, only=["rename", "replace"])
        assert (done.code, len(done.err.splitlines())) == (3, 1)
        state = contents(place.folder)
        old = {n.rsplit("/", 1)[-1]: d for n, d in place.old.items() if n.startswith("o/model")}
        found = [d for n, d in state.items() if "model" in n]
        assert all(d in found for d in old.values()), "an old file is gone"
        waiting += settled(place.folder) != place.old
        place.again()
    assert waiting >= 2


# A small disk of our own.


@pytest.fixture
def disk(tmp_path):
    """A file system of one megabyte and 20 files, for programs that may mount one."""
    point = tmp_path / "disk"
    point.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=20", "convert-test", str(point)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("this user may not mount a file system")
    yield point
    subprocess.run(["umount", "-l", str(point)], check=True)


def full(lab, output, *flags, says):
    before = contents(lab.folder)
    r = lab.run("--map", lab.map(RULES), lab.source, output, *flags)
    assert (r.code, r.out) == (3, "")
    assert r.err.splitlines() == [r.err.rstrip("\n")]
    assert says in r.err, r.err
    before["map.yaml"] = (lab / "map.yaml").read_bytes()
    assert contents(lab.folder) == before


@pytest.fixture
def no_look(monkeypatch):
    """The disk seems to have room: somebody else fills it a moment later."""
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=1 << 40, f_frsize=1, f_blocks=1 << 40))


@pytest.fixture
def no_reserve(monkeypatch):
    """Blocks cannot be reserved: the disk is full when data come."""
    monkeypatch.setattr(staging, "_libc", lambda: None)


TENSORS = {f"t{i}": arr(10_000, start=i) for i in range(40)}  # 1.6 MB


def test_a_small_disk_is_seen_before_anything_is_written(tmp_path, disk):
    lab = Lab(tmp_path)
    write(lab.source, TENSORS)
    full(lab, disk / "o.safetensors", says="disk/o.safetensors: too little free disk: ")
    full(lab, disk / "o", "--max-shard-size", "400kB", says="disk/o: too little free disk: ")


@pytest.mark.parametrize("flags", [[], ["--max-shard-size", "400kB"]])
@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("reserve", [False, True])
def test_a_small_disk_that_fills_up(tmp_path, disk, no_look, request, flags, old, reserve):
    lab = Lab(tmp_path)
    write(lab.source, {"t": arr(20)})
    output = disk / ("o" if flags else "o.safetensors")
    if old:
        assert lab.run("--map", lab.map(RULES), lab.source, output, *flags).code == 0
    write(lab.source, TENSORS)
    if not reserve:
        request.getfixturevalue("no_reserve")
    full(lab, output, "--force", *flags, says=f"disk/{output.name}: cannot be written: no space left on device")
    write(lab.source, {"t": arr(30)})
    assert lab.run("--map", lab / "map.yaml", lab.source, output, "--force", *flags).code == 0, "there is room again"


def test_a_disk_without_room_for_more_files(tmp_path, disk):
    lab = Lab(tmp_path)
    write(lab.source, {f"t{i}": arr(1) for i in range(30)})
    full(lab, disk / "o", "--max-shard-size", "4B", says="disk/o: cannot be written: no space left on device")


def test_a_disk_that_is_full_when_the_index_comes(tmp_path, disk, monkeypatch):
    lab = Lab(tmp_path)
    write(lab.source, {f"t{i}": arr(1) for i in range(3)})
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    real = staging.write_all

    def fill(fd, data, offset):
        if b"weight_map" in data:
            (disk / "filler").write_bytes(bytes(os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize))
        real(fd, data, offset)

    monkeypatch.setattr(staging, "write_all", fill)
    r = lab.run("--map", lab.map(RULES), lab.source, disk / "o", "--max-shard-size", "4B")
    assert (r.code, r.err) == (3, "disk/o: cannot be written: no space left on device\n")
    assert sorted(contents(disk)) == ["filler"]


def test_another_file_system_and_one_that_is_read_only(tmp_path, disk):
    lab = Lab(tmp_path)
    write(lab.source, {"t": arr(20)})
    flags = ["--map", lab.map(RULES), lab.source]
    assert lab.run(*flags, disk / "o.safetensors").code == 0
    assert read(disk / "o.safetensors")["x.t"].tobytes() == arr(20).tobytes()
    assert lab.run(*flags, f"{disk}/", "--max-shard-size", "1kB").code == 0, "the mount point itself"
    assert sorted(contents(disk)) == ["model.safetensors", "o.safetensors"]
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    before = contents(tmp_path)
    for output in ("new.safetensors", "o.safetensors", "folder/", ""):
        r = lab.run(*flags, f"{disk}/{output}", "--force")
        assert (r.code, len(r.err.splitlines())) == (3, 1), r.err
        assert "no permission to write there" in r.err or "read-only file system" in r.err
    assert contents(tmp_path) == before


# Folders that are not ours.


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_a_folder_of_somebody_else(quick, warm):
    quick.chmod(0o755)
    place = Place(quick / "here", warm, WHOLE["shards in place of as many"])
    for path in [place.folder, *place.folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    before = contents(place.folder)
    for output, flags in (("o", ["--force"]), ("o/", ["--force"]), ("n.safetensors", ["--quiet"]), ("n/", ["--quiet"])):
        place.situation = place.situation._replace(output=output, flags=flags)
        done = place.convert(user=65534)
        assert done.code == 3
        (line,) = done.err.splitlines()
        assert "no permission to write there" in line or "permission denied" in line
    for path in (place.folder / "in.safetensors", place.folder / "map.yaml"):
        path.chmod(0)
        done = place.convert(user=65534)
        assert done.code in (2, 3)
        assert done.err.endswith("permission denied\n") or "Permission denied" in done.err
        path.chmod(0o644)
    assert contents(place.folder) == before


def test_the_limits_of_names(tmp_path):
    lab = Lab(tmp_path)
    write(lab.source, {"t": arr(2)})
    longest = os.pathconf(tmp_path, "PC_NAME_MAX")
    end = ".safetensors"
    for extra in (1, 100):
        name = "x" * (longest + extra - len(end)) + end
        r = lab.run("--map", lab.map(RULES), lab.source, lab / name)
        assert (r.code, len(r.err.splitlines())) == (3, 1)
        assert r.err.endswith("file name too long\n")
    name = "y" * (longest - len(end)) + end
    assert lab.run("--map", lab / "map.yaml", lab.source, lab / name).code == 0, "one that is just short enough"
    assert sorted(contents(tmp_path)) == sorted(["in.safetensors", "map.yaml", name])
    assert target.TEMPORARY in str(target.check_target(str(lab / name), force=True).sibling)


def test_few_descriptors_are_enough_and_too_few_are_told(tmp_path):
    lab = Lab(tmp_path)
    write(lab.source, {f"t{i}": arr(1) for i in range(40)})
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(n) for n in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 6, hard))
    try:
        r = lab.run("--map", lab.map(RULES), lab.source, lab / "o", "--max-shard-size", "4B")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert r.code == 0, r.err
    assert len(list((lab / "o").iterdir())) == 41


def test_every_step_is_of_a_kind_that_is_known():
    """The lists of calls above are those that runs are made of."""
    assert {*MAKING, *CLEANING} <= {*READS, *WRITES, *NAMES, "fallocate", "renameat2"}
