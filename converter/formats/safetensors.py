"""Read the header of a safetensors file, and check every fact in it before any tensor is touched.

The format: 8 bytes of little-endian header length, a JSON header, the data without holes
(https://github.com/huggingface/safetensors, README "Format" and safetensors/src/tensor.rs). Beyond the reference reader
this one refuses duplicate names, leading blanks and sizes of 2**63 or more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter

from converter.errors import FormatError, Problem, UsageError
from converter.formats.base import HEAD, bad, foreign, is_text, open_regular, read_exactly
from converter.formats.text import Odd, TextError, brief, count, listing, many_objects, parse_object, show
from converter.spec import DTYPES, FileStamp, Head, Header, Shape, TensorEntry

MAX_HEADER = 100_000_000  # bytes, the reference's own limit
METADATA = "__metadata__"
_LIMIT = 2**63
_FAULTS_SHOWN = 3
_BITS = {d.name: d.bits for d in DTYPES.values()}
_FIELDS = frozenset(("dtype", "shape", "data_offsets"))


@dataclass(frozen=True)
class Safetensors:
    """The safetensors format (:class:`converter.formats.base.Format`)."""

    name: str = "safetensors"
    suffixes: tuple[str, ...] = (".safetensors",)
    index_suffix: str = ".safetensors.index.json"

    def claims(self, head: bytes) -> bool:
        """Tell whether a file begins as a safetensors file does: a header length within the limit, then ``{``."""
        return head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= MAX_HEADER

    def read_header(self, path: str, root: str | None = None) -> Header:
        """Read and check the header of one file; raises FormatError with one line a fault, UsageError for a root."""
        if root is not None:
            raise UsageError(
                Problem(f"--root {root} is for torch pickles, and this is safetensors", "usage", show(path))
            )
        return read_header(path)


SAFETENSORS = Safetensors()


def read_header(path: str) -> Header:
    """Read the header of one safetensors file, its tensors in the order of their bytes.

    Raises FormatError, with the path and the tensor, if anything in it is not as the format demands.
    """
    with open_regular(path) as (fd, found):
        size = found.st_size
        length = _header_length(path, size, read_exactly(path, fd, min(size, HEAD), 0))
        text = read_exactly(path, fd, length, 8)
    head = Head.of(0, length.to_bytes(8, "little"), text)
    with many_objects():
        return _parse(FileStamp(path, size, found.st_mtime_ns, 8 + length, head=head), text)


def _parse(stamp: FileStamp, text: bytes) -> Header:
    path = stamp.path
    try:
        doc = parse_object(text)
    except TextError as e:
        raise bad(path, _about_header(str(e))) from None
    metadata = _metadata(path, doc.pop(METADATA, None))
    entries, notes = _entries(path, doc, stamp.data_start)
    _check_cover(path, entries, stamp.data_start, stamp.size)
    if not entries:
        notes = (*notes, f"{show(path)}: holds no tensors")
    return Header({e[0]: e for e in entries}, metadata, (stamp,), notes)


def _about_header(message: str) -> str:
    return f"{message} in the header" if message.startswith(("duplicate", "unpaired")) else f"the header {message}"


def _header_length(path: str, size: int, head: bytes) -> int:
    """Read the length field and check it against the limit and the size of the file, before anything is allocated."""
    if not SAFETENSORS.claims(head) and (words := foreign(head)):
        raise bad(path, words)
    if is_text(head):
        raise bad(path, "is a text file, not a safetensors file")
    if size < 8:
        raise bad(path, f"too short for a safetensors file: {count(size, 'byte')}")
    length = int.from_bytes(head[:8], "little")
    if length == 0:
        raise bad(path, "empty header: its length field is 0")
    if length > MAX_HEADER:
        raise bad(path, f"the header length is {length}, more than the limit of {MAX_HEADER} bytes")
    if length > size - 8:
        raise bad(path, f"truncated: the header takes {length} bytes, the file has {size - 8} after the length field")
    return length


def _metadata(path: str, value: object) -> dict[str, str]:
    if value is None:  # the reference takes null for absent
        return {}
    if type(value) is not dict:
        raise bad(path, f"{METADATA} is {brief(value)}, not an object of texts")
    wrong = next(((k, v) for k, v in value.items() if type(v) is not str), None)
    if wrong:
        raise bad(path, f"{METADATA}: {show(wrong[0])} is {brief(wrong[1])}, metadata values must be text")
    return value


class _Fault(Exception):
    """What is wrong with one tensor, in words."""


def _entries(path: str, doc: dict[str, object], data: int) -> tuple[list[TensorEntry], tuple[str, ...]]:
    """Check each tensor by itself; give all in the order of their bytes, and remarks."""
    entries, problems, unknown = [], [], []
    for name, info in doc.items():
        try:
            dtype, shape, start, stop = _check_entry(name, info)
        except _Fault as e:
            problems.append(Problem(f"{show(name)}: {e}", "format", show(path)))
            continue
        if len(info) != 3:  # type: ignore[arg-type]
            unknown.append(name)
        entries.append(TensorEntry(name, dtype, shape, 0, data + start, data + stop))
    if problems:
        raise FormatError(_capped(problems, path))
    entries.sort(key=itemgetter(4, 5, 0))
    notes = (f"{show(path)}: fields that the format does not have are ignored: {listing(unknown)}",) if unknown else ()
    return entries, notes


def _capped(problems: Sequence[Problem], path: str) -> Iterable[Problem]:
    more = len(problems) - _FAULTS_SHOWN
    if more <= 0:
        return problems
    return (*problems[:_FAULTS_SHOWN], Problem(f"... and {count(more, 'more fault')}", "format", show(path)))


def _check_entry(name: str, info: object) -> tuple[str, Shape, int, int]:
    """Give (dtype, shape, start, stop) of one entry of the header, offsets from the start of the data."""
    if not name:
        raise _Fault("the empty name is not allowed")
    if type(info) is not dict:
        raise _Fault(f"its entry is {brief(info)}, not an object")
    try:
        dtype, shape, offsets = info["dtype"], info["shape"], info["data_offsets"]
    except KeyError as e:
        raise _Fault(f"its entry has no {e.args[0]}") from None
    bits = _BITS.get(dtype) if type(dtype) is str else None
    if bits is None:
        raise _Fault(f"unknown dtype {brief(dtype)}")
    total = _elements(shape) * bits
    if type(offsets) is not list or len(offsets) != 2 or type(offsets[0]) is not int or type(offsets[1]) is not int:
        raise _Fault(f"data_offsets is {brief(offsets)}, not two integers")
    start, stop = offsets
    if start < 0 or stop < start:
        raise _Fault(f"data_offsets is {brief(offsets)}, not a range from a start of 0 or more to its end")
    if stop >= _LIMIT:
        raise _Fault(f"data_offsets is {brief(offsets)}, beyond 63 bits")
    if total & 7:
        raise _Fault(f"shape {brief(shape)} of {bits}-bit elements does not fill whole bytes")
    if total >> 3 != stop - start:
        need, has = total >> 3, stop - start
        raise _Fault(f"{dtype} of shape {brief(shape)} needs {need} bytes, data_offsets {brief(offsets)} hold {has}")
    if len(info) != 3:
        _check_unknown(info)
    return dtype, tuple(shape), start, stop


def _elements(shape: object) -> int:
    """Count the elements of a shape; sizes and their product before zero factors must fit in 63 bits."""
    if type(shape) is not list:
        raise _Fault(f"shape is {brief(shape)}, not a list of integers")
    product, empty = 1, False
    for n in shape:
        if type(n) is not int or n < 0:
            raise _Fault(f"shape is {brief(shape)}: {brief(n)} is not an integer of 0 or more")
        if n:
            product *= n
        else:
            empty = True
        if product >= _LIMIT:
            raise _Fault(f"shape {brief(shape)} is too large: its elements cannot be counted in 63 bits")
    return 0 if empty else product


def _check_unknown(info: dict[str, object]) -> None:
    for field in info.keys() - _FIELDS:
        value = info[field]
        if type(value) is Odd and value.word == "-0":
            continue  # a number to the reference, though no size
        if value is not None and type(value) not in (str, int, float, bool):
            raise _Fault(f"unknown field {brief(field)} is {brief(value)}")
        if isinstance(value, int | float) and not _in_float64(value):  # the reference reads no other number
            raise _Fault(f"unknown field {brief(field)} is a number beyond the range of float64")


def _in_float64(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _check_cover(path: str, entries: list[TensorEntry], start: int, size: int) -> None:
    """Check that the tensors, in the order of their bytes, cover the data without overlap, holes or a tail."""
    at, before = start, None
    for entry in entries:
        if entry[4] != at:
            raise bad(path, _gap(before, entry, at, start))
        before, at = entry, entry[5]
    if at > size:
        first = next(e for e in entries if e[5] > size)
        ends = f"{show(first.name)} ends at byte {first.stop - start} of the data"
        raise bad(path, f"truncated: {ends}, the file has {size - start} ({count(at - size, 'byte')} missing in all)")
    if at < size:
        where = "after the last tensor" if entries else "of data, and no tensor"
        raise bad(path, f"{count(size - at, 'byte')} {where}")


def _gap(before: TensorEntry | None, entry: TensorEntry, at: int, start: int) -> str:
    here = f"{show(entry.name)} [{entry.start - start}, {entry.stop - start}]"
    if before is None:
        return f"{count(entry.start - at, 'byte')} before the first tensor, {here}"
    there = f"{show(before.name)} [{before.start - start}, {before.stop - start}]"
    if entry.start < at:
        return f"data_offsets overlap: {there} and {here}"
    return f"a hole of {count(entry.start - at, 'byte')} between {there} and {here}"
