"""Read a weight index (``*.safetensors.index.json``) and the shards that it names, as one header.

Format: ``{"metadata": {"total_size": ...}, "weight_map": {tensor: file}}``, as written by transformers
(https://huggingface.co/docs/transformers/big_models, "Sharded checkpoints"). The index decides which tensors there are
and which file each is taken from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from converter.errors import FormatError, Problem
from converter.formats.base import bad, foreign, open_regular, read_exactly
from converter.formats.text import TextError, brief, count, listing, parse_object, show
from converter.paths import path_fault
from converter.spec import FileStamp, Head, Header, TensorEntry

MAX_INDEX = 100_000_000  # bytes


@dataclass(frozen=True)
class WeightIndex:
    """An index: its path, the file of each tensor, the declared sum of tensor bytes (any JSON value), and its stamp."""

    path: str
    weight_map: Mapping[str, str]
    total_size: object = None
    stamp: FileStamp | None = None

    @property
    def folder(self) -> Path:
        """The folder that the file names count from."""
        return Path(self.path).parent

    @property
    def files(self) -> tuple[str, ...]:
        """File names, each once, sorted: the order of names in the JSON text says nothing."""
        return tuple(sorted(set(self.weight_map.values())))


def read_index(path: str) -> WeightIndex:
    """Read and check an index; raises FormatError for malformed text and file names that are not plain and relative."""
    with open_regular(path) as (fd, found):
        if found.st_size > MAX_INDEX:
            raise bad(path, f"an index of {found.st_size} bytes, more than the limit of {MAX_INDEX}")
        data = read_exactly(path, fd, found.st_size, 0)
    if words := foreign(data[:512]):
        raise bad(path, words)
    try:
        doc = parse_object(data.lstrip(b" \t\r\n"))
    except TextError as e:
        said = str(e)
        raise bad(path, said if said.startswith(("duplicate", "unpaired")) else f"the index {said}") from None
    if "weight_map" not in doc:
        raise bad(path, "the index has no weight_map")
    weight_map = _weight_map(path, doc["weight_map"])
    about = doc.get("metadata")
    stamp = FileStamp(path, found.st_size, found.st_mtime_ns, 0, head=Head.of(0, data))
    return WeightIndex(path, weight_map, about.get("total_size") if isinstance(about, dict) else None, stamp)


def _weight_map(path: str, value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise bad(path, f"weight_map is {brief(value)}, not an object")
    if not value:
        raise bad(path, "weight_map names no tensors")
    problems, checked = [], set[str]()
    for name, file in value.items():
        if type(file) is not str:
            problems.append(
                Problem(f"weight_map: {show(name)} is {brief(file)}, not a file name", "format", show(path))
            )
        elif file not in checked:
            checked.add(file)
            if fault := path_fault(file, "index"):
                message = f"weight_map: {show(name)} is in {brief(file)}: {fault}"
                problems.append(Problem(message, "unsafe-name", show(path)))
    if problems:
        raise FormatError(problems)
    return value


def read_shards(index: WeightIndex, read_header: Callable[[str], Header]) -> Header:
    """Read the headers of all shards of an index as one: files sorted by name, tensors in the order of their bytes.

    Raises FormatError that lists all shards that are not there, or all tensors that their shard does not hold.
    """
    names = index.files
    paths = [index.folder / name for name in names]
    missing = [name for name, path in zip(names, paths) if _is_absent(path)]
    if missing:
        said = f"which is not there ({len(missing)} of {count(len(names), 'shard')} missing)"
        raise FormatError(Problem(f"names {show(n)}, {said}", "missing-shard", show(index.path)) for n in missing)
    headers = [read_header(str(path)) for path in paths]
    _check_found(index, dict(zip(names, headers)))
    tensors: dict[str, TensorEntry] = {}
    metadata: dict[str, str] = {}
    files: list[FileStamp] = []
    others: dict[str, str] = {}
    for name, header in zip(names, headers):
        metadata = {**header.metadata, **metadata}
        for entry in header.tensors.values():
            if index.weight_map.get(entry.name) == name:
                tensors[entry.name] = entry._replace(file=len(files) + entry.file)
        others |= {n: what for n, what in header.others.items() if index.weight_map.get(n) == name}
        files += header.files
    notes = (*(n for h in headers for n in h.notes), *_left_out(index, names, headers), *_size_note(index, tensors))
    return Header(tensors, metadata, tuple(files), notes, others, index.stamp)


def _is_absent(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False  # it cannot be looked at; opening it will tell why
    return False


def _check_found(index: WeightIndex, headers: Mapping[str, Header]) -> None:
    lost = [(name, file) for name, file in index.weight_map.items() if name not in headers[file].tensors]
    if lost:
        raise FormatError(
            Problem(
                f"{show(name)} is mapped to {show(file)} but is not in its header", "not-in-shard", show(index.path)
            )
            for name, file in lost
        )


def _left_out(index: WeightIndex, names: Sequence[str], headers: Sequence[Header]) -> Iterator[str]:
    """Tell of tensors in the shards that the index does not take from there."""
    for name, header in zip(names, headers):
        unmapped = [t for t in header.tensors if t not in index.weight_map]
        if unmapped:
            said = f"{count(len(unmapped), 'tensor')} that the index does not name, left out: {listing(unmapped)}"
            yield f"{show(str(index.folder / name))}: {said}"
        shadowed = [t for t in header.tensors if index.weight_map.get(t, name) != name]
        if shadowed:
            said = f"{count(len(shadowed), 'tensor')} shadowed, the index takes another file's: {listing(shadowed)}"
            yield f"{show(str(index.folder / name))}: {said}"


def _size_note(index: WeightIndex, tensors: Mapping[str, TensorEntry]) -> Iterator[str]:
    found = sum(e.spec.nbytes for e in tensors.values())
    if index.total_size is not None and index.total_size != found:
        yield f"{show(index.path)}: total_size is {brief(index.total_size)}, the tensors have {found} bytes"
