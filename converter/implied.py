"""What the sources of a rule are where there is no header: the shapes and dtypes that its ops and its map imply."""

from __future__ import annotations

from collections.abc import Mapping

from converter.dims import Poly, names, substitute
from converter.flow import Chain, complete, results
from converter.ops.base import Shape, Value
from converter.ops.results import Result
from converter.rules import Rule, Ruleset


def implied_shapes(rule: Rule, sizes: Mapping[str, int]) -> list[Shape | None]:
    """Give the shapes of the sources of a rule, in numbers as far as sizes are known, None where none is stated."""
    shapes = [None if t.shape is None else tuple(substitute(d, sizes) for d in t.shape) for t in rule.source]
    follows = [t.shape is not None and any("~" in n for d in t.shape for n in names(d)) for t in rule.source]
    if not any(follows):
        return list(shapes)
    flow = tuple(
        Value(tuple((i, sizes.get(f"_#{i}", 1)) for i in t.bound), None if open_ else shape)
        for t, shape, open_ in zip(rule.source, shapes, follows)
    )
    return [v.shape for v in complete(rule.chain.bind(sizes), flow, Poly.of)]


def implied_dtype(rules: Ruleset, rule: Rule, k: int) -> str | None:
    """Give the dtype of a source: what an op of the way back makes, else what its term, its rule or the map states."""
    made = results(rule.back)[k] if isinstance(rule.back, Chain) and rule.target else Result(frozenset())
    if made.dtype and made.cast == "none":
        return made.dtype
    return rule.source[k].dtype or (None if made.cast == "term" else rule.dtypes[0] or rules.dtypes[0])
