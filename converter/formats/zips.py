"""The directory of a zip archive whose records are stored as they are, read strictly: where each record's bytes lie.

Readers of zip archives forgive much, each something else, so that two of them may find other records in one file. What
``torch.save`` writes needs no forgiving. Source: APPNOTE.TXT of the zip format (4.3 general format, 4.5.3 zip64).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from converter.errors import FormatError
from converter.formats.base import bad, read_exactly
from converter.formats.text import show

MAX_DIRECTORY = 256 << 20  # bytes
_LOCAL = struct.Struct("<4s2xHH16xHH")  # flags, method; length of the name, of the extra field
_ENTRY = struct.Struct("<4s4xHH8xII4H6xI")  # flags, method, sizes; lengths of name, extra field, comment; disk; place
_END = struct.Struct("<4s4H2IH")  # disks; records here and in all; size and place of the directory; comment
_LONG = struct.Struct("<4sQ4x2I4Q4sIQI")  # the same in zip64, and where it begins
_UNREADABLE = 1 | 1 << 5 | 1 << 6 | 1 << 13  # flags: encrypted, patched, strongly encrypted, masked
_MAX2, _MAX4 = 0xFFFF, 0xFFFFFFFF  # numbers that stand in zip64


class Record(NamedTuple):
    """A record: where its bytes begin in the file, and how many there are."""

    start: int
    size: int


def read_directory(path: str, fd: int, size: int) -> dict[str, Record]:
    """List the records of an archive by name; raises FormatError for one that is not sound in every word."""
    start, stop, count = _end(path, fd, size)
    if stop - start > MAX_DIRECTORY:
        raise bad(path, f"its directory has {stop - start} bytes, more than the limit of {MAX_DIRECTORY}")
    data = read_exactly(path, fd, stop - start, start)
    records: dict[str, Record] = {}
    at = 0
    while at < len(data):
        name, record, at = _entry(path, fd, start, data, at)
        if name in records:
            raise bad(path, f"the record {show(name)} stands in it twice: which one counts depends on the reader")
        records[name] = record
    if len(records) != count:
        raise _damaged(path, f"its end counts {count} records, its directory has {len(records)}")
    return records


def _damaged(path: str, why: str) -> FormatError:
    return bad(path, f"truncated or damaged zip archive: {why}")


def _end(path: str, fd: int, size: int) -> tuple[int, int, int]:
    """Read where the directory begins and ends, and how many records it has."""
    tail = read_exactly(path, fd, min(size, _LONG.size + _END.size), max(0, size - _LONG.size - _END.size))
    at = len(tail) - _END.size
    if at < 0 or not tail.startswith(b"PK\5\6", at):
        raise _damaged(path, "it does not end with its directory")
    _, *short, comment = _END.unpack_from(tail, at)
    stop = size - _END.size
    found = short
    if at == _LONG.size and tail.startswith(b"PK\6\7", at - 20):
        mark, length, *found, _, disk, where, disks = _LONG.unpack_from(tail)
        stop -= _LONG.size
        if (mark, length, disk, where, disks) != (b"PK\6\6", 44, 0, stop, 1):
            raise _damaged(path, "the end of its directory in zip64 is not sound")
        if any(n not in (m, _MAX2 if k < 4 else _MAX4) for k, (n, m) in enumerate(zip(short, found))):
            raise _damaged(path, "the two ends of its directory say different things")
    disk, other, here, count, length, start = found
    if disk or other or comment or here != count or start + length != stop:
        raise _damaged(path, "its end does not fit its directory")
    return start, stop, count


def _entry(path: str, fd: int, limit: int, data: bytes, at: int) -> tuple[str, Record, int]:
    """Read one entry of the directory, whose record ends before ``limit``, and the head of the record."""
    if len(data) - at < _ENTRY.size:
        raise _damaged(path, "its directory is cut short")
    mark, flags, method, packed, size, names, extras, comments, disk, place = _ENTRY.unpack_from(data, at)
    at += _ENTRY.size
    raw, extra = data[at : at + names], data[at + names : at + names + extras]
    at += names + extras + comments
    name = raw.decode("utf-8", "replace")
    if mark != b"PK\1\2" or at > len(data) or disk or "\ufffd" in name:
        raise _damaged(path, "its directory is not sound")
    long = _zip64(path, extra)
    size, packed, place = (next(long, -1) if n == _MAX4 else n for n in (size, packed, place))
    if method or flags & _UNREADABLE:
        raise bad(path, f"the record {show(name)} is compressed or encrypted, which torch.save never writes")
    head = read_exactly(path, fd, _LOCAL.size + names, place) if 0 <= place <= limit - _LOCAL.size - names else b""
    mark, flags, method, length, more = _LOCAL.unpack_from(head) if head else (b"",) * 5
    start = place + _LOCAL.size + names + (more or 0)
    sound = mark == b"PK\3\4" and not method and not flags & _UNREADABLE and head.endswith(raw) and length == names
    if not sound or not 0 <= size == packed or start + size > limit:
        raise _damaged(path, f"the record {show(name)} is not where it should be")
    return name, Record(start, size), at


def _zip64(path: str, extra: bytes) -> Iterator[int]:
    """Check the extra field of an entry; give the numbers that zip64 keeps there."""
    at, found = 0, b""
    while at < len(extra):
        kind, length = struct.unpack_from("<HH", extra, at) if len(extra) - at >= 4 else (0, len(extra))
        at += 4 + length
        if at > len(extra):
            raise _damaged(path, "its directory has an extra field that is not sound")
        found = extra[at - length : at] if kind == 1 else found
    return (n for (n,) in struct.iter_unpack("<Q", found[: len(found) & -8]))
