"""What peer scripts share: distinct values that follow from names, lines counted, and cases written.

It runs in the peers' environments: nothing but numpy is needed, and torch only where a script has torch tensors.
"""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import io
import json
import struct
import textwrap
import tokenize
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

# Bits of an element and of its mantissa, and the bits of 1.0.
NARROW = {"BF16": (16, 7, 0x3F80), "F16": (16, 10, 0x3C00), "F8_E4M3": (8, 3, 0x38), "F8_E5M2": (8, 2, 0x3C)}
PLAIN = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1", "BOOL": "?"}
TORCH = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
NOISE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def values(name: str, shape: Sequence[int], dtype: str = "F32") -> np.ndarray:
    """Values that follow from the name alone, distinct as far as the dtype has so many, below 1 if they are narrow.

    The bits of narrow floats come as unsigned integers; see `array` and `tensor`.
    """
    random = np.random.default_rng(zlib.crc32(name.encode()))
    size = int(np.prod(shape, dtype=np.int64))
    if dtype in NARROW:
        bits, mantissa, one = NARROW[dtype]
        count = min(one, max(7 * 2**mantissa, -(-size // 2)))
        some = np.concatenate([np.arange(one - count, one), np.arange(one - count, one) + 2 ** (bits - 1)])
        picked = random.choice(some, size, replace=size > len(some))
        return picked.astype(f"<u{bits // 8}").reshape(shape)
    if dtype in ("F32", "F64"):
        out = (random.standard_normal(size) * 0.3).astype(PLAIN[dtype])
        assert len(np.unique(out)) == size, name
        return out.reshape(shape)
    if dtype == "BOOL":
        return random.integers(0, 2, shape).astype("?")
    return random.permutation(size).astype(PLAIN[dtype]).reshape(shape)


def array(name: str, shape: Sequence[int], dtype: str = "F32") -> np.ndarray:
    """Give the values as a numpy array; narrow floats as ml_dtypes has them."""
    out = values(name, shape, dtype)
    if dtype not in NARROW:
        return out
    import ml_dtypes

    return out.view(np.float16 if dtype == "F16" else getattr(ml_dtypes, TORCH[dtype]))


def tensor(name: str, shape: Sequence[int], dtype: str = "F32") -> Any:
    """Give the values as a torch tensor."""
    import torch

    out = values(name, shape, dtype)
    if dtype in NARROW:
        signed = torch.from_numpy(out.view(f"<i{out.itemsize}") if out.itemsize > 1 else out)
        return signed.view(getattr(torch, TORCH[dtype]))
    return torch.from_numpy(out)


def refill(state: Mapping[str, Any]) -> dict[str, Any]:
    """Give a state dict of torch other values of the same shapes and dtypes; tensors that share memory get the same."""
    first: dict[int, str] = {}
    names = {name: first.setdefault(x.data_ptr(), name) if x.numel() else name for name, x in state.items()}
    return {name: tensor(names[name], tuple(x.shape), kind(x)[0]) for name, x in state.items()}


def kind(x: Any) -> tuple[str, list[int]]:
    """Give the dtype, as safetensors calls it, and the shape of a tensor of torch or numpy."""
    word = str(x.dtype).removeprefix("torch.")
    return {v: k for k, v in TORCH.items()}[word], list(x.shape)


def blob(x: Any) -> bytes:
    if isinstance(x, np.ndarray):
        return np.ascontiguousarray(x).tobytes()
    import torch

    return x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def save(tensors: Mapping[str, Any], path: Path) -> None:
    """Write a safetensors file, sorted by name. Source: https://huggingface.co/docs/safetensors"""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name in sorted(tensors):
        (dtype, shape), raw = kind(tensors[name]), blob(tensors[name])
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def lines(*code: Any) -> int:
    """Count the lines of functions, classes or modules that hold code: no blanks, comments or docstrings."""
    return sum(_lines(textwrap.dedent(inspect.getsource(c))) for c in code)


def _lines(source: str) -> int:
    used: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NOISE:
            used |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            used -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(used)


def called(*code: Any) -> str:
    """Name functions, classes or modules."""
    return ", ".join(c.__name__ if inspect.ismodule(c) else f"{c.__module__}.{c.__qualname__}" for c in code)


def write_case(
    folder: Path,
    name: str,
    given: Mapping[str, Any],
    made: Mapping[str, Any],
    *,
    peer: str,
    code: Sequence[Any] | str,
    version: str = "",
    count: int = 0,
    back: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    flags: Any = (),
    why: str = "",
) -> None:
    """Write a case: `name` is the map's, `@variant` may follow; tensors are of torch or numpy.

    ``code`` is what does the peer's work, counted here, or text that says what and where it is with ``count`` lines.
    ``back`` is what the way back gives where that is not ``given``. ``why`` says that and why there is no way back.
    """
    case = folder / name
    case.mkdir(parents=True)
    for file, tensors in (("from", given), ("to", made), ("back", back)):
        if tensors is not None:
            save(tensors, case / f"{file}.safetensors")
    if config is not None:
        (case / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    doc = {
        "peer": peer,
        "version": version or importlib.metadata.version(peer),
        "code": code if isinstance(code, str) else called(*code),
        "lines": count if isinstance(code, str) else lines(*code),
        "flags": flags if isinstance(flags, Mapping) else list(flags),
        "both": not why,
        "why": why,
    }
    (case / "case.json").write_text(json.dumps(doc, indent=1, ensure_ascii=False) + "\n")
