"""`split`: part a tensor along an axis, into the `to` terms by sizes or evenly over an index."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from converter.dims import Dim, divide, total
from converter.ops.base import (
    DIM_SCHEMA,
    INDEX_SCHEMA,
    SIZE_SCHEMA,
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
    axis_of,
    check_size,
    fields_of,
    one,
    parse_dim,
    parse_size,
)
from converter.ops.results import Result


@dataclass(frozen=True)
class Split(Op):
    """Cut axis ``dim``: into ``sizes``, one term each, or into ``count`` equal parts over the index ``over``."""

    dim: int
    parts: tuple[Dim, ...] | None = None
    over: str | None = None
    count: Dim = 0
    word: ClassVar[str] = "split"

    @classmethod
    def schema(cls) -> dict[str, Any] | None:
        """Give the JSON Schema: an axis with sizes or with an index."""
        sizes = {
            "type": "array",
            "items": SIZE_SCHEMA,
            "minItems": 1,
            "description": "the size of each part, in the order of `to`",
        }
        keys = {"dim": DIM_SCHEMA, "sizes": sizes, "over": INDEX_SCHEMA}
        either = [{"required": ["dim", "sizes"]}, {"required": ["dim", "over"]}]
        return {"type": "object", "properties": keys, "oneOf": either, "additionalProperties": False}

    @classmethod
    def parse(cls, argument: Any, context: OpContext) -> Self:
        """Read `dim` with `sizes` or `over`."""
        given = fields_of(argument, ["dim"], ["sizes", "over"])
        if ("sizes" in given) == ("over" in given):
            raise OpError("split needs `sizes` (one for each `to` term) or `over` (an index), and not both")
        dim = parse_dim(given["dim"])
        if "over" in given:
            return cls(dim, None, given["over"], context.count(given["over"]))
        if not isinstance(given["sizes"], list) or not given["sizes"]:
            raise OpError(f"sizes is {given['sizes']!r}, not a list of sizes")
        return cls(dim, tuple(parse_size(s) for s in given["sizes"]))

    def infer(self, flow: Flow, fresh: Fresh) -> Inferred:
        """Give each part its size; the parts must add up to the axis."""
        from converter.ops.concat import Concat

        value = one(flow, "split")
        if self.over is not None:
            return self._infer_over(value, self.over, fresh)
        assert self.parts is not None
        inverse = Concat(self.dim)
        if value.shape is None:
            return Inferred(tuple(Value(value.bound, None) for _ in self.parts), inverse)
        axis = axis_of(self.dim, len(value.shape))
        whole, have = total(self.parts), value.shape[axis]
        for k, part in enumerate(self.parts):
            check_size(part, f"part {k}")
        if isinstance(whole, int) and isinstance(have, int) and whole != have:
            raise OpError(f"axis {axis} has {have}, the parts {list(self.parts)} add up to {whole}")
        out = tuple(Value(value.bound, (*value.shape[:axis], p, *value.shape[axis + 1 :])) for p in self.parts)
        return Inferred(out, inverse, ((whole, have),))

    def _infer_over(self, value: Value, over: str, fresh: Fresh) -> Inferred:
        from converter.ops.concat import Concat

        bound = (*value.bound, (over, self.count))
        inverse = Concat(self.dim, over, self.count)
        if over in dict(value.bound):
            raise OpError(f"index '{over}' is bound already")
        if value.shape is None:
            return Inferred((Value(bound, None),), inverse)
        axis = axis_of(self.dim, len(value.shape))
        have = value.shape[axis]
        part = divide(have, self.count)
        equations: tuple[tuple[Dim, Dim], ...] = ()
        if part is None:
            if isinstance(have, int) and isinstance(self.count, int):
                raise OpError(f"axis {axis} has {have}, which {self.count} equal parts over '{over}' do not divide")
            part = fresh("part")
            equations = ((part * self.count, have),)
        shape = (*value.shape[:axis], part, *value.shape[axis + 1 :])
        return Inferred((Value(bound, shape),), inverse, equations)

    def results(self, flow: tuple[Result, ...]) -> tuple[Result, ...]:
        """Make every part of what the whole is made of."""
        return super().results(flow) * len(self.parts or ())

    def apply(self, families: tuple[Family[A], ...]) -> Applied[A]:
        """Cut each member."""
        (family,) = families
        if self.over is None:
            assert self.parts is not None
            cut = [_cut(x, self.dim, self.parts) for x in family.items]
            return Applied(tuple(Family(family.bound, parts) for parts in zip(*cut)))
        if not isinstance(self.count, int):
            raise OpError(f"the count of '{self.over}' is not known")
        items = [
            p
            for x in family.items
            for p in _cut(x, self.dim, (x.shape[axis_of(self.dim, len(x.shape))] // self.count,) * self.count)
        ]
        return Applied((Family((*family.bound, (self.over, self.count)), tuple(items)),))

    def argument(self) -> Any:
        """Give the axis with sizes or index."""
        if self.parts is None:
            return {"dim": self.dim, "over": self.over}
        return {"dim": self.dim, "sizes": [p if isinstance(p, int) else str(p) for p in self.parts]}


def _cut(x: A, dim: int, parts: tuple[Dim, ...]) -> tuple[A, ...]:
    axis, at, out = axis_of(dim, len(x.shape)), 0, []
    for p in parts:
        assert isinstance(p, int)
        out.append(x.slice(axis, at, at + p))
        at += p
    return tuple(out)
