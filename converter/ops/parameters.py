"""The parameters of ops: sizes, which may be open, in tuples; and how they are written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from converter.dims import Poly, names, substitute


def put(value: Any, known: Mapping[str, int]) -> Any:
    """Put in the sizes that are known; give the very value where there are none."""
    if isinstance(value, Poly):
        return substitute(value, known)
    if isinstance(value, tuple) and value:
        new = tuple(put(v, known) for v in value)
        return value if all(a is b for a, b in zip(new, value)) else new
    return value


def open_sizes(value: Any) -> frozenset[str]:
    """Collect the names of the sizes that are open."""
    if isinstance(value, Poly):
        return names(value)
    if isinstance(value, tuple):
        return frozenset().union(*(open_sizes(v) for v in value))
    return frozenset()


def inline(value: Any) -> str:
    """Write plain data as one line of YAML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {inline(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(inline(v) for v in value) + "]"
    return str(value)
