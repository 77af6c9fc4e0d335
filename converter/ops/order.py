"""`order`: cut an axis into equal parts and put them in another order (the gates of an LSTM)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from converter.dims import Dim, divide
from converter.ops.base import (
    DIM_SCHEMA,
    A,
    Applied,
    Flow,
    Fresh,
    Inferred,
    Op,
    OpContext,
    OpError,
    axis_of,
    fields_of,
    parse_dim,
    parse_permutation,
)


@dataclass(frozen=True)
class Order(Op):
    """Cut axis ``dim`` into ``len(to)`` equal parts; output part k is input part ``to[k]``."""

    dim: int
    to: tuple[int, ...]
    word: ClassVar[str] = "order"

    @classmethod
    def schema(cls) -> dict[str, Any] | None:
        """Give the JSON Schema: an axis and a permutation of parts."""
        parts = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 2, "uniqueItems": True}
        keys = {"dim": DIM_SCHEMA, "to": parts | {"description": "the input part of each output part"}}
        return {"type": "object", "properties": keys, "required": ["dim", "to"], "additionalProperties": False}

    @classmethod
    def parse(cls, argument: Any, context: OpContext) -> Self:
        """Read `dim` and `to`."""
        given = fields_of(argument, ["dim", "to"])
        return cls(
            parse_dim(given["dim"]), parse_permutation(given["to"], "to has the input part of each output part", 2)
        )

    def infer(self, flow: Flow, fresh: Fresh) -> Inferred:
        """Keep the shape, whose axis the parts must divide."""
        (value,) = flow
        inverse = Order(self.dim, tuple(sorted(range(len(self.to)), key=self.to.__getitem__)))
        if value.shape is None:
            return Inferred(flow, inverse)
        axis = axis_of(self.dim, len(value.shape))
        have: Dim = value.shape[axis]
        if divide(have, len(self.to)) is not None:
            return Inferred(flow, inverse)
        if isinstance(have, int):
            raise OpError(f"axis {axis} has {have}, which {len(self.to)} equal parts do not divide")
        return Inferred(flow, inverse, ((fresh("part") * len(self.to), have),))

    def apply(self, families: tuple[Any, ...]) -> Applied[Any]:
        """Reorder the parts of each member."""
        (family,) = families
        return Applied((family.map(self._apply),))

    def _apply(self, x: A) -> A:
        axis = axis_of(self.dim, len(x.shape))
        size = x.shape[axis] // len(self.to)
        parts = [x.slice(axis, k * size, (k + 1) * size) for k in self.to]
        return parts[0].concat(tuple(parts[1:]), axis)

    def argument(self) -> Any:
        """Give axis and order."""
        return {"dim": self.dim, "to": list(self.to)}
