"""The command line (cases cli-*): what it never replaces, what it leaves behind, what it says before."""

import os
import resource
import signal
import subprocess
import sys

import ml_dtypes
import numpy as np
from lab import arr, write

from .field import KEEP, f32, state


def test_cli_01_same_input_and_output(case, monkeypatch):
    given = write(case / "m.safetensors", {"w": f32(1, 2, 3)})
    monkeypatch.chdir(case.folder)
    (case / "link.safetensors").symlink_to("m.safetensors")
    os.link(given, case / "hard.safetensors")
    (case / "sub").mkdir()
    (case / "sub" / "loop").symlink_to("..")
    before = state(case.folder) | {"map.yaml": case.map(KEEP).read_bytes()}
    for name in (
        "m.safetensors",
        "./m.safetensors",
        "link.safetensors",
        "hard.safetensors",
        "sub/loop/m.safetensors",
        given,
    ):
        for flags in ((), ("--force",), ("--force", "--verify"), ("--dry-run",)):
            r = case.run("--map", case / "map.yaml", *flags, "m.safetensors", name)
            assert r.code == 2
            assert "is the input" in r.err
            assert len(r.err.splitlines()) == 1
            assert state(case.folder) == before
    # And the other way round: what is read through a link is not replaced either.
    r = case.run("--map", case / "map.yaml", "--force", "link.safetensors", "m.safetensors")
    assert r.code == 2
    assert state(case.folder) == before
    case.texts.append(f"exit code {r.code}\n{r.err}")


KILLED = """
import os, signal, sys
from converter.formats import output
output.Output.commit = lambda self: os.kill(os.getpid(), signal.SIGKILL)
from converter.cli import main
main(sys.argv[1:])
"""


def test_cli_03_crash_mid_write(case):
    given = {f"w{k}": arr(5000, start=k) for k in range(5)}
    # The system refuses to write more than this, as where a disk is full or a quota used up.
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    write(case.source, given)
    for flags, out in (((), case.output), (("--max-shard-size", "70KB"), case / "out")):
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, old[1]))
        try:
            case.refused(KEEP, case.source, 3, "cannot be written: file too large", flags=flags, output=out, data=True)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, old)
    # After SIGKILL a temporary is left, which says by its name what it is; the next run replaces it.
    for flags, out in (((), case / "k.safetensors"), (("--max-shard-size", "30KB"), case / "k")):
        before = set(state(case.folder))
        command = ["--map", case / "map.yaml", *flags, case.source, out]
        done = subprocess.run([sys.executable, "-c", KILLED, *map(str, command)], capture_output=True)
        assert done.returncode == -signal.SIGKILL
        assert not out.exists()
        left = {n.split("/")[0] for n in set(state(case.folder)) - before}
        assert left == {f".{out.name}.tmp-convert"}
        case.converts(KEEP, case.source, *flags, output=out)


def test_cli_04_file_mode(case):
    old = os.umask(0o022)
    try:
        case.gives(KEEP, {"w": f32(1)}, {"w": f32(1)})
        assert case.output.stat().st_mode & 0o777 == 0o644
        case.output.chmod(0o640)
        r = case.run("--map", case / "map.yaml", "--force", case.source, case.output)
        assert r.code == 0
        assert case.output.stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(old)


def test_cli_05_yaml_duplicate_keys(case):
    case.refused("rename: {a: x, a: y}\n", {"a": f32(1)}, 2, "map.yaml:3: ", "duplicate key 'a'", "line 3")
    block = "rules:\n  - from: a\n    to: x\n    to: y\n"
    case.refused(block, {"a": f32(1)}, 2, "map.yaml:6: ", "duplicate key 'to'", "line 5")


def test_cli_07_unknown_op(case):
    given = {"norm.weight": f32(0, 0.5)}
    rule = "rules: [{from: norm.weight, to: norm.weight, %s}]"
    case.refused(rule % "add: 1", given, 2, "map.yaml:3: unknown key 'add'", "ops: [{add: 1}]")
    case.refused(rule % "ops: [{added: 1}]", given, 2, "map.yaml:3: unknown op 'added'", "did you mean add?")
    case.both(rule % "ops: [{add: 1}]", given, {"norm.weight": f32(1, 1.5)})
    # 256.5 is no BF16 and rounds to 256, so that a sum in BF16 would lose the half: it is rounded once, at the end.
    half = {"norm.weight": np.array([255.5 - 1, 0.00390625], ml_dtypes.bfloat16)}
    want = (half["norm.weight"].astype("<f4") + f32(1)).astype(ml_dtypes.bfloat16)
    case.gives(rule % "ops: [{add: 1}]", half, {"norm.weight": want})


PLAN = """
indices: {i: n}
drop: {from: [mask]}
rest: keep
rules:
  - {from: 'h.{i}.w', to: 'b.{i}.w', shape: a b, ops: [transpose]}
  - {from: head, to: head, shape: a b, tied: h.0.w, ops: [transpose]}
"""


def test_cli_08_exit_codes_and_dry_run(case):
    # Every refusal of the cases is tried with --dry-run too (Case.refused): the same code, the same text, nothing written.
    given = {f"h.{k}.w": arr(2, 3, start=k) for k in range(2)} | {"mask": f32(1), "other": f32(2)}
    case.put(given)
    before = state(case.folder) | {"map.yaml": case.map(PLAN).read_bytes()}
    for output in ((), (case.output,)):
        r = case.run("--map", case / "map.yaml", "--dry-run", case.source, *output)
        assert (r.code, r.err) == (0, "")
        assert state(case.folder) == before
        for says in (
            "h.{0..1}.w (2) [2, 3] F32",
            "->  b.{0..1}.w (2) [3, 2] F32",
            "dropped: mask",
            "kept: other",
            "tied: head = h.0.w",
        ):
            assert says in r.out, r.out
    # One code for each kind of failure.
    case.refused("rules: [{from: a, too: b}]", given, 2, "unknown key 'too'")
    case.refused("rules: [{from: 'h.0.w', to: b}]", given, 1, "3 unexpected")
    case.refused(KEEP, b"no file of tensors", 3, "in.safetensors: ")
    r = case.run("--map", case.map("rules: [{from: 'h.0.w', to: b}]"), "--dry-run", case.put(given))
    assert r.code == 1
    assert "h.1.w: unexpected" in r.err
    assert "h.0.w [2, 3] F32  ->  b [2, 3] F32" in r.out
