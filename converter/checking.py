"""`convert check`: what can be known of a map without a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from converter.document import MapDoc, ParamDoc
from converter.errors import MapError, MismatchError, Origin, Problem
from converter.facts import Facts
from converter.fields import keys_of, unknown_keys
from converter.including import Source
from converter.inputs import read_inputs
from converter.learning import check_sizes
from converter.mapfile import is_fragment, load_map, read_includes, read_source
from converter.matching import Matcher
from converter.rules import Rule, Ruleset
from converter.settings import Settings
from converter.spec import Header
from converter.unknowns import check_params
from converter.yamltree import Node


def example_values(node: Node, given: Mapping[str, Any]) -> Callable[[Mapping[str, ParamDoc]], Mapping[str, Any]]:
    """Give what `{{ expressions }}` see in `check` and `stub`: what is set, the map's example, defaults."""
    example = node.get("example")
    sizes = example.plain() if example is not None and isinstance(example.value, dict) else {}

    def values(params: Mapping[str, ParamDoc]) -> Mapping[str, Any]:
        facts = Facts(params, {})
        facts.add_settings(Settings(set=given, example=sizes))
        facts.settle()
        facts.add_defaults(params)
        facts.settle()
        return facts.values

    return values


def check_map(name: str) -> list[str]:
    """Check a map and describe it in a few lines; raises MapError with everything that is wrong."""
    source = read_source(name)
    if is_fragment(source.node):
        return [check_fragment(name, source)]
    node, files = read_includes(source)
    rules = load_map(node, example_values(node, {}))
    check_params(rules)
    check_example(rules, node)
    check_numbering(rules, node)
    one_way = rules.one_way()
    inexact = [r for r in rules.rules if not r.chain.exact and not isinstance(r.back, str)]
    kind = "one-way" if one_way else "invertible"
    count = len(rules.rules) + len(rules.regexes)
    lines = [f"{name}: {kind}, {count} {'rule' if count == 1 else 'rules'}, {rules.sides[0]} <-> {rules.sides[1]}"]
    lines += [f"  includes {file.node.origin.file}" for file in files[1:]]
    lines += [f"  one-way at {_at(origin, rules)}: {reason}" for origin, reason in one_way]
    lines += [f"  inexact at {_at(r.origin, rules)}: {_inexact(r)}" for r in inexact]
    unshaped = [r for r in rules.rules if r.source and any(t.shape is None for t in r.source)]
    if unshaped:
        origins = dict.fromkeys((r.origin.file, r.origin.line) for r in unshaped)  # aliases repeat lines
        places = [str(line) if file == rules.file else f"{file}:{line}" for file, line in origins]
        shown = ", ".join(places[:8]) + (", ..." if len(places) > 8 else "")
        lines.append(
            f"  without a shape, so that nothing is checked there: {len(unshaped)} "
            f"{'rule' if len(unshaped) == 1 else 'rules'} (line{'' if len(places) == 1 else 's'} {shown})"
        )
    return lines


def check_fragment(name: str, source: Source) -> str:
    """Check what is known of a fragment without the maps that include it: its keys, and the form of their values."""
    node = read_includes(source)[0]
    unknown = unknown_keys(MapDoc, node)
    if unknown:
        raise MapError(unknown)
    read = {word: f.metadata["read"](node.value[word]) for word, f in keys_of(MapDoc).items() if word in node.value}
    count = len(read.get("rules", ()))
    kinds = f"{count} {'rule or group' if count == 1 else 'rules and groups'}"
    return f"{name}: a fragment, with {kinds}; its names, shapes and ops are checked in the maps that include it"


def _at(origin: Origin, rules: Ruleset) -> str:
    return f"line {origin.line}" if origin.file == rules.file else str(origin)


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


def check_numbering(rules: Ruleset, node: Node) -> None:
    """Refuse sizes of the example that are no numbers, and names whose arithmetic gives one number for two values."""
    facts = Facts(rules.params, rules.atoms, rules.indices)
    known = rules.names | set(rules.params)
    facts.add_settings(Settings(example={k: v for k, v in rules.example.items() if k in known}))
    facts.settle()
    facts.add_defaults(rules.params)
    facts.settle()
    matcher = Matcher(replace(rules, rules=(), drop=((), ())), read_inputs(Header({}), ()), facts)
    try:
        matcher.counts()
        check_sizes(rules, facts)
    except MismatchError as e:
        at = node.keys.get("example", node.origin)
        raise MapError(replace(p, origin=p.origin or at) for p in e.problems) from None
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
