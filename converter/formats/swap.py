"""Put a finished set of weight files in the place of an old one, so that a crash leaves one of the two.

POSIX has no rename of many files, so in order of preference:

1. The output folder is not there, or is empty: one rename of the folder. One file that replaces no other: one rename.
2. The new folder, with hard links to every other file of the old one, is exchanged with it in one step
   (``renameat2``). Not where the folder has sub-folders, is a mount point or the current folder, or the system cannot.
3. Else file by file. If no file names of the old and the new set clash, the old set is whole until the one rename that
   switches (the index, or ``model.safetensors``), and goes afterwards. If they do (the same number of shards, say), the
   old index goes first and the new one comes last, so a crash between leaves files that no loader takes for a
   checkpoint, never a mixture that one does.

Each step of 3 is a rename, old files wait in the temporary folder, a journal there says which files are new, and a
failure undoes all of it in reverse. A run that was killed there is undone by the next one (:func:`recover`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from converter.formats.shards import INDEX, SINGLE
from converter.formats.staging import exchange, make_file, sync_folder

_OLD = "old"  # in the temporary folder: files of the old set, while the step by step way is under way
_DONE = "done"  # the same, once the new set is whole
_JOURNAL = "new.json"  # the inode of each file of the new set by its name, written before the first step


def publish(
    staging: Path, target: Path, sibling: Path, new: Sequence[str], old: Sequence[str]
) -> Callable[[], None] | None:
    """Make the files ``new`` in ``staging`` the weight set of ``target``, in place of ``old``; all names are plain.

    The folder ``staging`` may be moved to ``sibling`` on the way. Returns what is left to do, if anything, when the new
    names are on the disk: to remove the old set. Raises OSError, with the old set as it was.
    """
    if staging == sibling:  # it was made there because there was no target
        staging.rename(target)
        return None
    others = sorted({entry.name for entry in target.iterdir()} - {staging.name} - set(old))
    in_one_step = len(new) == 1 and set(old) <= set(new) and bool(old or others)
    if not in_one_step and _step_out(staging, target, sibling):
        staging = sibling
        if _swap(staging, target, others):
            return partial(_clear, staging, target, old) if old or others else None
    _Merge(staging, target).run(new, old)
    return None


@dataclass(frozen=True)
class Unfinished:
    """What a run that was killed between two steps did to a folder: names of files it took away, and put there."""

    taken: frozenset[str] = frozenset()
    put: frozenset[str] = frozenset()


def unfinished(staging: Path, target: Path) -> Unfinished:
    """Look at what a killed run left in its temporary folder; a file counts as put there if it is the very same."""
    waiting = staging / _OLD
    if staging.is_symlink() or waiting.is_symlink() or not waiting.is_dir() or not target.is_dir():
        return Unfinished()
    taken = frozenset(path.name for path in waiting.iterdir())
    put = set()
    with suppress(OSError, ValueError, AttributeError):
        for name, inode in json.loads((staging / _JOURNAL).read_text(encoding="utf-8")).items():
            with suppress(FileNotFoundError):
                if Path(name).name == name and (target / name).lstat().st_ino == inode:
                    put.add(name)
    return Unfinished(taken, frozenset(put))


def recover(staging: Path, target: Path) -> None:
    """Undo what a run that was killed between two steps did to ``target``, so that it may be killed itself.

    The index goes first, if it is the new one, and comes last, if it is the old one.
    """
    left = unfinished(staging, target)
    if INDEX in left.put:
        (target / INDEX).unlink()
    for name in sorted(left.taken, key=lambda name: name == INDEX):
        (staging / _OLD / name).replace(target / name)
    for name in left.put - left.taken - {INDEX}:
        (target / name).unlink()


def _clash(new: Sequence[str], old: Sequence[str]) -> bool:
    return len(new) > 1 and not set(new).isdisjoint(n for n in old if n != INDEX)


def _step_out(staging: Path, target: Path, sibling: Path) -> bool:
    """Move the temporary folder from within the target to beside it, if the target can be moved as a whole at all."""
    with suppress(OSError):
        if not target.samefile(".") and not os.path.lexists(sibling):
            staging.rename(sibling)
            return True
    return False


def _swap(staging: Path, target: Path, others: Sequence[str]) -> bool:
    """Put the folder ``staging`` in the place of ``target`` in one step; False, with nothing changed, if that fails."""
    linked: list[Path] = []
    with suppress(OSError):
        if not _like(staging, target):
            return False
        if not any(target.iterdir()):
            staging.rename(target)
            return True
        for name in others:
            os.link(target / name, staging / name, follow_symlinks=False)
            linked.append(staging / name)
        sync_folder(staging)
        if exchange(staging, target):
            return True
    for path in linked:
        path.unlink()
    return False


def _like(staging: Path, target: Path) -> bool:
    """Give a folder the owner and mode of another; False if that has more to it, such as an access list."""
    attributes: list[str] = []
    with suppress(OSError, AttributeError):
        attributes = os.listxattr(target)
    if any(name.startswith(("system.", "user.")) for name in attributes):
        return False
    want, have = target.stat(), staging.stat()
    if (want.st_uid, want.st_gid) != (have.st_uid, have.st_gid):
        os.chown(staging, want.st_uid, want.st_gid)
    staging.chmod(want.st_mode & 0o7777)
    return True


def _clear(left: Path, target: Path, old: Sequence[str]) -> None:
    """Remove the exchanged folder; a file that came into it in the last moment is moved on, never removed."""
    with suppress(OSError):  # the new set is in place: what cannot be removed is no failure of it
        for path in list(left.iterdir()):
            if path.name in old or os.path.lexists(target / path.name):
                path.unlink()
            else:
                path.rename(target / path.name)
        left.rmdir()


class _Merge:
    """The way file by file: ``done`` holds (where a file is, where it was) of each step, for the way back."""

    def __init__(self, staging: Path, target: Path) -> None:
        self.staging, self.target, self.waiting = staging, target, staging / _OLD
        self.done: list[tuple[Path, Path]] = []

    def run(self, new: Sequence[str], old: Sequence[str]) -> None:
        """Take all steps, in the order that the text of this module gives, or none."""
        first = [INDEX] if _clash(new, old) and INDEX in old else []
        replaced = [name for name in new if name in old and name not in first]
        last = sorted(set(old).difference(new), key=lambda name: (name not in (INDEX, SINGLE), name))
        journal = {name: (self.staging / name).lstat().st_ino for name in new}
        make_file(self.staging / _JOURNAL, json.dumps(journal).encode())
        sync_folder(self.staging)
        self.waiting.mkdir()
        try:
            for name in first:
                self._move(name, self.target, self.waiting)
            for name in sorted(new, key=lambda name: name == INDEX):
                if name in replaced:
                    self._keep(name)
                self._move(name, self.staging, self.target)
            for name in last:
                self._move(name, self.target, self.waiting)
            sync_folder(self.target)
            self.waiting.rename(self.staging / _DONE)
        except BaseException:
            for now, was in reversed(self.done):
                with suppress(OSError):  # what cannot be put back now is left where the next run looks for it
                    if not os.path.lexists(was):
                        now.replace(was)
                    elif os.path.samestat(now.lstat(), was.lstat()):  # a second link, and nothing has replaced it yet
                        now.unlink()
            raise

    def _move(self, name: str, source: Path, goal: Path) -> None:
        self.done.append((goal / name, source / name))
        (source / name).rename(goal / name)

    def _keep(self, name: str) -> None:
        """Keep a file that is about to be replaced, by a second link, so that its name is never gone meanwhile."""
        now, was = self.waiting / name, self.target / name
        self.done.append((now, was))
        try:
            os.link(was, now, follow_symlinks=False)
        except OSError:
            was.rename(now)
