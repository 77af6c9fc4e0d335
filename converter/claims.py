"""Who claims a name: rules are expanded into instances, and each input name meets exactly one fate.

The order: a literal or templated rule whose indices are in range and whose conditions hold; a named drop; a pattern
drop; a name of a template's form that is out of range or ruled out (unexpected, with the reason); regex renames; the
rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from converter.errors import ConvertError, Origin, Problem
from converter.expand import Expander, Instance
from converter.matching import Key, Matcher
from converter.names import Label
from converter.regexes import Sieve
from converter.rules import Drop, RegexRule, Rule, Scope


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
    spared: list[str] = field(default_factory=list)  # targets of what is absent
    problems: list[Problem] = field(default_factory=list)


class Claims:
    """Judge the names of a matched input by a ruleset."""

    def __init__(self, matcher: Matcher, unmatched: str) -> None:
        self.matcher, self.unmatched = matcher, unmatched
        self.rules, self.inputs, self.facts = matcher.rules, matcher.inputs, matcher.facts
        self.ledger = Ledger()
        self.expander = Expander(matcher)
        self._sieve = Sieve([r.forward.match for r in self.rules.regexes])
        self._of_absent: dict[str, str] = {}  # names of absent optional groups -> a name that should be there too
        self._failed: set[int] = set()  # rules that could not be expanded: their names are not judged

    def run(self) -> Ledger:
        """Judge every name; problems are collected in the ledger."""
        for rule in self.rules.rules:
            try:
                self.ledger.instances += self.expander.instances(rule)
            except ConvertError as e:
                if e.exit_code != 1:
                    raise
                self._failed.add(rule.number)
                self.ledger.problems += e.problems
        self._settle_spellings()
        self._settle_scopes()
        self._claim()
        self._judge_rest()
        return self.ledger

    def _settle_spellings(self) -> None:
        """Two spellings of one tensor in one file are an error; the second is not unexpected on top of it."""
        for instance, found in self.expander.clashes:
            text = f"stands in the input beside {found[1]}, which is the same tensor"
            self.ledger.problems.append(Problem(text, "spelling", found[0], instance.rule.origin))
            self.ledger.claimed.update(dict.fromkeys(found[1:], instance))

    # Optional scopes: all or none.

    def _settle_scopes(self) -> None:
        own: dict[tuple[int, Key], list[Instance]] = {}
        within: dict[tuple[int, Key], list[Instance]] = {}
        for instance in self.ledger.instances:
            for scope in instance.rule.scopes:
                within.setdefault(self._scope_key(instance, scope), []).append(instance)
            if instance.rule.scopes:
                own.setdefault(self._scope_key(instance, instance.rule.scopes[-1]), []).append(instance)
        empty = {key for key, instances in within.items() if self._nothing_there(instances)}
        gone = self._constants_of(empty)
        for key, instances in own.items():
            needed = self._needed(instances)
            if needed and key in empty:
                self._absent(instances[0], needed)
                gone |= {id(i) for i in instances}
                self.ledger.spared += [n for i in instances for names in i.targets for n in names]
                first = next(n for i in needed for n in i.missing)
                left = [n for i in instances for names in i.sources for n in names if n in self.inputs]
                self._of_absent.update(dict.fromkeys(left, first))
        self.ledger.instances = [i for i in self.ledger.instances if id(i) not in gone]

    def _nothing_there(self, instances: list[Instance]) -> bool:
        """Whether all that tells whether a scope is there is missing."""
        return all(len(i.missing) == sum(map(len, i.sources)) for i in self._needed(instances))

    def _constants_of(self, empty: set[tuple[int, Key]]) -> set[int]:
        """The optional constants of groups that are absent, which are not made for themselves."""
        alone = [i for i in self.ledger.instances if i.rule.fill is not None and i.rule.lone_optional]
        of = [i for i in alone if any(self._scope_key(i, scope) in empty for scope in i.rule.scopes[:-1])]
        self.ledger.spared += [n for i in of for names in i.targets for n in names]
        return {id(i) for i in of}

    def _needed(self, instances: list[Instance]) -> list[Instance]:
        """The instances whose tensors tell whether a scope is there: not constants or ties, unless there is nothing
        else.
        """
        reading = [i for i in instances if i.rule.source]
        return [i for i in reading if i.rule.fill is None and i.rule.tie is None] or reading

    def _scope_key(self, instance: Instance, scope: Scope) -> tuple[int, Key]:
        return scope.number, tuple(instance.values[i] for i in scope.indices if i in instance.values)

    def _absent(self, instance: Instance, needed: list[Instance]) -> None:
        scope = instance.rule.scopes[-1]
        at = instance.values
        if instance.rule.lone_optional or not scope.label.names <= set(at) | set(self.facts.numbers):
            for i in needed:
                self.ledger.absent.update(dict.fromkeys(i.missing, i.rule.origin))
        else:
            label = self.expander.namer.render(scope.label, at, 0, scope.origin)
            self.ledger.absent[label or needed[0].missing[0]] = scope.origin

    # Claims.

    def _claim(self) -> None:
        missing_forms: dict[str, Instance] = {}
        for instance in self.ledger.instances:
            if not instance.missing and len(instance.sources) == 1 and len(instance.sources[0]) == 1:
                name = instance.sources[0][0]
                if self.ledger.claimed.setdefault(name, instance) is instance:
                    continue
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
                text = self._why(rule, values, spelling)
                if name in self._of_absent:
                    text = f"unexpected: its optional group is absent, {self._of_absent[name]} is not there"
                self.ledger.unexpected[name] = (text, origin)
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
            if self.rules.indices[name].size is not None and count is not None and not 0 <= int(value) < count:
                return False
        return True

    def _why(self, rule: Rule | None, values: dict[str, Label], spelling: int) -> str:
        for name, value in values.items():
            index = self.rules.indices[name]
            count = self.matcher.count_of(name, values) if index.size is not None else None
            if index.size is not None and (count is None or int(value) >= count):
                shown = "no value" if not count else f"0..{count - 1}" if count > 1 else "0 alone"
                reason = self.facts.reason([index.size.dim()]) or f"it runs over {shown}"
                return f"unexpected: {name} = {value} is out of range, {reason}"
        if rule is None:
            return "unexpected"
        term = next((t for k, t in enumerate(rule.source) if len(t.spellings) > spelling), rule.source[0])
        if not self.matcher.active(term, spelling):
            return f"unexpected: this file spells such names as '{self.expander.namer.spelled(term)}'"
        for c in rule.conditions:
            scope = self.matcher.scope(rule, values)
            if c.expr is not None and not self.facts.evaluate(c.expr, scope):
                return f"unexpected: when is false: {c.expr.text} ({c.expr.explain({**self.facts.values, **scope})})"
            if c.name is not None and self.expander.namer.presence(c.name, values, c.origin) != (c.kind == "with"):
                shown = self.expander.namer.render(c.name, values, 0, c.origin)
                return f"unexpected: {shown} is {'not ' if c.kind == 'with' else ''}there ({c.kind}: {c.name})"
        form = term.spellings[min(spelling, len(term.spellings) - 1)].template
        return f"unexpected: it has the form of '{form}', but no index gives this number"

    def _judge_regex(self, name: str, used: set[int]) -> None:
        tried = (self.rules.regexes[k] for k in self._sieve.of(name))
        hits = [(r, new) for r in tried if (new := r.forward.rename(name)) is not None]
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
