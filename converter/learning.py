"""The stages of knowledge: settings, names, equations from shapes, counts from names, defaults."""

from __future__ import annotations

from dataclasses import replace

from converter.counting import check_counts, count_from_names, count_lists
from converter.dims import names
from converter.errors import MismatchError, Problem
from converter.expressions import parse
from converter.facts import Facts
from converter.inputs import Inputs
from converter.matching import Matcher
from converter.names import Template
from converter.observing import Observer
from converter.rules import Ruleset
from converter.settings import Settings


def learn(rules: Ruleset, inputs: Inputs, facts: Facts, settings: Settings) -> Matcher:
    """Gather all that settings, names and shapes say of sizes; returns the matched names.

    Raises MismatchError where names cannot be matched, or a count is out of proportion: then nothing else would make
    sense.
    """
    facts.add_settings(settings)
    facts.settle()
    in_names = {n for r in rules.rules for t in r.source for s in t.spellings for n in s.template.names}
    in_names |= {n for d in rules.drop[0] for t in d.templates for n in t.names}
    _count_early(rules, inputs, facts, in_names)
    while _defaults_for(rules, facts, in_names):
        facts.settle()
    matcher = Matcher(rules, inputs, facts)
    observer = Observer(matcher)
    problems: list[Problem] = []
    _settle(observer, facts)
    problems += _count(matcher, observer, facts)
    if facts.add_defaults(rules.params):
        facts.settle()
        _settle(observer, facts)
        problems += _count(matcher, observer, facts)
    check_sizes(rules, facts)
    problems += check_counts(matcher, frozenset(settings.given))
    if problems:
        raise MismatchError(problems)
    return matcher


def check_sizes(rules: Ruleset, facts: Facts) -> None:
    """Refuse what is known of a size in a shape and is no number."""
    for name in sorted({n for r in rules.rules for _, t in r.terms() for d in t.shape or () for n in names(d)}):
        if name in facts.values and name not in facts.numbers:
            facts.refuse_size(name, rules.file)


def _count_early(rules: Ruleset, inputs: Inputs, facts: Facts, in_names: set[str]) -> None:
    """Count from names that compute nothing what others, which compute with it, cannot be matched without."""
    if all(n in rules.indices or n in facts.values for n in in_names):
        return
    plain = tuple(r for r in rules.rules if all(_plain(s.template) for t in r.source for s in t.spellings))
    drop = tuple(d for d in rules.drop[0] if all(_plain(t) for t in d.templates))
    count_from_names(Matcher(replace(rules, rules=plain, drop=(drop, ())), inputs, facts))
    facts.settle()


def _plain(template: Template) -> bool:
    """Whether the placeholders of a name are indices, and nothing that computes."""
    return all(hole.single is not None for hole in template.holes)


def _defaults_for(rules: Ruleset, facts: Facts, in_names: set[str]) -> bool:
    """Add the defaults of sizes that names need, and of those that their expressions need."""
    wanted = {n for n in in_names if n not in rules.indices}
    for name in list(wanted):
        param = rules.params.get(name)
        if param is not None and param.expr is not None:
            wanted |= parse(str(param.expr.value)).names
    return bool(facts.add_defaults(sorted(wanted)))


def _count(matcher: Matcher, observer: Observer, facts: Facts) -> list[Problem]:
    """Count what only names tell: sizes, what follows from these, then lists of sizes."""
    problems = count_from_names(matcher)
    _settle(observer, facts)
    count_lists(matcher)
    _settle(observer, facts)
    return problems


def _settle(observer: Observer, facts: Facts) -> None:
    """Read and solve equations until nothing new follows."""
    while True:
        before = len(facts.values)
        observer.observe()
        facts.settle()
        if len(facts.values) == before:
            return
