"""Names of a map in a form in which they can be compared: labels spelled out, counted indices as one mark.

So `a.{i}` and `a.{j}` are the same name, and `a.0` is a number of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import product
from math import prod

from converter.names import Hole, Index, Template
from converter.rules import Rule

MAX_LABELS = 2000
_RUN = re.compile(r"(\{#[0-9]+\}|[0-9]+)")
Runs = tuple[str, ...]


def canonical(template: Template, indices: Mapping[str, Index], side: int) -> list[str] | None:
    """List the names of a template with labels spelled out and numbers as a mark; None for index arithmetic or too
    many labels.
    """
    if any(h.single is None for h in template.holes):
        return None
    singles = sorted({h.single for h in template.holes if h.single is not None})
    labelled = [n for n in singles if n in indices and indices[n].size is None]
    choices = [indices[i].labels(side) for i in labelled]
    if prod(map(len, choices)) > MAX_LABELS:
        return None
    return ["".join(_part(p, dict(zip(labelled, row))) for p in template.parts) for row in product(*choices)]


def _part(part: str | Hole, labels: Mapping[str, int | str]) -> str:
    if isinstance(part, str):
        return part
    if part.single is not None and part.single in labels:
        return part.render({part.single: labels[part.single]})
    return f"{{#{part.width}}}"


class Owners:
    """The rules of the canonical names of a side, to be found by such a name, or by one that is a number of it."""

    def __init__(self) -> None:
        self.rules: dict[str, list[Rule]] = {}
        # The texts between the runs of digits and marks -> which of the runs are marks -> the digits of the others.
        self._marked: dict[Runs, dict[tuple[bool, ...], dict[Runs, list[str]]]] = {}

    def add(self, name: str, rule: Rule) -> None:
        """Take up a canonical name."""
        known = self.rules.get(name)
        if known is not None:
            known.append(rule)
            return
        self.rules[name] = [rule]
        if "{#" not in name:
            return
        texts, runs = _taken_apart(name)
        marks = tuple(run.startswith("{") for run in runs)
        left = tuple(run for run, mark in zip(runs, marks) if not mark)
        self._marked.setdefault(texts, {}).setdefault(marks, {}).setdefault(left, []).append(name)

    def find(self, name: str) -> Iterator[Rule]:
        """List the rules of a canonical name, and those of names that it is a number of: `l.0.e` of `l.{#0}.e`."""
        yield from self.rules.get(name, ())
        texts, runs = _taken_apart(name)
        for marks, owners in self._marked.get(texts, {}).items():
            left = tuple(run for run, mark in zip(runs, marks) if not mark)
            if all(run.isdigit() for run, mark in zip(runs, marks) if mark):
                for owner in owners.get(left, ()):
                    yield from self.rules[owner]

    def owns(self, name: str) -> bool:
        """Whether there is a rule of this name."""
        return next(self.find(name), None) is not None


def _taken_apart(name: str) -> tuple[Runs, Runs]:
    parts = _RUN.split(name)
    return tuple(parts[::2]), tuple(parts[1::2])
