"""`concat`: join terms, or the members over an index, along an axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from converter.dims import Dim, total
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
    equal_shapes,
    fields_of,
    parse_dim,
    same_bound,
)


@dataclass(frozen=True)
class Concat(Op):
    """Join along axis ``dim``: the terms of the flow in their order, or with ``over`` members over a bound index."""

    dim: int
    over: str | None = None
    count: Dim = 0
    word: ClassVar[str] = "concat"

    @classmethod
    def schema(cls) -> dict[str, Any] | None:
        """Give the JSON Schema: an axis, or an axis and an index."""
        keys = {"dim": DIM_SCHEMA, "over": INDEX_SCHEMA}
        full = {"type": "object", "properties": keys, "required": ["dim"], "additionalProperties": False}
        return {"anyOf": [DIM_SCHEMA, full]}

    @classmethod
    def parse(cls, argument: Any, context: OpContext) -> Self:
        """Read an axis, or a mapping of `dim` and `over`."""
        if not isinstance(argument, dict):
            return cls(parse_dim(argument))
        given = fields_of(argument, ["dim"], ["over"])
        over = given.get("over")
        return cls(parse_dim(given["dim"]), over, context.count(over) if over is not None else 0)

    def infer(self, flow: Flow, fresh: Fresh) -> Inferred:
        """Add up the axis."""
        if self.over is not None:
            return self._infer_over(flow, self.over)
        from converter.ops.split import Split

        bound = same_bound(flow, "concat")
        if any(v.shape is None for v in flow):
            return Inferred((Value(bound, None),), Split(self.dim, tuple(fresh("part") for _ in flow)))
        shapes = [v.shape for v in flow if v.shape is not None]
        axis = axis_of(self.dim, len(shapes[0]))
        equations = equal_shapes(shapes, "concat", but=axis)
        sizes = tuple(s[axis] for s in shapes)
        shape = (*shapes[0][:axis], total(sizes), *shapes[0][axis + 1 :])
        return Inferred((Value(bound, shape),), Split(self.dim, sizes), equations)

    def _infer_over(self, flow: Flow, over: str) -> Inferred:
        from converter.ops.split import Split

        (value,) = flow
        bound, inverse = value.without(over), Split(self.dim, None, over, self.count)
        if value.shape is None:
            return Inferred((Value(bound, None),), inverse)
        axis = axis_of(self.dim, len(value.shape))
        shape = (*value.shape[:axis], value.shape[axis] * self.count, *value.shape[axis + 1 :])
        return Inferred((Value(bound, shape),), inverse)

    def apply(self, families: tuple[Family[A], ...]) -> Applied[A]:
        """Join the arrays."""
        if self.over is None:
            joined = tuple(_join(members, self.dim) for members in zip(*(f.items for f in families)))
            return Applied((Family(families[0].bound, joined),))
        (family,) = families
        bound, groups = family.along(self.over)
        return Applied((Family(bound, tuple(_join(g, self.dim) for g in groups)),))

    def argument(self) -> Any:
        """Give the axis, and the index."""
        return self.dim if self.over is None else {"dim": self.dim, "over": self.over}


def _join(members: tuple[A, ...], dim: int) -> A:
    return members[0].concat(members[1:], axis_of(dim, len(members[0].shape)))
