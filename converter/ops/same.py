"""`same`: several equal tensors become one, after checking that they are equal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from converter.dims import Dim
from converter.ops.base import (
    INDEX_SCHEMA,
    Applied,
    DataCheck,
    Family,
    Flow,
    Fresh,
    Inferred,
    Op,
    OpContext,
    Value,
    equal_shapes,
    same_bound,
)


@dataclass(frozen=True)
class Same(Op):
    """Keep one of several equal values: of the terms, or of the members over the index ``over``."""

    over: str | None
    count: Dim = 0
    word: ClassVar[str] = "same"
    bare: ClassVar[bool] = True

    @classmethod
    def schema(cls) -> dict[str, Any] | None:
        """Give the JSON Schema of the index."""
        return INDEX_SCHEMA

    @classmethod
    def parse(cls, argument: Any, context: OpContext) -> Self:
        """Read nothing, or an index."""
        return cls(None) if argument is None else cls(argument, context.count(argument))

    def infer(self, flow: Flow, fresh: Fresh) -> Inferred:
        """Keep the shape, which all must share."""
        from converter.ops.replicate import Replicate

        if self.over is not None:
            (value,) = flow
            return Inferred((Value(value.without(self.over), value.shape),), Replicate(self.over, self.count))
        bound = same_bound(flow, "same")
        shapes = [v.shape for v in flow if v.shape is not None]
        equations = equal_shapes(shapes, "same") if shapes else ()
        return Inferred((Value(bound, shapes[0] if shapes else None),), Replicate(None, len(flow)), equations)

    def apply(self, families: tuple[Any, ...]) -> Applied[Any]:
        """Keep the first, and check the others against it."""
        if self.over is None:
            bound, groups = families[0].bound, list(zip(*(f.items for f in families)))
        else:
            bound, groups = families[0].along(self.over)
        checks = tuple(DataCheck("differs", other, g[0]) for g in groups for other in g[1:])
        return Applied((Family(bound, tuple(g[0] for g in groups)),), checks, tuple(c.left for c in checks))

    def argument(self) -> Any:
        """Give the index."""
        return self.over
