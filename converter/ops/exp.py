"""`exp`: raise e to each element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from converter.arrays import Arith
from converter.ops.arithmetic import Elementwise
from converter.ops.base import Op, OpContext, OpError


@dataclass(frozen=True)
class Exp(Elementwise):
    """Raise e to each element."""

    word: ClassVar[str] = "exp"
    bare: ClassVar[bool] = True

    @classmethod
    def schema(cls) -> dict[str, Any] | None:
        """There is no argument."""
        return None

    @classmethod
    def parse(cls, argument: Any, context: OpContext) -> Self:
        """Read the bare word."""
        if argument is not None:
            raise OpError("exp takes no argument")
        return cls()

    def turned(self) -> Op:
        """Turn into `log`."""
        from converter.ops.log import Log

        return Log()

    def step(self) -> Arith:
        """The arithmetic of one element."""
        return Arith("exp")

    def argument(self) -> Any:
        """There is none."""
        return None
