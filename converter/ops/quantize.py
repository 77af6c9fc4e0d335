"""`quantize`: a weight becomes float8 and a scale for each block of it, which is found, or given beside the weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from converter.ops.base import Applied, Family, Flow, Fresh, Inferred, OpContext, OpError, Value
from converter.ops.blocks import Blockwise, no_scale
from converter.ops.results import Result
from converter.spec import DTYPES


@dataclass(frozen=True)
class Quantize(Blockwise):
    """Divide each block of a weight by its scale, in float32, and give both; rounding is left to who casts.

    With one value the scale is the largest finite magnitude of the block over the largest number of ``dtype``, so
    that nothing saturates; with two it is the second one, and 0 / 0 is 0.
    """

    word: ClassVar[str] = "quantize"

    @classmethod
    def parse(cls, argument: Any, context: OpContext) -> Self:
        """Read `block` and `dtype`."""
        return cls(*cls.read(argument, context.dtypes[1], len(context.dtypes[0]) == 2))

    def complete(self, flow: Flow, fresh: Fresh) -> Flow:
        """Give the scale its shape."""
        return self.pair(flow, fresh)[0] if len(flow) == 2 else flow

    def infer(self, flow: Flow, fresh: Fresh) -> Inferred:
        """Give the weight its shape, and the scale its own."""
        from converter.ops.dequantize import Dequantize

        if len(flow) > 2:
            raise OpError(f"quantize takes a weight, and perhaps its scale, there are {len(flow)} values")
        kept = len(flow) == 2
        weight = flow[0]
        shape = None if weight.shape is None else self.grid(weight.shape, fresh)
        flow, equations = self.pair(flow, fresh) if kept else ((weight, Value(weight.bound, shape)), ())
        return Inferred(flow, Dequantize(self.rows, self.columns, self.dtype, kept), equations)

    def results(self, flow: tuple[Result, ...]) -> tuple[Result, ...]:
        """The weight is what the op says, a scale that it finds is float32, and nobody casts them."""
        weight = Result(frozenset().union(*(r.leaves for r in flow)), self.dtype, "none")
        if len(flow) == 2:
            return weight, Result(flow[1].leaves, flow[1].dtype, "term")
        return weight, Result(weight.leaves, "F32", "none")

    def objection(self, flow: tuple[frozenset[str], ...]) -> str | None:
        """Refuse a weight that is not floating."""
        odd = sorted(d for d in flow[0] if DTYPES[d].kind != "float")
        if odd:
            return f"is {odd[0]}, and quantize takes F64, F32, F16 and BF16"
        return no_scale(flow[1], self.word) if len(flow) == 2 else None

    def apply(self, families: tuple[Family[Any], ...]) -> Applied[Any]:
        """Divide each member by its scale."""
        weights = families[0]
        scales = families[1].items if len(families) == 2 else tuple(self.scales(w) for w in weights.items)
        made = tuple(self.scaled("divide", w, s) for w, s in zip(weights.items, scales))
        return Applied((Family(weights.bound, made), Family(weights.bound, scales)))
