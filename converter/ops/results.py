"""What the dtype of a value depends on, as it flows through ops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    """What the dtype of a value depends on: the source terms that it is made of (``leaves``, by number).

    ``dtype`` is what an op makes of them whatever they have (None: nothing does), ``cast`` who may have that cast:
    `any` statement, the `term` alone, or `none`. A dtype that is in ``held_by`` holds all that the way back needs.
    """

    leaves: frozenset[int]
    dtype: str | None = None
    cast: str = "any"
    held_by: frozenset[str] = frozenset()

    def dtypes(self, sources: Sequence[str]) -> frozenset[str]:
        """The dtypes that reach an op, where the source terms have these."""
        return frozenset([self.dtype]) if self.dtype else frozenset(sources[k] for k in self.leaves)
