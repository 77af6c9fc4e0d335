"""`dequantize`: a float8 weight and the scale of its blocks become the weight; the scale may be kept beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from converter.ops.base import Applied, Family, Flow, Fresh, Inferred, OpContext, OpError
from converter.ops.blocks import HELD_BY, Blockwise, no_scale
from converter.ops.results import Result


@dataclass(frozen=True)
class Dequantize(Blockwise):
    """Multiply each block of a weight by its scale, in float32; give the weight, and with ``keep`` the scale too.

    The format is that of DeepSeek-V3 (`weight`, `weight_scale_inv`): https://huggingface.co/deepseek-ai/DeepSeek-V3,
    README_WEIGHTS.md.
    """

    keep: bool = False
    word: ClassVar[str] = "dequantize"

    @classmethod
    def parse(cls, argument: Any, context: OpContext) -> Self:
        """Read `block` and `dtype`; the scale is kept if the rule has two names on its `to` side."""
        return cls(*cls.read(argument, context.dtypes[0], context.parts == 2), context.parts == 2)

    def complete(self, flow: Flow, fresh: Fresh) -> Flow:
        """Give the scale its shape."""
        return self.pair(flow, fresh)[0] if len(flow) == 2 else flow

    def infer(self, flow: Flow, fresh: Fresh) -> Inferred:
        """Give the weight its shape, and the scale its own."""
        from converter.ops.quantize import Quantize

        if len(flow) != 2:
            raise OpError(f"dequantize takes a weight and its scale, there are {len(flow)} values")
        flow, equations = self.pair(flow, fresh)
        inverse = Quantize(self.rows, self.columns, self.dtype)
        return Inferred(flow if self.keep else flow[:1], inverse, equations)

    def results(self, flow: tuple[Result, ...]) -> tuple[Result, ...]:
        """The weight is float32, until it is rounded; the scale is not cast but by its own term."""
        weight, scale = flow
        made = Result(weight.leaves | scale.leaves, "F32", "any", HELD_BY)
        return (made, Result(scale.leaves, scale.dtype, "term")) if self.keep else (made,)

    def objection(self, flow: tuple[frozenset[str], ...]) -> str | None:
        """Refuse a weight of another dtype."""
        weight, scale = flow
        odd = sorted(weight - {self.dtype})
        return f"is {odd[0]}, and dequantize takes a weight of {self.dtype} here" if odd else no_scale(scale, self.word)

    @property
    def exact(self) -> bool:
        """Dividing by a scale that was kept gives the weight back; a scale that has to be found again may differ."""
        return self.keep

    def apply(self, families: tuple[Family[Any], ...]) -> Applied[Any]:
        """Multiply each member by its scale, which is used up if it is not kept."""
        weights, scales = families
        made = tuple(self.scaled("multiply", w, s) for w, s in zip(weights.items, scales.items))
        families = (Family(weights.bound, made), scales)
        return Applied(families) if self.keep else Applied(families[:1], gone=scales.items)
