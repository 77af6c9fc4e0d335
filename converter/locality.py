"""Sizes that are not those of the whole map: `_f` of one instance of a rule, or of one instance of a group.

Facts are one table. A local size stands there under a name of its own for each instance: the name that shapes give it,
and which instance it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from converter.dims import Dim, Poly, names, substitute
from converter.errors import MapError, Problem
from converter.flow import Chain
from converter.rules import LocalSize, Rule


def sizes_in_use(rule: Rule, declared: Mapping[str, LocalSize]) -> tuple[LocalSize, ...]:
    """The declared sizes that a rule uses; raises MapError for one that is not declared in a condition or constant, and
    where the rule gathers over an index that it depends on.
    """
    dims = [d for _, t in rule.terms() for d in t.shape or ()] + [d for e in rule.equations for d in e]
    used = {n for d in dims for n in names(d)} | {n for op in _ops(rule) for n in op.sizes()}
    said = [(c.expr, c.origin) for c in rule.conditions]
    said += [(rule.fill.value, rule.origin)] if rule.fill is not None else []
    for expr, origin in said:
        local = {n for n in expr.names if n.startswith("_")} if expr is not None else set()
        if local - set(declared):
            raise MapError(Problem(f"'{min(local - set(declared))}' is no local size of a group", "map", None, origin))
        used |= local
    out = tuple(declared[n] for n in sorted(used & set(declared)))
    for size in out:
        odd = next((i for i in size.indices if i not in rule.free), None)
        if odd is not None:
            text = f"'{size.name}' is a size of each {{{odd}}}, and this rule brings those of every {{{odd}}} together"
            raise MapError(Problem(text, "map", None, rule.origin))
    return out


def _ops(rule: Rule) -> Iterable[Any]:
    return (op for chain in (rule.chain, rule.back) if isinstance(chain, Chain) for op in chain.ops())


@dataclass(frozen=True)
class Locals:
    """The local sizes of one instance: the suffix of those of its rule alone, and the names of those of its groups."""

    suffix: str = ""
    shared: tuple[tuple[str, str], ...] = ()

    def values(self, known: Mapping[str, int]) -> tuple[str, tuple[int | None, ...]]:
        """What tells instances of one rule apart as far as sizes go, whatever they are called."""
        return self.suffix, tuple(known.get(full) for _, full in self.shared)

    def numbers(self, known: Mapping[str, int]) -> dict[str, int]:
        """What the sizes of this instance are, as far as they are known, under the names that shapes give them."""
        own = {n[: -len(self.suffix)]: v for n, v in known.items() if n.endswith(self.suffix)} if self.suffix else {}
        return own | {name: known[full] for name, full in self.shared if full in known}


def shared_sizes(rule: Rule, values: Mapping[str, Any]) -> Locals:
    """The sizes that an instance of a rule shares with its groups."""
    return Locals("", tuple((s.name, s.full(values)) for s in rule.locals))


def local_sizes(rule: Rule, values: Mapping[str, Any], shapes: Iterable[tuple[int, tuple[int, ...]]]) -> Locals:
    """The local sizes of an instance, given its index values and (term, shape) of its inputs.

    What is local to the rule alone depends on nothing but the shapes: instances that agree in them share its sizes.
    """
    if not rule.local:
        return _NONE
    return Locals(f"@{rule.number}:{sorted(set(shapes))}", shared_sizes(rule, values).shared)


_NONE = Locals()


def localise(dim: Dim, local: Locals) -> Dim:
    """Give the local sizes of a dim (`_f`) the names that they have in one instance."""
    here = [n for n in names(dim) if n[0] == "_"]
    if not here:
        return dim
    shared = dict(local.shared)
    if isinstance(dim, Poly) and dim.terms == (((here[0],), 1),):
        return Poly.of(shared.get(here[0], here[0] + local.suffix))
    return substitute(dim, {n: Poly.of(shared.get(n, n + local.suffix)) for n in here})
