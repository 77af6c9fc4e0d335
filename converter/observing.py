"""What the shapes of matching names say about sizes: one equation for each axis of each distinct shape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from converter.errors import MismatchError
from converter.facts import Equation
from converter.locality import Locals, local_sizes, localise
from converter.matching import Key, Matcher, Table
from converter.names import MAX_COMBINATIONS, Label
from converter.rules import Rule, Term


class Observer:
    """Read equations off a matched input, rule by rule, as soon as a rule's conditions can be decided."""

    def __init__(self, matcher: Matcher) -> None:
        self.matcher, self.rules, self.inputs, self.facts = matcher, matcher.rules, matcher.inputs, matcher.facts
        self._settled: set[int] = set()

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
                    Equation(a, b, rule.target[0].name.text if rule.target else "") for a, b in rule.equations
                ]

    def _relevant(self, rule: Rule, table: Table) -> Iterator[tuple[Key, str, bool | None]]:
        used = {n for c in rule.conditions if c.expr is not None for n in c.expr.names}
        used |= {i for size in rule.locals if size.name in used for i in size.indices}
        columns = [c for c, i in enumerate(table.order) if i in used]
        gathered = sorted(used & set(self.rules.indices))
        cache: dict[Key, bool | None] = {}
        counts = self.matcher.counts()
        limits = [
            (c, n)
            for c, i in enumerate(table.order)
            if (n := counts.get(i)) is not None and self.rules.indices[i].size is not None
        ]
        dropped = self.matcher.pattern_drops
        for key, name in self.matcher.spelled(table):
            if name in dropped or any(int(key[c]) >= n for c, n in limits):
                continue
            short = tuple([key[c] for c in columns])
            if short not in cache:
                at = {table.order[c]: key[c] for c in columns}
                cache[short] = self._any_holds(rule, at, [n for n in gathered if n not in at]) if used else True
            yield key, name, cache[short]

    def _any_holds(self, rule: Rule, values: dict[str, Label], gathered: list[str]) -> bool | None:
        """Whether a rule holds for some value of the indices that a name lacks, because its tensor gathers over them.

        None where a count or a name of the condition is not known yet.
        """
        if not gathered:
            try:
                return self.matcher.holds(rule, values)
            except MismatchError:
                return False  # the index is out of the range of a list; told where the name is judged
        index = self.rules.indices[gathered[0]]
        count = self.matcher.count_of(gathered[0], values)
        if count is None:
            return None
        labels = index.keys if index.size is None else range(min(count, MAX_COMBINATIONS))
        found: bool | None = False
        for label in labels:
            holds = self._any_holds(rule, {**values, gathered[0]: label}, gathered[1:])
            if holds:
                return True
            found = None if holds is None else found
        return found

    def _observe(self, rule: Rule) -> bool:
        decided = True
        for k, term in enumerate(rule.source):
            if term.shape is None:
                continue
            seen: dict[tuple[int, ...], list[Any]] = {}
            for _, name, holds in self._relevant(rule, self.matcher.tables[rule.number, k]):
                if holds is None:
                    decided = False
                elif holds:
                    entry = self.inputs.entry(name)
                    if entry.shape in seen:
                        seen[entry.shape][1] += 1
                    else:
                        seen[entry.shape] = [entry.name, 1]
            for shape, (name, weight) in seen.items() if decided else ():
                self._equate(term, shape, name, weight, _WHOLE)
        return decided

    def _equate(self, term: Term, shape: tuple[int, ...], name: str, weight: int, local: Locals) -> None:
        if term.shape is None or len(term.shape) != len(shape):
            return
        for dim, number in zip(term.shape, shape):
            if not isinstance(dim, int):
                self.facts.equations.append(Equation(localise(dim, local), number, name, weight))

    def _observe_local(self, rule: Rule) -> bool:
        instances: dict[Key, list[tuple[int, str]]] = {}
        free = len(rule.free)
        for k in range(len(rule.source)):
            for key, name, holds in self._relevant(rule, self.matcher.tables[rule.number, k]):
                if holds is None:
                    return False
                if holds:
                    instances.setdefault(key[:free], []).append((k, name))
        seen: set[Locals] = set()
        for key, found in instances.items():
            values = dict(zip(rule.free, key))
            local = local_sizes(rule, values, [(k, self.inputs.entry(n).shape) for k, n in found])
            if local in seen:
                continue
            seen.add(local)
            for size in rule.locals:
                self.facts.state(size, values)
            for k, name in found:
                entry = self.inputs.entry(name)
                self._equate(rule.source[k], entry.shape, entry.name, 1, local)
            self.facts.equations += [
                Equation(localise(a, local), localise(b, local), found[0][1]) for a, b in rule.equations
            ]
        return True


_WHOLE = Locals()
