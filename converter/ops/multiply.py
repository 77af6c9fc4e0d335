"""`multiply`: multiply by a constant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from converter.arrays import Arith
from converter.ops.arithmetic import WithNumber
from converter.ops.base import OpError


@dataclass(frozen=True)
class Multiply(WithNumber):
    """Multiply by ``number`` (divide by it when ``opposite``); zero is refused, since nothing leads back."""

    word: ClassVar[str] = "multiply"

    def value(self) -> float:
        """The constant, which is not zero."""
        value = super().value()
        if not value:
            raise OpError("multiply by 0 loses the tensor")
        return value

    def step(self) -> Arith:
        """Multiply, or divide, which rounds better than multiplying by the reciprocal."""
        return Arith("divide" if self.opposite else "multiply", self.value())

    def argument(self) -> Any:
        """Give the constant."""
        return f"1/({self.number.text})" if self.opposite else self.number.text
