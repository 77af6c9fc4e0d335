"""What is asked of the data plane: tensors to write and values to compare, over sources that are read or computed.

What there may be sixty thousand of is a named tuple: it is made several times as fast as a frozen dataclass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from converter.spec import Shape
from converter.virtual import Virtual


class FileSource(NamedTuple):
    """A tensor in a file: the number of the file, the absolute offset in bytes, dtype (safetensors name) and shape.

    ``strides`` are elements from one entry of an axis to the next, None where the tensor is packed in row-major order.
    """

    file: int
    offset: int
    dtype: str
    shape: Shape
    strides: Shape | None = None

    def virtual(self, slot: int) -> Virtual:
        """Give the tensor as source number ``slot``."""
        return Virtual.source(slot, self.shape, self.strides)


class PatternSource(NamedTuple):
    """A tensor whose value follows from the index.

    ``kind``: ``arange`` (the index along the last axis) or ``causal_mask`` (ones on and below the diagonal of the last
    two axes, else zeros).
    """

    kind: str
    dtype: str
    shape: Shape


@dataclass(frozen=True, eq=False)
class ScaleSource:
    """A tensor of one axis whose element ``k`` is the float32 scale of row ``k`` of a matrix.

    ``value`` is the matrix, over ``sources`` of its own, ``largest`` what its largest magnitude becomes (see
    :meth:`converter.arrays.Array.row_scales`); ``double``: its arithmetic takes float64.
    """

    value: Virtual
    sources: tuple[Source, ...]
    largest: float
    double: bool
    dtype: str = "F32"

    @property
    def shape(self) -> Shape:
        """One scale for each row."""
        return self.value.shape[:1]


Source = FileSource | PatternSource | ScaleSource


class Produce(NamedTuple):
    """A tensor to write: its file, the absolute offset in bytes, dtype, value, and the sources that blocks number."""

    name: str
    file: int
    offset: int
    dtype: str
    value: Virtual
    sources: tuple[Source, ...]


@dataclass(frozen=True)
class Compare:
    """Two values whose bytes must be the same once both are of ``dtype``; ``label`` is given back in the outcome."""

    label: object
    dtype: str
    left: Virtual
    right: Virtual
    sources: tuple[Source, ...]
