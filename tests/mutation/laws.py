"""Tests that only a mutation run runs: what others do in processes of their own, here in the one that has the mutant."""

import gc
from pathlib import Path

import pytest
import test_faults_disk
import test_faults_kill
import test_faults_signals
import test_hostile_maps
from faultlab import Done, forked, rehearse

FILES = ("formats/staging", "formats/swap", "formats/output", "formats/target", "formats/shards")
on_faults = pytest.mark.runs(*FILES)
test_a_kill_leaves_one = on_faults(test_faults_kill.test_a_kill_leaves_the_old_output_or_the_new_one)
test_a_kill_between_two = on_faults(
    test_faults_kill.test_a_kill_between_two_files_leaves_nothing_that_passes_for_a_checkpoint
)
test_a_kill_of_the_undoing = on_faults(test_faults_kill.test_a_kill_while_the_damage_of_a_kill_is_undone)
test_any_step_may_fail = on_faults(test_faults_disk.test_any_step_may_fail)
test_put_back_by_the_next = on_faults(test_faults_disk.test_what_cannot_be_put_back_now_is_put_back_by_the_next_run)
test_a_folder_of_somebody = on_faults(test_faults_disk.test_a_folder_of_somebody_else)
test_one_by_one = on_faults(test_faults_signals.test_a_signal_while_files_are_moved_one_by_one)


class Near:
    """What `faultlab.Warm` is, by forks of this process."""

    def __init__(self, folder: Path) -> None:
        rehearse(folder)  # whatever is imported late is imported now
        gc.freeze()

    def run(self, *arguments: object, **fault: object) -> Done:
        return forked([str(a) for a in arguments], fault)


@pytest.fixture
def warm(tmp_path):
    return Near(tmp_path)


# Those that fit and are carried out take their time, more so while lines are watched.
@pytest.mark.parametrize("name", [n for n in test_hostile_maps.ATTACKS if "as fit" not in n])
def test_an_attack(tmp_path, name):
    test_hostile_maps.files(tmp_path)
    found = {name: test_hostile_maps.attack(tmp_path, name), "": {"err": ""}}
    test_hostile_maps.test_an_attack_ends_in_a_short_message(found, name)


@pytest.mark.parametrize(("kind", "runs"), [("headers", 500), ("indexes", 300), ("pickles", 300)])
def test_hostile_files(kind, runs, tmp_path):
    """What `tests/fuzz` finds with few runs; it leaves a hook and a limit behind, in a process that ends soon."""
    from fuzz import engine
    from fuzz.__main__ import load
    from fuzz.guard import Guard

    folder = tmp_path / "work"
    folder.mkdir()
    run = engine.Run(load(kind)(Guard(), folder), 1, runs, 0, None, True)
    engine.plain(run)
    assert not run.finds
