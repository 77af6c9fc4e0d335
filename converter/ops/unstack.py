"""`unstack`: spread an axis over an index."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from converter.dims import Dim
from converter.ops.base import A, Applied, Family, Flow, Fresh, Inferred, Op, OpContext, OpError, Value, axis_of
from converter.ops.stack import OVER_SCHEMA, Stack, parse_over


@dataclass(frozen=True)
class Unstack(Op):
    """Spread axis ``dim``, which has ``count`` entries, over the index ``over``."""

    over: str
    dim: int
    count: Dim
    word: ClassVar[str] = "unstack"

    @classmethod
    def schema(cls) -> dict[str, Any] | None:
        """Give the JSON Schema: an index, or an index and an axis."""
        return OVER_SCHEMA

    @classmethod
    def parse(cls, argument: Any, context: OpContext) -> Self:
        """Read an index, or a mapping of `over` and `dim`."""
        return cls(*parse_over(argument, context))

    def infer(self, flow: Flow, fresh: Fresh) -> Inferred:
        """Take the axis away; its size is the count of the index."""
        (value,) = flow
        if self.over in dict(value.bound):
            raise OpError(f"index '{self.over}' is bound already")
        bound, inverse = (*value.bound, (self.over, self.count)), Stack(self.over, self.dim, self.count)
        if value.shape is None:
            return Inferred((Value(bound, None),), inverse)
        axis = axis_of(self.dim, len(value.shape))
        have = value.shape[axis]
        if isinstance(have, int) and isinstance(self.count, int) and have != self.count:
            raise OpError(f"axis {axis} has {have}, index '{self.over}' has {self.count}")
        shape = (*value.shape[:axis], *value.shape[axis + 1 :])
        return Inferred((Value(bound, shape),), inverse, ((self.count, have),))

    def apply(self, families: tuple[Family[A], ...]) -> Applied[A]:
        """Cut each member into its entries."""
        (family,) = families
        if not isinstance(self.count, int):
            raise OpError(f"the count of '{self.over}' is not known")
        items = [self._entry(x, k) for x in family.items for k in range(self.count)]
        return Applied((Family((*family.bound, (self.over, self.count)), tuple(items)),))

    def _entry(self, x: A, k: int) -> A:
        axis = axis_of(self.dim, len(x.shape))
        return x.slice(axis, k, k + 1).reshape((*x.shape[:axis], *x.shape[axis + 1 :]))

    def argument(self) -> Any:
        """Give the index, and the axis where it is not the first."""
        return {"over": self.over, "dim": self.dim} if self.dim else self.over
