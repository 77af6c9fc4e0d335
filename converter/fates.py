"""The fate of every name that does not simply flow, for reports and checks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from converter.claims import Ledger
from converter.expand import Instance
from converter.facts import Facts
from converter.inputs import Inputs
from converter.recipes import Recipes
from converter.rules import Rule, Ruleset
from converter.steps import Fates, Step, Tied
from converter.ties import TieWork


def make_fates(
    rules: Ruleset,
    inputs: Inputs,
    facts: Facts,
    steps: list[Step],
    ledger: Ledger,
    work: TieWork,
    recipes: Recipes | None,
) -> Fates:
    """Put together what matching, ties and recipes decided; names become those of the files."""

    def original(name: str) -> str:
        return inputs.entries[name].name if name in inputs.entries else name

    made = {n for step in steps for n in step.target_names()}
    return Fates(
        missing=tuple((n, o, text) for n, (o, text) in _missing(rules, inputs, facts, ledger, work).items()),
        unexpected=tuple((original(n), origin, text) for n, (text, origin) in ledger.unexpected.items()),
        shape_mismatch=tuple(dict.fromkeys(recipes.mismatches)) if recipes else (),
        dropped=(
            *(original(n) for n in ledger.dropped),
            *(n for step in steps if step.kind == "check" for n in step.source_names()),
        ),
        kept=tuple(original(n) for n in ledger.kept),
        absent=tuple(ledger.absent),
        assumed=tuple((n, v) for n, v in facts.assumed.items() if n in _matters(rules)),
        tied=tuple(Tied(original(a), original(b), alias) for a, b, alias in work.notes),
        untied=tuple(original(n) for n in work.untied),
        stripped=tuple(sorted((s.text, n, s.what) for s, n in inputs.stripped.items())),
        unmade=tuple(
            (n, original(i.missing[0]) if i.missing else "")
            for i in ledger.instances
            for names in i.targets
            for n in names
            if n not in made
        ),
        spared=tuple(n for n in ledger.spared if n not in made),
    )


def _missing(rules: Ruleset, inputs: Inputs, facts: Facts, ledger: Ledger, work: TieWork) -> dict[str, tuple[Any, str]]:
    """Names that rules read and the input does not have: the line of the map, and why they are expected."""
    missing: dict[str, tuple[Any, str]] = {}
    for instance, name, tied in work.missing:
        text = f"missing from the input, and so is every name that is tied to it ({tied})"
        missing[name] = (instance.rule.origin, text)
    for instance in ledger.instances:
        for name in instance.missing if not (instance.rule.fill and instance.rule.lone_optional) else ():
            others = instance.other_spellings.get(name)
            text = "missing from the input"
            text += f", and so is {' and '.join(others)}, which would do as well" if others else ""
            there = next((n for group in instance.sources for n in group if n not in instance.missing), "")
            text += f", while {there} is there" if instance.rule.scopes and there else ""
            text += f"; {work.apart}" if work.apart and instance.rule.tie is not None else ""
            reason = _why_expected(rules, facts, instance)
            text += f"; {reason}" if reason else ""
            twin = _twin(rules, inputs, instance)
            text += f"; if it is the same tensor as {twin}, its rule says `tied: {twin}`" if twin else ""
            missing.setdefault(name, (instance.rule.origin, text))
    return missing


def _matters(rules: Ruleset) -> set[str]:
    """Names that conditions, patterns and names depend on, through expressions too."""
    every: Iterable[Rule] = rules.rules
    used = {n for r in every for _, t in r.terms() for s in t.spellings for n in s.template.names}
    used |= {n for r in every for c in r.conditions if c.expr is not None for n in c.expr.names}
    used |= {n for r in every for op in r.chain.ops() for n in op.sizes()}
    used |= {n for i in rules.indices.values() if i.size is not None for n in i.size.names}
    return used


def _why_expected(rules: Ruleset, facts: Facts, instance: Instance) -> str:
    """Say how often a rule is expected: the counts of its indices, and where they come from."""
    names = (*instance.rule.free, *instance.rule.bound)
    sizes = [rules.indices[n].size for n in names]
    return facts.reason([size.dim() for size in sizes if size is not None])


def _twin(rules: Ruleset, inputs: Inputs, instance: Instance) -> str | None:
    """The one tensor of the input, of two axes or more, that has the very shape that a missing one is stated to have.

    A head that is tied to its embedding is the usual case; names with indices are not looked at.
    """
    source = instance.rule.source
    shape = source[0].shape if len(source) == 1 and not source[0].name.holes else None
    if shape is None or len(shape) < 2 or instance.rule.tie is not None:
        return None
    others = [r.source[0] for r in rules.rules if len(r.source) == 1 and r is not instance.rule]
    same = [t.name.text for t in others if t.shape == shape and not t.name.holes]
    return same[0] if len(same) == 1 and same[0] in inputs else None
