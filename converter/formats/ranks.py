"""Several checkpoints read as one: files whose tensors have the same names, such as the ranks of a model that was cut.

A hole in a path, ``consolidated.{rank}.pth``, stands for a number. Each file that fits is read, and the names of its
tensors get the number before them: ``0/norm.weight``, ``1/norm.weight``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from converter.formats.base import bad, faults
from converter.formats.text import show
from converter.spec import FileStamp, Header, TensorEntry

_HOLE = re.compile(r"\{[A-Za-z_]\w*\}")
Numbers = tuple[int, ...]


def has_holes(path: str) -> bool:
    """Tell whether a path means several files; one that is there as it stands does not."""
    return _HOLE.search(path) is not None and not os.path.lexists(path)


def folder_of(path: str) -> Path:
    """Give the folder in which a config of a checkpoint would be: the path itself, or the one that holds it."""
    hole = _HOLE.search(path)
    if hole is not None and has_holes(path):
        return Path(path[: hole.start()] + "x").parent
    return Path(path) if Path(path).is_dir() else Path(path).parent


def files_of(path: str) -> list[tuple[Numbers, str]]:
    """List the files that a path with holes means, by their numbers; raises FormatError for none, or two of one."""
    found = sorted(_fitting(Path(Path(path).anchor), list(Path(path).relative_to(Path(path).anchor).parts)))
    if not found:
        holes = " and ".join(dict.fromkeys(_HOLE.findall(path)))
        raise bad(path, f"no such files: none has a number in the place of {holes}", "io")
    for (a, first), (b, second) in pairwise(found):
        if a == b:
            raise bad(path, f"{show(first)} and {show(second)} have the same number", "ambiguous")
    return found


def _fitting(folder: Path, parts: Sequence[str]) -> Iterator[tuple[Numbers, str]]:
    if not parts:
        yield (), str(folder)
        return
    if not _HOLE.search(parts[0]):
        if len(parts) > 1 or os.path.lexists(folder / parts[0]):
            yield from _fitting(folder / parts[0], parts[1:])
        return
    pattern = re.compile("([0-9]{1,9})".join(map(re.escape, _HOLE.split(parts[0]))))
    with faults(str(folder), "cannot be read"):
        names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    for name in names:
        m = pattern.fullmatch(name)
        if m:
            for numbers, path in _fitting(folder / name, parts[1:]):
                yield (*map(int, m.groups()), *numbers), path


def join(headers: Sequence[tuple[Numbers, Header]]) -> Header:
    """Make one header of several, with the numbers of each before its names; the metadata are those of all of them."""
    tensors: dict[str, TensorEntry] = {}
    metadata: dict[str, str] = {}
    files: list[FileStamp] = []
    others: dict[str, str] = {}
    for numbers, header in headers:
        before = "".join(f"{n}/" for n in numbers)
        aliases = {k for k, v in header.metadata.items() if v in header.tensors and k not in header.tensors}
        said = {
            before + k if k in aliases else k: before + v if k in aliases else v for k, v in header.metadata.items()
        }
        metadata = {**said, **metadata}
        for key, entry in header.tensors.items():
            tensors[before + key] = entry._replace(name=before + entry.name, file=len(files) + entry.file)
        others |= {before + n: what for n, what in header.others.items()}
        files += header.files
    return Header(tensors, metadata, tuple(files), tuple(n for _, h in headers for n in h.notes), others)
