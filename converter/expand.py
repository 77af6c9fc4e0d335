"""From rules to instances: one for each value of the free indices, with the names of all its tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from converter.alternatives import Forms
from converter.budget import Budget
from converter.errors import MismatchError, Problem
from converter.expressions import Expr
from converter.matching import Key, Matcher
from converter.namer import Namer
from converter.names import Label
from converter.rules import Rule

Members = dict[str, tuple[Label, ...]]


@dataclass
class Instance:
    """A rule for one value of its free indices: the names of each term, in row-major order over its bound indices.

    ``sources`` are names of the input as rules see them; a name that is not there stands in ``missing`` too.
    """

    rule: Rule
    values: dict[str, Label]
    members: Members
    sources: list[list[str]]
    targets: list[list[str]]
    missing: list[str] = field(default_factory=list)
    other_spellings: dict[str, list[str]] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether all of its inputs are there."""
        return not self.missing


class Expander:
    """Expand the rules of a ruleset over a matched input."""

    def __init__(self, matcher: Matcher) -> None:
        self.matcher, self.rules, self.inputs, self.facts = matcher, matcher.rules, matcher.inputs, matcher.facts
        self.forms = Forms(matcher)
        self.clashes: list[tuple[Instance, tuple[str, ...]]] = []
        self.budget = Budget(matcher)
        self.namer = Namer(matcher)

    def instances(self, rule: Rule) -> list[Instance]:
        """Give the instances of a rule; raises MismatchError for sizes that are not known, and for a rule that stands
        for nothing.
        """
        for term in rule.target:
            if any(h.single is None for h in term.name.holes):
                self.matcher.form(term.name, 1 - rule.side, rule.origin, check=True)
        self.budget.foresee(rule)
        out: list[Instance] = []
        one = self._one_to_one(rule)
        resting = False
        empty: str | None = None
        for values in self.free_values(rule):
            members = self.members(rule, values)
            if one is not None and members is not None and (instance := one(values)) is not None:
                out.append(instance)
            elif members is None:
                resting = True
            elif not _size(members):
                empty = next(n for n, labels in members.items() if not labels)
            else:
                out.append(self.instance(rule, values, members))
        resting = resting or any(c.kind != "form" for c in rule.conditions)
        self.budget.missing += sum(len(i.missing) for i in out)
        if not out and rule.source and not self._may_rest(rule) and (empty or not resting):
            raise MismatchError(Problem(self._nothing(rule, empty), "unused", None, rule.origin))
        return out

    def _may_rest(self, rule: Rule) -> bool:
        """Whether nobody minds that a rule stands for nothing: it is optional, or the first of its forms tells."""
        return bool(rule.scopes) or (rule.form is not None and rule.form[1] > 0)

    def _nothing(self, rule: Rule, empty: str | None) -> str:
        """Say why a rule stands for no tensor at all."""
        for name in (*rule.free, *rule.bound):
            size = self.rules.indices[name].size
            if size is not None and (name in rule.free or name == empty) and self.facts.evaluate(size) == 0:
                return f"stands for no tensor: {name} has no values, {self.facts.reason([size.dim()]) or size.text}"
        return f"matches no tensor: nothing has the form '{rule.source[0].name}'"

    def _range(self, rule: Rule, name: str, values: Mapping[str, Label]) -> Sequence[Label]:
        index = self.rules.indices[name]
        if index.size is None:
            return index.keys
        count = self.matcher.count_of(name, values)
        if count is None:
            follows = rule.fill is not None and rule.scopes  # what nothing counts, none of its group has
            if not follows and all(
                name not in self.matcher.tables[rule.number, k].order for k in range(len(rule.source))
            ):
                raise self.matcher.unknown(name, f"and '{rule.target[0].name}' is written for each {name}", rule.origin)
            return ()
        return range(count)

    def free_values(self, rule: Rule) -> Iterator[dict[str, Label]]:
        """Run over the values of a rule's free indices."""
        order = self._ordered(rule.free)
        if not any(self._ragged(name) for name in order):
            yield from self._box(rule, order)
            return

        def walk(k: int, values: dict[str, Label]) -> Iterator[dict[str, Label]]:
            if k == len(order):
                self.budget.expanded += 1
                self.budget.spend(self.budget.expanded, rule, *order)
                yield dict(values)
                return
            labels = self._range(rule, order[k], values)
            self.budget.spend(len(labels), rule, order[k])
            for label in labels:
                values[order[k]] = label
                yield from walk(k + 1, values)
            values.pop(order[k], None)

        yield from walk(0, {})

    def _ragged(self, name: str) -> bool:
        """Whether the count of an index depends on another index."""
        size = self.rules.indices[name].size
        return size is not None and not size.names.isdisjoint(self.rules.indices)

    def _box(self, rule: Rule, order: list[str]) -> Iterator[dict[str, Label]]:
        """Run over indices that are independent of each other."""
        ranges: list[Sequence[Label]] = []
        total = 1
        for name in order if order else ():
            ranges.append(self._range(rule, name, {}))
            total *= len(ranges[-1])
            self.budget.spend(total, rule, *order)
            if not total:
                return
        self.budget.expanded += total
        self.budget.spend(self.budget.expanded, rule, *order)
        for row in product(*ranges):
            yield dict(zip(order, row))

    def _ordered(self, names: tuple[str, ...]) -> list[str]:
        """Order indices so that a ragged one comes after those that its count depends on."""

        depths: dict[str, int] = {}

        def depth(name: str) -> int:
            if name not in depths:
                depths[name] = 0  # where counts depend on each other in a circle, none of them is known
                size = self.rules.indices[name].size
                inner = size.names & self.rules.indices.keys() if size is not None else ()
                depths[name] = 1 + max(map(depth, inner), default=0)
            return depths[name]

        return sorted(names, key=depth)

    def members(self, rule: Rule, values: Mapping[str, Label]) -> Members | None:
        """The values of each bound index, None where the conditions hold for none, or the tensors have another form of
        the rule; raises MismatchError.
        """
        if rule.form is None:
            return self._members(rule, values)
        forms = [(r, m) for r in self.forms.of(rule) if (m := self._members(r, values)) is not None]
        return self.forms.pick(rule, forms, values)

    def _members(self, rule: Rule, values: Mapping[str, Label]) -> Members | None:
        if not rule.bound:
            return {} if not rule.conditions or self._holds(rule, values) else None
        order = self._ordered(rule.bound)
        rows: list[dict[str, Label]] = [{}]
        for name in order:
            count = len(self._range(rule, name, {**values, **rows[0]})) if rows else 0
            self.budget.spend(len(rows) * count, rule, name)
            rows = [{**row, name: label} for row in rows for label in self._range(rule, name, {**values, **row})]
        if rule.conditions:
            rows = [row for row in rows if self._holds(rule, {**values, **row})]
            if not rows:
                return None
        members = {name: tuple(dict.fromkeys(row[name] for row in rows)) for name in order}
        if len(rows) != _size(members):
            raise MismatchError(
                Problem(
                    f"{' and '.join(order)} have different members for each other (by a condition, or "
                    f"a count that depends on an index), "
                    "so that their tensors form no block that could be joined",
                    "size",
                    None,
                    rule.origin,
                )
            )
        return members

    def _holds(self, rule: Rule, values: Mapping[str, Label]) -> bool:
        decided = self.matcher.holds(rule, values)
        if decided is None:
            scope = self.matcher.scope(rule, values)
            expr = next(c for c in rule.conditions if c.expr is not None and self.facts.evaluate(c.expr, scope) is None)
            name = next(n for n in sorted((expr.expr or _NEVER).names) if n not in self.facts.values and n not in scope)
            raise self.matcher.unknown(name, f"and `when: {expr.expr.text if expr.expr else ''}` needs it", expr.origin)
        return decided and all(
            self.namer.presence(c.name, values, c.origin) == (c.kind == "with")
            for c in rule.conditions
            if c.name is not None
        )

    def instance(self, rule: Rule, values: dict[str, Label], members: Members) -> Instance:
        """Name all tensors of a rule for one value of its free indices."""
        instance = Instance(rule, values, members, [], [])
        free: Key = tuple([values[i] for i in rule.free])
        for k, term in enumerate(rule.source):
            names: list[str] = []
            for bound in product(*[members[i] for i in term.bound]) if term.bound else _NO_BOUND:
                found = self.matcher.name_at(rule, k, free + bound)
                if len(found) > 1:
                    self.clashes.append((instance, found))
                if found:
                    names.append(found[0])
                else:
                    at = {**values, **dict(zip(term.bound, bound))}
                    name = self.namer.render(self.namer.spelled(term), at, rule.side, rule.origin)
                    names.append(name)
                    instance.missing.append(name)
                    others = [
                        self.namer.render(t.template, at, rule.side, rule.origin)
                        for t in term.spellings
                        if not t.choices
                    ]
                    if len(others) > 1:
                        instance.other_spellings[name] = [n for n in others if n != name]
            instance.sources.append(names)
        for term in rule.target:
            at_all = [values]
            if term.bound:
                rows = product(*[members[i] for i in term.bound])
                at_all = [{**values, **dict(zip(term.bound, bound))} for bound in rows]
            instance.targets.append([self.namer.render(term.name, at, 1 - rule.side, rule.origin) for at in at_all])
        return instance

    def _one_to_one(self, rule: Rule) -> Callable[[dict[str, Label]], Instance | None] | None:
        """The short way of :meth:`instance` for a rule of one tensor on either side, which is there in one spelling.

        It gives None where that is not so; a map of sixty thousand renames takes it sixty thousand times.
        """
        terms = (*rule.source, *rule.target)
        if len(rule.source) != 1 or len(rule.target) != 1 or any(t.bound for t in terms):
            return None
        table = self.matcher.tables[rule.number, 0]
        if not table.plain:
            return None
        names, free, target, side, origin = table.names, rule.free, rule.target[0].name, 1 - rule.side, rule.origin

        def one(values: dict[str, Label]) -> Instance | None:
            found = names.get(tuple([values[i] for i in free]))
            if not found or len(found) > 1:
                return None
            return Instance(rule, values, {}, [[*found.values()]], [[self.namer.render(target, values, side, origin)]])

        return one


_NO_BOUND: tuple[Key, ...] = ((),)
_NEVER = Expr("", frozenset(), None)  # type: ignore[arg-type]


def _size(members: Members) -> int:
    size = 1
    for labels in members.values():
        size *= len(labels)
    return size
