"""`log`: take the natural logarithm of each element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from converter.ops.arithmetic import WithoutNumber
from converter.ops.base import Op


@dataclass(frozen=True)
class Log(WithoutNumber):
    """Take the natural logarithm of each element."""

    word: ClassVar[str] = "log"

    def turned(self) -> Op:
        """Turn into `exp`."""
        from converter.ops.exp import Exp

        return Exp()
