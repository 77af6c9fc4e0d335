"""`pad` grows an axis with a constant; its way back is a `trim` that checks that what goes is the padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from converter.dims import Dim
from converter.ops.base import (
    DIM_SCHEMA,
    SIZE_SCHEMA,
    Applied,
    Flow,
    Fresh,
    Inferred,
    Op,
    OpContext,
    OpError,
    Value,
    axis_of,
    check_size,
    fields_of,
    parse_dim,
    parse_size,
)


def parse_value(value: Any) -> float:
    """Read a constant; raises OpError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise OpError(f"{value!r} is not a number")
    return float(value)


def resized(value: Value, dim: int, to: Dim, grow: bool) -> tuple[Dim, Value]:
    """Give an axis its new size; returns the old one and the new value. Raises OpError when it shrinks instead of
    growing.
    """
    assert value.shape is not None
    axis = axis_of(dim, len(value.shape))
    have = value.shape[axis]
    check_size(to, f"axis {axis}")
    if isinstance(have, int) and isinstance(to, int) and (have > to if grow else have < to):
        raise OpError(f"axis {axis} has {have}, which cannot be {'padded' if grow else 'trimmed'} to {to}")
    return have, Value(value.bound, (*value.shape[:axis], to, *value.shape[axis + 1 :]))


@dataclass(frozen=True)
class Pad(Op):
    """Grow axis ``dim`` to size ``to`` with the constant ``value`` at its end; ``checked`` says what the way back
    does.
    """

    dim: int
    to: Dim
    value: float = 0.0
    checked: bool = True
    word: ClassVar[str] = "pad"

    @classmethod
    def schema(cls) -> dict[str, Any] | None:
        """Give the JSON Schema: axis, size and constant."""
        number = {"type": "number", "default": 0, "description": "the constant of the padding"}
        keys = {"dim": DIM_SCHEMA, "to": SIZE_SCHEMA, "value": number}
        return {"type": "object", "properties": keys, "required": ["dim", "to"], "additionalProperties": False}

    @classmethod
    def parse(cls, argument: Any, context: OpContext) -> Self:
        """Read `dim`, `to` and perhaps `value`."""
        given = fields_of(argument, ["dim", "to"], ["value"])
        return cls(parse_dim(given["dim"]), parse_size(given["to"]), parse_value(given.get("value", 0)))

    def infer(self, flow: Flow, fresh: Fresh) -> Inferred:
        """Give the axis its new size."""
        from converter.ops.trim import Trim

        (value,) = flow
        if value.shape is None:
            return Inferred(flow, Trim(self.dim, fresh("size"), self.value, self.checked))
        have, out = resized(value, self.dim, self.to, grow=True)
        return Inferred((out,), Trim(self.dim, have, self.value, self.checked))

    def apply(self, families: tuple[Any, ...]) -> Applied[Any]:
        """Grow each member."""
        (family,) = families
        if not isinstance(self.to, int):
            raise OpError(f"size {self.to} is not known")
        to = self.to
        return Applied((family.map(lambda x: x.pad(axis_of(self.dim, len(x.shape)), to, self.value)),))

    def argument(self) -> Any:
        """Give axis, size and constant."""
        out: dict[str, Any] = {"dim": self.dim, "to": self.to if isinstance(self.to, int) else str(self.to)}
        return out | ({"value": self.value} if self.value else {})
