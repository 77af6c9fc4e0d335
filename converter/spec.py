"""What a header says: dtypes, tensor specs and whole checkpoints, without a byte of data.

The dtype names are those of the safetensors format (``F32``, ``BF16``, ...); maps and flags also take the names that
torch and numpy use (``float32``, ``bfloat16``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple
from zlib import crc32

Shape = tuple[int, ...]


@dataclass(frozen=True)
class DType:
    """A row of the dtype table: safetensors name, bits of an element, kind, numpy (or ml_dtypes) name, other names.

    ``kind`` is one of ``float``, ``float8`` (never cast without its scale), ``packed`` (elements smaller than a byte),
    ``int``, ``bool`` and ``complex``.
    """

    name: str
    bits: int
    kind: str
    numpy: str
    aliases: tuple[str, ...] = ()


# The dtypes of the safetensors format: https://github.com/huggingface/safetensors (safetensors/src/tensor.rs, `Dtype`).
DTYPES: Mapping[str, DType] = {
    d.name: d
    for d in (
        DType("F64", 64, "float", "float64", ("double",)),
        DType("F32", 32, "float", "float32", ("float",)),
        DType("F16", 16, "float", "float16", ("half",)),
        DType("BF16", 16, "float", "bfloat16"),
        DType("F8_E4M3", 8, "float8", "float8_e4m3fn"),
        DType("F8_E5M2", 8, "float8", "float8_e5m2"),
        DType("F8_E8M0", 8, "float8", "float8_e8m0fnu"),
        DType("F8_E4M3FNUZ", 8, "float8", "float8_e4m3fnuz"),
        DType("F8_E5M2FNUZ", 8, "float8", "float8_e5m2fnuz"),
        DType("F6_E2M3", 6, "packed", "float6_e2m3fn"),
        DType("F6_E3M2", 6, "packed", "float6_e3m2fn"),
        DType("F4", 4, "packed", "float4_e2m1fn"),
        DType("I64", 64, "int", "int64", ("long",)),
        DType("I32", 32, "int", "int32", ("int",)),
        DType("I16", 16, "int", "int16", ("short",)),
        DType("I8", 8, "int", "int8"),
        DType("U64", 64, "int", "uint64"),
        DType("U32", 32, "int", "uint32"),
        DType("U16", 16, "int", "uint16"),
        DType("U8", 8, "int", "uint8"),
        DType("BOOL", 8, "bool", "bool"),
        DType("C64", 64, "complex", "complex64"),
    )
}

_BY_ALIAS = {a.lower(): d.name for d in DTYPES.values() for a in (d.name, d.numpy, *d.aliases)}


def dtype_names() -> tuple[str, ...]:
    """List every spelling of a dtype that maps and flags accept, torch's names first."""
    return tuple(dict.fromkeys([d.numpy for d in DTYPES.values()] + list(_BY_ALIAS)))


def parse_dtype(text: str) -> str | None:
    """Give the safetensors name (``F32``) of any accepted spelling (``float32``, ``torch.float32``), None if there is
    none.
    """
    return _BY_ALIAS.get(text.lower().removeprefix("torch."))


def nbytes(dtype: str, shape: Shape) -> int:
    """Count the bytes of a packed tensor; raises ValueError if the elements of a sub-byte dtype end within a byte."""
    bits = prod(shape) * DTYPES[dtype].bits
    if bits % 8:
        raise ValueError(f"{prod(shape)} elements of {DTYPES[dtype].bits} bits do not fill whole bytes")
    return bits // 8


class TensorSpec(NamedTuple):
    """Name, dtype (safetensors name) and shape of one tensor."""

    name: str
    dtype: str
    shape: Shape

    @property
    def nbytes(self) -> int:
        """Bytes of the packed tensor."""
        return nbytes(self.dtype, self.shape)


class TensorEntry(NamedTuple):
    """A tensor of an input: its spec, and where its bytes are.

    ``file`` counts into :attr:`Header.files`; ``start`` and ``stop`` are byte offsets from the start of that file.
    ``strides`` (elements) are those of a tensor that does not lie packed in row-major order between them.
    """

    name: str
    dtype: str
    shape: Shape
    file: int
    start: int
    stop: int
    strides: Shape | None = None

    @property
    def spec(self) -> TensorSpec:
        """The entry without its place."""
        return TensorSpec(self.name, self.dtype, self.shape)


class Head(NamedTuple):
    """Bytes of a file that were read: where they begin, how many they are, and their CRC-32."""

    start: int
    size: int
    crc: int

    @classmethod
    def of(cls, start: int, *parts: bytes) -> Head:
        """Sum up bytes that begin at ``start``."""
        crc = 0
        for part in parts:
            crc = crc32(part, crc)
        return cls(start, sum(map(len, parts)), crc)


@dataclass(frozen=True)
class FileStamp:
    """A file of an input as planning saw it: path, size in bytes, mtime in ns, and where its data section begins.

    ``decode`` names what is done to its bytes as they are read (see :mod:`converter.formats.decode`); a file that is
    read in two ways counts as two. ``head`` is the range of bytes that planning read, with its checksum.
    """

    path: str
    size: int
    mtime_ns: int
    data_start: int
    decode: str = ""
    head: Head | None = None


@dataclass(frozen=True)
class Header:
    """Everything about a checkpoint except its data.

    ``tensors`` are in the order of their bytes, file by file. ``notes`` are remarks for the user that are no errors
    (a stray weight file beside the index, a total_size that disagrees). ``others`` are entries that are no tensors,
    with what they are: they stand among the tensors, empty, and must be dropped by name. ``index`` is the file that
    says which tensors are taken from which file, where there is one.
    """

    tensors: Mapping[str, TensorEntry]
    metadata: Mapping[str, str] = field(default_factory=dict)
    files: tuple[FileStamp, ...] = ()
    notes: tuple[str, ...] = ()
    others: Mapping[str, str] = field(default_factory=dict)
    index: FileStamp | None = None
