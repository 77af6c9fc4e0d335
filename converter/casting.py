"""Which dtype a target gets: the most specific statement wins, and nothing is cast that would lose its meaning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from converter.spec import DTYPES

# float dtypes that each float dtype holds exactly
_WIDENS: Mapping[str, frozenset[str]] = {
    "F64": frozenset(["F64", "F32", "F16", "BF16"]),
    "F32": frozenset(["F32", "F16", "BF16"]),
    "F16": frozenset(["F16"]),
    "BF16": frozenset(["BF16"]),
}
LARGEST: Mapping[str, float] = {
    "F64": 1.7976931348623157e308,
    "F32": 3.4028234663852886e38,
    "F16": 65504.0,
    "BF16": 3.3895313892515355e38,
}


_WHOLE: Mapping[str, float] = {"F64": 2.0**53, "F32": 2.0**24, "F16": 2.0**11, "BF16": 2.0**8}  # exact up to here


class CastError(ValueError):
    """Dtypes that do not join, or a cast that is refused."""


@dataclass(frozen=True)
class Stated:
    """A dtype that the map or a flag states for a target; ``named`` where a rule or term does, which then covers
    integers too.
    """

    dtype: str | None
    named: bool


def state(term: str | None, rule: str | None, flag: str | None, whole_map: str | None) -> Stated:
    """Let the most specific statement win: term, rule, `--dtype`, map; `keep` states that nothing is cast."""
    for dtype, named in ((term, True), (rule, True), (flag, False), (whole_map, False)):
        if dtype is not None:
            return Stated(None if dtype == "keep" else dtype, named)
    return Stated(None, False)


def widens(dtype: str, to: str) -> bool:
    """Say whether every value of one float dtype is one of the other."""
    return dtype in _WIDENS.get(to, frozenset())


def decide(leaves: Mapping[str, str], joining: Mapping[str, str | None], stated: Stated) -> str:
    """Give the dtype of a target that is made of ``leaves`` (name -> dtype); ``joining`` has what each side's map
    says of them.

    Raises CastError where dtypes do not join or a cast is refused.
    """
    results = {name: _one(name, dtype, stated) for name, dtype in leaves.items()}
    if stated.dtype is None and len(set(results.values())) > 1:
        results = {
            n: j if (j := joining.get(n)) not in (None, "keep") and widens(d, str(j)) else d for n, d in results.items()
        }
    if len(set(results.values())) > 1:
        (a, x), (b, y) = _two(results)
        raise CastError(f"{a} is {x} and {b} is {y}: different dtypes do not join (state one with `dtype`)")
    return str(next(iter(results.values())))


def _two(results: Mapping[str, str]) -> tuple[tuple[str, str], tuple[str, str]]:
    first = next(iter(results.items()))
    return first, next(item for item in results.items() if item[1] != first[1])


def _one(name: str, dtype: str, stated: Stated) -> str:
    to = stated.dtype
    if to is None or to == dtype:
        return dtype
    kind, goal = DTYPES[dtype].kind, DTYPES[to].kind
    if kind in ("float8", "packed"):
        other = ", or `dequantize` it with its scale" if kind == "float8" else ""
        raise CastError(
            f"{name} is {dtype}, which is not cast to {to} without its scale "
            f"(state `dtype: keep` to move it as it is{other})"
        )
    if kind == "float":
        if goal in ("float", "float8") or (stated.named and goal in ("int", "bool")):
            return to
        if not stated.named:
            return dtype
        raise CastError(f"{name} is {dtype}, which cannot become {to}")
    if not stated.named or kind == "complex":
        if stated.named:
            raise CastError(f"{name} is {dtype}, which cannot become {to}")
        return dtype
    if goal in ("packed", "float8", "complex"):
        raise CastError(f"{name} is {dtype}, which cannot become {to}")
    return to


def constant_problem(what: str, value: float, dtype: str) -> str | None:
    """Say why a constant is no value of a dtype, None where it is; ``value`` is the largest one of an arange."""
    row = DTYPES[dtype]
    if row.kind in ("packed", "complex", "float8"):
        return f"a fill cannot be {dtype}"
    if what == "arange" and row.kind == "bool":
        return "arange is no BOOL"
    if what == "arange" and row.kind == "float":
        return None if value <= _WHOLE[dtype] else f"arange up to {value:g} is not exact in {dtype}"
    if row.kind == "float":
        return f"{value:g} does not fit {dtype}" if abs(value) != float("inf") and abs(value) > LARGEST[dtype] else None
    if row.kind == "bool":
        return None if value in (0, 1) else f"{value:g} is no BOOL"
    low, high = (0, 2**row.bits) if dtype.startswith("U") else (-(2 ** (row.bits - 1)), 2 ** (row.bits - 1))
    return None if float(value).is_integer() and low <= value < high else f"{value:g} does not fit {dtype}"
