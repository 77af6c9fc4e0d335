"""The two containers that torch.save has written: a zip archive of records, and (before 1.6) a run of pickles.

Either gives the pickle of the object and, for each storage, the bytes of the file that hold it. Sources:
torch/serialization.py (``_save``, ``_legacy_save``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from converter.errors import FormatError
from converter.formats.base import bad, read_exactly
from converter.formats.pickles import PickleError, RefusedError, describe, read_pickle
from converter.formats.text import show
from converter.formats.torch_values import Storage, reading
from converter.formats.zips import Record, read_directory
from converter.spec import Head

MAX_PICKLE = 256 << 20  # bytes of the pickle itself, which holds no tensor data
_MAGIC, _VERSION = 0x1950A86A20F9469CFC6C, 1001


@dataclass(frozen=True)
class Contents:
    """What a file holds: the object, where the bytes of a storage begin, if they are big-endian, and its pickles."""

    value: Any
    locate: Callable[[Storage], int]
    big_endian: bool
    head: Head


def read_contents(path: str, fd: int, size: int) -> Contents:
    """Read a torch file without its data; raises FormatError."""
    head = read_exactly(path, fd, min(size, 4), 0)
    return _read_zip(path, fd, size) if head.startswith(b"PK") else _read_legacy(path, fd, size)


def _parse(path: str, data: bytes, at: int = 0, seen: dict[str, Storage] | None = None) -> tuple[Any, int]:
    try:
        return read_pickle(data, at, reading({} if seen is None else seen, len(data)))
    except RefusedError as e:
        raise bad(path, _refusal(e, data), "refused") from None
    except PickleError as e:
        raise bad(path, str(e)) from None


def _refusal(error: RefusedError, data: bytes) -> str:
    if b"_parameters" in data and b"_modules" in data:
        return f"holds a whole module ({error.found}), not its weights: save model.state_dict() instead"
    return (
        f"holds {show(str(error.found))}, which is no tensor, and nothing but tensors and plain data is read "
        "(weights only, without exception): save the tensors alone"
    )


def _read_zip(path: str, fd: int, size: int) -> Contents:
    records = read_directory(path, fd, size)
    roots = [n.removesuffix("data.pkl") for n in records if n == "data.pkl" or n.endswith("/data.pkl")]
    if len(roots) != 1:
        raise bad(path, "is a zip archive, but not one that torch.save wrote: it has no data.pkl")
    (root,) = roots
    if any(n.startswith(f"{root}code/") or n == f"{root}constants.pkl" for n in records):
        raise bad(path, "is a TorchScript archive, which holds code: save the state_dict() of the module instead")
    archive_ = _Archive(path, fd, root, records)
    order = archive_.check()
    seen: dict[str, Storage] = {}
    pickle = archive_.text("data.pkl")
    value, _ = _parse(path, pickle, 0, seen)
    for storage in seen.values():
        archive_.locate(storage)
    return Contents(value, archive_.locate, order == b"big", Head.of(archive_.record("data.pkl").start, pickle))


@dataclass(frozen=True)
class _Archive:
    path: str
    fd: int
    root: str
    records: Mapping[str, Record]

    def record(self, name: str) -> Record:
        """Where a record lies in the file; raises FormatError if there is none."""
        if self.root + name not in self.records:
            raise bad(self.path, f"has no record {show(name)}, which its pickle refers to")
        return self.records[self.root + name]

    def check(self) -> bytes:
        """Check what any reader of torch asks of an archive before it looks at the pickle; gives the byte order."""
        for name in self.records:
            if not self.root or not name.startswith(self.root):
                raise bad(self.path, f"is no sound archive of torch.save: {show(name)} is not in its folder")
        numbers = [n for n in ("version", ".data/version", ".storage_alignment") if self.root + n in self.records]
        if not {"version", ".data/version"} & {*numbers} or any(not self.text(n).strip().isdigit() for n in numbers):
            raise bad(self.path, "is no sound archive of torch.save: it has no version, or one that is no number")
        order = self.text("byteorder") if f"{self.root}byteorder" in self.records else b"little"
        if order not in (b"little", b"big"):
            raise bad(self.path, f"has an unknown byte order: {show(order[:20].decode('latin-1'))}")
        return order

    def text(self, name: str) -> bytes:
        """Read a small record."""
        start, size = self.record(name)
        if size > MAX_PICKLE:
            raise bad(self.path, f"the record {name} has {size} bytes, more than the limit of {MAX_PICKLE}")
        return read_exactly(self.path, self.fd, size, start)

    def locate(self, storage: Storage) -> int:
        """Where the bytes of a storage begin."""
        start, size = self.record(f"data/{storage.key}")
        if size < storage.nbytes:
            raise bad(self.path, f"truncated: storage {show(storage.key)} has {size} bytes of {storage.nbytes}")
        return start


def _read_legacy(path: str, fd: int, size: int) -> Contents:
    """Read the pickles at the start of a file; how long they are shows when they have been read."""
    for limit in (4 << 20, 32 << 20):
        if limit < size:
            with suppress(FormatError):
                return _read_run(path, fd, size, read_exactly(path, fd, limit, 0))
    return _read_run(path, fd, size, read_exactly(path, fd, min(size, MAX_PICKLE), 0))


def _read_run(path: str, fd: int, size: int, data: bytes) -> Contents:
    magic, at = _parse(path, data)
    if magic != _MAGIC or type(magic) is not int:
        raise bad(path, "is a pickle, but not one that torch.save wrote")
    version, at = _parse(path, data, at)
    about, at = _parse(path, data, at)
    seen: dict[str, Storage] = {}
    value, at = _parse(path, data, at, seen)
    keys, at = _parse(path, data, at)
    if type(version) is not int or version != _VERSION:
        raise bad(path, f"is a pickle of torch.save in a version that is not known: {describe(version)}")
    if type(about) is not dict or type(keys) is not list or not all(type(k) is str for k in keys):
        raise bad(path, "is no sound pickle of torch.save")
    if len(keys) != len(seen) or set(keys) != seen.keys():
        raise bad(path, "is no sound pickle of torch.save")
    head = Head.of(0, data[:at])
    starts = _starts(path, fd, size, [seen[k] for k in keys], at)
    return Contents(value, lambda storage: starts[storage.key], about.get("little_endian") is False, head)


def _starts(path: str, fd: int, size: int, storages: list[Storage], at: int) -> dict[str, int]:
    """Where each storage begins: they stand one after the other, each behind its number of elements."""
    starts: dict[str, int] = {}
    for storage in storages:
        if at + 8 + storage.nbytes > size:
            raise bad(path, f"truncated: storage {show(storage.key)} ends at byte {at + 8 + storage.nbytes} of {size}")
        count = int.from_bytes(read_exactly(path, fd, 8, at), "little")
        if count != storage.count:
            raise bad(path, f"storage {show(storage.key)} has {count} elements, its pickle says {storage.count}")
        starts[storage.key] = at + 8
        at += 8 + storage.nbytes
    return starts
