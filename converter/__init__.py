"""Convert model checkpoints between layouts by declarative maps, in either direction.

``convert(input, output, map=...)`` does it; ``plan(input, map=...)`` says what it would do. Every error that is
raised on purpose is a :class:`ConvertError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from converter.errors import ConvertError, FormatError, MapError, MismatchError, Origin, Problem, UsageError

if TYPE_CHECKING:
    from converter.report import Report
    from converter.run import Plan, convert, plan

__version__ = "0.1.0"
__all__ = [
    "ConvertError",
    "FormatError",
    "MapError",
    "MismatchError",
    "Origin",
    "Plan",
    "Problem",
    "Report",
    "UsageError",
    "convert",
    "plan",
]


def __getattr__(name: str) -> Any:
    """Import the API when it is asked for: a command line that only prints its help does not pay for it."""
    if name in ("convert", "plan", "Plan"):
        from converter import run

        return getattr(run, name)
    if name == "Report":
        from converter.report import Report

        return Report
    raise AttributeError(f"module 'converter' has no attribute '{name}'")


def __dir__() -> list[str]:
    """List what the package offers, imported yet or not."""
    return sorted([*__all__, "__version__"])
