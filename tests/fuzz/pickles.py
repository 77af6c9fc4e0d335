"""Torch pickles, zip and legacy: nothing is run or written, and what is read is what torch reads with weights only."""

import io
import os
import pickle
import pickletools
import re
import struct
import warnings
import zipfile
import zlib
from collections import OrderedDict
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from converter.errors import ConvertError
from converter.formats import open_checkpoint
from converter.formats.base import Checkpoint
from converter.spec import DTYPES, TensorEntry, parse_dtype
from fuzz import mutate
from fuzz.guard import Find, Guard, shape_of

try:
    import torch
except ImportError:  # without it only the refusals are tried
    torch = None

# What torch itself refuses with weights only, and no reader of the data needs: its message, and what it is about.
LAXER = {
    "Unsupported operand": "an opcode of plain data that its machine does not have",
    "does not match expected size": "a record that is longer than its storage",
    "can require gradients": "a flag that says nothing about the data",
    "leaf Variable that requires grad": "a flag that says nothing about the data",
    "Can only build": "the state of a plain container, which has none",
    "not enough values to unpack": "a storage of the old container without word on views",
    "has no attribute 'dtype'": "float8 in the old container, which torch writes and cannot read",
    "codec can't decode byte": "the text of an id that only torch looks at",
    "invalid combination of arguments": "a device, or another value beside the tensors, made of nothing",
    "an allowed global": "a plain container or number that its list of words lacks",
    "supported version": "a version of the container that it does not know",
    "resize storage": "a tensor beside the state dict that was asked for, beyond its storage",
}
GLOBALS = [
    b"cos\nsystem\n", b"cbuiltins\neval\n", b"c__builtin__\nexec\n", b"ctorch\nload\n", b"ctorch._utils\n_rebuild_tensor_v2\n",
    b"ctorch.hub\nload\n", b"cnumpy.core.multiarray\n_reconstruct\n", b"ccollections\nOrderedDict\n", b"ctorch\nFloatStorage\n",
    b"ctorch\nSize\n", b"ccollections\ndefaultdict\n", b"cbuiltins\nset\n", b"ccollections\nCounter\n", b"c__builtin__\ncomplex\n", b"ctorch._utils\n_rebuild_parameter\n", b"c__main__\nX\n", b"ctorch\nfloat32\n", b"ctorch\nQInt8Storage\n",
    b"ctorch.storage\nUntypedStorage\n", b"ctorch._utils\n_rebuild_tensor_v3\n", b"cposix\nsystem\n", b"ccodecs\nencode\n",
    b"c_codecs\nencode\n", b"ctorch._utils\n_rebuild_sparse_tensor\n", b"cbuiltins\nbytearray\n", b"cbuiltins\ngetattr\n",
    b"ctorch.serialization\n_get_layout\n", b"ctorch._tensor\n_rebuild_from_type_v2\n", b"\x8c\x02os\x8c\x06system\x93",
]  # fmt: skip
ATOMS = [
    b"N", b"\x88", b"\x89", b"K\x00", b"K\x01", b"K\x04", b"J\xff\xff\xff\xff", b"J\xff\xff\xff\x7f", b"M\xff\xff", b"\x8a\x00",
    b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01", b"\x8b\xff\xff\xff\x7f",
    b"\x8b\xff\xff\xff\xff", b"G\x7f\xf8\x00\x00\x00\x00\x00\x00", b"X\x01\x00\x00\x00a", b"X\xff\xff\xff\xff", b"\x8c\x00",
    b"\x8c\x02\xed\xa0", b"B\xff\xff\xff\x7f", b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f", b"}", b"]", b")", b"\x8f", b"\x85", b"\x86",
    b"\x87", b"t", b"l", b"d", b"\x91", b"s", b"u", b"a", b"e", b"\x90", b"R", b"\x81", b"b", b"Q", b"q\x00", b"q\x01", b"h\x00",
    b"h\x01", b"h\xff", b"r\xff\xff\xff\xff", b"j\x00\x00\x00\x00", b"\x94", b"(", b"0", b"1", b"2", b".", b"P0\n", b"i__main__\nX\n",
    b"o", b"\x92", b"\x82\x01", b"I1\n", b"I" + b"9" * 5000 + b"\n", b"L1L\n", b"F1.0\n", b"S'a'\n", b"V\\u0061\n", b"U\x01a",
    b"T\xff\xff\xff\xff", b"\x95\xff\xff\xff\xff\xff\xff\xff\xff", b"\x80\x02", b"\x80\x05", b"\x97", b"\x98", b"\x96\x00\x00\x00\x00\x00\x00\x00\x00",
    b"2\x86" * 30, b"2\x86R", b"](" + b"K\x01" * 4 + b"e", b"(" * 40, b"}q\x052h\x05s", b"]q\x05h\x05a",
]  # fmt: skip
_DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64", "uint16", "float8_e4m3fn", "complex128")  # fmt: skip
_ADDRESS = re.compile(rb"(?:X[\x0b-\x11]\0\0\0|\x8c[\x0b-\x11])[0-9]{11,17}")
_NAMES = ["a", "w", "h.0.w", "model", "state_dict", "", "é", "module.a", "step", "optimizer", "\n", "a.b"]


def _tensor(random: Random) -> Any:
    shape = [random.choice((0, 1, 2, 3, 4)) for _ in range(random.choice((0, 1, 2, 2, 3)))]
    size = int(np.prod(shape)) if shape else 1
    x = torch.arange(size + random.choice((0, 0, 3))).to(getattr(torch, random.choice(_DTYPES)))
    x = x[len(x) - size :].reshape(shape)
    what = random.random()
    if what < 0.1 and x.dim() > 1:
        x = x.transpose(0, 1)
    elif what < 0.2 and x.dim():
        x = x[:: random.choice((1, 2))]
    elif what < 0.25:
        x = x.expand(3, *x.shape)
    elif what < 0.3 and x.is_complex():
        x = x.conj()
    elif what < 0.35 and x.is_floating_point() and x.element_size() > 1:
        x = torch.nn.Parameter(x)
    return x


def _object(random: Random, depth: int = 0) -> Any:
    what = random.random()
    if what < 0.5 or depth > 3:
        return _tensor(random)
    if what < 0.6:
        return random.choice(
            (
                1,
                2.5,
                None,
                True,
                "text",
                b"bytes",
                2**70,
                (),
                [1, 2],
                {1, 2},
                torch.float32,
                torch.Size([2]),
                torch.device("cpu"),
            )
        )
    if what < 0.7:
        return [_object(random, depth + 1) for _ in range(random.randrange(3))]
    kind = random.choice((dict, dict, OrderedDict))
    return kind(
        (
            random.choice(_NAMES) if random.random() < 0.9 else random.choice((1, 2.0, None, (1,))),
            _object(random, depth + 1),
        )
        for _ in range(random.randrange(4))
    )


def generate(random: Random) -> bytes:
    """Save a state dict, or something odd, as torch does; then, mostly, change it."""
    if torch is None:
        return mutate.raw(pickle.dumps({"a": [1, "b", (2.5, None)], "c": {1, 2}}, random.choice((2, 3, 4))), random)
    value = {random.choice(_NAMES[:4]) + str(k): _tensor(random) for k in range(random.randrange(4))}
    if random.random() < 0.4:
        value = _object(random)
    buffer = io.BytesIO()
    new = random.random() < 0.6
    if not new:  # one storage: several would stand in the order of their addresses, which differs each time
        base = torch.arange(24).to(getattr(torch, random.choice(_DTYPES)))
        views = (base[:4], base[2:10].reshape(2, 4).t(), base[3], base[::5], base[:0], torch.nn.Parameter(base, False))
        value = {random.choice(_NAMES): random.choice(views) for _ in range(random.randrange(4))}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.save(value, buffer, _use_new_zipfile_serialization=new, pickle_protocol=random.choice((2, 2, 3, 4)))
        except (RuntimeError, NotImplementedError):
            return b"PK\x03\x04"
    data = _steady(buffer.getvalue())
    return mutate_(data, random) if random.random() < 0.6 else data


def _steady(data: bytes) -> bytes:
    """Name storages by numbers of one length: in the old container their names are addresses, which differ each time."""
    found: dict[bytes, bytes] = {}

    def number(m: re.Match[bytes]) -> bytes:
        return found.setdefault(m[0], b"X\x0a\0\0\0%010d" % len(found))

    return _ADDRESS.sub(number, data)


def mutate_(data: bytes, random: Random) -> bytes:
    """Change the pickle by opcodes, the archive by records, or bytes."""
    if random.random() < 0.1:
        return mutate.raw(data, random)
    if data[:2] == b"PK":
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                records = [(i.filename, archive.read(i)) for i in archive.infolist()[:40] if i.file_size < 1 << 16]
        except Exception:  # what zipfile does not read is changed as bytes
            return mutate.raw(data, random)
        return _pack(_changed(records, random), random)
    for _ in range(random.choice((1, 1, 2))):
        data = _operate(data, random)
    return data


def _changed(records: list[tuple[str, bytes]], random: Random) -> list[tuple[str, bytes]]:
    what = random.random()
    at = next((k for k, (n, _) in enumerate(records) if n.endswith("data.pkl")), None)
    if at is not None and what < 0.75:
        name, body = records[at]
        for _ in range(random.choice((1, 1, 2, 3))):
            body = _operate(body, random)
        records[at] = (name, body)
    elif records:
        k = random.randrange(len(records))
        name, body = records[k]
        records[k : k + 1] = random.choice(
            (
                [],
                [(name, body)] * 2,
                [(name, body[:-1])],
                [(name, b"")],
                [("x/" + name, body)],
                [(name + "x", body)],
                [("../" + name, body)],
                [(name, b"big")],
                [(name, mutate.raw(body, random))],
                [(name, body), ("archive/code/x.py", b"1")],
            )
        )
    return records


def _pack(records: list[tuple[str, bytes]], random: Random) -> bytes:
    """Write a zip archive; now and then one of its numbers is a lie."""
    out, directory = bytearray(), bytearray()
    lie = random.randrange(len(records) or 1) if random.random() < 0.15 else -1
    for k, (name, body) in enumerate(records):
        text = name.encode("utf-8", "surrogateescape")
        size, method, flags, at, extra = len(body), 0, 0x800, len(out), b""
        if k == lie:
            kind = random.randrange(7)
            size = random.choice((size + 1, 2**31, 2**32 - 1, 0)) if kind == 0 else size
            method = random.choice((8, 12, 99)) if kind == 1 else method
            flags = random.choice((0x801, 0x808, 0)) if kind == 2 else flags
            at = random.choice((at + 1, 2**31, 2**32 - 1, 0)) if kind == 3 else at
            extra = (
                random.choice((b"FB\x04\0ZZZZ", b"\x01\0\x10\0" + b"\xff" * 16, b"\x01\0\xff\xff", b"x" * 9))
                if kind == 4
                else extra
            )
        crc = zlib.crc32(body)
        head = (20, flags, method, 0, 0, crc, size & 0xFFFFFFFF, size & 0xFFFFFFFF, len(text), len(extra))
        out += struct.pack("<4s5H3I2H", b"PK\x03\x04", *head) + text + extra + body
        directory += struct.pack("<4s6H3I5H2I", b"PK\x01\x02", 20, *head, 0, 0, 0, 0, at & 0xFFFFFFFF) + text + extra
    start = len(out)
    tail = [len(records), len(records), len(directory), start]
    if random.random() < 0.05:
        tail[random.randrange(4)] = random.choice((0, 1, 65535))
    return bytes(
        out
        + directory
        + struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, tail[0] & 65535, tail[1] & 65535, tail[2], tail[3], 0)
    )


def _operate(data: bytes, random: Random) -> bytes:
    """Change a stream of opcodes in one place."""
    steps = []
    try:
        for _, _, at in pickletools.genops(data):
            steps.append(at)
            if len(steps) > 2000:
                break
    except Exception:  # the stream is broken further on
        pass
    if len(steps) < 2:
        return mutate.raw(data, random)
    k = random.randrange(len(steps) - 1)
    a, b = steps[k], steps[k + 1]
    what = random.random()
    if what < 0.25:
        return data[:a] + random.choice(ATOMS) + data[b:]
    if what < 0.5:
        return data[:a] + random.choice(random.choice((ATOMS, GLOBALS))) + data[a:]
    if what < 0.6:
        return data[:a] + data[b:]
    if what < 0.75:
        m = random.randrange(len(steps) - 1)
        n = min(len(steps) - 1, m + random.randrange(1, 8))
        return data[:a] + data[steps[m] : steps[n]] + data[a:]
    if what < 0.9 and b - a > 1:
        at = random.randrange(a + 1, b)
        return data[:at] + bytes([random.choice((0, 1, 2, 4, 127, 128, 255, random.randrange(256)))]) + data[at + 1 :]
    return data[:a] + mutate.raw(data[a:b], random) + data[b:]


class Pickles:
    """The properties of a pickle."""

    name = "pickles"
    generate = staticmethod(generate)
    mutate = staticmethod(mutate_)

    def __init__(self, guard: Guard, folder: Path) -> None:
        self.guard, self.folder = guard, str(folder)
        self.path = str(folder / "x.pt")

    def check(self, data: bytes) -> str:
        """Read a file as torch does; gives what came of it. Raises Find."""
        with open(self.path, "wb") as f:
            f.write(data)
        sample = zlib.crc32(data)
        root = ("model", "state_dict", None, None)[sample // 64 % 4]
        said, tensors = "", {}
        with self.guard.watch(len(data), (self.folder,), memory=sample % 64 == 0):
            try:
                with open_checkpoint(self.path, root) as ours:
                    tensors = {e.name: values(ours, e) for e in ours.header.tensors.values() if _small(e)}
            except ConvertError as e:
                said = str(e)
        if said:
            for line in said.split("\n"):
                if not line.isprintable() or len(line) > 1500 or not line.startswith(self.path):
                    raise Find(f"a line of its message is not fit to be shown: {line[:200]!r}")
            return shape_of(said.split("\n")[0].removeprefix(self.path))
        if ours.format != "torch pickle" or torch is None:
            return "read"
        return self._compare(ours, root, tensors)

    def _compare(self, ours: Checkpoint, root: str | None, tensors: dict[str, tuple[Any, ...]]) -> str:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                theirs = torch.load(self.path, map_location="cpu", weights_only=True)
        except Exception as e:
            kind = shape_of(f"{type(e).__name__} {str(e)[:400]}".replace("\n", " "))
            if not any(word in str(e) for word in LAXER):
                raise Find(f"read, though torch refuses it: {type(e).__name__}: {str(e)[:600]}") from None
            return f"torch refuses: {kind}"
        state = theirs
        if root is not None and isinstance(theirs, dict) and isinstance(theirs.get(root), dict):
            state = theirs[root]
        for name in ours.header.tensors:
            there = state.get(name)
            if name in ours.header.others:
                if isinstance(there, torch.Tensor):
                    raise Find(f"{name} is {ours.header.others[name]} here, a tensor in torch")
            elif not isinstance(there, torch.Tensor):
                raise Find(f"{name} is a tensor here, {type(there).__name__} in torch")
            elif name in tensors and not _left_as_it_stands(ours, name) and tensors[name] != theirs_of(there):
                raise Find(f"{name} is {tensors[name]} here, {theirs_of(there)} in torch")
        more = [k for k, v in state.items() if isinstance(v, torch.Tensor) and k not in ours.header.tensors]
        if more:
            raise Find(f"{more} are tensors in torch and not here")
        return f"read: {min(len(tensors), 3)} {len(ours.header.others) > 0} {len(ours.header.files)}"


def _left_as_it_stands(checkpoint: Checkpoint, name: str) -> bool:
    """Whether torch (2.13) does not know that a tensor's bytes are the other way round: it saves these without a dtype."""
    entry = checkpoint.header.tensors[name]
    return entry.dtype in ("U16", "U32", "U64") and checkpoint.header.files[entry.file].decode.startswith("swap")


def _small(entry: TensorEntry) -> bool:
    size = DTYPES[entry.dtype].bits // 8
    for n in entry.shape:
        size *= n
    return size < 1 << 16 and len(entry.shape) < 32


def values(checkpoint: Checkpoint, entry: TensorEntry) -> tuple[Any, ...]:
    """dtype, shape and bytes of a tensor, read by its range and strides."""
    data = bytearray(entry.stop - entry.start)
    end = checkpoint.fd(entry.file)
    if isinstance(end, int):
        data[:] = os.pread(end, len(data), entry.start)
    else:
        end.read(memoryview(data), entry.start)
    size = DTYPES[entry.dtype].bits // 8
    if entry.strides is not None:
        flat = np.frombuffer(bytes(data), f"V{size}")
        steps = [s * size for s in entry.strides]
        data = np.lib.stride_tricks.as_strided(flat, entry.shape, steps).tobytes()
    if entry.dtype == "BOOL":  # a copy that torch makes has 1 for whatever is true
        data = bytearray(bool(b) for b in data)
    return entry.dtype, entry.shape, bytes(data)


def theirs_of(tensor: Any) -> tuple[Any, ...]:
    """dtype, shape and bytes of a tensor of torch."""
    x = tensor.detach().resolve_conj().resolve_neg().contiguous()
    data = (
        torch.empty(x.numel(), dtype=x.dtype).copy_(x.reshape(-1)).view(torch.uint8).numpy().tobytes()
        if x.numel()
        else b""
    )
    return parse_dtype(str(x.dtype)), tuple(x.shape), data
