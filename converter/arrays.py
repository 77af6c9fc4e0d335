"""The few array operations in which every op is written, whatever stands behind them.

An op's ``apply`` speaks :class:`Array` only, so that the same lines run on numpy (:class:`converter.eager.Eager`) and
without data, for lowering to byte ranges (:class:`converter.virtual.Virtual`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self


@dataclass(frozen=True)
class Arith:
    """One elementwise step: ``kind`` is ``add``, ``multiply``, ``divide`` (by ``value``), ``exp`` or ``log``.

    With ``operand`` the step does not take ``value`` but the elements of another array, which has this number among
    the operands of a block. It is computed in float32, or in float64 where a 64-bit float or an integer takes part;
    the result is not rounded back: that happens once, by whoever casts at the end.
    """

    kind: str
    value: float = 0.0
    operand: int | None = None


class Array(Protocol):
    """A tensor that can be rearranged; every method returns a new one and checks nothing that ``infer`` has checked."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        ...

    def reshape(self, shape: Sequence[int]) -> Self:
        """Give the same elements in row-major order another shape."""
        ...

    def transpose(self, axes: Sequence[int]) -> Self:
        """Permute the axes: axis ``k`` of the result is axis ``axes[k]``."""
        ...

    def slice(self, axis: int, start: int, stop: int) -> Self:
        """Keep ``start <= index < stop`` along an axis."""
        ...

    def pad(self, axis: int, size: int, value: float) -> Self:
        """Grow an axis at its end to ``size``, filled with ``value``."""
        ...

    def concat(self, others: Sequence[Self], axis: int) -> Self:
        """Join with others along an existing axis, this one first."""
        ...

    def arith(self, step: Arith) -> Self:
        """Apply one arithmetic step to every element."""
        ...

    def scale_rows(self, kind: str, factors: Self) -> Self:
        """``multiply`` each row of a matrix by its factor, or ``divide``: shapes [n, m] and [n]."""
        ...

    def row_scales(self, largest: float) -> Self:
        """Give the float32 factor [n] that brings each row of a matrix [n, m] into the range of +-``largest``.

        It is the largest finite magnitude of the row over ``largest``, in normal numbers; 1 for a row of zeros.
        """
        ...
