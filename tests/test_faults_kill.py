"""SIGKILL at any step of a conversion leaves the old output or the new one, whole, and the next run works.

A step is a call to the system that changes something or reads. The kills are spread over all steps of a run; of those
after the last data were written, which sync and rename, each one is tried, and writes are also cut in half.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from faultlab import LONG, MAP, ONE_BY_ONE, ROOT, WHOLE, Place, contents, settled
from lab import arr, read, write

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"


@pytest.mark.parametrize("name", WHOLE)
def test_a_kill_leaves_the_old_output_or_the_new_one(quick, warm, name):
    long = name in LONG
    place = Place(quick / "here", warm, WHOLE[name], long)
    outcomes = {"old": 0, "new": 0}
    for at, how in place.points(90 if long else 4):
        place.reset()
        done = place.convert(at=at, do=how)
        over = at > len(place.steps)
        assert done.code == (0 if over else -signal.SIGKILL), (at, how, done)
        state = settled(place.folder)
        assert state in (place.old, place.new), (at, how, sorted(state))
        outcomes["old" if state == place.old else "new"] += 1
        if at % 10 == 0 or at > place.filled:
            place.again()
    assert outcomes["old"] + outcomes["new"] >= (100 if long else 20), outcomes
    assert outcomes["new"] >= 1


def loaded(folder: Path, order: tuple[str, str]) -> dict[str, bytes] | None:
    """What a loader finds that looks for these two names in this order; None if there is no checkpoint for it."""
    first = next((name for name in order if (folder / name).exists()), None)
    if first is None:
        return None
    if first == SINGLE:
        return {n: x.tobytes() for n, x in read(folder / SINGLE).items()}
    where = json.loads((folder / INDEX).read_text())["weight_map"]
    return {n: read(folder / file)[n].tobytes() for n, file in where.items()}


@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_a_kill_between_two_files_leaves_nothing_that_passes_for_a_checkpoint(quick, warm, name):
    place = Place(quick / "here", warm, ONE_BY_ONE[name])
    template = quick / "template" / "o"
    orders = ((INDEX, SINGLE), (SINGLE, INDEX))
    fine = [[loaded(folder, order) for folder in (template, place.output)] + [None] for order in orders]
    beside = {n: data for n, data in place.old.items() if n.removeprefix("o/") in place.situation.beside}
    seen = set()
    for at in range(place.filled + 1, len(place.steps) + 1):
        place.reset()
        assert place.convert(at=at, lacks=place.situation.lacks).code == -signal.SIGKILL
        for order, sets in zip(orders, fine, strict=True):
            found = loaded(place.output, order)
            assert found in sets, (at, order, sorted(settled(place.folder)))
            seen.add(sets.index(found))
        assert beside.items() <= settled(place.folder).items()
        if at % 2:
            place.again()
    assert {0, 1} <= seen


def test_a_kill_while_the_damage_of_a_kill_is_undone(quick, warm):
    """Whatever the first kill left half moved, the second leaves no mixture, and the third run works."""
    place = Place(quick / "here", warm, ONE_BY_ONE["as many, and a sub-folder"])
    sets = [loaded(folder, (INDEX, SINGLE)) for folder in (quick / "template" / "o", place.output)] + [None]
    moves = [k for k, name in enumerate(place.steps, 1) if name == "rename"]
    seen = 0
    for first in (moves[3], moves[len(moves) // 2], moves[-1]):
        place.reset()
        place.convert(at=first)
        half_moved = set(contents(place.folder))
        second = 1
        while True:
            done = place.convert(at=second, only=["replace", "unlink", "rmdir", "mkdir", "link", "rename"])
            if done.code == 0:
                break
            assert done.code == -signal.SIGKILL
            assert loaded(place.output, (INDEX, SINGLE)) in sets
            seen += 1
            place.again()
            second += 5
            place.reset()
            place.convert(at=first)
            assert set(contents(place.folder)) == half_moved
    assert seen >= 10


@pytest.mark.parametrize("shards", [False, True])
def test_kills_from_outside_at_any_time(tmp_path, shards):
    """The program as it is run, on all its threads, killed after waits that grow until it comes to its end."""
    (tmp_path / "map.yaml").write_text(MAP)
    tensors = {"e": arr(7, 300)} | {f"h.{i}.w": arr(500, 300, start=i) for i in range(12)}
    write(tmp_path / "in.safetensors", tensors)
    output, flags = (tmp_path / "o", ["--max-shard-size", "2MB"]) if shards else (tmp_path / "o.safetensors", [])
    command = [sys.executable, "-m", "converter", "--map", tmp_path / "map.yaml", tmp_path / "in.safetensors", output]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([*command, *flags, "--quiet"], env=env, check=True)
    new, inputs = contents(tmp_path), {"map.yaml", "in.safetensors"}
    codes, wait = [], 0.2
    while 0 not in codes:
        if output.exists():
            shutil.rmtree(output) if shards else output.unlink()
        process = subprocess.Popen([*command, *flags, "--quiet"], env=env)
        time.sleep(wait)
        process.kill()
        codes.append(process.wait())
        state = settled(tmp_path)
        assert state == new or state.keys() == inputs, sorted(state)
        wait *= 1.4
    assert set(codes[:-1]) == {-signal.SIGKILL}
    assert contents(tmp_path) == new
