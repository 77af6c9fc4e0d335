"""The stages of knowledge: settings, names, equations from shapes, counts from names, defaults."""

from __future__ import annotations

from converter.dims import names
from converter.errors import MismatchError, Problem
from converter.expressions import parse
from converter.facts import Facts, Settings
from converter.inputs import Inputs
from converter.matching import Matcher
from converter.observing import Observer
from converter.rules import Ruleset


def learn(rules: Ruleset, inputs: Inputs, facts: Facts, settings: Settings) -> Matcher:
    """Gather all that settings, names and shapes say of sizes; returns the matched names.

    Raises MismatchError where names cannot be matched, or a count is out of proportion: then nothing else would make
    sense.
    """
    facts.add_settings(settings)
    facts.settle()
    in_names = {n for r in rules.rules for t in r.source for s in t.spellings for n in s.template.names}
    in_names |= {n for d in rules.drop[0] for t in d.templates for n in t.names}
    while _defaults_for(rules, facts, in_names):
        facts.settle()
    matcher = Matcher(rules, inputs, facts)
    observer = Observer(matcher)
    problems: list[Problem] = []
    _settle(observer, facts)
    problems += matcher.count_from_names()
    _settle(observer, facts)
    if facts.add_defaults(rules.params):
        facts.settle()
        _settle(observer, facts)
        problems += matcher.count_from_names()
        _settle(observer, facts)
    for name in sorted({n for r in rules.rules for _, t in r.terms() for d in t.shape or () for n in names(d)}):
        if name in facts.values and name not in facts.numbers:
            facts.refuse_size(name)
    problems += matcher.check_counts(frozenset(settings.set))
    if problems:
        raise MismatchError(problems)
    return matcher


def _defaults_for(rules: Ruleset, facts: Facts, in_names: set[str]) -> bool:
    """Add the defaults of sizes that names need, and of those that their expressions need."""
    wanted = {n for n in in_names if n not in rules.indices}
    for name in list(wanted):
        param = rules.params.get(name)
        if param is not None and param.expr is not None:
            wanted |= parse(str(param.expr.value)).names
    return bool(facts.add_defaults(sorted(wanted)))


def _settle(observer: Observer, facts: Facts) -> None:
    """Read and solve equations until nothing new follows."""
    while True:
        before = len(facts.values)
        observer.observe()
        facts.settle()
        if len(facts.values) == before:
            return
