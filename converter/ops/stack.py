"""`stack`: put the members over an index on a new axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from converter.dims import Dim
from converter.ops.base import (
    DIM_SCHEMA,
    INDEX_SCHEMA,
    A,
    Applied,
    Family,
    Flow,
    Fresh,
    Inferred,
    Op,
    OpContext,
    Value,
    axis_of,
    fields_of,
    parse_dim,
)

OVER_SCHEMA: dict[str, Any] = {
    "anyOf": [
        INDEX_SCHEMA,
        {
            "type": "object",
            "properties": {"over": INDEX_SCHEMA, "dim": DIM_SCHEMA},
            "required": ["over"],
            "additionalProperties": False,
        },
    ]
}


def parse_over(argument: Any, context: OpContext) -> tuple[str, int, Dim]:
    """Read an index, or a mapping of `over` and `dim`, into index, axis and count; raises OpError."""
    given = fields_of(argument, ["over"], ["dim"]) if isinstance(argument, dict) else {"over": argument}
    return given["over"], parse_dim(given.get("dim", 0)), context.count(given["over"])


@dataclass(frozen=True)
class Stack(Op):
    """Put the ``count`` members over the bound index ``over`` on a new axis ``dim``."""

    over: str
    dim: int
    count: Dim
    word: ClassVar[str] = "stack"

    @classmethod
    def schema(cls) -> dict[str, Any] | None:
        """Give the JSON Schema: an index, or an index and an axis."""
        return OVER_SCHEMA

    @classmethod
    def parse(cls, argument: Any, context: OpContext) -> Self:
        """Read an index, or a mapping of `over` and `dim`."""
        return cls(*parse_over(argument, context))

    def infer(self, flow: Flow, fresh: Fresh) -> Inferred:
        """Add the axis."""
        from converter.ops.unstack import Unstack

        (value,) = flow
        bound, inverse = value.without(self.over), Unstack(self.over, self.dim, self.count)
        if value.shape is None:
            return Inferred((Value(bound, None),), inverse)
        axis = axis_of(self.dim, len(value.shape) + 1)
        return Inferred((Value(bound, (*value.shape[:axis], self.count, *value.shape[axis:])),), inverse)

    def apply(self, families: tuple[Family[A], ...]) -> Applied[A]:
        """Join the members on a new axis."""
        (family,) = families
        bound, groups = family.along(self.over)
        return Applied((Family(bound, tuple(self._stack(g) for g in groups)),))

    def _stack(self, members: tuple[A, ...]) -> A:
        axis = axis_of(self.dim, len(members[0].shape) + 1)
        rows = [x.reshape((*x.shape[:axis], 1, *x.shape[axis:])) for x in members]
        return rows[0].concat(tuple(rows[1:]), axis)

    def argument(self) -> Any:
        """Give the index, and the axis where it is not the first."""
        return {"over": self.over, "dim": self.dim} if self.dim else self.over
