"""`exp`: raise e to each element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from converter.ops.arithmetic import WithoutNumber
from converter.ops.base import Op


@dataclass(frozen=True)
class Exp(WithoutNumber):
    """Raise e to each element."""

    word: ClassVar[str] = "exp"

    def turned(self) -> Op:
        """Turn into `log`."""
        from converter.ops.log import Log

        return Log()
