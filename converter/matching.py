"""Which names of an input have the form of which terms, with which indices; what is known from that.

Names are grouped by their skeleton (digits replaced by a mark), so that each template is tried only on names that could
be its own. The tables here only say what looks like what; who claims a name is decided in :mod:`converter.claims`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from converter.errors import MapError, MismatchError, Origin, Problem
from converter.expressions import Expr, ExpressionError, UnknownName
from converter.facts import Facts
from converter.forms import Form, ambiguity
from converter.inputs import Inputs
from converter.names import IndexValues, Label, Template, TemplateError
from converter.regexes import compile_pattern
from converter.rules import Condition, Drop, Rule, Ruleset, Term

SLACK = 1000  # a count may pass the number of input tensors by this much
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
            raise MismatchError(
                Problem(f"index '{name}' has {value!r} values", "size", None, self.rules.index_origins[name])
            )
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
        for s in form.skeletons():
            for name in self.inputs.by_skeleton.get(s, ()):
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

    def spelled(self, table: Table, found: dict[int, str]) -> str | None:
        """The first of the names found for a term that is spelled as this file spells it."""
        if table.plain:
            return next(iter(found.values()))
        return next((n for s, n in sorted(found.items()) if self.active(table.term, s)), None)

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
        for drop in self.rules.drop[0]:
            if drop.pattern is not None:
                pattern = compile_pattern(drop.pattern)
                for name in self.inputs.entries:
                    if pattern.fullmatch(name):
                        out.setdefault(name, drop)
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

    # What names and shapes say about sizes.

    def count_from_names(self) -> list[Problem]:
        """Add the counts that only names can tell: one more than the highest index; returns what is out of
        proportion.
        """
        highest: dict[str, tuple[int, str]] = {}
        ignored = set(self._dropped) | set(self.named_drops())
        by_size: dict[str, list[str]] = {}
        for name, index in self.rules.indices.items():
            if index.size is not None and index.size.text.isidentifier() and index.size.text not in self.facts.values:
                by_size.setdefault(index.size.text, []).append(name)
        wanted = {i: size for size, names_ in by_size.items() for i in names_}
        for table in self.tables.values() if wanted else ():
            columns = [(c, wanted[i]) for c, i in enumerate(table.order) if i in wanted]
            for key, found in table.names.items() if columns else ():
                spelled = self.spelled(table, found)
                if spelled is None or spelled in ignored:
                    continue
                for c, size in columns:
                    value = key[c]
                    if isinstance(value, int) and value > highest.get(size, (-1, ""))[0]:
                        highest[size] = (value, spelled)
        problems = []
        for size, (value, name) in highest.items():
            if value + 1 > len(self.inputs.entries) + SLACK:
                where = f"{len(self.inputs.entries)} {'tensor' if len(self.inputs.entries) == 1 else 'tensors'}"
                text = (
                    f"counts up to {value}, out of all proportion to an input of {where} (if it is "
                    f"meant: --set {size}={value + 1})"
                )
                problems.append(Problem(text, "size", name))
            else:
                self.facts.know(size, value + 1, f"counted from names, up to {name}")
        return problems

    def count_lists(self) -> None:
        """Add the lists of counts that only names can tell: for `depth[b]` an item for each b, the highest index and
        one. A list that has a default is not counted.
        """
        for name, index in self.rules.indices.items():
            item = index.size.item if index.size is not None else None
            param = self.rules.params.get(item[0]) if item is not None else None
            if item is None or item[0] in self.facts.values or (param is not None and param.default is not None):
                continue
            outer = self.rules.indices.get(item[1])
            length = self.count_of(item[1], {}) if outer is not None and outer.size is not None else None
            tables = [t for t in self.tables.values() if {name, item[1]} <= set(t.order)]
            if length is not None and tables:
                counts = self._highest(tables, name, item[1], length)
                if max(counts, default=0) <= len(self.inputs.entries) + SLACK:
                    self.facts.know(item[0], counts, "counted from names")

    def _highest(self, tables: list[Table], name: str, outer: str, length: int) -> list[int]:
        """Count an index for each value of another one."""
        counts = [0] * length
        for table in tables:
            row, column = table.order.index(outer), table.order.index(name)
            for key, found in table.names.items():
                spelled, at = self.spelled(table, found), int(key[row])
                if spelled is not None and spelled not in self._dropped and at < length:
                    counts[at] = max(counts[at], int(key[column]) + 1)
        return counts

    def check_counts(self, from_set: frozenset[str]) -> list[Problem]:
        """Find counts that are out of proportion to the input and that nobody set."""
        problems = []
        for name, index in self.rules.indices.items():
            if index.size is None or index.size.names & (set(self.rules.indices) | from_set):
                continue
            count = self.count_of(name, {})
            if count is not None and count > len(self.inputs.entries) + SLACK:
                why = self.facts.reason([index.size.dim()])
                few = len(self.inputs.entries)
                text = f"index '{name}' runs over {count} values, out of all proportion to the input's {few}"
                text += f" ({why})" if why else ""
                problems.append(Problem(text, "size", None, self.rules.index_origins[name]))
        return problems

    def holds(self, rule: Rule, values: Mapping[str, Label]) -> bool | None:
        """Decide the `when` of a rule for some index values; None where a name is not known yet. Raises
        MismatchError.
        """
        for c in rule.conditions:
            if c.expr is None:
                continue
            key = (c.expr.text, *[values.get(n) for n in self._asked(c.expr)])
            if key not in self._decided:
                value = self._decide(c, values)
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
