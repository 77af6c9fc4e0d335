"""Numbers in names that index arithmetic gives, such as ``{6*block+k}``: which values of the indices they come from.

Where each index counts in steps that the smaller ones together cannot make, as digits do, a number is taken apart digit
by digit, however many values there are. Elsewhere the values of all indices but one are tried, if they are few.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from math import prod

from converter.dims import Dim, Poly
from converter.names import MAX_COMBINATIONS, Hole, Index, IndexValues, Label, TemplateError


@dataclass(frozen=True)
class Digit:
    """An index of a number: its step, its least and greatest value, and the keys of its values where it has labels."""

    name: str
    step: int
    low: int
    high: int
    keys: Mapping[int, Label] | None = None

    @property
    def reach(self) -> int:
        """How far its values take the number."""
        return abs(self.step) * max(0, self.high - self.low)

    @property
    def least(self) -> int:
        """The least that it adds to the number."""
        return self.step * (self.low if self.step > 0 else self.high)

    def key(self, value: int) -> Label | None:
        """What stands for a value, in range or not; None for none."""
        return (value if value >= 0 else None) if self.keys is None else self.keys.get(value)

    def values(self) -> Iterator[int]:
        """All values in range."""
        return iter(range(self.high + 1) if self.keys is None else self.keys)


@dataclass(frozen=True)
class Reading:
    """How the numbers of one hole are read: ``free`` may lie beyond its range, the others may not.

    ``open``: how many values the free index has is not known.
    """

    hole: Hole
    constant: int
    free: Digit
    others: tuple[Digit, ...]  # greatest steps first
    open: bool

    @cached_property
    def positional(self) -> bool:
        """Whether each index counts in steps that the smaller ones together cannot make."""
        reach = 0
        for digit in (*reversed(self.others), self.free):
            if abs(digit.step) <= reach:
                return False
            reach += digit.reach
        return True

    def read(self, number: int) -> IndexValues | None:
        """Give the values of the indices that give a number; None where there are none."""
        rest = number - self.constant
        if not self.positional:
            return self._tried(rest)
        rest -= sum(d.least for d in self.others)
        below = rest % abs(self.free.step)
        found: IndexValues = {}
        for digit, value in self._digits(below):
            key = digit.key(value) if digit.low <= value <= digit.high else None
            if key is None:
                return None
            found[digit.name] = key
        hit = self.free.key((rest - below) // self.free.step)
        used = sum(d.step * v for d, v in self._digits(below)) - sum(d.least for d in self.others)
        return {self.free.name: hit, **found} if hit is not None and used == below else None

    def _digits(self, below: int) -> Iterator[tuple[Digit, int]]:
        for digit in self.others:
            steps, below = divmod(below, abs(digit.step))
            yield digit, digit.low + steps if digit.step > 0 else digit.high - steps

    def ambiguous(self) -> bool:
        """Tell whether two values of the indices give one number; raises TemplateError where that takes too long."""
        if not self.others or self.positional or not (self.open or self.free.low <= self.free.high):
            return False
        for rests in self._combinations.values():
            ordered = sorted(rest for rest, _ in rests)
            if any(self.open or b - a <= self.free.reach for a, b in pairwise(ordered)):
                return True
        return False

    @cached_property
    def _combinations(self) -> dict[int, list[tuple[int, tuple[int, ...]]]]:
        """The values of all other indices with what they add, by what is left of that between two steps of the free
        one.
        """
        total = prod(d.high + 1 if d.keys is None else len(d.keys) for d in self.others)
        if total > MAX_COMBINATIONS:
            told = f"'{{{self.hole.text}}}' has {total} combinations of indices that give its numbers"
            raise TemplateError(
                f"{told} (at most {MAX_COMBINATIONS}, unless each counts in steps beyond the smaller ones)"
            )
        out: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
        for values in product(*(d.values() for d in self.others)):
            rest = sum(d.step * v for d, v in zip(self.others, values))
            out.setdefault(rest % abs(self.free.step), []).append((rest, values))
        return out

    def _tried(self, rest: int) -> IndexValues | None:
        beyond: IndexValues | None = None
        for used, values in self._combinations.get(rest % abs(self.free.step), ()):
            hit = self.free.key((rest - used) // self.free.step)
            if hit is None:
                continue
            found = {self.free.name: hit, **{d.name: d.key(v) for d, v in zip(self.others, values)}}
            if self.open or self.free.keys is not None or self.free.low <= int(hit) <= self.free.high:
                return found  # type: ignore[return-value]
            beyond = beyond or found  # type: ignore[assignment]
        return beyond


def reading(
    hole: Hole, dim: Dim, indices: Mapping[str, Index], side: int, counts: Mapping[str, int | None]
) -> Reading | None:
    """Make the reading of a hole, None where it holds no index; raises TemplateError where it is not linear in its
    indices, KeyError for an index whose count has to be known and is not.
    """
    slopes, constant = linear(hole, dim)
    if not slopes:
        return None
    free = max(slopes, key=lambda n: (counts.get(n) is None and indices[n].size is not None, abs(slopes[n]), n))
    digits = {n: _digit(indices[n], step, side, counts.get(n)) for n, step in slopes.items()}
    others = sorted((d for n, d in digits.items() if n != free), key=lambda d: (-abs(d.step), d.name))
    unknown = [d.name for d in others if d.keys is None and counts.get(d.name) is None]
    if unknown:
        raise KeyError(min(unknown))
    return Reading(hole, constant, digits[free], tuple(others), digits[free].keys is None and counts.get(free) is None)


def _digit(index: Index, step: int, side: int, count: int | None) -> Digit:
    if index.size is not None:
        return Digit(index.name, step, 0, (count or 0) - 1)
    keys = {v: k for k, v in zip(index.keys, index.labels(side)) if isinstance(v, int)}
    return Digit(index.name, step, min(keys, default=0), max(keys, default=-1), keys)


def linear(hole: Hole, dim: Dim) -> tuple[dict[str, int], int]:
    """Take a hole's polynomial apart into slopes and a constant; raises TemplateError where it is not linear."""
    slopes: dict[str, int] = {}
    constant = 0
    for monomial, c in dim.terms if isinstance(dim, Poly) else (((), dim),):
        if len(monomial) > 1:
            raise TemplateError(f"'{{{hole.text}}}' is not linear in its indices")
        if monomial:
            slopes[monomial[0]] = c
        else:
            constant = c
    return slopes, constant
