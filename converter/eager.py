"""The array operations on numpy, at once: the oracle that lowered execution must agree with byte for byte."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

import numpy as np

from converter import kernels
from converter.arrays import Arith
from converter.blockwise import largest_magnitudes, scales_of
from converter.casts import apply_chain


@dataclass(frozen=True)
class Eager:
    """A numpy array (``ml_dtypes`` for bfloat16 and smaller floats) as :class:`converter.arrays.Array`.

    Arithmetic widens floats of 32 bits or fewer to float32, and integers to float64; nothing is rounded back.
    """

    array: np.ndarray[Any, np.dtype[Any]]

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return tuple(int(n) for n in self.array.shape)

    def reshape(self, shape: Sequence[int]) -> Eager:
        """Give the same elements in row-major order another shape."""
        return Eager(self.array.reshape(tuple(shape)))

    def transpose(self, axes: Sequence[int]) -> Eager:
        """Permute the axes: axis ``k`` of the result is axis ``axes[k]``."""
        return Eager(self.array.transpose(tuple(axes)))

    def slice(self, axis: int, start: int, stop: int) -> Eager:
        """Keep ``start <= index < stop`` along an axis."""
        return Eager(self.array[(slice(None),) * axis + (slice(start, stop),)])

    def pad(self, axis: int, size: int, value: float) -> Eager:
        """Grow an axis at its end to ``size``; widen, as for arithmetic, where the dtype cannot hold ``value``."""
        shape = (*self.shape[:axis], size - self.shape[axis], *self.shape[axis + 1 :])
        work = np.float64 if kernels.works_in_double(self.array.dtype) else np.float32
        more = np.full(shape, value, work)
        with np.errstate(all="ignore"):
            same = more.astype(self.array.dtype)
        if isnan(value) or np.array_equal(same.astype(work), more):
            more = same
        return self.concat([Eager(more)], axis)

    def concat(self, others: Sequence[Eager], axis: int) -> Eager:
        """Join with others along an existing axis, this one first; floats of different dtypes are widened exactly."""
        arrays = [self.array, *(o.array for o in others)]
        if len({a.dtype for a in arrays}) > 1:
            wide = np.float64 if any(a.dtype.itemsize > 4 for a in arrays) else np.float32
            arrays = [a.astype(wide) for a in arrays]
        return Eager(np.concatenate(arrays, axis))

    def arith(self, step: Arith) -> Eager:
        """Apply one arithmetic step to every element."""
        values = self._wide()
        apply_chain(values.reshape(-1), (step,))
        return Eager(values)

    def scale_rows(self, kind: str, factors: Eager) -> Eager:
        """``multiply`` each row of a matrix by its factor, or ``divide``."""
        values = self._wide()
        apply_chain(values, (Arith(kind, operand=0),), (factors._wide()[:, None],))
        return Eager(values)

    def row_scales(self, largest: float) -> Eager:
        """Give the float32 factor that brings each row of a matrix into the range of +-``largest``."""
        return Eager(scales_of(largest_magnitudes(self._wide()), largest))

    def _wide(self) -> np.ndarray[Any, np.dtype[Any]]:
        work = np.float64 if kernels.works_in_double(self.array.dtype) else np.float32
        return np.array(self.array, dtype=work, order="C")
