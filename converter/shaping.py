"""Shapes of an input against what rules state and what is known of sizes."""

from __future__ import annotations

from typing import Any

from converter.dims import Poly, names, render_shape, solve, substitute
from converter.errors import Problem
from converter.facts import Facts
from converter.locality import Locals, localise
from converter.rules import Rule, Term
from converter.spec import TensorEntry


class Shaping:
    """Check shapes, each distinct one once; ``mismatches`` are (tensor, line of the map, what is wrong)."""

    def __init__(self, facts: Facts, problems: list[Problem]) -> None:
        self.facts, self.problems = facts, problems
        self.mismatches: list[tuple[str, Any, str]] = []
        self._shapes: dict[Any, str | None] = {}

    def fit(self, rule: Rule, entries: list[list[TensorEntry]], local: Locals) -> bool:
        """Whether every input of an instance has the shape that its rule states."""
        fits = True
        for k, (term, group) in enumerate(zip(rule.source, entries)):
            for e in group:
                key = (rule.number, k, e.shape, local)
                if key not in self._shapes:
                    self._shapes[key] = self.problem(term, e, local)
                text = self._shapes[key]
                if text is not None:
                    fits = False
                    self.mismatches.append((e.name, rule.origin, text))
        return fits

    def problem(self, term: Term, entry: TensorEntry, local: Locals) -> str | None:
        """Say what is wrong with the shape of one tensor, None where nothing is."""
        if term.shape is None:
            return None
        known = self.facts.numbers
        expected = tuple(substitute(localise(d, local), known) for d in term.shape)
        wrong = len(expected) != len(entry.shape) or any(
            (isinstance(want, int) and want != have) or (isinstance(want, Poly) and not self._possible(want, have))
            for want, have in zip(expected, entry.shape)
        )
        if not wrong:
            return None
        shown = tuple(_without_suffix(d) for d in term.shape)
        reason = self.facts.reason([localise(d, local) for d in term.shape])
        return f"shape is {list(entry.shape)}, expected {render_shape(shown)}" + (f" with {reason}" if reason else "")

    def _possible(self, want: Poly, have: int) -> bool:
        """Whether some sizes >= 0 could make an open dim what it is; only one open name is looked at."""
        open_names = names(want)
        if len(open_names) != 1:
            return True
        (name,) = open_names
        return (
            solve(want, have, name) is not None
            or solve(want * -1, -have, name) is not None
            or have == substitute(want, {name: 0})
        )

    def agree(self, rule: Rule, entries: list[list[TensorEntry]]) -> bool:
        """Whether the members of each term share shape and dtype."""
        for group in entries:
            first = group[0]
            for e in group[1:]:
                if e.shape != first.shape:
                    text = f"shape is {list(e.shape)}, {first.name} has {list(first.shape)}; an op joins equal shapes"
                    self.mismatches.append((e.name, rule.origin, text))
                    return False
                if e.dtype != first.dtype:
                    text = f"is {e.dtype} and {first.name} is {first.dtype}: different dtypes do not join"
                    self.problems.append(Problem(text, "dtype", e.name, rule.origin))
                    return False
        return True


def _without_suffix(dim: Any) -> Any:
    local = [n for n in names(dim) if n.startswith("_")]
    return substitute(dim, {n: Poly.of(n.split("~")[0]) for n in local}) if local else dim


def unknown_sizes(open_names: set[str], what: str = "the ops of this rule need") -> str:
    """Say which sizes have no value, and how to give them one."""
    shown = sorted(n for n in open_names if not n.startswith("_") and n.isidentifier())
    local = sorted({n.split("~")[0].lstrip("_") for n in open_names if n.startswith("_")} - {"part", "size"})
    if not shown and local:
        are, them = ("is", "it") if len(local) == 1 else ("are", "them")
        return f"{', '.join(local)} of the pattern {are} not known: name {them} in `shape` or `params`"
    if not shown:
        return "the sizes of the parts are not known: give the rule a `shape`"
    sets = " or ".join(f"--set {n}=..." for n in shown)
    one = len(shown) == 1
    return f"{', '.join(shown)} {'is' if one else 'are'} not known, and {what} {'it' if one else 'them'}: {sets}"
