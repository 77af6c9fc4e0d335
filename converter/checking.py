"""`convert check`: what can be known of a map without a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from converter.document import ParamDoc
from converter.errors import MapError, MismatchError, Problem
from converter.facts import Facts, Settings, check_params
from converter.inputs import read_inputs
from converter.mapfile import load_map, read_map
from converter.matching import Matcher
from converter.rules import Rule, Ruleset
from converter.spec import Header
from converter.yamltree import Node


def example_values(node: Node, given: Mapping[str, Any]) -> Callable[[Mapping[str, ParamDoc]], Mapping[str, Any]]:
    """Give what `{{ expressions }}` see in `check` and `stub`: what is set, the map's example, defaults."""
    example = node.get("example")
    sizes = example.plain() if example is not None and isinstance(example.value, dict) else {}

    def values(params: Mapping[str, ParamDoc]) -> Mapping[str, Any]:
        facts = Facts(params, {})
        facts.add_settings(Settings(set={**sizes, **given}))
        facts.settle()
        facts.add_defaults(params)
        facts.settle()
        return facts.values

    return values


def check_map(name: str) -> list[str]:
    """Check a map and describe it in a few lines; raises MapError with everything that is wrong."""
    node = read_map(name)
    rules = load_map(node, example_values(node, {}))
    check_params(rules)
    check_example(rules, node)
    check_numbering(rules)
    one_way = rules.one_way()
    inexact = [r for r in rules.rules if not r.chain.exact and not isinstance(r.back, str)]
    kind = "one-way" if one_way else "invertible"
    count = len(rules.rules) + len(rules.regexes)
    lines = [f"{name}: {kind}, {count} {'rule' if count == 1 else 'rules'}, {rules.sides[0]} <-> {rules.sides[1]}"]
    lines += [f"  one-way at line {origin.line}: {reason}" for origin, reason in one_way]
    lines += [f"  inexact at line {r.origin.line}: {_inexact(r)}" for r in inexact]
    unshaped = [r for r in rules.rules if r.source and any(t.shape is None for t in r.source)]
    if unshaped:
        shown = ", ".join(str(r.origin.line) for r in unshaped[:8]) + (", ..." if len(unshaped) > 8 else "")
        lines.append(
            f"  without a shape, so that nothing is checked there: {len(unshaped)} "
            f"{'rule' if len(unshaped) == 1 else 'rules'} (lines {shown})"
        )
    return lines


def _inexact(rule: Rule) -> str:
    odd = [op for op in rule.chain.ops() if not op.exact]
    what = "what it fills in" if all(op.word == "trim" for op in odd) else "rounded values"
    return ", ".join(str(op) for op in odd) + f" gives back {what}"


def check_example(rules: Ruleset, node: Node) -> None:
    """Refuse sizes in `example` and `published` that the map does not have."""
    known = rules.names | set(rules.params)
    problems = []
    for where, sizes in (("example", rules.example), *((f"published.{k}", v) for k, v in rules.published.items())):
        for n in sizes:
            if n not in known:
                origin = node.keys.get(where.split(".")[0], node.origin)
                problems.append(Problem(f"{where} has '{n}', which the map does not have", "map", None, origin))
    if problems:
        raise MapError(problems)


def check_numbering(rules: Ruleset) -> None:
    """Refuse names whose index arithmetic gives one number for two values, where sizes (of the example too) tell."""
    facts = Facts(rules.params, rules.atoms)
    known = rules.names | set(rules.params)
    facts.add_settings(Settings(set={k: v for k, v in rules.example.items() if k in known}))
    facts.settle()
    facts.add_defaults(rules.params)
    facts.settle()
    from dataclasses import replace

    matcher = Matcher(replace(rules, rules=(), drop=((), ())), read_inputs(Header({}), ()), facts)
    problems: list[Problem] = []
    for rule in rules.rules:
        for side, term in rule.terms():
            for spelling in term.spellings:
                if all(h.single is not None for h in spelling.template.holes):
                    continue
                try:
                    matcher.form(spelling.template, side, rule.origin, check=True)
                except MismatchError as e:  # a size that only a checkpoint has is judged before matching
                    problems += [p for p in e.problems if p.kind == "numbering"]
    if problems:
        raise MapError(problems)
