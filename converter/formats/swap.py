"""Put a finished set of weight files in the place of an old one, so that a crash leaves one of the two.

POSIX has no rename of many files, so in order of preference:

1. The output folder is not there, or is empty: one rename of the folder.
2. File names of the old and the new set clash (the same number of shards, say): the new folder, with hard links to
   every other file of the old one, is exchanged with it in one step (``renameat2``). Not where the folder has
   sub-folders, is a mount point or the current folder, or the system cannot.
3. Else file by file. Without a clash the old set is whole until the one rename that switches (the index, or
   ``model.safetensors``), and goes afterwards. With a clash the old index goes first and the new one comes last, so a
   crash between leaves files that no loader takes for a checkpoint, never a mixture that one does.

Each step of 3 is a rename, old files wait in the temporary folder, and a failure undoes all of it in reverse. A run
that was killed there is undone by the next one (:func:`recover`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from converter.formats.shards import INDEX, SINGLE
from converter.formats.staging import exchange, sync_folder

_OLD = "old"  # in the temporary folder: files of the old set, while the step by step way is under way
_DONE = "done"  # the same, once the new set is whole


def publish(staging: Path, target: Path, sibling: Path, new: Sequence[str], old: Sequence[str]) -> None:
    """Make the files ``new`` in ``staging`` the weight set of ``target``, in place of ``old``; all names are plain.

    The folder ``staging`` may be moved to ``sibling`` on the way. Raises OSError, with the old set as it was.
    """
    if staging == sibling:  # it was made there because there was no target
        staging.rename(target)
        return
    others = sorted({entry.name for entry in target.iterdir()} - {staging.name} - set(old))
    if (_clash(new, old) or not (old or others)) and _step_out(staging, target, sibling):
        staging = sibling
        if _swap(staging, target, others, old):
            return
    _Merge(staging, target).run(new, old)


def recover(staging: Path, target: Path) -> None:
    """Put back what a run that was killed between two steps took from ``target``."""
    waiting = staging / _OLD
    if waiting.is_dir() and target.is_dir():
        for path in waiting.iterdir():
            path.replace(target / path.name)


def _clash(new: Sequence[str], old: Sequence[str]) -> bool:
    return len(new) > 1 and not set(new).isdisjoint(n for n in old if n != INDEX)


def _step_out(staging: Path, target: Path, sibling: Path) -> bool:
    """Move the temporary folder from within the target to beside it, if the target can be moved as a whole at all."""
    with suppress(OSError):
        if not target.samefile(".") and not os.path.lexists(sibling):
            staging.rename(sibling)
            return True
    return False


def _swap(staging: Path, target: Path, others: Sequence[str], old: Sequence[str]) -> bool:
    """Put the folder ``staging`` in the place of ``target`` in one step; False, with nothing changed, if that fails."""
    linked: list[Path] = []
    with suppress(OSError):
        if not _like(staging, target):
            return False
        if not (old or others):
            staging.rename(target)
            return True
        for name in others:
            os.link(target / name, staging / name, follow_symlinks=False)
            linked.append(staging / name)
        sync_folder(staging)
        if exchange(staging, target):
            _clear(staging, target, old)
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
        sync_folder(target.parent)
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
                if not os.path.lexists(was):
                    with suppress(FileNotFoundError):
                        now.replace(was)
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
