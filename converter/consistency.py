"""What the rules of a map say of each other: names that two of them claim, ties and conditions that lead nowhere.

Names are compared in a canonical form, with labels spelled out and counted indices as one mark, so that `a.{i}` and
`a.{j}` are the same name. Names with index arithmetic are judged only when a checkpoint is there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import product

from converter.errors import Origin, Problem
from converter.folding import closest
from converter.names import Hole, Index, Template
from converter.naming import Naming
from converter.rules import FILLS, RegexRule, Rule

MAX_LABELS = 2000


def inconsistencies(naming: Naming, regexes: Iterable[RegexRule], rest: str) -> Iterator[Problem]:
    """Give every problem that rules have with each other and with the rest of the map."""
    regexes = tuple(regexes)
    yield from _unknown_names(naming)
    yield from _claims(naming)
    yield from _same_patterns(regexes)
    yield from _stripped(naming)
    if not regexes and rest == "error":
        yield from _dead_ties(naming)
        yield from _dead_likes(naming)
    yield from _tie_cycles(naming)
    yield from _dead_presence(naming)


def _unknown_names(naming: Naming) -> Iterator[Problem]:
    for where, name, origin in naming.used:
        if name in naming.indices or name in naming.sizes or name.startswith("_"):
            continue
        near = closest(name, [*naming.indices, *naming.sizes, *(FILLS if where == "fill" else ())])
        hint = f" (did you mean '{near}'?)" if near else ""
        yield Problem(f"{where}: '{name}' is no param, index or size of the map{hint}", "map", None, origin)


def _claims(naming: Naming) -> Iterator[Problem]:
    for side, verb in ((0, "read"), (1, "written")):
        seen: dict[str, Rule] = {}
        for rule in naming.rules:
            for term in (t for s, t in rule.terms() if s == side):
                for text in canonical(term.name, naming.indices, side) or [term.name.text]:
                    first = seen.setdefault(text, rule)
                    alike = first.form is not None and rule.form is not None and first.form[0] == rule.form[0]
                    if first is not rule and not (first.conditions or rule.conditions or alike):
                        told = f"'{term.name}' is {verb} by two rules, {first.origin} and {rule.origin}"
                        hint = " (`except` leaves an included one out)" * (first.origin.file != rule.origin.file)
                        yield Problem(told + hint, "map", None, rule.origin)
                        break


def _same_patterns(regexes: tuple[RegexRule, ...]) -> Iterator[Problem]:
    seen: dict[str, Origin] = {}
    for r in regexes:
        first = seen.setdefault(r.forward.match, r.origin)
        if first is not r.origin:
            yield Problem(f"'{r.forward.match}' is read by two renames, {first} and {r.origin}", "map", None, r.origin)


def _stripped(naming: Naming) -> Iterator[Problem]:
    strips = (naming.doc.strip.source, naming.doc.strip.target)
    node = naming.doc.strip.node
    for side, strip in ((side, strip) for side, several in enumerate(strips) for strip in several):
        if node is not None and (not strip.text or (strip.segment and "." in strip.text)):
            text = f"strip: '{strip.text}' is no segment: it has a dot" if strip.text else "strip: an empty prefix"
            yield Problem(text, "map", None, node.origin)
            continue
        for rule in naming.rules:
            for term in (t for s, t in rule.terms() if s == side):
                if all(strip.off(s.template.text) != s.template.text for s in term.spellings):
                    where = "has the segment" if strip.segment else "begins with"
                    text = f"'{term.name}' {where} '{strip.text}', which strip takes off every name"
                    yield Problem(text, "map", None, rule.origin)


def _owners(naming: Naming, side: int) -> dict[str, Rule]:
    """The rule of each canonical name of a side, in any spelling."""
    out: dict[str, Rule] = {}
    for rule in naming.rules:
        for term in (t for s, t in rule.terms() if s == side):
            for spelling in term.spellings:
                for text in canonical(spelling.template, naming.indices, side) or ():
                    out.setdefault(text, rule)
    return out


def _owned(name: str, owners: Iterable[str]) -> bool:
    """Whether a canonical name is one of others, or a number of one of them: `l.0.e` of `l.{#}.e`."""
    owners = tuple(owners)
    if name in owners:
        return True
    patterns = (re.sub(r"\\\{\\#[0-9]+\\\}", "[0-9]+", re.escape(o)) for o in owners if "{#" in o)
    return any(re.fullmatch(pattern, name) for pattern in patterns)


def _computed(naming: Naming, side: int) -> bool:
    """Whether some name of a side has index arithmetic, which the canonical form does not cover."""
    every = (s.template for r in naming.rules for k, t in r.terms() if k == side for s in t.spellings)
    return any(canonical(t, naming.indices, side) is None for t in every)


def _dead_ties(naming: Naming) -> Iterator[Problem]:
    for rule in naming.rules:
        if rule.tie is None:
            continue
        names = canonical(rule.tie.name, naming.indices, rule.tie.side)
        owners = _owners(naming, rule.tie.side)
        if names is None or all(_owned(n, owners) for n in names) or _computed(naming, rule.tie.side):
            continue
        where = "to" if rule.tie.side else "from"
        near = closest(
            rule.tie.name.text, [t.name.text for r in naming.rules for s, t in r.terms() if s == rule.tie.side]
        )
        hint = f" (did you mean '{near}'?)" if near else ""
        yield Problem(f"tied: no rule has '{rule.tie.name}' on the `{where}` side{hint}", "map", None, rule.origin)


def _dead_likes(naming: Naming) -> Iterator[Problem]:
    for rule in naming.rules:
        if rule.fill is None or rule.fill.like is None:
            continue
        side = 0 if rule.source else 1
        names = canonical(rule.fill.like, naming.indices, side)
        if names is None or all(_owned(n, _owners(naming, side)) for n in names) or _computed(naming, side):
            continue
        near = closest(rule.fill.like.text, [t.name.text for r in naming.rules for s, t in r.terms() if s == side])
        hint = f" (did you mean '{near}'?)" if near else ""
        text = f"dtype: like '{rule.fill.like}', which no rule has on the `{'to' if side else 'from'}` side{hint}"
        yield Problem(text, "map", None, rule.origin)


def _tie_cycles(naming: Naming) -> Iterator[Problem]:
    for side in (0, 1):
        owners = _owners(naming, side)
        for rule in naming.rules:
            seen: list[Rule] = []
            at: Rule | None = rule
            while at is not None and at.tie is not None and at.tie.side == side and at not in seen:
                seen.append(at)
                names = canonical(at.tie.name, naming.indices, side)
                at = owners.get(names[0]) if names else None
            if seen and at is rule and rule.tie is not None:
                what = "itself" if len(seen) == 1 else f"'{rule.tie.name}', which is tied to it"
                yield Problem(f"tied: this tensor is tied to {what}", "map", None, rule.origin)


def _dead_presence(naming: Naming) -> Iterator[Problem]:
    told: set[Origin] = set()
    for rule in naming.rules:
        for c in rule.conditions:
            if c.name is None or c.origin in told:
                continue
            names = canonical(c.name, naming.indices, 0)
            if names is None or _computed(naming, 0):
                continue
            others = [r for r in naming.rules if c not in r.conditions]
            found = [r for r in others if any(_owned(n, _first_names(naming, r)) for n in names)]
            if any(not r.bound and len(r.source) == 1 for r in found):
                continue
            told.add(c.origin)
            near = closest(c.name.text, [t.name.text for r in naming.rules for s, t in r.terms() if s == 0])
            hint = f" (did you mean '{near}'?)" if near and not found and near != c.name.text else ""
            how = (
                "maps it one to one"
                if found
                else "outside of it has this name, in its first spelling, on the `from` side"
            )
            yield Problem(f"{c.kind}: '{c.name}': no rule {how}{hint}", "map", None, c.origin)


def _first_names(naming: Naming, rule: Rule) -> set[str]:
    return {n for s, t in rule.terms() if s == 0 for n in canonical(t.name, naming.indices, 0) or ()}


def canonical(template: Template, indices: Mapping[str, Index], side: int) -> list[str] | None:
    """List the names of a template with labels spelled out and numbers as a mark; None for index arithmetic or too
    many labels.
    """
    if any(h.single is None for h in template.holes):
        return None
    singles = sorted({h.single for h in template.holes if h.single is not None})
    labelled = [n for n in singles if n in indices and indices[n].size is None]
    choices = [indices[i].labels(side) for i in labelled]
    total = 1
    for labels in choices:
        total *= len(labels)
    if total > MAX_LABELS:
        return None
    return ["".join(_part(p, dict(zip(labelled, row))) for p in template.parts) for row in product(*choices)]


def _part(part: str | Hole, labels: Mapping[str, int | str]) -> str:
    if isinstance(part, str):
        return part
    if part.single is not None and part.single in labels:
        return part.render({part.single: labels[part.single]})
    return f"{{#{part.width}}}"
