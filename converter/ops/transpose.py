"""`transpose`: swap the two axes, or permute all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from converter.dims import render_shape
from converter.ops.base import (
    A,
    Applied,
    Family,
    Flow,
    Fresh,
    Inferred,
    Op,
    OpContext,
    OpError,
    Value,
    parse_permutation,
)


@dataclass(frozen=True)
class Transpose(Op):
    """Permute axes: output axis k is input axis ``axes[k]``; without ``axes`` the two axes of a matrix are swapped."""

    axes: tuple[int, ...] | None = None
    word: ClassVar[str] = "transpose"
    bare: ClassVar[bool] = True

    @classmethod
    def schema(cls) -> dict[str, Any] | None:
        """Give the JSON Schema of the permutation."""
        item = {"type": "integer", "minimum": 0}
        return {
            "type": "array",
            "items": item,
            "uniqueItems": True,
            "description": "the input axis of each output axis",
        }

    @classmethod
    def parse(cls, argument: Any, context: OpContext) -> Self:
        """Read nothing, or a permutation."""
        if argument is None:
            return cls()
        return cls(parse_permutation(argument, "the input axis of each output axis"))

    def _axes(self, rank: int) -> tuple[int, ...]:
        return (1, 0) if self.axes is None and rank == 2 else self.axes or ()

    def infer(self, flow: Flow, fresh: Fresh) -> Inferred:
        """Permute the shape."""
        (value,) = flow
        inverse = self if self.axes is None else Transpose(tuple(self.axes.index(k) for k in range(len(self.axes))))
        if value.shape is None:
            return Inferred(flow, inverse)
        axes = self._axes(len(value.shape))
        if len(axes) != len(value.shape) or not axes:
            wants = "two axes" if self.axes is None else f"{len(axes)} axes"
            hint = (
                " (name the permutation, {transpose: [2, 0, 1]})" if self.axes is None and len(value.shape) > 2 else ""
            )
            raise OpError(f"transpose needs {wants}, the shape is {render_shape(value.shape)}{hint}")
        return Inferred((Value(value.bound, tuple(value.shape[k] for k in axes)),), inverse)

    def apply(self, families: tuple[Family[A], ...]) -> Applied[A]:
        """Permute each member."""
        (family,) = families
        return Applied((family.map(lambda x: x.transpose(self._axes(len(x.shape)))),))

    def argument(self) -> Any:
        """Give the permutation."""
        return None if self.axes is None else list(self.axes)
