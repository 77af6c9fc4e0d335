"""From a document to rules: groups are opened, names, shapes, conditions and ops are read, shapes are sent through
the ops.

Everything that a map alone can show to be wrong is found here, all of it in one run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from converter.consistency import inconsistencies
from converter.dims import names
from converter.document import DropMatchDoc, MapDoc
from converter.equations import Equations, Place
from converter.errors import MapError, Problem
from converter.expressions import Expr, ExpressionError, parse
from converter.flow import Chain
from converter.names import TemplateError, parse_template
from converter.readers import local_sizes_of, read_index, read_shapes, shape_nodes
from converter.regexes import Regex, check_length, check_regex, compile_pattern, invert_regex
from converter.ruledoc import FormDoc, GroupDoc, NameDoc, RegexDoc, RuleDoc
from converter.rules import Drop, LocalSize, RegexRule, Rule, Ruleset, Scope, Spelling

MAX_PATTERNS = 1_000  # of renames and drops together


def build(doc: MapDoc) -> Ruleset:
    """Make the rules of a document, in the direction `from` -> `to`; raises MapError with every problem that shows."""
    return _Builder(doc).ruleset()


@dataclass
class _Builder(Equations):
    regexes: list[RegexRule] = field(default_factory=list)
    patterns: int = 0  # so far

    def ruleset(self) -> Ruleset:
        doc = self.doc
        self.file = doc.node.origin.file
        self.numbers = count()
        self.indices = {
            name: self._guard(lambda n=name, v=node: read_index(n, v), node.origin)
            for name, node in doc.indices.items()
        }
        if self.problems:
            raise MapError(self.problems)
        self._check_head()
        self.sizes = self._sizes()
        self.declared = frozenset(self.sizes)
        empty = Spelling(parse_template(""))
        for rule in doc.rules:
            self._member(rule, Place(((empty,), (empty,))))
        drops = tuple(
            tuple(d for e in side if (d := self._drop(e)) is not None) for side in (doc.drop.source, doc.drop.target)
        )
        if not self.problems:
            self.problems += inconsistencies(self, self.regexes, doc.rest)
        if self.problems:
            raise MapError(self.problems)
        return Ruleset(
            file=self.file,
            name=doc.name,
            about=doc.about,
            side=0,
            sides=(doc.sides.source, doc.sides.target) if doc.sides else ("from", "to"),
            params=doc.params,
            indices=self.indices,
            index_origins={k: v.origin for k, v in doc.indices.items()},
            rules=tuple(self.rules),
            regexes=tuple(self.regexes),
            strip=(doc.strip.source, doc.strip.target),
            drop=drops,  # type: ignore[arg-type]
            rest=doc.rest,
            dtypes=self._map_dtypes(),
            names=self._all_names(),
            atoms=self._atoms(),
            example=self._example(),
            published=doc.published,
        )

    # What names mean.

    def _check_head(self) -> None:
        """Refuse names that stand for two things."""
        for name in sorted(set(self.indices) & set(self.doc.params)):
            text = f"'{name}' is a param and an index: they share one namespace"
            self.problems.append(Problem(text, "map", None, self.doc.indices[name].origin))
        sides = self.doc.sides
        if sides is not None and (sides.source == sides.target or sides.source == "to" or sides.target == "from"):
            self.problems.append(Problem("sides: the two layouts need different names", "map", None, sides.node.origin))

    def _in_use(self) -> set[str]:
        """Names, and expressions that are no polynomials, in shapes, equations and ops."""
        dims = [d for r in self.rules for _, t in r.terms() for d in t.shape or ()]
        dims += [d for r in self.rules for e in r.equations for d in e]
        chains = [c for r in self.rules for c in (r.chain, r.back) if isinstance(c, Chain)]
        return {n for d in dims for n in names(d)} | {n for c in chains for op in c.ops() for n in op.sizes()}

    def _all_names(self) -> frozenset[str]:
        """Every name that may be set."""
        holes = {n for r in self.rules for _, t in r.terms() for s in t.spellings for n in s.template.names}
        plain = {n for n in self._in_use() | holes if n.isidentifier() and not n.startswith("_")}
        return frozenset(self.sizes | plain) - set(self.indices)

    def _atoms(self) -> dict[str, Expr]:
        """Expressions that stand where a size stands, by their text."""
        out = {n: parse(n) for n in self._in_use() if not n.startswith("_") and not n.isidentifier()}
        sizes = {str(i.size.dim()): i.size for i in self.indices.values() if i.size is not None}
        return out | {text: size for text, size in sizes.items() if not text.isidentifier()}

    def _sizes(self) -> set[str]:
        out = set(self.doc.params)
        for index in self.indices.values():
            out |= index.size.names if index.size is not None else set()
        out |= local_sizes_of(self.doc.rules) - set(self.indices)
        for node, terms in shape_nodes(self.doc.rules):
            try:
                out |= {
                    n
                    for shape in read_shapes(node, terms)
                    for d in shape
                    for n in names(d)
                    if n.isidentifier() and not n.startswith("_")
                }
            except ExpressionError:
                continue  # reported where the rule is read
        return out

    def _example(self) -> dict[str, Any]:
        """Give the sizes of the example, less those of included files that this map has no use for."""
        given = self.doc.node.get("example")
        origins = given.keys if given is not None else {}
        known = self._all_names() | set(self.doc.params)
        own = self.file
        return {k: v for k, v in self.doc.example.items() if k in known or k not in origins or origins[k].file == own}

    def _map_dtypes(self) -> tuple[str | None, str | None]:
        given = self.doc.dtype
        return (None, None) if given is None else given.sides

    # Groups.

    def _member(self, doc: Any, place: Place) -> None:
        if isinstance(doc, RegexDoc):
            self._guard(lambda: self._regex(doc), doc.node.origin)
        elif isinstance(doc, GroupDoc):
            inner = self._guard(lambda: self._enter(doc, place), doc.node.origin)
            for member in doc.rules if inner is not None else ():
                if isinstance(member, RegexDoc):
                    self.problems.append(
                        Problem("a regex rename stands at the top level of rules only", "map", None, member.node.origin)
                    )
                else:
                    self._member(member, inner)
        else:
            rules = self._guard(lambda: self._forms(doc, place), doc.node.origin)
            self.rules += rules or ()

    def _enter(self, doc: GroupDoc, place: Place) -> Place:
        prefixes = tuple(
            self._spell(outer, name, group=True) for outer, name in zip(place.prefixes, (doc.source, doc.target))
        )
        conditions = place.conditions + self._conditions(doc)
        scopes = place.scopes
        if doc.optional:
            used = {n for side in prefixes for s in side for n in s.template.names}
            indices = tuple(sorted(used & set(self.indices)))
            scopes += (Scope(next(self.numbers), indices, prefixes[0][0].template, doc.node.origin),)
        return Place(prefixes, conditions, scopes, {**place.locals, **self._local(doc, prefixes)})  # type: ignore[arg-type]

    def _local(self, doc: GroupDoc, prefixes: Iterable[tuple[Spelling, ...]]) -> dict[str, LocalSize]:
        """The sizes that a group declares for each value of the indices of its prefixes."""
        used = {n for side in prefixes for s in side for n in s.template.names}
        indices, number = tuple(i for i in self.indices if i in used), next(self.numbers) if doc.local else 0
        out = {}
        for name, node in doc.local.items():
            expr = parse(str(node.value)) if node.value != name else None
            for n in sorted(expr.names if expr is not None else ()):
                if n in self.indices and n not in indices:
                    raise node.error(f"local: index '{n}' does not stand in the prefixes of this group")
                self.used.append(("local", n, node.origin))
            out[name] = LocalSize(name, number, indices, expr, node.origin)
        return out

    # Forms.

    def _forms(self, doc: RuleDoc, place: Place) -> list[Rule]:
        """Read a rule: one for each of its forms."""
        if not doc.forms:
            return [self._rule(doc, place)]
        if doc.shape is not None or doc.ops or doc.fill is not None or doc.tied is not None:
            raise doc.node.error("the forms of a rule (any) have its shape and its ops; it is no constant and no tie")
        group = next(self.numbers)
        return [
            replace(
                self._rule(replace(doc, forms=(), shape=form.shape, ops=form.ops), self._meant(form, place)),
                form=(group, k),
            )
            for k, form in enumerate(doc.forms)
        ]

    def _meant(self, form: FormDoc, place: Place) -> Place:
        """The place of a form, with its condition."""
        return replace(place, conditions=place.conditions + self._when(form.when, "form"))

    # Regex renames and drops.

    def _regex(self, doc: RegexDoc) -> None:
        self._patterns(doc.match, doc.to, *((doc.reverse.match, doc.reverse.to) if doc.reverse else ()))
        forward = Regex(doc.match, doc.to)
        _check_regex(forward)
        back: Regex | str = Regex(doc.reverse.match, doc.reverse.to) if doc.reverse else invert_regex(forward)
        if isinstance(back, Regex):
            _check_regex(back)
        dtypes = (None, None) if doc.dtype is None else doc.dtype.sides
        self.regexes.append(
            RegexRule(next(self.numbers), doc.node.origin, forward, back, dtypes, doc.optional, doc.reverse is None)
        )

    def _patterns(self, *texts: str) -> None:
        """Refuse patterns that are too long, or too many: each is held against every name."""
        check_length(*texts)
        self.patterns += 1
        if self.patterns > MAX_PATTERNS:
            raise TemplateError(f"the map has more than {MAX_PATTERNS} patterns")

    def _drop(self, entry: NameDoc | DropMatchDoc) -> Drop | None:
        origin = entry.node.origin if isinstance(entry, DropMatchDoc) else entry.origin

        def make() -> Drop:
            if isinstance(entry, DropMatchDoc):
                self._patterns(entry.match)
                compile_pattern(entry.match)
                return Drop(origin, pattern=entry.match)
            templates = tuple(parse_template(s) for s in entry.spellings)
            for t in templates:
                self._check_names(t, origin)
            return Drop(origin, templates)

        found: Drop | None = self._guard(make, origin)
        return found


def _check_regex(rename: Regex) -> None:
    try:
        check_regex(rename)
    except TemplateError as e:
        raise TemplateError(f"match: {e}") from None
