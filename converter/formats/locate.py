"""Find what a path means: a file, a folder with an index or one file, or an index."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from converter.errors import ConvertError, FormatError, Problem, UsageError
from converter.formats.base import HEAD, Format, bad, faults, open_regular, read_exactly
from converter.formats.index import read_index
from converter.formats.shards import SHARD
from converter.formats.text import listing, show


@dataclass(frozen=True)
class Source:
    """What to read: a file of a format, or (``is_index``) an index whose shards are of that format."""

    format: Format
    path: str
    is_index: bool
    notes: tuple[str, ...] = ()


def find(path: str, formats: Sequence[Format]) -> Source:
    """Decide what to read for a path.

    Raises FormatError if there is nothing, or more than one thing, to read, and UsageError for one shard of several.
    """
    with faults(path, "cannot be read"):
        mode = Path(path).stat().st_mode
    if stat.S_ISDIR(mode):
        return _in_folder(path, formats)
    if not stat.S_ISREG(mode):
        raise bad(path, "is not a regular file")
    for fmt in formats:
        if path.endswith(fmt.index_suffix):
            return Source(fmt, path, is_index=True)
    if path.endswith(".index.json"):
        raise bad(path, f"an index is named *{' or *'.join(f.index_suffix for f in formats)}")
    return _single(path, formats)


def strays(folder: Path, read: Iterable[str], formats: Sequence[Format]) -> tuple[str, ...]:
    """Remark on weight files in a folder that are not among those read (names relative to it)."""
    suffixes = tuple(s for f in formats for s in f.suffixes)
    others = sorted(set(_weights(_names(folder), suffixes)) - set(read))
    said = "weight files that are not part of this checkpoint"
    return (f"{show(str(folder))}: {said}: {listing(others)}",) if others else ()


def _names(folder: Path) -> list[str]:
    with faults(str(folder), "cannot be read"):
        return sorted(entry.name for entry in folder.iterdir())


def _weights(names: Iterable[str], suffixes: tuple[str, ...]) -> list[str]:
    """Choose names by ending; hidden files are nobody's weights (``._model.safetensors`` of a Mac's archive, say)."""
    return sorted(name for name in names if name.endswith(suffixes) and not name.startswith("."))


def _single(path: str, formats: Sequence[Format]) -> Source:
    """Choose the format of one file: by content, except that a pickle is never opened under another format's name."""
    named = next((f for f in formats if path.endswith(f.suffixes)), None)
    first = formats[0]
    with open_regular(path) as (fd, found):
        head = read_exactly(path, fd, min(HEAD, found.st_size), 0)
    if named is first:
        _refuse_lone_shard(path, first)
        return Source(first, path, is_index=False)
    if first.claims(head):
        note = f"{show(path)}: its content is {first.name}, whatever its name says"
        return Source(first, path, is_index=False, notes=(note,))
    fmt = next((f for f in formats if f.claims(head)), named or first)
    return Source(fmt, path, is_index=False)


def _refuse_lone_shard(path: str, fmt: Format) -> None:
    """Raise UsageError for one shard of several: its name says so, or an index beside it."""
    folder, name = Path(path).parent, Path(path).name
    shown = show(str(folder))
    indexes = _weights(_names(folder), (fmt.index_suffix,))
    for index in indexes:
        try:
            files = read_index(str(folder / index)).files
        except ConvertError:
            continue
        if name in files and len(files) > 1:
            hint = f"pass the directory {shown}" if len(indexes) == 1 else f"pass {show(index)}"
            message = f"is one shard of {len(files)} that {show(index)} names; {hint}"
            raise UsageError(Problem(message, "one-shard", show(path)))
    part = _part(name, fmt)
    if part:
        hint = (
            f"no index (*{fmt.index_suffix}) in {shown} names it; the directory with all shards and the index is needed"
        )
        raise UsageError(Problem(f"is shard {part[0]} of {part[1]}, and {hint}", "one-shard", show(path)))


def _part(name: str, fmt: Format) -> tuple[int, int] | None:
    stem = next((name.removesuffix(s) for s in fmt.suffixes if name.endswith(s)), name)
    m = SHARD.fullmatch(stem)
    return (int(m["number"]), int(m["total"])) if m and int(m["total"]) > 1 else None


def _in_folder(path: str, formats: Sequence[Format]) -> Source:
    folder = Path(path)
    names = _names(folder)
    for fmt in formats:
        indexes = _weights(names, (fmt.index_suffix,))
        if len(indexes) > 1:
            raise bad(path, f"several indexes, pass one of them: {listing(indexes)}", "ambiguous")
        if indexes:
            return Source(fmt, str(folder / indexes[0]), is_index=True)
        files = _weights(names, fmt.suffixes)
        if len(files) > 1:
            raise _ambiguous(folder, files, fmt)
        if files:
            return _only(folder, files[0], fmt, formats)
    looked = ", ".join(f"*{s}" for f in formats for s in (f.index_suffix, *f.suffixes))
    there = listing(names, 8) if names else "nothing"
    raise bad(path, f"no checkpoint: looked for {looked}; found {there}")


def _only(folder: Path, name: str, fmt: Format, formats: Sequence[Format]) -> Source:
    part = _part(name, fmt)
    if part:
        raise bad(str(folder), f"holds only {show(name)}, shard {part[0]} of {part[1]}, and no index", "missing-shard")
    path = str(folder / name)
    source = Source(fmt, path, is_index=False) if fmt is formats[0] else _single(path, formats)
    return Source(source.format, path, is_index=False, notes=(*source.notes, *strays(folder, [name], formats)))


def _ambiguous(folder: Path, files: Sequence[str], fmt: Format) -> FormatError:
    """Name the files, and the tensors that are in more than one of them."""
    if all(_part(name, fmt) for name in files):
        message = (
            f"{len(files)} shards of a checkpoint and no index (*{fmt.index_suffix}), without which they are no whole"
        )
        return FormatError(Problem(f"{message}: {listing(files, 8)}", "missing-index", show(str(folder))))
    shown = show(str(folder))
    holders: dict[str, list[str]] = {}
    for file in files:
        try:
            header = fmt.read_header(str(folder / file))
        except ConvertError:
            continue
        for tensor in header.tensors:
            holders.setdefault(tensor, []).append(file)
    repeated = {tensor: where for tensor, where in holders.items() if len(where) > 1}
    said = [f"{len(files)} {fmt.name} files and no index, pass one of them: {listing(files, 8)}"]
    if repeated:
        alike = {re.sub("[0-9]+", "{rank}", name) for name in files}
        how = "only files that differ by a number are read together"
        if len(alike) == 1:
            how = f"parts of one model are read together as {show(str(folder / alike.pop()))}"
        said.append(f"they hold the same names; {how}")
    problems = [Problem(text, "ambiguous", shown) for text in said]
    problems += [Problem(f"is in {listing(w)}", "ambiguous", t, place=shown) for t, w in repeated.items()]
    return FormatError(problems)
