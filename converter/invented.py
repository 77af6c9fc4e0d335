"""Values that differ everywhere, for tensors that a map alone implies."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from math import prod
from typing import Any

from converter.spec import DTYPES, TensorSpec
from converter.steps import Constant

CHUNK = 1 << 20  # elements that are invented at a time


def invent_values(spec: TensorSpec, constant: Constant | None) -> Iterable[bytes]:
    """Yield the bytes of a tensor, chunk by chunk: those of the constant, or values that follow from its name."""
    import numpy as np

    from converter.kernels import numpy_dtype

    total, row = prod(spec.shape), DTYPES[spec.dtype]
    if row.kind == "packed":
        yield _mixed(spec.name, 0, spec.nbytes).astype(np.uint8).tobytes()
        return
    dtype: Any = numpy_dtype(spec.dtype)
    make: Callable[[int, int], Any] = (
        _filler(constant) if constant is not None else lambda a, b: _mixed(spec.name, a, b)
    )
    for start in range(0, total, CHUNK):
        x = make(start, min(start + CHUNK, total))
        if constant is None:
            x = _suited(x, row.kind, spec.dtype)
        yield (x.astype(np.uint8) if row.kind == "float8" and constant is None else x.astype(dtype)).tobytes()


def _filler(constant: Constant) -> Callable[[int, int], Any]:
    import numpy as np

    def make(start: int, stop: int) -> Any:
        at = np.arange(start, stop)
        if constant.what == "arange":
            return at % constant.shape[-1]
        if constant.what == "causal_mask":
            rows, columns = constant.shape[-2:]
            return at % columns <= at // columns % rows
        return np.full(stop - start, constant.value)

    return make


def _mixed(name: str, start: int, stop: int) -> Any:
    """Whole numbers below 65521 that run differently for each name."""
    import numpy as np

    seed = zlib.crc32(name.encode())
    return (np.arange(start, stop, dtype=np.uint64) * np.uint64(2 * (seed % 16381) + 3) + np.uint64(seed)) % np.uint64(
        65521
    )


def _suited(x: Any, kind: str, dtype: str) -> Any:
    """Bring invented numbers into the range of a dtype."""
    if kind in ("float", "complex"):
        return x / 65521.0 - 0.5
    if kind == "float8":
        return x % 120
    return x % 2 if kind == "bool" else x % (127 if DTYPES[dtype].bits == 8 else 32749)
