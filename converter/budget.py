"""How many tensors a map may stand for: a size with a digit too many ends in one line, not in hours."""

from __future__ import annotations

from math import prod

from converter.errors import MismatchError, Problem
from converter.matching import Matcher
from converter.rules import Rule

MAX_NAMES = 300_000  # values of free indices, and members of bound ones, of all rules in one run
FEW = 10  # names of one rule that are listed in any case
MAX_MISSING = 10_000  # names that are listed as missing, beside two for each tensor of the input


class Budget:
    """What the rules of one run have expanded to so far."""

    def __init__(self, matcher: Matcher) -> None:
        self.matcher, self.facts, self.indices = matcher, matcher.facts, matcher.rules.indices
        self.expanded = 0
        self.missing = 0

    def spend(self, names: int, rule: Rule, *order: str) -> None:
        """Refuse to expand a map beyond all bounds; raises MismatchError."""
        if names > MAX_NAMES:
            reason = self._reason(order)
            text = f"stands for more than {MAX_NAMES} tensors" + (f", {reason}" if reason else "")
            raise MismatchError(Problem(text, "size", None, rule.origin))

    def foresee(self, rule: Rule) -> None:
        """Refuse a rule most of whose tensors are not there, before they are named one by one; raises MismatchError."""
        free = rule.conditions or rule.scopes or rule.form is not None or rule.tie is not None
        if free or not rule.source:
            return
        table = self.matcher.tables[rule.number, 0]
        counts = [self._count(name) for name in table.order]
        if None in counts:
            return
        total, have = prod(n for n in counts if n is not None), len(table.names)
        left = MAX_MISSING + 2 * len(self.matcher.inputs.entries) - self.missing
        if total - have > max(left, FEW):
            reason = self._reason(table.order)
            text = f"stands for {total} tensors" + (f", {reason}" if reason else "") + f"; the input has {have} of them"
            raise MismatchError(Problem(text, "missing", None, rule.origin))

    def _count(self, name: str) -> int | None:
        """How many values an index has, None where that is not known or depends on another index."""
        size = self.indices[name].size
        if size is not None and not size.names.isdisjoint(self.indices):
            return None
        return self.matcher.count_of(name, {})

    def _reason(self, order: tuple[str, ...]) -> str:
        sizes = [self.indices[name].size for name in order]
        return self.facts.reason([size.dim() for size in sizes if size is not None])
