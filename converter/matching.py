"""Which names of an input have the form of which terms, with which indices; what is known from that.

Names are grouped by their skeleton (digits replaced by a mark), so that each template is tried only on names that could
be its own. The tables here only say what looks like what; who claims a name is decided in :mod:`converter.claims`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from converter.dims import Poly, names, substitute
from converter.errors import MapError, MismatchError, Origin, Problem
from converter.expressions import ExpressionError
from converter.facts import Equation, Facts
from converter.names import Form, IndexValues, Label, Template, TemplateError, ambiguity, compile_pattern, skeleton
from converter.rules import Drop, Rule, Ruleset, Term
from converter.spec import Header, TensorEntry

SLACK = 1000  # a count may pass the number of input tensors by this much
Key = tuple[Label, ...]


@dataclass
class Inputs:
    """The tensors of an input under the names that rules see: less a stripped prefix, with aliases of the metadata."""

    entries: dict[str, TensorEntry]
    stripped: dict[str, int]
    aliases: dict[str, str]
    clashes: list[tuple[str, str, str]]
    by_skeleton: dict[str, list[str]]

    def __contains__(self, name: str) -> bool:
        return name in self.entries or name in self.aliases

    def entry(self, name: str) -> TensorEntry:
        """The tensor under a name, or that its alias stands for."""
        return self.entries[name] if name in self.entries else self.entries[self.aliases[name]]


def read_inputs(header: Header, prefixes: tuple[str, ...]) -> Inputs:
    """Strip prefixes and resolve the aliases that the metadata records."""
    entries: dict[str, TensorEntry] = {}
    stripped: dict[str, int] = {}
    clashes: list[tuple[str, str, str]] = []

    def short(name: str, tally: bool) -> str:
        for prefix in prefixes:
            if name.startswith(prefix) and len(name) > len(prefix):
                name = name[len(prefix) :]
                if tally:
                    stripped[prefix] = stripped.get(prefix, 0) + 1
        return name

    for entry in header.tensors.values():
        name = short(entry.name, True) if prefixes else entry.name
        if name in entries:
            clashes.append((name, entries[name].name, entry.name))
        else:
            entries[name] = entry
    aliases: dict[str, str] = {}
    for alias, stored in header.metadata.items():
        a, s = short(alias, False), short(stored, False)
        if s in entries and a not in entries and stored in header.tensors:
            aliases[a] = s
    by_skeleton: dict[str, list[str]] = {}
    for name in (*entries, *aliases):
        by_skeleton.setdefault(skeleton(name), []).append(name)
    return Inputs(entries, stripped, aliases, clashes, by_skeleton)


@dataclass
class Table:
    """The names that have the form of one term: index values (free, then bound, in the term's order) -> spelling -> name."""

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
            raise MapError(Problem(f"'{template}': {odd}", "map", None, origin))
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
        """Add the counts that only names can tell: one more than the highest index; returns what is out of proportion."""
        highest: dict[str, tuple[int, str]] = {}
        ignored = set(self._dropped) | set(self.named_drops())
        by_size: dict[str, list[str]] = {}
        for name, index in self.rules.indices.items():
            if index.size is not None and index.size.text.isidentifier() and index.size.text not in self.facts.values:
                by_size.setdefault(index.size.text, []).append(name)
        wanted = {i: size for size, names_ in by_size.items() for i in names_}
        for (_, _), table in self.tables.items() if wanted else ():
            columns = [(c, wanted[i]) for c, i in enumerate(table.order) if i in wanted]
            for key, found in table.names.items() if columns else ():
                name = self.spelled(table, found)
                if name is None or name in ignored:
                    continue
                for c, size in columns:
                    value = key[c]
                    if isinstance(value, int) and value > highest.get(size, (-1, ""))[0]:
                        highest[size] = (value, name)
        problems = []
        for size, (value, name) in highest.items():
            if value + 1 > len(self.inputs.entries) + SLACK:
                where = f"{len(self.inputs.entries)} {'tensor' if len(self.inputs.entries) == 1 else 'tensors'}"
                text = f"counts up to {value}, out of all proportion to an input of {where} (if it is meant: --set {size}={value + 1})"
                problems.append(Problem(text, "size", name))
            else:
                self.facts.know(size, value + 1, f"counted from names, up to {name}")
        return problems

    def check_counts(self, from_set: frozenset[str]) -> list[Problem]:
        """Find counts that are out of proportion to the input and that nobody set."""
        problems = []
        for name, index in self.rules.indices.items():
            if index.size is None or index.size.names & (set(self.rules.indices) | from_set):
                continue
            count = self.count_of(name, {})
            if count is not None and count > len(self.inputs.entries) + SLACK:
                why = self.facts.reason([index.size.dim()])
                text = f"index '{name}' runs over {count} values, out of all proportion to the input's {len(self.inputs.entries)}"
                text += f" ({why})" if why else ""
                problems.append(Problem(text, "size", None, self.rules.index_origins[name]))
        return problems

    def observe(self) -> None:
        """Read equations off the shapes of names that match, for every rule whose conditions can be decided by now."""
        for rule in self.rules.rules:
            if rule.number in self._settled or (rule.fill is not None and not rule.source):
                continue
            done = self._observe_local(rule) if rule.local else self._observe(rule)
            if done:
                self._settled.add(rule.number)
        for rule in self.rules.rules:
            if rule.number in self._settled and not rule.local and ~rule.number not in self._settled:
                self._settled.add(~rule.number)
                self.facts.equations += [
                    Equation(a, b, rule.source[0].name.text if rule.source else "") for a, b in rule.equations
                ]

    def holds(self, rule: Rule, values: Mapping[str, Label]) -> bool | None:
        """Decide the `when` of a rule for some index values; None where a name is not known yet. Raises MismatchError."""
        for c in rule.conditions:
            if c.expr is None:
                continue
            try:
                value = self.facts.evaluate(c.expr, values)
            except ExpressionError as e:
                at = ", ".join(f"{k} = {v!r}" for k, v in values.items())
                raise MismatchError(
                    Problem(f"when: {e}" + (f" (at {at})" if at else ""), "size", None, c.origin)
                ) from None
            if value is None:
                return None
            if not value:
                return False
        return True

    def _relevant(self, rule: Rule, table: Table) -> Iterator[tuple[Key, str, bool | None]]:
        used = {n for c in rule.conditions if c.expr is not None for n in c.expr.names}
        columns = [c for c, i in enumerate(table.order) if i in used]
        cache: dict[Key, bool | None] = {}
        counts = self.counts()
        limits = [
            (c, n)
            for c, i in enumerate(table.order)
            if (n := counts.get(i)) is not None and self.rules.indices[i].size is not None
        ]
        for key, found in table.names.items():
            name = self.spelled(table, found)
            if name is None or name in self._dropped or any([int(key[c]) >= n for c, n in limits]):
                continue
            short = tuple([key[c] for c in columns])
            if short not in cache:
                try:
                    cache[short] = self.holds(rule, {table.order[c]: key[c] for c in columns}) if used else True
                except MismatchError:
                    cache[short] = False  # the index is out of the range of a list; told where the name is judged
            yield key, name, cache[short]

    def _observe(self, rule: Rule) -> bool:
        decided = True
        for k, term in enumerate(rule.source):
            if term.shape is None:
                continue
            seen: dict[tuple[int, ...], list[Any]] = {}
            for _, name, holds in self._relevant(rule, self.tables[rule.number, k]):
                if holds is None:
                    decided = False
                elif holds:
                    entry = self.inputs.entry(name)
                    seen.setdefault(entry.shape, [entry.name, 0])[1] += 1
            for shape, (name, weight) in seen.items() if decided else ():
                self._equate(term, shape, name, weight, "")
        return decided

    def _equate(self, term: Term, shape: tuple[int, ...], name: str, weight: int, suffix: str) -> None:
        if term.shape is None or len(term.shape) != len(shape):
            return
        for dim, number in zip(term.shape, shape):
            if not isinstance(dim, int):
                self.facts.equations.append(Equation(localise(dim, suffix), number, name, weight))

    def _observe_local(self, rule: Rule) -> bool:
        instances: dict[Key, list[tuple[int, str]]] = {}
        free = len(rule.free)
        for k in range(len(rule.source)):
            for key, name, holds in self._relevant(rule, self.tables[rule.number, k]):
                if holds is None:
                    return False
                if holds:
                    instances.setdefault(key[:free], []).append((k, name))
        seen: set[str] = set()
        for found in instances.values():
            suffix = signature(rule, [(k, self.inputs.entry(n).shape) for k, n in found])
            if suffix in seen:
                continue
            seen.add(suffix)
            for k, name in found:
                entry = self.inputs.entry(name)
                self._equate(rule.source[k], entry.shape, entry.name, 1, suffix)
            self.facts.equations += [
                Equation(localise(a, suffix), localise(b, suffix), found[0][1]) for a, b in rule.equations
            ]
        return True


def signature(rule: Rule, shapes: list[tuple[int, tuple[int, ...]]]) -> str:
    """Name what local sizes of an instance depend on: its rule and the shapes of its inputs. Instances that agree share them."""
    distinct = sorted(set(shapes))
    return f"@{rule.number}:{distinct}"


def localise(dim: Any, suffix: str) -> Any:
    """Give the local sizes of a dim (`_f`) the name that they have in one instance."""
    local = [n for n in names(dim) if n.startswith("_")]
    return substitute(dim, {n: Poly.of(n + suffix) for n in local}) if local else dim
