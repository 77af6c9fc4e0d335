"""Read what ``torch.save`` wrote: which tensors there are and where their bytes lie; nothing is run or loaded.

The pickle is read as data (:mod:`converter.formats.pickles`), which is stricter than torch's own ``weights_only=True``
and needs no torch. Data are then read by range from the file, views included, so that memory stays bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from converter.errors import FormatError, Problem
from converter.formats.base import HEAD, bad, foreign, open_regular, read_exactly
from converter.formats.pickles import OddKey, describe
from converter.formats.text import brief, count, listing, show
from converter.formats.torch_files import Contents, read_contents
from converter.formats.torch_values import Tensor
from converter.spec import DTYPES, FileStamp, Header, Shape, TensorEntry

EXPANDED = 1 << 30  # bytes by which tensors may exceed the storages that they are spread out from
_LIMIT = 2**63
_DEPTH = 3  # how far down state dicts are looked for


@dataclass(frozen=True)
class TorchPickle:
    """What ``torch.save`` writes: a zip archive, or a bare pickle (:class:`converter.formats.base.Format`)."""

    name: str = "torch pickle"
    suffixes: tuple[str, ...] = (".bin", ".pt", ".pth", ".ckpt")
    index_suffix: str = ".bin.index.json"

    def claims(self, head: bytes) -> bool:
        """Tell whether a file begins as a zip archive or a pickle of protocol 2 or later."""
        return head.startswith(b"PK\x03\x04") or (head[:1] == b"\x80" and b"\x02" <= head[1:2] <= b"\x05")

    def read_header(self, path: str, root: str | None = None) -> Header:
        """Read the tensors of one file, of the state dict ``root`` where there are several; raises FormatError."""
        with open_regular(path) as (fd, found):
            head = read_exactly(path, fd, min(HEAD, found.st_size), 0)
            if not self.claims(head):
                empty = "is empty (0 bytes)" if not head else "is not a torch pickle"
                raise bad(path, foreign(head) or empty)
            contents = read_contents(path, fd, found.st_size)
            state = choose(path, contents.value, root)
            return _Entries(path, contents, found.st_size, found.st_mtime_ns).header(state)


TORCH_PICKLE = TorchPickle()


# Which state dict.


def choose(path: str, value: Any, root: str | None) -> dict[str, Any]:
    """Find the state dict in an object; raises FormatError that lists what there is if it is not plain which."""
    if not isinstance(value, dict):
        what = "one tensor without a name" if isinstance(value, Tensor) else f"a {type(value).__name__.lower()}"
        raise bad(path, f"holds {what}, not a state dict (names to tensors)")
    found = dict(_state_dicts(value))
    if root is not None:
        return _descend(path, value, root, found)
    if "" in found or not _nested(value):
        return value
    hint = " or ".join(f"--root {show(name)}" for name in found) or "no part of it is a state dict"
    sizes = ", ".join(f"{show(name)} ({count(len(d), 'tensor')})" for name, d in found.items())
    looks = f"; these look like state dicts: {sizes}" if found else ""
    raise bad(path, f"holds several things: {_keys(value)}{looks}; say which one: {hint}", "ambiguous")


def _descend(path: str, value: dict[Any, Any], root: str, found: Mapping[str, Any]) -> dict[str, Any]:
    inner = value.get(root, found.get(root))
    if inner is None:
        inner = value
        for part in root.split("."):
            inner = inner.get(part) if isinstance(inner, dict) else None
    if not isinstance(inner, dict) or (inner and not any(isinstance(v, Tensor) for v in inner.values())):
        said = "is not in it" if inner is None else "is not a state dict"
        others = f"; these look like state dicts: {', '.join(show(n) for n in found if n)}" if any(found) else ""
        raise bad(path, f"--root {show(root)} {said}: it has {_keys(value)}{others}", "ambiguous")
    return inner


def _keys(value: dict[Any, Any]) -> str:
    return listing([_key(k) for k in value], 8)


def _key(key: Any) -> str:
    return str(key) if isinstance(key, str) else describe(key)


def _state_dicts(value: Any, name: str = "", depth: int = 0, seen: set[int] | None = None) -> Iterable[tuple[str, Any]]:
    """Yield the dicts that have nothing but tensors, by their path."""
    seen = set() if seen is None else seen
    if not isinstance(value, dict) or id(value) in seen or depth > _DEPTH:
        return
    seen.add(id(value))
    if value and all(isinstance(v, Tensor) for v in value.values()):
        yield name, value
        return
    for key, inner in value.items():
        if type(key) is str and key:
            yield from _state_dicts(inner, f"{name}.{key}" if name else key, depth + 1, seen)


def _nested(value: dict[Any, Any]) -> bool:
    """Tell whether tensors stand deeper than the first level."""
    seen: set[int] = set()
    todo = [v for v in value.values() if isinstance(v, dict | list | tuple)]
    while todo:
        inner = todo.pop()
        if id(inner) in seen:
            continue
        seen.add(id(inner))
        for v in inner.values() if isinstance(inner, dict) else inner:
            if isinstance(v, Tensor):
                return True
            if isinstance(v, dict | list | tuple):
                todo.append(v)
    return False


# Its tensors.


@dataclass
class _Entries:
    path: str
    contents: Contents
    size: int
    mtime_ns: int
    problems: list[Problem] = field(default_factory=list)
    spread: int = 0  # bytes by which tensors exceed their storages, so far
    decodings: dict[str, int] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)

    def header(self, state: dict[Any, Any]) -> Header:
        """Check every entry of a state dict; the tensors come in the order of their bytes."""
        entries: list[TensorEntry] = []
        others: dict[str, str] = {}
        for key, value in state.items():
            if type(key) is not str or not key:
                what = "the empty text is no name" if key == "" else f"key {show(_key(key))} is not text"
                self._wrong(what, None)
            elif isinstance(value, Tensor):
                entry = self._entry(key, value)
                entries += [entry] if entry is not None else []
            else:
                others[key] = _kind(value)
                entries.append(TensorEntry(key, "U8", (0,), 0, 0, 0))
        if self.problems:
            raise FormatError(self.problems)
        entries.sort(key=lambda e: (e.start, e.stop))
        head = self.contents.head
        stamps = [FileStamp(self.path, self.size, self.mtime_ns, 0, how, head) for how in self.decodings or ("",)]
        notes = () if entries else (f"{show(self.path)}: holds no tensors",)
        return Header({e.name: e for e in entries}, {}, tuple(stamps), notes, others)

    def _wrong(self, message: str, name: str | None) -> None:
        subject = None if name is None else show(name)
        self.problems.append(Problem(message, "format", subject, place=show(self.path)))

    def _entry(self, name: str, tensor: Tensor) -> TensorEntry | None:
        storage = tensor.storage
        if storage is None:
            self._wrong(f"is {tensor.without}: there are no plain bytes to take", name)
            return None
        size = DTYPES[tensor.dtype].bits // 8
        elements = prod(tensor.shape)
        if elements >= _LIMIT:
            self._wrong(f"{brief(list(tensor.shape))} is too large: its elements cannot be counted in 63 bits", name)
            return None
        steps = [(n - 1) * s for n, s in zip(tensor.shape, tensor.strides)]
        reach = tensor.offset + sum(steps) + 1 if elements else 0
        if reach * size > storage.nbytes:
            said = f"reaches to element {reach} of a storage of {storage.nbytes // size}"
            self._wrong(f"{brief(list(tensor.shape))} with strides {brief(list(tensor.strides))} {said}", name)
            return None
        self.spread += max(0, elements * size - storage.nbytes)
        if self.spread > EXPANDED:
            text = f"needs {elements * size} bytes, its storage has {storage.nbytes}: it is one value spread out"
            self._wrong(f"{text}, and more than {EXPANDED} bytes of such are refused", name)
            return None
        decode = self._decode(tensor, size, name)
        if decode is None:
            return None
        if storage.key not in self.starts:
            self.starts[storage.key] = self.contents.locate(storage)
        start = self.starts[storage.key] + tensor.offset * size if elements else self.starts[storage.key]
        strides = None if packed(tensor.shape, tensor.strides) else tensor.strides
        stop = start + (elements if strides is None else sum(steps) + 1) * size
        return TensorEntry(name, tensor.dtype, tensor.shape, decode, start, stop, strides)

    def _decode(self, tensor: Tensor, size: int, name: str) -> int | None:
        """Number the file as which the bytes are read."""
        part = 4 if tensor.dtype == "C64" else size
        how = [f"swap{part}"] if self.contents.big_endian and part > 1 else []
        how += [] if not tensor.conj else ["conj"]
        how += [] if not tensor.neg else [f"neg{part}"]
        if len(how) > 1:
            self._wrong(f"is stored in a way that takes two steps to read ({', '.join(how)}): save it anew", name)
            return None
        return self.decodings.setdefault(how[0] if how else "", len(self.decodings))


def packed(shape: Shape, strides: Shape) -> bool:
    """Tell whether elements lie one after the other in row-major order; strides of axes with one entry mean nothing."""
    unit = 1
    if 0 in shape:
        return True
    for n, s in zip(reversed(shape), reversed(strides)):
        if n > 1 and s != unit:
            return False
        unit *= n
    return True


def _kind(value: Any) -> str:
    if isinstance(value, OddKey | str):
        return "text"
    if value is None:
        return "None"
    word = type(value).__name__.lower()
    return f"{'an' if word[0] in 'aeio' else 'a'} {word}"
