"""What `add`, `multiply`, `exp` and `log` share: one step of arithmetic on each element, in float32 or wider."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from converter.arrays import Arith
from converter.expressions import Expr, ExpressionError, UnknownName, parse
from converter.ops.base import Applied, Flow, Fresh, Inferred, Op, OpContext, OpError
from converter.spec import DTYPES

NUMBER_SCHEMA: dict[str, Any] = {
    "type": ["number", "string"],
    "description": "a number, or an expression of params and sizes",
}


@dataclass(frozen=True)
class Elementwise(Op):
    """Base of the arithmetic ops: shapes stay, and elements are rounded once, at the end of the rule."""

    lossless: ClassVar[bool] = False

    def step(self) -> Arith:
        """The arithmetic of one element."""
        raise AssertionError("each op defines its step")

    def turned(self) -> Op:
        """The opposite op."""
        raise AssertionError("each op defines its opposite")

    def infer(self, flow: Flow, fresh: Fresh) -> Inferred:
        """Keep the shape."""
        return Inferred(flow, self.turned())

    def objection(self, flow: tuple[frozenset[str], ...]) -> str | None:
        """Refuse what is no floating tensor."""
        odd = sorted(d for d in flow[0] if DTYPES[d].kind != "float")
        return f"is {odd[0]}, arithmetic is done on F64, F32, F16 and BF16 only" if odd else None

    def apply(self, families: tuple[Any, ...]) -> Applied[Any]:
        """Compute each member."""
        step = self.step()
        return Applied(tuple(f.map(lambda x: x.arith(step)) for f in families))


@dataclass(frozen=True)
class WithoutNumber(Elementwise):
    """Arithmetic that has no parameter: the bare word."""

    bare: ClassVar[bool] = True

    @classmethod
    def schema(cls) -> dict[str, Any] | None:
        """There is no argument."""
        return None

    @classmethod
    def parse(cls, argument: Any, context: OpContext) -> Self:
        """Read the bare word."""
        if argument is not None:
            raise OpError(f"{cls.word} takes no argument")
        return cls()

    def step(self) -> Arith:
        """The arithmetic of one element, which has the op's name."""
        return Arith(self.word)

    def argument(self) -> Any:
        """There is none."""
        return None


@dataclass(frozen=True)
class WithNumber(Elementwise):
    """Arithmetic with a constant: an expression, and whether the opposite is meant."""

    number: Expr
    opposite: bool = False

    @classmethod
    def schema(cls) -> dict[str, Any] | None:
        """Give the JSON Schema of the constant."""
        return NUMBER_SCHEMA

    @classmethod
    def parse(cls, argument: Any, context: OpContext) -> Self:
        """Read a number or an expression."""
        return cls(parse_number(argument, cls.word))

    def bind(self, known: Mapping[str, Any]) -> Self:
        """Compute the constant where all of its names are known."""
        if not self.number.names:
            return self
        try:
            return replace(self, number=parse(repr(_checked(self.number, known)), True))
        except UnknownName:
            return self

    def sizes(self) -> frozenset[str]:
        """The names that the constant still needs."""
        return self.number.names

    def infer(self, flow: Flow, fresh: Fresh) -> Inferred:
        """Keep the shape; raises OpError for a constant of no use, as soon as it is known."""
        if not self.number.names:
            self.value()
        return super().infer(flow, fresh)

    def turned(self) -> Op:
        """Turn addition into subtraction, multiplication into division, and back."""
        return replace(self, opposite=not self.opposite)

    def value(self) -> float:
        """The constant; raises OpError when it is not known or no number."""
        try:
            return float(_checked(self.number, {}))
        except UnknownName as e:
            raise OpError(f"{self.word}: {e}") from None


def _checked(number: Expr, known: Mapping[str, Any]) -> Any:
    try:
        value = number.evaluate(known)
    except ExpressionError as e:
        raise OpError(str(e)) from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise OpError(f"'{number.text}' is {value!r}, not a number")
    return value


def parse_number(argument: Any, word: str) -> Expr:
    """Read a number or a decimal expression; raises OpError."""
    if isinstance(argument, bool) or not isinstance(argument, int | float | str):
        raise OpError(f"{word} takes a number or an expression, not {argument!r}")
    if isinstance(argument, float) and not math.isfinite(argument):
        raise OpError(f"{word} takes a finite number, not {argument}")
    try:
        return parse(str(argument), True)
    except ExpressionError as e:
        raise OpError(str(e)) from None
