"""Who claims a name: rules are expanded into instances, and each input name meets exactly one fate.

The order: a literal or templated rule whose indices are in range and whose conditions hold; a named drop; a pattern
drop; a name of a template's form that is out of range or ruled out (unexpected, with the reason); regex renames; the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from converter.errors import ConvertError, MapError, MismatchError, Origin, Problem
from converter.expressions import Expr
from converter.matching import Inputs, Key, Matcher
from converter.names import Label, Renderer, Template, TemplateError, renderer
from converter.rules import Drop, RegexRule, Rule, Scope, Term

MAX_NAMES = 1_000_000  # that a map may stand for in one run
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


@dataclass
class Ledger:
    """The fates of all names, as far as matching decides them."""

    instances: list[Instance] = field(default_factory=list)
    claimed: dict[str, Instance] = field(default_factory=dict)
    dropped: dict[str, Drop | None] = field(default_factory=dict)
    renamed: dict[str, tuple[RegexRule, str]] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)
    unexpected: dict[str, tuple[str, Origin | None]] = field(default_factory=dict)
    absent: dict[str, Origin] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


class Claims:
    """Expand a ruleset over matched names into a ledger."""

    def __init__(self, matcher: Matcher, unmatched: str) -> None:
        self.matcher, self.unmatched = matcher, unmatched
        self.rules, self.inputs, self.facts = matcher.rules, matcher.inputs, matcher.facts
        self.ledger = Ledger()
        self._expanded = 0
        self._failed: set[int] = set()  # rules that could not be expanded: their names are not judged
        self._present: dict[str, bool] = {}
        self._renderers: dict[tuple[str, int], Renderer] = {}
        self._from_forms: list[tuple[Rule, Term, int, Any]] | None = None

    def run(self) -> Ledger:
        """Judge every name; problems are collected in the ledger."""
        for rule in self.rules.rules:
            try:
                self._expand(rule)
            except ConvertError as e:
                if e.exit_code != 1:
                    raise
                self._failed.add(rule.number)
                self.ledger.problems += e.problems
        self._settle_scopes()
        self._claim()
        self._judge_rest()
        return self.ledger

    # Expansion.

    def _expand(self, rule: Rule) -> None:
        for term in rule.target:
            if any(h.single is None for h in term.name.holes):
                self.matcher.form(term.name, 1 - rule.side, rule.origin, check=True)
        found = resting = 0
        empty: str | None = None
        for values in self._free_values(rule):
            members = self._members(rule, values)
            if members is None:
                resting += 1
                continue
            if not _size(members):
                empty = next(n for n, labels in members.items() if not labels)
                continue
            found += 1
            self.ledger.instances.append(self._instance(rule, values, members))
        if not found and not rule.scopes and rule.source and (empty or not (resting or rule.conditions)):
            self.ledger.problems.append(Problem(self._nothing(rule, empty), "unused", None, rule.origin))

    def _nothing(self, rule: Rule, empty: str | None) -> str:
        """Say why a rule stands for no tensor at all."""
        for name in (*rule.free, *rule.bound):
            size = self.rules.indices[name].size
            if size is not None and (name in rule.free or name == empty) and self.facts.evaluate(size) == 0:
                return f"stands for no tensor: {name} has no values, {self.facts.reason([size.dim()]) or size.text}"
        return f"matches no tensor: nothing has the form '{rule.source[0].name}'"

    def _spend(self, names: int, rule: Rule, index: str) -> None:
        """Refuse to expand a map beyond all bounds: a size with a digit too many."""
        if names > MAX_NAMES:
            size = self.rules.indices[index].size
            reason = self.facts.reason([size.dim()]) if size is not None else ""
            text = f"stands for more than {MAX_NAMES} tensors" + (f", {reason}" if reason else "")
            raise MismatchError(Problem(text, "size", None, rule.origin))

    def _range(self, rule: Rule, name: str, values: Mapping[str, Label]) -> Sequence[Label]:
        index = self.rules.indices[name]
        if index.size is None:
            return index.keys
        count = self.matcher.count_of(name, values)
        if count is None:
            if all(name not in self.matcher.tables[rule.number, k].order for k in range(len(rule.source))):
                raise self.matcher.unknown(name, f"and '{rule.target[0].name}' is written for each {name}", rule.origin)
            return ()
        return range(count)

    def _free_values(self, rule: Rule) -> Iterator[dict[str, Label]]:
        order = self._ordered(rule.free)

        def walk(k: int, values: dict[str, Label]) -> Iterator[dict[str, Label]]:
            if k == len(order):
                self._expanded += 1
                self._spend(self._expanded, rule, order[-1] if order else "")
                yield dict(values)
                return
            labels = self._range(rule, order[k], values)
            self._spend(len(labels), rule, order[k])
            for label in labels:
                values[order[k]] = label
                yield from walk(k + 1, values)
            values.pop(order[k], None)

        yield from walk(0, {})

    def _ordered(self, names: tuple[str, ...]) -> list[str]:
        """Order indices so that a ragged one comes after those that its count depends on."""

        def depth(name: str, seen: frozenset[str] = frozenset()) -> int:
            size = self.rules.indices[name].size
            inner = (size.names & set(self.rules.indices)) - seen if size is not None else frozenset()
            return 1 + max((depth(n, seen | {name}) for n in inner), default=0)

        return sorted(names, key=lambda n: depth(n))

    def _members(self, rule: Rule, values: Mapping[str, Label]) -> Members | None:
        """The values of each bound index, None where the conditions hold for none; raises MismatchError."""
        if not rule.bound:
            return {} if not rule.conditions or self._holds(rule, values) else None
        order = self._ordered(rule.bound)
        rows: list[dict[str, Label]] = [{}]
        for name in order:
            self._spend(len(rows) * len(self._range(rule, name, {**values, **rows[0]})) if rows else 0, rule, name)
            rows = [{**row, name: label} for row in rows for label in self._range(rule, name, {**values, **row})]
        if rule.conditions:
            rows = [row for row in rows if self._holds(rule, {**values, **row})]
            if not rows:
                return None
        members = {name: tuple(dict.fromkeys(row[name] for row in rows)) for name in order}
        if len(rows) != _size(members):
            raise MismatchError(
                Problem(
                    f"{' and '.join(order)} have different members for each other (by a condition, or a count that depends on an index), "
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
            expr = next(
                c for c in rule.conditions if c.expr is not None and self.facts.evaluate(c.expr, values) is None
            )
            name = next(
                n for n in sorted((expr.expr or _NEVER).names) if n not in self.facts.values and n not in values
            )
            raise self.matcher.unknown(name, f"and `when: {expr.expr.text if expr.expr else ''}` needs it", expr.origin)
        return decided and all(
            self._presence(c.name, values, c.origin) == (c.kind == "with")
            for c in rule.conditions
            if c.name is not None
        )

    def _presence(self, template: Template, values: Mapping[str, Label], origin: Origin) -> bool:
        """Whether a `from` tensor, or its image on the way back, is in the input."""
        name = self.render(template, values, 0, origin)
        if name not in self._present:
            self._present[name] = self._look_up(name)
        return self._present[name]

    def _look_up(self, name: str) -> bool:
        if self._from_forms is None:
            terms = [(r, t, k) for r in self.rules.rules for k, t in enumerate(r.source if r.side == 0 else r.target)]
            self._from_forms = [(r, t, k, self.matcher.form(t.name, 0, r.origin)) for r, t, k in terms]
        for rule, term, k, form in self._from_forms:
            found = form.match(name)
            if found is None:
                continue
            if rule.side == 0:
                key = tuple(found[i] for i in (*rule.free, *term.bound))
                return bool(self.matcher.name_at(rule, k, key))
            if len(rule.source) == 1 and not rule.source[0].bound and not term.bound:
                return bool(self.matcher.name_at(rule, 0, tuple(found[i] for i in rule.free)))
        if self.rules.side == 0 and name in self.inputs:
            return True
        raise MapError(Problem(f"with: no rule maps '{name}' one to one", "map", None, None))

    def _instance(self, rule: Rule, values: dict[str, Label], members: Members) -> Instance:
        instance = Instance(rule, values, members, [], [])
        free: Key = tuple([values[i] for i in rule.free])
        for k, term in enumerate(rule.source):
            names: list[str] = []
            for bound in product(*[members[i] for i in term.bound]) if term.bound else _NO_BOUND:
                found = self.matcher.name_at(rule, k, free + bound)
                if len(found) > 1:
                    text = f"stands in the input beside {found[1]}, which is the same tensor"
                    self.ledger.problems.append(Problem(text, "spelling", found[0], rule.origin))
                    self.ledger.claimed.update(dict.fromkeys(found[1:], instance))
                if found:
                    names.append(found[0])
                else:
                    at = {**values, **dict(zip(term.bound, bound))}
                    name = self.render(self._spelled(term), at, rule.side, rule.origin)
                    names.append(name)
                    instance.missing.append(name)
                    others = [
                        self.render(t.template, at, rule.side, rule.origin) for t in term.spellings if not t.choices
                    ]
                    if len(others) > 1:
                        instance.other_spellings[name] = [n for n in others if n != name]
            instance.sources.append(names)
        for term in rule.target:
            at_all = [values]
            if term.bound:
                rows = product(*[members[i] for i in term.bound])
                at_all = [{**values, **dict(zip(term.bound, bound))} for bound in rows]
            instance.targets.append([self.render(term.name, at, 1 - rule.side, rule.origin) for at in at_all])
        return instance

    def _spelled(self, term: Term) -> Template:
        """The spelling of a missing name: that of the file where a group prefix was chosen, else the first."""
        active = [s for s in range(len(term.spellings)) if self.matcher.active(term, s)]
        return term.spellings[active[0] if active else 0].template

    def render(self, template: Template, values: Mapping[str, Label], side: int, origin: Origin) -> str:
        """Write a name of a side of the map; raises MismatchError where a size of it is not known."""
        make = self._renderers.get((template.text, side))
        if make is None:
            make = self._renderers[template.text, side] = renderer(
                template, self.rules.indices, side, self.facts.numbers
            )
        try:
            return make(values)
        except KeyError as e:
            raise self.matcher.unknown(str(e.args[0]), f"the name '{template}' needs it", origin) from None
        except TemplateError as e:
            raise MismatchError(Problem(str(e), "size", None, origin)) from None

    # Optional scopes: all or none.

    def _settle_scopes(self) -> None:
        scopes: dict[tuple[int, Key], list[Instance]] = {}
        for instance in self.ledger.instances:
            if instance.rule.scopes:
                scopes.setdefault(self._scope_key(instance, instance.rule.scopes[-1]), []).append(instance)
        gone: set[int] = set()
        for (_, _), instances in scopes.items():
            needed = [i for i in instances if i.rule.source and i.rule.fill is None and i.rule.tie is None] or [
                i for i in instances if i.rule.source
            ]
            if needed and all(len(i.missing) == sum(map(len, i.sources)) for i in needed):
                self._absent(instances[0], needed)
                gone |= {id(i) for i in instances}
        self.ledger.instances = [i for i in self.ledger.instances if id(i) not in gone]

    def _scope_key(self, instance: Instance, scope: Scope) -> tuple[int, Key]:
        return scope.number, tuple(instance.values[i] for i in scope.indices if i in instance.values)

    def _absent(self, instance: Instance, needed: list[Instance]) -> None:
        scope = instance.rule.scopes[-1]
        at = {k: v for k, v in instance.values.items()}
        if instance.rule.lone_optional or not scope.label.names <= set(at) | set(self.facts.numbers):
            for i in needed:
                self.ledger.absent.update(dict.fromkeys(i.missing, i.rule.origin))
        else:
            label = self.render(scope.label, at, 0, scope.origin)
            self.ledger.absent[label or needed[0].missing[0]] = scope.origin

    # Claims.

    def _claim(self) -> None:
        missing_forms: dict[str, Instance] = {}
        for instance in self.ledger.instances:
            gone = set(instance.missing)
            every = [n for names in instance.sources for n in names]
            twice = len(set(every)) < len(every)
            for names in instance.sources:
                for name in names:
                    if name in gone:
                        missing_forms[name] = instance
                        continue
                    first = self.ledger.claimed.setdefault(name, instance)
                    if first is not instance or (twice and every.count(name) > 1):
                        text = f"is claimed by two rules, {first.rule.origin} and {instance.rule.origin}"
                        self.ledger.problems.append(Problem(text, "claim", self.original(name), instance.rule.origin))

    def original(self, name: str) -> str:
        """The name as the file has it."""
        return self.inputs.entries[name].name if name in self.inputs.entries else name

    def _judge_rest(self) -> None:
        left = [n for n in self.inputs.entries if n not in self.ledger.claimed]
        if not left and not self.rules.regexes:
            return
        drops = self.matcher.named_drops() if self.rules.drop[0] else {}
        forms = self._forms_of(set(left))
        used: set[int] = set()
        for name in left:
            if name in drops and self._in_range(drops[name][1]):
                self.ledger.dropped[name] = drops[name][0]
            elif name in self.matcher.pattern_drops:
                self.ledger.dropped[name] = self.matcher.pattern_drops[name]
            elif name in forms and forms[name][0].number in self._failed:
                continue
            elif name in forms or name in drops:
                rule, values, spelling = forms.get(name, (None, drops.get(name, (None, {}))[1], 0))
                origin = rule.origin if rule is not None else drops[name][0].origin
                self.ledger.unexpected[name] = (self._why(rule, values, spelling), origin)
            else:
                self._judge_regex(name, used)
        for regex in self.rules.regexes:
            if regex.number not in used and not regex.optional:
                self.ledger.problems.append(
                    Problem(f"matches no tensor: '{regex.forward.match}'", "unused", None, regex.origin)
                )

    def _forms_of(self, names: set[str]) -> dict[str, tuple[Rule, dict[str, Label], int]]:
        out: dict[str, tuple[Rule, dict[str, Label], int]] = {}
        for rule in self.rules.rules:
            for k in range(len(rule.source)):
                table = self.matcher.tables[rule.number, k]
                for key, found in table.names.items() if names else ():
                    for s, name in found.items():
                        if name in names:
                            out.setdefault(name, (rule, dict(zip(table.order, key)), s))
        for rule, spelling, name in self.matcher.undecoded:
            if name in names:
                out.setdefault(name, (rule, {}, spelling))
        return out

    def _in_range(self, values: Mapping[str, Label]) -> bool:
        for name, value in values.items():
            count = self.matcher.count_of(name, values)
            if self.rules.indices[name].size is not None and (count is None or not 0 <= int(value) < count):
                return False
        return True

    def _why(self, rule: Rule | None, values: dict[str, Label], spelling: int) -> str:
        for name, value in values.items():
            index = self.rules.indices[name]
            count = self.matcher.count_of(name, values) if index.size is not None else None
            if index.size is not None and (count is None or int(value) >= count):
                reason = self.facts.reason([index.size.dim()]) or f"{index.size.text} = {count}"
                return f"unexpected: {name} = {value} is out of range, {reason}"
        if rule is None:
            return "unexpected"
        term = next((t for k, t in enumerate(rule.source) if len(t.spellings) > spelling), rule.source[0])
        if not self.matcher.active(term, spelling):
            return f"unexpected: this file spells such names as '{self._spelled(term)}'"
        for c in rule.conditions:
            if c.expr is not None and not self.facts.evaluate(c.expr, values):
                return f"unexpected: when is false: {c.expr.text} ({c.expr.explain({**self.facts.values, **values})})"
            if c.name is not None and self._presence(c.name, values, c.origin) != (c.kind == "with"):
                shown = self.render(c.name, values, 0, c.origin)
                return f"unexpected: {shown} is {'not ' if c.kind == 'with' else ''}there ({c.kind}: {c.name})"
        return f"unexpected: it has the form of '{term.spellings[min(spelling, len(term.spellings) - 1)].template}', but no index gives this number"

    def _judge_regex(self, name: str, used: set[int]) -> None:
        hits = [(r, new) for r in self.rules.regexes if (new := r.forward.rename(name)) is not None]
        used |= {r.number for r, _ in hits}
        if len(hits) > 1:
            text = f"is claimed by two renames, {hits[0][0].origin} and {hits[1][0].origin}"
            self.ledger.problems.append(Problem(text, "claim", self.original(name), hits[1][0].origin))
        elif hits and not hits[0][1]:
            self.ledger.problems.append(
                Problem("is renamed to nothing", "claim", self.original(name), hits[0][0].origin)
            )
        elif hits:
            self.ledger.renamed[name] = hits[0]
        elif self.unmatched == "keep":
            self.ledger.kept.append(name)
        elif self.unmatched == "drop":
            self.ledger.dropped[name] = None
        else:
            self.ledger.unexpected[name] = ("unexpected: no rule names it", None)


_NO_BOUND: tuple[Key, ...] = ((),)
_NEVER = Expr("", frozenset(), None)  # type: ignore[arg-type]


def _size(members: Members) -> int:
    size = 1
    for labels in members.values():
        size *= len(labels)
    return size


__all__ = ["Claims", "Inputs", "Instance", "Ledger"]
