"""`replicate`: the same tensor under each `to` name, or over an index."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from converter.dims import Dim
from converter.ops.base import (
    INDEX_SCHEMA,
    Applied,
    Family,
    Flow,
    Fresh,
    Inferred,
    Op,
    OpContext,
    OpError,
    Value,
    one,
)
from converter.ops.results import Result


@dataclass(frozen=True)
class Replicate(Op):
    """Give one value ``count`` times: as terms, or over the index ``over``."""

    over: str | None
    count: Dim
    word: ClassVar[str] = "replicate"
    bare: ClassVar[bool] = True

    @classmethod
    def schema(cls) -> dict[str, Any] | None:
        """Give the JSON Schema of the index."""
        return INDEX_SCHEMA

    @classmethod
    def parse(cls, argument: Any, context: OpContext) -> Self:
        """Read nothing, or an index."""
        return cls(None, context.parts) if argument is None else cls(argument, context.count(argument))

    def infer(self, flow: Flow, fresh: Fresh) -> Inferred:
        """Repeat the shape."""
        from converter.ops.same import Same

        value = one(flow, "replicate")
        if self.over is None:
            assert isinstance(self.count, int)
            return Inferred(flow * self.count, Same(None))
        if self.over in dict(value.bound):
            raise OpError(f"index '{self.over}' is bound already")
        return Inferred((Value((*value.bound, (self.over, self.count)), value.shape),), Same(self.over, self.count))

    def results(self, flow: tuple[Result, ...]) -> tuple[Result, ...]:
        """Make each of what the one is made of."""
        return super().results(flow) * (self.count if isinstance(self.count, int) else 1)

    def apply(self, families: tuple[Any, ...]) -> Applied[Any]:
        """Repeat each member."""
        (family,) = families
        if not isinstance(self.count, int):
            raise OpError(f"the count of '{self.over}' is not known")
        more = family.items * (self.count - 1) if self.count else ()
        gone = family.items if not self.count else ()
        if self.over is None:
            return Applied(families * self.count, (), gone, more)
        items = tuple(x for x in family.items for _ in range(self.count))
        return Applied((Family((*family.bound, (self.over, self.count)), items),), (), gone, more)

    def argument(self) -> Any:
        """Give the index."""
        return self.over
