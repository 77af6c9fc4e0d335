"""Bounds that do not depend on a clock: memory whatever the size, few system calls, the same bytes whatever the threads."""

import itertools
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from converter import transfer
from converter.cli import main

GIB = 1 << 30
INTERPRETER = 90 << 20  # Python with numpy; what is computed in comes on top
MATRIX = "version: 1\nname: matrix\nrules: [{from: w, to: v, shape: a b, ops: [transpose]}]\n"
LAYERS = """
version: 1
name: layers
indices: {i: n}
rules: [{from: 'h.{i}.w', to: w, shape: d, ops: [{concat: {dim: 0, over: i}}]}]
"""


BYTES = {"F32": 4, "F8_E4M3": 1}


def sparse(path: Path, tensors: dict[str, list[int] | tuple[list[int], str]]) -> Path:
    """A file of zeros that takes no disk."""
    header, at = {}, 0
    for name, what in tensors.items():
        shape, dtype = what if isinstance(what, tuple) else (what, "F32")
        size = BYTES[dtype]
        for n in shape:
            size *= n
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    os.truncate(path, 8 + len(text) + at)
    return path


# A process of its own starts the program, since the peak that the system tells of a process counts the one it was forked from.
LAUNCH = """
import resource, subprocess, sys
code = subprocess.run([sys.executable, "-m", "converter", *sys.argv[1:]]).returncode
print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""


def convert(*args: object) -> tuple[int, int]:
    """Run the program by itself; returns its exit code and its peak memory in bytes."""
    done = subprocess.run([sys.executable, "-c", LAUNCH, *map(str, args)], capture_output=True, text=True, check=True)
    code, peak = done.stdout.split()[-2:]
    return int(code), int(peak)


def run(*args: object) -> None:
    with pytest.raises(SystemExit) as e:
        main([str(a) for a in args])
    assert e.value.code == 0


@pytest.fixture
def space(tmp_path):
    disk = os.statvfs(tmp_path)
    if disk.f_bavail * disk.f_frsize < 12 * GIB:
        pytest.skip("less than 12 GiB of disk are free")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("memory", [32 << 20, 256 << 20])
def test_a_matrix_of_four_gigabytes_is_transposed_in_the_memory_that_is_given(space, memory):
    source = sparse(space / "in.safetensors", {"w": [16384, 65536]})
    (space / "map.yaml").write_text(MATRIX)
    code, peak = convert(
        "--map", space / "map.yaml", "--memory", f"{memory}B", "--quiet", source, space / "out.safetensors"
    )
    assert code == 0
    assert (space / "out.safetensors").stat().st_size > 4 * GIB
    assert peak < memory + INTERPRETER, f"{peak >> 20} MiB"
    (space / "out.safetensors").unlink()


SCALED = """
version: 1
name: scaled
rules:
  - from: [{name: w, shape: r c}, s]
    to: {name: W, dtype: bfloat16}
    ops: [{dequantize: {block: [128, 128]}}%s]
"""


@pytest.mark.parametrize(
    ("shape", "turned"), [([6144, 8192], ""), ([6143, 8200], ", transpose")], ids=["whole", "short"]
)
def test_float8_and_its_scales_pass_through_little_memory(tmp_path, shape, turned):
    """48 MiB of float8 become 96 MiB and come back: in whole blocks along the rows, and with shorter ones across them."""
    tensors = {"w": (shape, "F8_E4M3"), "s": ([48, -(-shape[1] // 128)], "F32")}
    source, there, back = (tmp_path / f"{name}.safetensors" for name in ("in", "there", "back"))
    (tmp_path / "map.yaml").write_text(SCALED % turned)
    sparse(source, tensors)
    more = ["--map", tmp_path / "map.yaml", "--memory", "8MiB", "--quiet"]
    for way, a, b in (([], source, there), (["--reverse"], there, back)):
        code, peak = convert(*more, *way, a, b)
        assert code == 0
        assert peak < INTERPRETER, f"{peak >> 20} MiB"
    assert there.stat().st_size > 2 * shape[0] * shape[1]


@pytest.mark.slow
def test_eight_gigabytes_in_shards_pass_through_a_small_machine(space):
    folder = space / "model"
    folder.mkdir()
    where = {}
    for k in range(4):
        names = {f"h.{k * 8 + i}.w": [64 << 20] for i in range(8)}
        file = f"model-{k + 1:05d}-of-00004.safetensors"
        sparse(folder / file, names)
        where |= dict.fromkeys(names, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    (space / "map.yaml").write_text(LAYERS)
    code, peak = convert("--map", space / "map.yaml", "--quiet", folder, space / "out.safetensors")
    assert code == 0
    assert (space / "out.safetensors").stat().st_size > 8 * GIB
    assert peak < 80 << 20, f"{peak >> 20} MiB"
    (space / "out.safetensors").unlink()


RENAME = "version: 1\nname: rename\nindices: {i: n}\nrules: [{from: 'h.{i}.w', to: 'blocks.{i}.w', shape: d}]\n"


def test_a_rename_of_a_thousand_tensors_is_a_handful_of_system_calls(tmp_path, monkeypatch):
    calls = []

    def counted(copy):
        return lambda *args: calls.append(args) or copy(*args)

    monkeypatch.setattr(transfer, "COPIES", tuple(counted(c) for c in transfer.COPIES))
    source = sparse(tmp_path / "in.safetensors", {f"h.{i}.w": [256] for i in range(1000)})
    (tmp_path / "map.yaml").write_text(RENAME)
    run("--map", tmp_path / "map.yaml", "--quiet", source, tmp_path / "out.safetensors")
    assert 1 <= len(calls) <= 4, len(calls)


def test_a_rename_imports_neither_torch_nor_numpy(tmp_path):
    source = sparse(tmp_path / "in.safetensors", {f"h.{i}.w": [256] for i in range(3)})
    (tmp_path / "map.yaml").write_text(RENAME)
    code = (
        "import sys; from converter.cli import main\n"
        "try: main()\nexcept SystemExit as e: assert not e.code, e.code\n"
        "assert not {'torch', 'numpy'} & set(sys.modules), sorted({'torch', 'numpy'} & set(sys.modules))"
    )
    args = [
        sys.executable,
        "-c",
        code,
        "--map",
        str(tmp_path / "map.yaml"),
        str(source),
        str(tmp_path / "out.safetensors"),
    ]
    assert os.spawnv(os.P_WAIT, sys.executable, args) == 0


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt2")
    run(
        "stub",
        "--map",
        "gpt2",
        "--set",
        "n_layer=12",
        "--set",
        "d=96",
        "--set",
        "vocab=3000",
        folder / "in.safetensors",
    )
    return folder / "in.safetensors"


def test_the_bytes_do_not_depend_on_threads_or_memory(tmp_path, gpt2):
    outputs = set()
    for k, (jobs, memory) in enumerate(itertools.product((1, 2, 5), ("1MB", "7MB", "256MiB"))):
        out = tmp_path / f"{k}.safetensors"
        run("--map", "gpt2", "--dtype", "bfloat16", "--jobs", jobs, "--memory", memory, "--quiet", gpt2, out)
        outputs.add(out.read_bytes())
    assert len(outputs) == 1


@pytest.mark.parametrize("left", range(len(transfer.COPIES)))
def test_each_way_of_copying_gives_the_same_bytes(tmp_path, gpt2, monkeypatch, left):
    run("--map", "gpt2", "--quiet", gpt2, tmp_path / "a.safetensors")
    used, ways = [], transfer.COPIES[left:]

    def noted(copy):
        return lambda *args: used.append(copy) or copy(*args)

    monkeypatch.setattr(transfer, "COPIES", tuple(noted(c) for c in ways))
    run("--map", "gpt2", "--quiet", gpt2, tmp_path / "b.safetensors")
    assert set(used) == {ways[0]}
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
