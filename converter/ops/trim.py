"""`trim` shrinks an axis; it leads back only where `fill` says what to grow it with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from converter.dims import Dim
from converter.ops.base import (
    DIM_SCHEMA,
    SIZE_SCHEMA,
    Applied,
    DataCheck,
    Family,
    Flow,
    Fresh,
    Inferred,
    Op,
    OpContext,
    OpError,
    axis_of,
    fields_of,
    parse_dim,
    parse_size,
)
from converter.ops.pad import Pad, parse_value, resized


@dataclass(frozen=True)
class Trim(Op):
    """Shrink axis ``dim`` to size ``to``; ``fill`` is what the way back grows it with.

    ``checked`` (the way back of a `pad`) asserts that what goes is all ``fill``.
    """

    dim: int
    to: Dim
    fill: float | None = None
    checked: bool = False
    word: ClassVar[str] = "trim"

    @classmethod
    def schema(cls) -> dict[str, Any] | None:
        """Give the JSON Schema: axis, size and constant."""
        number = {
            "type": "number",
            "description": "the constant that the way back grows the axis with; without it there is no way back",
        }
        keys = {"dim": DIM_SCHEMA, "to": SIZE_SCHEMA, "fill": number}
        return {"type": "object", "properties": keys, "required": ["dim", "to"], "additionalProperties": False}

    @classmethod
    def parse(cls, argument: Any, context: OpContext) -> Self:
        """Read `dim`, `to` and perhaps `fill`."""
        given = fields_of(argument, ["dim", "to"], ["fill"])
        fill = parse_value(given["fill"]) if "fill" in given else None
        return cls(parse_dim(given["dim"]), parse_size(given["to"]), fill)

    @property
    def exact(self) -> bool:
        """Exact only where what goes is known to be the padding."""
        return self.checked

    def infer(self, flow: Flow, fresh: Fresh) -> Inferred:
        """Give the axis its new size."""
        (value,) = flow
        if value.shape is None:
            return Inferred(flow, None if self.fill is None else Pad(self.dim, fresh("size"), self.fill, self.checked))
        have, out = resized(value, self.dim, self.to, grow=False)
        return Inferred((out,), None if self.fill is None else Pad(self.dim, have, self.fill, self.checked))

    def apply(self, families: tuple[Any, ...]) -> Applied[Any]:
        """Shrink each member, and check what goes where that was padding."""
        (family,) = families
        if not isinstance(self.to, int):
            raise OpError(f"size {self.to} is not known")
        kept, checks, cut = [], [], []
        for x in family.items:
            axis = axis_of(self.dim, len(x.shape))
            kept.append(x.slice(axis, 0, self.to))
            gone = x.slice(axis, self.to, x.shape[axis])
            cut.append(gone)
            if self.checked and self.fill is not None and self.to < x.shape[axis]:
                padding = gone.slice(axis, 0, 0).pad(axis, gone.shape[axis], self.fill)
                what = f"padding from {self.to} on axis {axis} is not all {self.fill:g}"
                checks.append(DataCheck(what, gone, padding, axis, self.to))
        return Applied((Family(family.bound, tuple(kept)),), tuple(checks), tuple(cut))

    def argument(self) -> Any:
        """Give axis, size and constant."""
        out: dict[str, Any] = {"dim": self.dim, "to": self.to if isinstance(self.to, int) else str(self.to)}
        return out | ({"fill": self.fill} if self.fill is not None else {})
