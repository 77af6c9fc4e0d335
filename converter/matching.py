"""Which names of an input have the form of which terms, with which indices; what is known from that.

Names are grouped by their skeleton (digits replaced by a mark), so that each template is tried only on names that could
be its own. The tables here only say what looks like what; who claims a name is decided in :mod:`converter.claims`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from converter.errors import MapError, MismatchError, Origin, Problem, UsageError
from converter.expressions import Expr, ExpressionError, UnknownName
from converter.facts import Facts
from converter.folding import clip
from converter.forms import Form, ambiguity
from converter.inputs import Inputs
from converter.locality import shared_sizes
from converter.names import IndexValues, Label, Template, TemplateError
from converter.regexes import Sieve, compile_pattern
from converter.rules import Condition, Drop, LocalSize, Rule, Ruleset, Term

Key = tuple[Label, ...]


@dataclass
class Table:
    """The names that have the form of one term: index values (free, then bound, in the term's order) -> spelling ->
    name.
    """

    term: Term
    order: tuple[str, ...]
    names: dict[Key, dict[int, str]] = field(default_factory=dict)

    @property
    def plain(self) -> bool:
        """Whether the term has one spelling."""
        return len(self.term.spellings) == 1


def free_and_bound(rule: Rule, term: Term) -> tuple[str, ...]:
    """The order of index values in keys of a term's table."""
    return (*rule.free, *term.bound)


class Matcher:
    """The forms of a ruleset matched against the names of an input."""

    def __init__(self, rules: Ruleset, inputs: Inputs, facts: Facts) -> None:
        self.rules, self.inputs, self.facts = rules, inputs, facts
        self.tables: dict[tuple[int, int], Table] = {}
        self.chosen: dict[int, int] = {}
        self.undecoded: list[tuple[Rule, int, str]] = []
        self._settled: set[int] = set()
        self._decided: dict[tuple[Any, ...], bool] = {}
        self._indices_of: dict[str, tuple[str, ...]] = {}
        self._dropped = self._dropped_names()
        self._match_all()

    # Forms.

    def counts(self) -> dict[str, int | None]:
        """The count of each counted index, as far as it is known; for a ragged one the largest."""
        out: dict[str, int | None] = {}
        for name, index in self.rules.indices.items():
            if index.size is not None:
                ragged = index.size.names & set(self.rules.indices)
                value = None if ragged else self.count_of(name, {})
                out[name] = value
        return out

    def count_of(self, name: str, values: Mapping[str, Label]) -> int | None:
        """The count of one index, given the values of the indices that it depends on; None where it is not known."""
        index = self.rules.indices[name]
        if index.size is None:
            return len(index.keys)
        try:
            value = self.facts.evaluate(index.size, values)
        except ExpressionError as e:
            raise MismatchError(Problem(f"index '{name}': {e}", "size", None, self.rules.index_origins[name])) from None
        if value is not None and (not isinstance(value, int) or value < 0):
            why = "; ".join(f"{n} {self.facts.why[n]}" for n in sorted(index.size.names & self.facts.why.keys()))
            text = f"{name} has {clip(repr(value))} values, not a number of them" + (f" ({why})" if why else "")
            given = not isinstance(value, int) and self.facts.are_set(index.size.names)
            raise (UsageError if given else MismatchError)(Problem(text, "size", None, self.rules.index_origins[name]))
        return None if value is None else int(value)

    def form(self, template: Template, side: int, origin: Origin, check: bool = False) -> Form:
        """Make the form of a template with what is known now; raises MismatchError naming a size that is not known."""
        counts = self.counts()
        try:
            form = Form(template, self.rules.indices, side, self.facts.numbers, counts)
            odd = ambiguity(form) if check else None
        except KeyError as e:
            raise self.unknown(str(e.args[0]), f"the name '{template}' needs it", origin) from None
        except TemplateError as e:
            raise MapError(Problem(str(e), "map", None, origin)) from None
        if odd is not None:
            raise MismatchError(Problem(f"'{template}': {odd}", "numbering", None, origin))
        return form

    def unknown(self, name: str, why: str, origin: Origin | None) -> MismatchError:
        """Make the error that a size has no value."""
        index = self.rules.indices.get(name)
        what = index.size.text if index is not None and index.size is not None else name
        return MismatchError(Problem(f"{what} is not known, {why}: --set {what}=...", "size", None, origin))

    def hits(self, form: Form, undecoded: list[str] | None = None) -> Iterator[tuple[IndexValues, str]]:
        """List the input names of a form with their index values; names that no index gives go to ``undecoded``."""
        for look, numbers in form.looks():
            for name in self.inputs.with_numbers(look, numbers):
                values = form.match(name)
                if values is not None:
                    yield values, name
                elif undecoded is not None and form.looks_like(name):
                    undecoded.append(name)

    def _match_all(self) -> None:
        tally: dict[int, dict[int, int]] = {}
        for rule in self.rules.rules:
            for k, term in enumerate(rule.source):
                table = Table(term, free_and_bound(rule, term))
                self.tables[rule.number, k] = table
                for s, spelling in enumerate(term.spellings):
                    form = self.form(spelling.template, rule.side, rule.origin, check=True)
                    found = 0
                    odd: list[str] = []
                    for values, name in self.hits(form, odd):
                        found += 1
                        table.names.setdefault(tuple([values[i] for i in table.order]), {})[s] = name
                    self.undecoded += [(rule, s, n) for n in odd]
                    for group, choice in spelling.choices if found else ():
                        counts = tally.setdefault(group, {})
                        counts[choice] = counts.get(choice, 0) + found
        self.chosen = {g: max(c.items(), key=lambda x: (x[1], -x[0]))[0] for g, c in tally.items()}

    def active(self, term: Term, spelling: int) -> bool:
        """Whether a spelling is the one that this file uses, where a group prefix has several."""
        return all(self.chosen.get(g, 0) == c for g, c in term.spellings[spelling].choices)

    def spelled(self, table: Table) -> Iterable[tuple[Key, str]]:
        """The names of a table with their index values: the first that is spelled as this file spells it of each."""
        if table.plain:
            return [(key, name) for key, found in table.names.items() for name in found.values()]
        active = [s for s in range(len(table.term.spellings)) if self.active(table.term, s)]
        first = {key: next((found[s] for s in active if s in found), None) for key, found in table.names.items()}
        return [(key, name) for key, name in first.items() if name is not None]

    def name_at(self, rule: Rule, k: int, key: Key) -> tuple[str, ...]:
        """The input names that a term has at some index values: none, one, or several spellings at once."""
        table = self.tables[rule.number, k]
        found = table.names.get(key)
        if not found:
            return ()
        if table.plain:
            return tuple(found.values())
        return tuple(n for s, n in sorted(found.items()) if self.active(table.term, s))

    # Drops.

    def _dropped_names(self) -> dict[str, Drop]:
        out: dict[str, Drop] = {}
        drops = [(d, d.pattern, compile_pattern(d.pattern)) for d in self.rules.drop[0] if d.pattern is not None]
        sieve = Sieve([text for _, text, _ in drops])
        for name in self.inputs.entries if drops else ():
            found = next((k for k in sieve.of(name) if drops[k][2].fullmatch(name)), None)
            if found is not None:
                out[name] = drops[found][0]
        return out

    def named_drops(self) -> dict[str, tuple[Drop, IndexValues]]:
        """The input names that have the form of a named drop, with the indices."""
        out: dict[str, tuple[Drop, IndexValues]] = {}
        for drop in self.rules.drop[0]:
            for template in drop.templates:
                for values, name in self.hits(self.form(template, self.rules.side, drop.origin)):
                    out.setdefault(name, (drop, values))
        return out

    @property
    def pattern_drops(self) -> dict[str, Drop]:
        """The input names that a `{match}` drop takes."""
        return self._dropped

    # Conditions.

    def scope(self, rule: Rule, values: Mapping[str, Label]) -> Mapping[str, Label]:
        """What the expressions of a rule see besides the facts: its index values, and sizes that it shares."""
        shared = self._shared(rule, values)
        for size in shared:
            self.facts.state(size, values)
        return {**values, **shared_sizes(rule, values).numbers(self.facts.numbers)} if shared else values

    def _shared(self, rule: Rule, values: Mapping[str, Label]) -> tuple[LocalSize, ...]:
        """The sizes that a rule shares with its groups, once all the indices that they depend on have values."""
        told = all(i in values for size in rule.locals for i in size.indices)
        return rule.locals if told else ()

    def holds(self, rule: Rule, values: Mapping[str, Label]) -> bool | None:
        """Decide the `when` of a rule for some index values; None where a name is not known yet. Raises
        MismatchError.
        """
        for c in rule.conditions:
            if c.expr is None:
                continue
            local = tuple(size.full(values) for size in self._shared(rule, values) if size.name in c.expr.names)
            key = (c.expr.text, *[values.get(n) for n in self._asked(c.expr)], *local)
            if key not in self._decided:
                value = self._decide(c, self.scope(rule, values))
                if value is None and c.kind == "form":
                    continue
                if value is None:
                    return None
                self._decided[key] = value
            if not self._decided[key]:
                return False
        return True

    def _asked(self, expr: Expr) -> tuple[str, ...]:
        """The indices that an expression depends on: few of a rule's, so that one answer serves many tensors."""
        if expr.text not in self._indices_of:
            self._indices_of[expr.text] = tuple(sorted(expr.names & set(self.rules.indices)))
        return self._indices_of[expr.text]

    def _decide(self, condition: Condition, values: Mapping[str, Label]) -> bool | None:
        assert condition.expr is not None
        try:
            return condition.expr.holds({**self.facts.values, **values})
        except UnknownName:
            return None
        except ExpressionError as e:
            at = ", ".join(f"{k} = {v!r}" for k, v in values.items())
            text = f"when: {e}" + (f" (at {at})" if at else "")
            raise MismatchError(Problem(text, "size", None, condition.origin)) from None
