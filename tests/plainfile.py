"""A plain safetensors reader and writer for tests: neither the package's code nor the library's.

Source of the format: https://huggingface.co/docs/safetensors
"""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np

DTYPES = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype("<i8"),
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Plain(NamedTuple):
    """A file: its tensors by name, mapped into memory, and its metadata."""

    tensors: dict[str, np.ndarray]
    metadata: dict[str, str]


def read(path: Path) -> Plain:
    with open(path, "rb") as f:
        (length,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(length))
    metadata = header.pop("__metadata__", {})
    data = np.memmap(path, np.uint8, "r", offset=8 + length)
    tensors = {}
    for name, entry in header.items():
        start, stop = entry["data_offsets"]
        tensors[name] = data[start:stop].view(DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return Plain(tensors, metadata)


def write(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    header, at = {}, 0
    for name, x in tensors.items():
        header[name] = {"dtype": NAMES[x.dtype], "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for x in tensors.values():
            f.write(np.ascontiguousarray(x).tobytes())


def assert_same(got: Mapping[str, np.ndarray], want: Mapping[str, np.ndarray]) -> None:
    """Compare names, dtypes, shapes and bytes: NaN equals itself, -0.0 does not equal 0.0."""
    assert sorted(got) == sorted(want)
    for name, w in want.items():
        g = got[name]
        assert (g.dtype, g.shape) == (w.dtype, w.shape), name
        assert np.array_equal(as_bytes(g), as_bytes(w)), f"{name}: bytes differ"


def as_bytes(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).reshape(-1).view(np.uint8)
