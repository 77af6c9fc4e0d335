"""Large inputs: what is wrong is found in headers, and what is computed passes through bounded buffers."""

import os
import subprocess
import sys

from test_bounds import LAUNCH, sparse

from .test_shard import folder

GIB = 1 << 30
READERS = ("pread", "preadv", "read", "readv", "sendfile", "copy_file_range")


def test_memory_03_verify_without_reading_all(case, monkeypatch):
    where = {f"w{k}": f"s{k}.safetensors" for k in range(3)}
    given = folder(case, where, {})
    for k in range(3):
        sparse(given / f"s{k}.safetensors", {f"w{k}": [GIB // 4]})
        assert (given / f"s{k}.safetensors").stat().st_size > GIB
    got = []

    def counted(reader):
        def call(*arguments, **named):
            got.append(reader(*arguments, **named))
            return got[-1]

        return call

    for name in READERS:
        monkeypatch.setattr(os, name, counted(getattr(os, name)))
    text = "rules: [{from: 'w{k}', to: 'v{k}', shape: n}, {from: absent, to: b, shape: n}]"
    case.refused("indices: {k: 3}\n" + text, given, 1, "absent: missing from the input")
    sizes = [x if isinstance(x, int) else len(x) for x in got]
    assert 0 < sum(sizes) < 100_000, "headers alone"


TURN = "version: 1\nname: turn\nindices: {i: 15}\nrules: [{from: big, to: big, ops: [transpose]}, {from: 's{i}', to: 's{i}', ops: [transpose]}]\n"


def test_memory_04_transpose_one_big_tensor(case):
    (case / "map.yaml").write_text(TURN)

    def peak(name, big):
        given = sparse(case / name, {"big": big} | {f"s{i}": [256, 1024] for i in range(15)})
        command = ["--map", case / "map.yaml", "--quiet", "--jobs", "2", given, case / f"out-{name}"]
        done = subprocess.run(
            [sys.executable, "-c", LAUNCH, *map(str, command)], capture_output=True, text=True, check=True
        )
        code, used = map(int, done.stdout.split()[-2:])
        assert code == 0
        return used

    baseline = peak("small.safetensors", [1, 1])
    used = peak("in.safetensors", [2048, 8192])
    assert (case / "out-in.safetensors").stat().st_size > 79 << 20
    (case / "out-in.safetensors").unlink()
    assert used - baseline <= 2 * (64 << 20) + (16 << 20), f"{used - baseline >> 20} MiB"
