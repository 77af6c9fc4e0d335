"""Decide from the path alone whether an output may be written there, and as a file or as a folder."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from zlib import crc32

from converter.errors import ConvertError, Problem, UsageError
from converter.formats.base import bad, faults
from converter.formats.index import read_index
from converter.formats.safetensors import SAFETENSORS
from converter.formats.shards import INDEX, SHARD, SINGLE
from converter.formats.swap import unfinished
from converter.formats.text import listing, show

TEMPORARY = "tmp-convert"
NAME_BYTES = 255  # of a name, on most file systems


@dataclass(frozen=True)
class Target:
    """Where an output goes.

    ``shown`` is the path as the user gave it, ``path`` the final one (of the file, or of the folder behind links),
    ``mode`` the permission bits of a file to be replaced, ``old`` the names of the weight files of a folder to be.
    """

    shown: str
    path: Path
    directory: bool
    exists: bool
    mode: int | None = None
    old: tuple[str, ...] = ()

    @property
    def sibling(self) -> Path:
        """Temporary name beside the target; of a name that leaves no room for more, it has the checksum."""
        name = self.path.name
        if not name:  # the root, which has nothing beside it
            return self.within
        raw = os.fsencode(name)
        room = NAME_BYTES - len(TEMPORARY) - 2
        return self.path.with_name(f".{name if len(raw) <= room else f'{crc32(raw):08x}'}.{TEMPORARY}")

    @property
    def within(self) -> Path:
        """Temporary name within a target that is a folder."""
        return self.path / f".{TEMPORARY}"


def check_target(path: str, directory: bool = False, force: bool = False, inputs: Sequence[str] = ()) -> Target:
    """Check an output path; ``directory`` says that a set of shards was asked for.

    A folder is also meant by a path that ends with a slash, and by one that is a folder. Raises UsageError if the
    suffix is not one that is written, if the output is (or its folder's old weights are, or belong to) one of the
    ``inputs`` by device and inode, or if it exists and ``force`` is not set; FormatError if its parent is not there.
    """
    if not path or "\0" in path:
        raise UsageError("the output has no name")
    with faults(path, "cannot be written"):
        if directory or path.endswith("/") or Path(path).is_dir():
            return _check_folder(path, force, inputs)
        return _check_file(path, force, inputs)


def _check_file(path: str, force: bool, inputs: Sequence[str]) -> Target:
    final = Path(path)
    if not path.endswith(SAFETENSORS.suffixes):
        kind = f"files named *{show(final.suffix)} are" if final.suffix else "a file without a suffix is"
        raise _refuse(path, f"{kind} not written; name it *.safetensors, or pass a directory (it ends with /)")
    _check_parent(final)
    if not os.path.lexists(path):
        return Target(path, final, directory=False, exists=False)
    _refuse_inputs(path, [final], inputs)
    found = final.stat() if final.exists() else None  # a link that leads nowhere is replaced like a file
    if found and not stat.S_ISREG(found.st_mode):
        raise _refuse(path, "exists and is not a regular file")
    if not force:
        raise _refuse(path, "exists already; --force replaces it", "exists")
    return Target(path, final, directory=False, exists=True, mode=found.st_mode & 0o777 if found else None)


def _check_folder(path: str, force: bool, inputs: Sequence[str]) -> Target:
    real = Path(os.path.realpath(path))
    if os.path.lexists(real) and not real.is_dir():
        _refuse_inputs(path, [real], inputs)
        raise _refuse(path, "exists and is not a directory, which the output would be")
    if not real.exists():
        if not path.endswith("/") and path.endswith(SAFETENSORS.suffixes):
            raise _refuse(path, "has the suffix of a file, but shards are written to a directory")
        _check_parent(real)
        return Target(path, real, directory=True, exists=False)
    target = Target(path, real, directory=True, exists=True)
    old = _old_weights(target)
    _refuse_inputs(path, [real / name for name in old], inputs)
    if old and any(_inside(real, Path(file)) for file in inputs):
        raise _refuse(path, "the output directory holds the input, whose files would be replaced", "output-is-input")
    if old and not force:
        raise _refuse(path, f"holds weights already: {listing(old, 8)}; --force replaces them", "exists")
    return replace(target, old=old)


def _old_weights(target: Target) -> tuple[str, ...]:
    """Name the weight set that a loader would find: fixed names, shards of that pattern, files that its index names.

    What a killed run left half done counts as undone, which is what happens to it next.
    """
    folder = target.path
    found = _found_weights(folder)
    for staging in (target.sibling, target.within):
        left = unfinished(staging, folder)
        found = (found - left.put) | left.taken
    return tuple(sorted(found))


def _found_weights(folder: Path) -> set[str]:
    names = {entry.name for entry in folder.iterdir()}
    stems = {n: n.removesuffix(".safetensors") for n in names if n.endswith(".safetensors")}
    old = {n for n, stem in stems.items() if (m := SHARD.fullmatch(stem)) and m["stem"] == "model"}
    old |= names & {SINGLE, INDEX}
    if INDEX in names:
        with suppress(ConvertError):  # of a broken index, what it would have named stays
            old |= stems.keys() & set(read_index(str(folder / INDEX)).files)
    return {n for n in old if not stat.S_ISDIR((folder / n).lstat().st_mode)}


def _refuse_inputs(path: str, replaced: Iterable[Path], inputs: Iterable[str]) -> None:
    used = {_identity(Path(file)) for file in inputs} - {None}
    for file in replaced:
        if _identity(file) in used:
            where = "the output is the input" if file == Path(path) else f"{show(file.name)} there is the input"
            raise _refuse(path, f"{where}, which is never replaced", "output-is-input")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _inside(folder: Path, file: Path) -> bool:
    return any(path.is_relative_to(folder) for path in (file.resolve(), file.parent.resolve() / file.name))


def _check_parent(path: Path) -> None:
    parent = path.parent
    if not parent.is_dir():
        said = "is not a directory" if os.path.lexists(parent) else "no such directory"
        raise bad(str(parent), f"{said}; the output would be in it", "io")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise bad(str(parent), "no permission to write there", "io")


def _refuse(path: str, message: str, kind: str = "output") -> UsageError:
    return UsageError(Problem(message, kind, show(path)))
