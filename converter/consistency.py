"""What the rules of a map say of each other: names that two of them claim, ties and conditions that lead nowhere.

Names are compared in their canonical form. Names with index arithmetic are judged only when a checkpoint is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from converter.canonical import Owners, canonical
from converter.errors import Origin, Problem
from converter.folding import Hints
from converter.names import Template
from converter.naming import Naming
from converter.rules import FILLS, RegexRule, Rule


def inconsistencies(naming: Naming, regexes: Iterable[RegexRule], rest: str) -> Iterator[Problem]:
    """Give every problem that rules have with each other and with the rest of the map."""
    regexes = tuple(regexes)
    sides = (_Side(naming, 0), _Side(naming, 1))
    yield from _unknown_names(naming)
    yield from _claims(naming)
    yield from _same_patterns(regexes)
    yield from _stripped(naming)
    if not regexes and rest == "error":
        yield from _dead_ties(naming, sides)
        yield from _dead_likes(naming, sides)
    yield from _tie_cycles(naming, sides)
    yield from _dead_presence(naming, sides[0])


def _unknown_names(naming: Naming) -> Iterator[Problem]:
    hints, known = Hints(), (*naming.indices, *naming.sizes)
    for where, name, origin in naming.used:
        if name in naming.indices or name in naming.sizes or name.startswith("_"):
            continue
        hint = hints.of(name, (*known, *FILLS) if where == "fill" else known)
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


class _Side:
    """What the rules of a side are called."""

    def __init__(self, naming: Naming, side: int) -> None:
        self.side = side
        self.first, self.any = Owners(), Owners()  # by the first spelling; by any
        self.computed = False  # some name has index arithmetic, which the canonical form does not cover
        self.texts: dict[str, None] = {}
        for rule in naming.rules:
            for term in (t for s, t in rule.terms() if s == side):
                self.texts[term.name.text] = None
                for k, spelling in enumerate(term.spellings):
                    names = canonical(spelling.template, naming.indices, side)
                    self.computed = self.computed or names is None
                    for name in names or ():
                        self.any.add(name, rule)
                        if k == 0:
                            self.first.add(name, rule)

    def lacks(self, naming: Naming, template: Template) -> bool:
        """Whether no rule has a name, as far as that can be told."""
        names = canonical(template, naming.indices, self.side)
        return names is not None and not self.computed and not all(map(self.any.owns, names))


def _dead_ties(naming: Naming, sides: tuple[_Side, _Side]) -> Iterator[Problem]:
    hints = Hints()
    for rule in naming.rules:
        if rule.tie is None or not sides[rule.tie.side].lacks(naming, rule.tie.name):
            continue
        where = "to" if rule.tie.side else "from"
        hint = hints.of(rule.tie.name.text, sides[rule.tie.side].texts)
        yield Problem(f"tied: no rule has '{rule.tie.name}' on the `{where}` side{hint}", "map", None, rule.origin)


def _dead_likes(naming: Naming, sides: tuple[_Side, _Side]) -> Iterator[Problem]:
    hints = Hints()
    for rule in naming.rules:
        side = sides[0 if rule.source else 1]
        if rule.fill is None or rule.fill.like is None or not side.lacks(naming, rule.fill.like):
            continue
        hint = hints.of(rule.fill.like.text, side.texts)
        text = f"dtype: like '{rule.fill.like}', which no rule has on the `{'to' if side.side else 'from'}` side{hint}"
        yield Problem(text, "map", None, rule.origin)


def _tie_cycles(naming: Naming, sides: tuple[_Side, _Side]) -> Iterator[Problem]:
    for side in sides:
        tied = [r for r in naming.rules if r.tie is not None and r.tie.side == side.side]
        after = {r.number: _tied_to(naming, side, r) for r in tied}
        settled: set[int] = set()
        for rule in tied:
            way: dict[int, None] = {}
            at: int | None = rule.number
            while at in after and at not in settled and at not in way:
                way[at] = None
                at = after[at]
            circle = list(way)[list(way).index(at) :] if at in way else []
            settled |= {*way}
            yield from (_circular(r, len(circle)) for r in tied if r.number in circle) if circle else ()


def _tied_to(naming: Naming, side: _Side, rule: Rule) -> int | None:
    """The number of the rule that a tied rule is tied to."""
    names = canonical(rule.tie.name, naming.indices, side.side) if rule.tie is not None else None
    owners = side.any.rules.get(names[0]) if names else None
    return owners[0].number if owners else None


def _circular(rule: Rule, size: int) -> Problem:
    what = "itself" if size == 1 else f"'{rule.tie.name if rule.tie else ''}', which is tied to it"
    return Problem(f"tied: this tensor is tied to {what}", "map", None, rule.origin)


def _dead_presence(naming: Naming, side: _Side) -> Iterator[Problem]:
    told: set[Origin] = set()
    hints = Hints()
    for rule in naming.rules:
        for c in rule.conditions:
            if c.name is None or c.origin in told:
                continue
            names = canonical(c.name, naming.indices, 0)
            if names is None or side.computed:
                continue
            found = [r for n in names for r in side.first.find(n) if c not in r.conditions]
            if any(not r.bound and len(r.source) == 1 for r in found):
                continue
            told.add(c.origin)
            hint = hints.of(c.name.text, side.texts) if not found and c.name.text not in side.texts else ""
            how = (
                "maps it one to one"
                if found
                else "outside of it has this name, in its first spelling, on the `from` side"
            )
            yield Problem(f"{c.kind}: '{c.name}': no rule {how}{hint}", "map", None, c.origin)
