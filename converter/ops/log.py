"""`log`: take the natural logarithm of each element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from converter.arrays import Arith
from converter.ops.arithmetic import Elementwise
from converter.ops.base import Op, OpContext, OpError


@dataclass(frozen=True)
class Log(Elementwise):
    """Take the natural logarithm of each element."""

    word: ClassVar[str] = "log"
    bare: ClassVar[bool] = True

    @classmethod
    def schema(cls) -> dict[str, Any] | None:
        """There is no argument."""
        return None

    @classmethod
    def parse(cls, argument: Any, context: OpContext) -> Self:
        """Read the bare word."""
        if argument is not None:
            raise OpError("log takes no argument")
        return cls()

    def turned(self) -> Op:
        """Turn into `exp`."""
        from converter.ops.exp import Exp

        return Exp()

    def step(self) -> Arith:
        """The arithmetic of one element."""
        return Arith("log")

    def argument(self) -> Any:
        """There is none."""
        return None
