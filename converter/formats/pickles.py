"""Read a pickle as data: a small machine for the opcodes that checkpoints are made of, which can call nothing.

It knows neither Python's globals nor any object with behaviour. What a stream names (``GLOBAL``) is looked up by the
caller in a list of words, what it would call (``REDUCE``) becomes a value that the caller makes, and anything else is
refused. The opcodes are those of https://docs.python.org/3/library/pickletools.html.
"""

from __future__ import annotations

import reprlib
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple


class Global(NamedTuple):
    """What a stream refers to by name, such as ``torch._utils`` and ``_rebuild_tensor_v2``: two words, nothing else."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


class _Brief(reprlib.Repr):
    """A value in a few words, whatever it holds: a stream of fifty bytes can make one whose text would fill a disk."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxtuple, self.maxlist, self.maxdict, self.maxset, self.maxother = 2, 4, 4, 4, 4, 40

    def repr_int(self, x: int, level: int) -> str:
        """Give an integer; Python refuses to write one of thousands of digits."""
        return repr(x) if x.bit_length() <= 128 else f"an integer of {x.bit_length()} bits"

    def repr_instance(self, x: object, level: int) -> str:
        """Give a name as it stands in the stream, and only the kind of anything else."""
        return str(x) if isinstance(x, Global) else f"<{type(x).__name__.lower()}>"


_brief = _Brief()


def describe(value: Any) -> str:
    """Say what a value of a stream is in at most 80 characters."""
    return _brief.repr(value)[:80]


class PickleError(Exception):
    """What is wrong with a stream, in words."""


class RefusedError(PickleError):
    """A stream names something that is no part of a checkpoint of tensors."""

    def __init__(self, found: Global) -> None:
        super().__init__(str(found))
        self.found = found


@dataclass(frozen=True)
class Reading:
    """What the words of a stream mean: ``known`` tells whether a name may stand there, the others make values."""

    known: Callable[[Global], bool]
    call: Callable[[Global, tuple[Any, ...]], Any]
    persistent: Callable[[Any], Any]


_MARK = object()
_U1, _U2, _U4, _U8, _I4 = (struct.Struct(f) for f in ("<B", "<H", "<I", "<Q", "<i"))


def read_pickle(data: bytes, at: int, reading: Reading) -> tuple[Any, int]:
    """Read one pickle that begins at a byte of ``data``; returns its value and where it ends.

    Raises PickleError for a stream that is cut short, is no pickle or does what no checkpoint does, RefusedError for a
    name that is not known.
    """
    machine = _Machine(data, at, reading)
    try:
        return machine.run(), machine.at
    except (IndexError, struct.error, TypeError, KeyError, ValueError, AttributeError, RecursionError) as e:
        raise PickleError(f"is no sound pickle (byte {machine.at})") from e


class _Machine:
    def __init__(self, data: bytes, at: int, reading: Reading) -> None:
        self.data, self.at, self.reading = data, at, reading
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        data, table = self.data, _TABLE
        while True:
            opcode = data[self.at]
            self.at += 1
            if opcode == 0x2E:  # STOP
                return self.pop()
            step = table.get(opcode)
            if step is None:
                raise PickleError(f"has the opcode {opcode:#04x}, which no checkpoint needs")
            step(self)

    # Arguments.

    def number(self, form: struct.Struct) -> int:
        (value,) = form.unpack_from(self.data, self.at)
        self.at += form.size
        return int(value)

    def take(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self.data):
            raise PickleError("is cut short")
        self.at += size
        return self.data[self.at - size : self.at]

    def line(self) -> str:
        end = self.data.index(b"\n", self.at)
        return self.take(end + 1 - self.at)[:-1].decode()

    def marked(self) -> list[Any]:
        for k in range(len(self.stack) - 1, -1, -1):
            if self.stack[k] is _MARK:
                found = self.stack[k + 1 :]
                del self.stack[k:]
                return found
        raise PickleError("has no mark where one is needed")

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def top(self) -> Any:
        if not self.stack or self.stack[-1] is _MARK:
            raise PickleError("is no sound pickle: too little is on its stack")
        return self.stack[-1]

    def pop(self) -> Any:
        value = self.top()
        del self.stack[-1]
        return value

    # Opcodes with more to them.

    def name(self, module: Any, name: Any) -> None:
        if type(module) is not str or type(name) is not str:
            raise PickleError("names something by what is no text")
        found = Global(module, name)
        if not self.reading.known(found):
            raise RefusedError(found)
        self.push(found)

    def reduce(self) -> None:
        args, function = self.pop(), self.pop()
        if type(function) is not Global or type(args) is not tuple:
            raise PickleError("calls what is no name")
        self.push(self.reading.call(function, args))

    def build(self) -> None:
        """Take off the attributes that a value would be given (``_metadata`` of a state dict): nothing here has any."""
        self.pop()
        if type(self.top()) in (*_KEYS, list, tuple, set, frozenset, Global):
            raise PickleError("gives attributes to what has none")

    def set_items(self, items: list[Any]) -> None:
        target = self.top()
        if type(target) is not dict or len(items) % 2:
            raise PickleError("sets items of what is no dict")
        for k in range(0, len(items), 2):
            target[as_key(items[k])] = items[k + 1]

    def extend(self, items: list[Any]) -> None:
        target = self.top()
        if type(target) is not list:
            raise PickleError("appends to what is no list")
        target.extend(items)

    def add(self, items: list[Any]) -> None:
        target = self.top()
        if type(target) is not set:
            raise PickleError("adds to what is no set")
        target.update(map(as_key, items))

    def remember(self, index: int) -> None:
        self.memo[index] = self.top()

    def tuple_of(self, size: int) -> None:
        found = tuple(self.stack[-size:])
        if _MARK in found or len(found) < size:
            raise PickleError("is no sound pickle: too little is on its stack")
        self.stack[-size:] = [found]

    def stack_global(self) -> None:
        name, module = self.pop(), self.pop()
        self.name(module, name)

    def two(self) -> list[Any]:
        value, key = self.pop(), self.pop()
        return [key, value]


class OddKey(str):
    """A key of a dict that is no text, written as it would be."""

    __slots__ = ()


_KEYS = (str, int, bool, float, bytes, type(None))


def as_key(value: Any) -> Any:
    """Give what stands for a value as a key: itself where it is simple, else its text; the hash of a tuple may take
    for ever.
    """
    if type(value) in (list, dict, set):
        raise PickleError(f"has {describe(value)} for a key")
    return value if type(value) in _KEYS else OddKey(describe(value))


def _long(size: bytes) -> int:
    return int.from_bytes(size, "little", signed=True)


_Step = Callable[[_Machine], Any]
_TABLE: dict[int, _Step] = {
    0x80: lambda m: m.number(_U1),  # PROTO
    0x95: lambda m: m.number(_U8),  # FRAME
    0x28: lambda m: m.push(_MARK),
    0x30: lambda m: m.stack.pop(),
    0x31: lambda m: m.marked(),  # POP_MARK
    0x32: lambda m: m.push(m.top()),  # DUP
    0x4E: lambda m: m.push(None),
    0x88: lambda m: m.push(True),
    0x89: lambda m: m.push(False),
    0x4A: lambda m: m.push(m.number(_I4)),
    0x4B: lambda m: m.push(m.number(_U1)),
    0x4D: lambda m: m.push(m.number(_U2)),
    0x8A: lambda m: m.push(_long(m.take(m.number(_U1)))),
    0x8B: lambda m: m.push(_long(m.take(m.number(_I4)))),
    0x47: lambda m: m.push(struct.unpack(">d", m.take(8))[0]),
    0x58: lambda m: m.push(m.take(m.number(_U4)).decode("utf-8", "surrogatepass")),
    0x8C: lambda m: m.push(m.take(m.number(_U1)).decode("utf-8", "surrogatepass")),
    0x8D: lambda m: m.push(m.take(m.number(_U8)).decode("utf-8", "surrogatepass")),
    0x55: lambda m: m.push(m.take(m.number(_U1)).decode()),  # SHORT_BINSTRING, of Python 2
    0x54: lambda m: m.push(m.take(m.number(_I4)).decode()),
    0x43: lambda m: m.push(m.take(m.number(_U1))),
    0x42: lambda m: m.push(m.take(m.number(_U4))),
    0x8E: lambda m: m.push(m.take(m.number(_U8))),
    0x7D: lambda m: m.push({}),
    0x5D: lambda m: m.push([]),
    0x29: lambda m: m.push(()),
    0x8F: lambda m: m.push(set()),
    0x85: lambda m: m.tuple_of(1),
    0x86: lambda m: m.tuple_of(2),
    0x87: lambda m: m.tuple_of(3),
    0x74: lambda m: m.push(tuple(m.marked())),
    0x6C: lambda m: m.push(m.marked()),  # LIST
    0x91: lambda m: m.push(frozenset(map(as_key, m.marked()))),
    0x73: lambda m: m.set_items(m.two()),
    0x75: lambda m: m.set_items(m.marked()),
    0x61: lambda m: m.extend([m.pop()]),
    0x65: lambda m: m.extend(m.marked()),
    0x90: lambda m: m.add(m.marked()),
    0x63: lambda m: m.name(m.line(), m.line()),  # GLOBAL
    0x93: lambda m: m.stack_global(),
    0x52: lambda m: m.reduce(),
    0x81: lambda m: m.reduce(),  # NEWOBJ
    0x62: lambda m: m.build(),
    0x51: lambda m: m.push(m.reading.persistent(m.pop())),
    0x71: lambda m: m.remember(m.number(_U1)),
    0x72: lambda m: m.remember(m.number(_U4)),
    0x94: lambda m: m.remember(len(m.memo)),
    0x68: lambda m: m.push(m.memo[m.number(_U1)]),
    0x6A: lambda m: m.push(m.memo[m.number(_U4)]),
}
