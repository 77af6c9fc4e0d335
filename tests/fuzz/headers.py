"""Headers of safetensors files, against the reference library: whatever it refuses is refused, and what both read is
the same.
"""

import json
import re
import struct
import zlib
from pathlib import Path
from random import Random

import safetensors

from converter.errors import FormatError
from converter.formats import read_header
from converter.spec import DTYPES
from fuzz import mutate
from fuzz.guard import Find, Guard, shape_of
from fuzz.lexicon import NUMBERS, PIECES, STRINGS

# What is refused beyond the reference library: the message, and the row of the table in docs/formats.md that says why.
EXTRA = {
    r"duplicate name .* in the header": "a name that stands twice",
    r"the header begins with .*, it must begin with '\{'": "blanks before `{`",
    r"is (a pickle|a zip|an? .*), not a safetensors file": "blanks before `{`",
    r".*: the empty name is not allowed": "the empty name",
    r".*is too large: its elements cannot be counted in 63 bits": "a size of 2^63 or more",
    r".*: unknown field .* is (\[.*|\{.*)": "a field the format does not have whose value is a list or an object",
    r".*: its entry is \[.*, not an object": "an entry that is a list",
    r".*: unknown dtype \{.*": "a dtype that is an object",
}
_EXTRA = re.compile("|".join(f"({pattern})" for pattern in EXTRA), re.DOTALL)

_SIZES = {name: d.bits for name, d in DTYPES.items()}
_NAMES = ["a", "b", "w", "h.0.w", "é", "__metadata__", "", "x" * 40, "a.b", '"', "\\", "\n", "\u0000", "0", "-0"]
_OWN = [
    '"dtype"',
    '"shape"',
    '"data_offsets"',
    '"F32"',
    '"U8"',
    '"F4"',
    '"BOOL"',
    '"f32"',
    '{"F32":null}',
    '["F32",[1],[0,4]]',
]


def generate(random: Random) -> bytes:
    """Make a file: mostly sound tensors one after the other, with a slip here and there."""
    at, members = 0, []
    if random.random() < 0.3:
        pairs = [(random.choice(STRINGS), random.choice([*STRINGS, '"pt"', "1"])) for _ in range(random.randrange(4))]
        members.append(("__metadata__", "{" + ",".join(f"{k}:{v}" for k, v in pairs) + "}"))
    for _ in range(random.choice((0, 1, 1, 2, 3, 5))):
        text, at = _entry(random, at)
        members.append((random.choice(_NAMES) if random.random() < 0.4 else f"t{len(members)}", text))
    if random.random() < 0.2:
        random.shuffle(members)
    body = ",".join(f"{_key(name, random)}:{text}" for name, text in members)
    text = "{" + body + "}" + " " * random.choice((0, 0, 3, 8))
    return build(text.encode("utf-8", "surrogatepass"), at, random)


def build(text: bytes, size: int, random: Random) -> bytes:
    """Put length, header and data together, now and then a little off."""
    length, size = len(text), min(max(size, 0), 4096)
    if random.random() < 0.05:
        length = random.choice((0, 1, length - 1, length + 1, length + size, 100_000_001, 2**63, 2**64 - 1))
    if random.random() < 0.08:
        size = max(0, size + random.choice((-8, -1, 1, 8)))
    return struct.pack("<Q", max(0, length)) + text + bytes(k & 255 for k in range(size))


def _key(name: str, random: Random) -> str:
    text = json.dumps(name, ensure_ascii=random.random() < 0.5)
    if random.random() < 0.05 and name:
        text = '"' + "".join(f"\\u{ord(c):04x}" for c in name if ord(c) < 0x10000) + '"'
    return text


def _entry(random: Random, at: int) -> tuple[str, int]:
    dtype = random.choice(list(_SIZES))
    shape = [random.choice((0, 1, 2, 3, 4, 8)) for _ in range(random.choice((0, 1, 2, 2, 3)))]
    size = _SIZES[dtype]
    for n in shape:
        size *= n
    stop = at + size // 8
    numbers = [str(n) for n in shape]
    offsets = [str(at), str(stop)]
    if random.random() < 0.15:
        where = random.choice((numbers, offsets))
        if where:
            where[random.randrange(len(where))] = random.choice(NUMBERS)
    if random.random() < 0.05:
        numbers += random.choices(["1", "0", "9223372036854775807", "4294967296"], k=random.randrange(1, 5))
    fields = [("dtype", f'"{dtype}"'), ("shape", f"[{','.join(numbers)}]"), ("data_offsets", f"[{','.join(offsets)}]")]
    if random.random() < 0.2:
        _spoil(fields, random)
    if random.random() < 0.03:
        return "[" + ",".join(v for _, v in fields) + "]", stop
    return "{" + ",".join(f'"{k}":{v}' for k, v in fields) + "}", stop


def _spoil(fields: list[tuple[str, str]], random: Random) -> None:
    what, at = random.random(), random.randrange(len(fields))
    if what < 0.3:
        fields[at] = (fields[at][0], random.choice(random.choice((_OWN, NUMBERS, STRINGS, PIECES))))
    elif what < 0.6:
        fields.append(
            (random.choice(("more", "strides", "")), random.choice(random.choice((NUMBERS, STRINGS, PIECES))))
        )
    elif what < 0.8:
        fields.append(fields[at])
    elif what < 0.9:
        del fields[at]
    else:
        random.shuffle(fields)


def mutate_(data: bytes, random: Random) -> bytes:
    """Change the header's text by tokens and set its length anew, or change bytes."""
    if len(data) < 8 or random.random() < 0.15:
        return mutate.raw(data, random)
    length = min(int.from_bytes(data[:8], "little"), len(data) - 8)
    text, rest = data[8 : 8 + length], data[8 + length :]
    if random.random() < 0.9:
        text = mutate.tokens(text.decode("utf-8", "surrogateescape"), random).encode("utf-8", "surrogateescape")
    else:
        text = mutate.raw(text, random)
    return build(text, len(rest), random)


class Headers:
    """The properties of a header."""

    name = "headers"
    generate = staticmethod(generate)
    mutate = staticmethod(mutate_)

    def __init__(self, guard: Guard, folder: Path) -> None:
        self.guard, self.folder, self.path = guard, f"{folder}/", str(folder / "x.safetensors")

    def check(self, data: bytes) -> str:
        """Read a file both ways; gives what came of it. Raises Find."""
        with open(self.path, "wb") as f:
            f.write(data)
        ours, said = None, ""
        with self.guard.watch(len(data), (self.folder,), memory=zlib.crc32(data) % 64 == 0):
            try:
                ours = read_header(self.path)
            except FormatError as e:
                said = _message(e, self.path)
        try:
            theirs = dict(safetensors.deserialize(data))
        except safetensors.SafetensorError as e:
            if ours is not None:
                raise Find(f"read, though the library refuses it: {e}") from None
            return shape_of(said)
        if ours is None:
            if not _EXTRA.fullmatch(said):
                raise Find(f"refused, though the library reads it, for no reason that is listed: {said}")
            return "beyond: " + shape_of(said)
        _same(ours, theirs, data)
        if zlib.crc32(data) % 16 == 0:
            with safetensors.safe_open(self.path, "np") as f:
                if (f.metadata() or {}) != ours.metadata:
                    raise Find(f"metadata are {ours.metadata}, the library has {f.metadata()}")
        return f"read: {min(len(ours.tensors), 3)} {bool(ours.metadata)} {bool(ours.notes)}"


def _message(error: FormatError, path: str) -> str:
    """The first line of a refusal without the path; every line is printable and not too long."""
    lines = str(error).split("\n")
    for line in lines:
        if not line.isprintable() or len(line) > 600 or not line.startswith(f"{path}: "):
            raise Find(f"a line of its message is not fit to be shown: {line[:200]!r}")
    return lines[0].removeprefix(f"{path}: ")


def _same(ours, theirs, data: bytes) -> None:
    if ours.tensors.keys() != theirs.keys():
        raise Find(f"the tensors are {sorted(ours.tensors)}, the library has {sorted(theirs)}")
    for name, e in ours.tensors.items():
        info = theirs[name]
        if (e.dtype.lower(), e.shape) != (str(info["dtype"]).lower(), tuple(info["shape"])):
            raise Find(f"{name} is {e.dtype} {e.shape}, the library has {info['dtype']} {info['shape']}")
        if data[e.start : e.stop] != bytes(info["data"]):
            raise Find(f"{name}: bytes {e.start}..{e.stop} are not those that the library reads")
