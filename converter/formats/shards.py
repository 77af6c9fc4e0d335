"""Lay tensors out in safetensors files before anything is written: which file, which byte, and each file's header.

Format: https://github.com/huggingface/safetensors (README, "Format"); the names of shards and the index are those that
transformers writes (https://huggingface.co/docs/transformers/big_models, "Sharded checkpoints").
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from converter.errors import FormatError, Problem, UsageError
from converter.formats.safetensors import MAX_HEADER, METADATA
from converter.formats.text import many_objects, show
from converter.spec import DTYPES, TensorEntry, TensorSpec, nbytes

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARD = re.compile(r"(?P<stem>.*)-(?P<number>\d{1,9})-of-(?P<total>\d{1,9})")  # a file name without its suffix
DEFAULT_METADATA: Mapping[str, str] = MappingProxyType({"format": "pt"})  # loaders ask for it
_ALIGN = 8
_BLOCK = 4096  # what file systems that share blocks share at a time
_SHARED = 1 << 20  # files with less data are not padded for it

_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True)
class FileLayout:
    """One file to be written.

    ``name`` is its name within an output directory; ``header_bytes`` are the first bytes of the file (length field,
    JSON, padding); ``size`` is that of the whole file; offsets of ``entries`` count from its start.
    """

    name: str
    header_bytes: bytes
    size: int
    entries: tuple[TensorEntry, ...]


@dataclass(frozen=True)
class Layout:
    """All files to be written.

    ``place`` gives (file number, byte offset in that file) of each tensor; ``index`` is the text of the index, None for
    a single file; ``total_size`` counts tensor bytes; ``directory`` says that a set of shards was asked for, even if
    one file turned out to be enough.
    """

    files: tuple[FileLayout, ...]
    place: Mapping[str, tuple[int, int]]
    index: bytes | None
    total_size: int
    directory: bool = False

    @property
    def size(self) -> int:
        """Bytes on disk of all files together."""
        return sum(f.size for f in self.files) + len(self.index or b"")


def layout(
    specs: Sequence[TensorSpec],
    metadata: Mapping[str, str] | None = None,
    max_shard_size: int | None = None,
    data_start: int = 0,
) -> Layout:
    """Place tensors: wider element types first, then in the order given, so that each is aligned to its element.

    ``max_shard_size`` (bytes of tensors) asks for shards, filled in that order; a larger tensor gets one of its own.
    Where the data of an input begins at byte ``data_start``, that of a large output begins at the same place in a block
    of 4096 bytes, so that a copy of it can share blocks. The header of each file carries ``metadata``, or
    ``format: pt`` where there is none.

    Raises UsageError for a shard size below 1, FormatError for names or sizes that the format cannot hold and for a
    header of more than 100,000,000 bytes.
    """
    if max_shard_size is not None and max_shard_size < 1:
        raise UsageError(f"a shard of {max_shard_size} bytes holds nothing: the shard size must be at least 1")
    with many_objects():
        return _layout(specs, metadata or DEFAULT_METADATA, max_shard_size, data_start)


def _layout(
    specs: Sequence[TensorSpec], metadata: Mapping[str, str], max_shard_size: int | None, data_start: int
) -> Layout:
    _check_names(specs)
    ordered = sorted(((_bytes(s), s) for s in specs), key=lambda pair: -_alignment(pair[1].dtype))
    groups = _split(ordered, max_shard_size)
    first = _json({METADATA: _checked(metadata)})
    files = tuple(_file(i, len(groups), group, first, data_start) for i, group in enumerate(groups))
    place = {e[0]: (e[3], e[4]) for f in files for e in f.entries}
    total = sum(size for size, _ in ordered)
    index = _index(files, total) if len(files) > 1 else None
    return Layout(files, place, index, total, max_shard_size is not None)


def shard_name(number: int, total: int) -> str:
    """Name shard ``number`` (from 0) of ``total``; it never depends on tensor names or metadata."""
    return SINGLE if total == 1 else f"model-{number + 1:05d}-of-{total:05d}.safetensors"


def _refuse(name: str, message: str) -> FormatError:
    return FormatError(Problem(message, "format", show(name)))


def _check_names(specs: Sequence[TensorSpec]) -> None:
    seen: set[str] = set()
    for spec in specs:
        name = spec[0]
        if name in seen:
            raise _refuse(name, "would be written twice")
        if not name or name == METADATA:
            raise _refuse(name, "a safetensors file cannot hold a tensor of this name")
        _check_text(name)
        seen.add(name)


def _check_text(text: str) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise _refuse(text, "holds an unpaired surrogate, which cannot be written as UTF-8") from None


def _checked(metadata: Mapping[str, str]) -> dict[str, str]:
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise _refuse(METADATA, f"{show(str(key))} is {value!r}, metadata must be text")
        _check_text(key)
        _check_text(value)
    return dict(metadata)


def _bytes(spec: TensorSpec) -> int:
    try:
        return nbytes(spec.dtype, spec.shape)
    except ValueError as e:
        raise _refuse(spec.name, f"cannot be written as {spec.dtype}: {e}") from None


def _alignment(dtype: str) -> int:
    return max(1, DTYPES[dtype].bits // 8)


_Sized = tuple[int, TensorSpec]


def _split(ordered: Sequence[_Sized], limit: int | None) -> list[list[_Sized]]:
    """Fill shards in order; a shard is closed when the next tensor does not fit and it holds something already."""
    groups: list[list[_Sized]] = [[]]
    room = limit or 0
    for pair in ordered:
        if limit is not None and groups[-1] and pair[0] > room:
            groups.append([])
            room = limit
        groups[-1].append(pair)
        room -= pair[0]
    return groups


def _file(number: int, total: int, group: Sequence[_Sized], metadata: str, data_start: int) -> FileLayout:
    """Write the header of one file, padded with spaces so that the data begins at a multiple of 8 or as an input's."""
    parts, entries, at = [metadata[:-1]], [], 0
    for size, (name, dtype, shape) in group:
        dims = ",".join(map(str, shape))
        parts.append(f'{_json(name)}:{{"dtype":"{dtype}","shape":[{dims}],"data_offsets":[{at},{at + size}]}}')
        at += size
    text = (",".join(parts) + "}").encode()
    in_block = at >= _SHARED and data_start % _ALIGN == 0
    text += b" " * ((data_start - 8 - len(text)) % _BLOCK if in_block else -len(text) % _ALIGN)
    if len(text) > MAX_HEADER:
        file, hint = (shard_name(number, total), "") if total > 1 else ("the output", ": write it in shards")
        raise _refuse(file, f"its header would take {len(text)} bytes, more than the limit of {MAX_HEADER}{hint}")
    at = 8 + len(text)
    for size, (name, dtype, shape) in group:
        entries.append(TensorEntry(name, dtype, shape, number, at, at + size))
        at += size
    header = len(text).to_bytes(8, "little") + text
    return FileLayout(shard_name(number, total), header, at, tuple(entries))


def _index(files: Sequence[FileLayout], total: int) -> bytes:
    lines = [f"    {_json(e.name)}: {_json(f.name)}" for f in files for e in f.entries]
    head = f'{{\n  "metadata": {{\n    "total_size": {total}\n  }},\n  "weight_map": {{\n'
    return (head + ",\n".join(lines) + "\n  }\n}\n").encode()
