"""What became of every name when a checkpoint went into a live model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from converter.folding import fold, visible
from converter.names import skeleton
from converter.report import Fate, Report


@dataclass(frozen=True)
class LoadReport(Report):
    """The report of :func:`converter.load`.

    ``loaded`` has an entry for each pair of a tensor of the checkpoint and a tensor of the model, ``missing`` the
    names of the model that got no value, ``unexpected`` the names of the checkpoint that went nowhere,
    ``shape_mismatch`` names of either. ``bytes_written`` counts what was put into the model. The other fields are
    those of :class:`converter.Report`.
    """

    @classmethod
    def of(cls, report: Report, **changes: Any) -> LoadReport:
        """Make one of a report, with some fields changed."""
        return cls(**{f.name: getattr(report, f.name) for f in fields(Report)} | changes)

    def verb(self) -> str:
        """What was done with the tensors that are counted first."""
        return "loaded"

    def lines(self) -> list[str]:
        """The text of the report, folded by layer, less the summary."""
        out = [f"loaded: {line}" for line in self._loaded()]
        for word, entries in (
            ("missing", self.missing),
            ("unexpected", self.unexpected),
            ("mismatched", self.shape_mismatch),
        ):
            out += [f"{word}: {line}" for line in _folded(entries)]
        return [*map(visible, out), *super().lines()]

    def _loaded(self) -> Iterable[str]:
        """One line for what layers share: sources, the destination, its dtype and shape, the ops."""
        sources: dict[str, list[str]] = {}
        for x in self.loaded:
            sources.setdefault(x.destination, []).append(x.source)
        groups: dict[Any, dict[str, Any]] = {}
        for x in self.loaded:
            forms = tuple(skeleton(n) for n in (x.destination, *sources[x.destination]))
            groups.setdefault((forms, x.dtype, x.shape, str(x.ops)), {})[x.destination] = x
        for same in groups.values():
            first = next(iter(same.values()))
            left = fold(s for name in same for s in sources[name])
            right = ", ".join(fold(same))
            ops = f" ({', '.join(map(show_op, first.ops))})" if first.ops else ""
            yield f"{', '.join(left)} -> {right} {first.dtype} {list(first.shape)}{ops}"


def show_op(op: Any) -> str:
    """Write an op as a map does, in one line."""
    return op if isinstance(op, str) else str(op).replace("'", "")


def _folded(entries: Iterable[Fate]) -> Iterable[str]:
    groups: dict[str, list[str]] = {}
    for e in entries:
        groups.setdefault(e.reason, []).append(e.name)
    for reason, names in groups.items():
        yield from (f"{name}: {reason}" for name in fold(names))
