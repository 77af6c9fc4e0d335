"""A small laboratory for tests: checkpoints written by hand, and the command run in this process.

The reader and writer are neither the package's nor the safetensors library's, so that both can be held against them.
"""

import io
import json
import os
import signal
import struct
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from unittest import mock

import jsonschema
import ml_dtypes
import numpy as np

from converter.cli import main
from converter.mapfile import read_includes, read_source
from converter.schema import map_schema

DTYPES = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
    "C64": np.dtype("<c8"),
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
SCHEMA = jsonschema.Draft202012Validator(map_schema())
SECONDS = 20  # what hangs is a failure, not a wait
Tensors = Mapping[str, np.ndarray]


class Result(NamedTuple):
    """What a command left: its exit code and what it said."""

    code: int
    out: str
    err: str


def arr(*shape: int, dtype: Any = "<f4", start: int = 0) -> np.ndarray:
    """Distinct values, so that every misplaced element shows."""
    n = int(np.prod(shape, dtype=np.int64))
    return np.arange(start, start + n).astype(dtype).reshape(shape)


def encode(tensors: Tensors, metadata: Mapping[str, str] | None = None) -> bytes:
    """The bytes of a safetensors file with the tensors in the given order."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    blobs, at = [], 0
    for name, x in tensors.items():
        x = np.asarray(x, order="C")
        header[name] = {"dtype": NAMES[x.dtype], "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        blobs.append(x.tobytes())
        at += x.nbytes
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(blobs)


def write(path: Path, tensors: Tensors, metadata: Mapping[str, str] | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode(tensors, metadata))
    return path


def shards(folder: Path, parts: Sequence[Tensors], extra: Mapping[str, str] | None = None) -> Path:
    """A directory of shards with its index."""
    weight_map: dict[str, str] = {}
    for i, part in enumerate(parts, 1):
        file = f"model-{i:05d}-of-{len(parts):05d}.safetensors"
        write(folder / file, part, {"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    total = sum(x.nbytes for p in parts for x in p.values())
    doc = {"metadata": {"total_size": total}, "weight_map": weight_map | dict(extra or {})}
    (folder / "model.safetensors.index.json").write_text(json.dumps(doc))
    return folder


def header(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length])


def read(path: Path) -> dict[str, np.ndarray]:
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    out = {}
    for name, e in header(path).items():
        if name != "__metadata__":
            start, stop = (8 + length + x for x in e["data_offsets"])
            out[name] = np.frombuffer(data[start:stop], DTYPES[e["dtype"]]).reshape(e["shape"])
    return out


def metadata(path: Path) -> dict[str, str]:
    return header(path).get("__metadata__", {})


def same(got: Tensors, want: Tensors) -> None:
    """Compare names, dtypes, shapes and bytes: NaN equals itself, -0.0 does not equal 0.0."""
    assert sorted(got) == sorted(want)
    for name, w in want.items():
        g, w = got[name], np.asarray(w)
        assert (g.dtype, g.shape) == (w.dtype, w.shape), (name, g.dtype, g.shape, w.dtype, w.shape)
        assert g.tobytes() == np.ascontiguousarray(w).tobytes(), name


class TooLongError(BaseException):
    """A command that does not end; no handler of the program may swallow it."""


def _too_long(signum: int, frame: object) -> NoReturn:
    raise TooLongError(f"more than {SECONDS} s")


def run(*arguments: Any) -> Result:
    """Run the command line in this process; nothing but SystemExit may come out of it."""
    out, err = io.StringIO(), io.StringIO()
    before = signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(SECONDS)
    with redirect_stdout(out), redirect_stderr(err), mock.patch.dict(os.environ, {"NO_COLOR": "1", "COLUMNS": "200"}):
        try:
            main([str(a) for a in arguments])
        except SystemExit as e:
            code = e.code
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
    assert isinstance(code, int)
    return Result(code, out.getvalue(), err.getvalue())


class Lab:
    """A folder with one map, one input and one output."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source, self.output = folder / "in.safetensors", folder / "out.safetensors"

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    def map(self, text: str, name: str = "map.yaml") -> Path:
        path = self.folder / name
        path.write_text("version: 1\nname: test\n" + textwrap.dedent(text).lstrip("\n"))
        return path

    def clean(self, text: str) -> str:
        """Take the folder out of a message."""
        return text.replace(f"{self.folder}{os.sep}", "").replace(str(self.folder), ".")

    def run(self, *arguments: Any) -> Result:
        code, out, err = run(*arguments)
        return Result(code, self.clean(out), self.clean(err))

    def convert(
        self, text: str, tensors: Tensors, *flags: Any, metadata: Mapping[str, str] | None = None
    ) -> tuple[Result, Path]:
        """Write the map and the input, convert, and see that a failure leaves nothing."""
        write(self.source, tensors, metadata)
        self.output.unlink(missing_ok=True)
        before = sorted(self.folder.iterdir())
        r = self.run("--map", self.map(text), self.source, self.output, *flags)
        assert self.output.exists() == (r.code == 0), r
        if r.code == 0:
            _, files = read_includes(read_source(self.folder / "map.yaml"))
            errors = [e.message for f in files for e in SCHEMA.iter_errors(f.node.plain())]
            assert not errors, "the program accepts what the JSON Schema refuses"
        if r.code:
            assert sorted(self.folder.iterdir()) == sorted({*before, self.folder / "map.yaml"}), (
                "something was left behind"
            )
        return r, self.output

    def gives(self, text: str, tensors: Tensors, want: Tensors, *flags: Any) -> Result:
        """The conversion succeeds with exactly these tensors."""
        r, out = self.convert(text, tensors, *flags)
        assert r.code == 0, r.err
        same(read(out), want)
        return r

    def both(self, text: str, tensors: Tensors, want: Tensors, *flags: Any) -> None:
        """Forward gives `want`, and `want` gives the input back, byte for byte, with the same flags."""
        self.gives(text, tensors, want, *flags)
        self.gives(text, want, tensors, "--reverse", *flags)

    def fails(self, text: str, tensors: Tensors, code: int, *says: str, flags: Sequence[Any] = ()) -> str:
        """The conversion fails with this code, says all that, and leaves nothing."""
        r, _ = self.convert(text, tensors, *flags)
        assert r.code == code, (r.code, r.err)
        missing = [s for s in says if s not in r.err]
        assert not missing, (missing, r.err)
        return r.err
