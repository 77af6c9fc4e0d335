"""Convert model checkpoints between layouts by declarative maps, in either direction.

``convert(input, output, map=...)`` does it; ``plan(input, map=...)`` says what it would do; ``load(model, input,
map=...)`` and ``export(model, output, map=...)`` do it with a live torch module. Every error that is raised on
purpose is a :class:`ConvertError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from converter.errors import ConvertError, FormatError, MapError, MismatchError, Origin, Problem, UsageError

if TYPE_CHECKING:
    from converter.live import export, load
    from converter.live_report import LoadReport
    from converter.report import Report
    from converter.run import Plan, convert, plan

__version__ = "0.1.0"
__all__ = [
    "ConvertError",
    "FormatError",
    "LoadReport",
    "MapError",
    "MismatchError",
    "Origin",
    "Plan",
    "Problem",
    "Report",
    "UsageError",
    "convert",
    "export",
    "load",
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
    if name == "LoadReport":
        from converter.live_report import LoadReport

        return LoadReport
    if name in ("load", "export"):
        try:
            from converter import live
        except ModuleNotFoundError as e:
            if e.name != "torch":
                raise
            return _without_torch(name)
        return getattr(live, name)
    raise AttributeError(f"module 'converter' has no attribute '{name}'")


def _without_torch(name: str) -> Any:
    """Stand for a function that needs torch where there is none."""

    def refuse(*args: Any, **options: Any) -> Any:
        raise UsageError(f"converter.{name} needs torch: pip install 'checkpoint-convert[torch]'")

    return refuse


def __dir__() -> list[str]:
    """List what the package offers, imported yet or not."""
    return sorted([*__all__, "__version__"])
