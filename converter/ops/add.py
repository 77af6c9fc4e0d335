"""`add`: add a constant, as for norms that one side stores centred on zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from converter.arrays import Arith
from converter.ops.arithmetic import WithNumber


@dataclass(frozen=True)
class Add(WithNumber):
    """Add ``number`` (subtract it when ``opposite``)."""

    word: ClassVar[str] = "add"

    def step(self) -> Arith:
        """Add the constant, or its negative."""
        return Arith("add", -self.value() if self.opposite else self.value())

    def argument(self) -> Any:
        """Give the constant."""
        return f"-({self.number.text})" if self.opposite else self.number.text
