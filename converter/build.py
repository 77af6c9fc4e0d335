"""From a document to rules: groups are opened, names, shapes, conditions and ops are read, shapes are sent through the ops.

Everything that a map alone can show to be wrong is found here, all of it in one run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count, product
from typing import Any

from converter.dims import Dim, Poly, names
from converter.document import DropMatchDoc, GroupDoc, MapDoc, NameDoc, RegexDoc, RuleDoc, TermDoc
from converter.errors import ConvertError, MapError, Origin, Problem
from converter.expressions import Expr, ExpressionError, parse
from converter.flow import Chain, infer, joint
from converter.folding import closest
from converter.names import (
    Hole,
    Index,
    Regex,
    Template,
    TemplateError,
    check_regex,
    compile_pattern,
    invert_regex,
    parse_template,
)
from converter.ops import Op, OpContext, OpError, parse_op
from converter.ops.base import Shape, Value
from converter.ops.rearrange import Rearrange
from converter.rules import Condition, Drop, Fill, RegexRule, Rule, Ruleset, Scope, Spelling, Term, Tie
from converter.yamltree import Node

FILLS = ("zeros", "ones", "causal_mask", "arange")


def build(doc: MapDoc) -> Ruleset:
    """Make the rules of a document, in the direction `from` -> `to`; raises MapError with every problem that shows."""
    return _Builder(doc).ruleset()


@dataclass(frozen=True)
class _Place:
    """Where a rule stands: prefixes of both sides (with spellings), conditions and optional scopes of the groups around it."""

    prefixes: tuple[tuple[Spelling, ...], tuple[Spelling, ...]]
    conditions: tuple[Condition, ...] = ()
    scopes: tuple[Scope, ...] = ()


@dataclass
class _Builder:
    doc: MapDoc
    problems: list[Problem] = field(default_factory=list)
    rules: list[Rule] = field(default_factory=list)
    regexes: list[RegexRule] = field(default_factory=list)

    def ruleset(self) -> Ruleset:
        doc = self.doc
        self.file = doc.node.origin.file
        self.numbers = count()
        self.indices = {
            name: self._guard(lambda n=name, v=node: _index(n, v), node.origin) for name, node in doc.indices.items()
        }  # type: ignore[misc]
        if self.problems:
            raise MapError(self.problems)
        self.sizes = self._sizes()
        empty = Spelling(parse_template(""))
        for rule in doc.rules:
            self._member(rule, _Place(((empty,), (empty,))))
        drops = tuple(
            tuple(d for e in side if (d := self._drop(e)) is not None) for side in (doc.drop.source, doc.drop.target)
        )
        self._check_claims()
        if self.problems:
            raise MapError(self.problems)
        dims = [d for r in self.rules for _, t in r.terms() for d in t.shape or ()] + [
            d for r in self.rules for e in r.equations for d in e
        ]
        op_names = [
            n
            for r in self.rules
            for c in (r.chain, r.back)
            if isinstance(c, Chain)
            for op in c.ops()
            for n in op.sizes()
        ]
        atoms = {n for d in dims for n in names(d)} | set(op_names)
        used = {n for r in self.rules for _, t in r.terms() for s in t.spellings for n in s.template.names}
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
            names=frozenset(self.sizes | {n for n in atoms | used if n.isidentifier() and not n.startswith("_")})
            - set(self.indices),
            atoms={n: parse(n) for n in atoms if not n.startswith("_") and not n.isidentifier()}
            | {
                n: i.size
                for i in self.indices.values()
                if i.size is not None and not (n := str(i.size.dim())).isidentifier()
            },
            example=doc.example,
            published=doc.published,
        )

    # What names mean.

    def _sizes(self) -> set[str]:
        out = set(self.doc.params)
        for index in self.indices.values():
            out |= index.size.names if index.size is not None else set()
        for node in _shape_nodes(self.doc.rules):
            try:
                out |= {
                    n
                    for shape in _shapes(node, 2)
                    for d in shape
                    for n in names(d)
                    if n.isidentifier() and not n.startswith("_")
                }
            except ExpressionError:
                continue  # reported where the rule is read
        return out

    def _map_dtypes(self) -> tuple[str | None, str | None]:
        given = self.doc.dtype
        return (None, None) if given is None else given.sides

    def _guard(self, make: Any, origin: Origin) -> Any:
        """Run one step; what goes wrong becomes a problem of this line, and None."""
        try:
            return make()
        except ConvertError as e:
            self.problems += e.problems
        except (TemplateError, ExpressionError, OpError) as e:
            self.problems.append(Problem(str(e), "map", None, origin))
        return None

    # Groups.

    def _member(self, doc: Any, place: _Place) -> None:
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
            rule = self._guard(lambda: self._rule(doc, place), doc.node.origin)
            if rule is not None:
                self.rules.append(rule)

    def _enter(self, doc: GroupDoc, place: _Place) -> _Place:
        prefixes = tuple(
            self._spell(outer, name, group=True) for outer, name in zip(place.prefixes, (doc.source, doc.target))
        )
        conditions = place.conditions + self._conditions(doc)
        scopes = place.scopes
        if doc.optional:
            used = {n for side in prefixes for s in side for n in s.template.names}
            indices = tuple(sorted(used & set(self.indices)))
            scopes += (Scope(next(self.numbers), indices, prefixes[0][0].template, doc.node.origin),)
        return _Place(prefixes, conditions, scopes)  # type: ignore[arg-type]

    def _spell(self, outer: Sequence[Spelling], name: NameDoc, group: bool) -> tuple[Spelling, ...]:
        number = next(self.numbers) if group and name.any else None
        out = []
        for prefix, (k, text) in product(outer, enumerate(name.spellings)):
            template = parse_template(prefix.template.text + text)
            out.append(Spelling(template, prefix.choices + (((number, k),) if number is not None else ())))
        for s in out:
            self._check_names(s.template, name.origin)
            for hole in s.template.holes:
                self._check_distinct(hole, name.origin)
            for a, b in zip(s.template.parts, s.template.parts[1:]):
                if isinstance(a, Hole) and isinstance(b, Hole) and self._counted(a) and self._counted(b):
                    text = f"'{{{a.text}}}{{{b.text}}}' in '{s.template}': numbers that touch cannot be told apart"
                    raise MapError(Problem(text, "map", None, name.origin))
        return tuple(out)

    def _counted(self, hole: Hole) -> bool:
        """Whether a hole writes a number that is not one of a few labels."""
        index = self.indices.get(hole.single or "")
        return index is None or index.size is not None

    def _check_distinct(self, hole: Hole, origin: Origin) -> None:
        """Refuse `{w:_}` where dots as underscores make two labels one."""
        index = self.indices.get(hole.single or "")
        if not hole.underscore or index is None:
            return
        for labels in (index.keys, index.images):
            shown = [hole.render({index.name: v}) for v in labels]
            twice = next((n for n in shown if shown.count(n) > 1), None)
            if twice is not None:
                a, b = (str(v) for v, n in zip(labels, shown) if n == twice)
                text = f"'{{{index.name}:_}}' writes '{a}' and '{b}' both as '{twice}'"
                raise MapError(Problem(text, "map", None, origin))

    def _check_names(self, template: Template, origin: Origin) -> None:
        for n in sorted(template.names - set(self.indices) - self.sizes):
            near = closest(n, [*self.indices, *self.sizes])
            hint = f" (did you mean '{near}'?)" if near else f" (indices: {', '.join(self.indices) or 'none'})"
            raise MapError(
                Problem(
                    f"'{{{n}}}' in '{template}': '{n}' is neither an index nor a size of the map{hint}",
                    "map",
                    None,
                    origin,
                )
            )

    def _conditions(self, doc: RuleDoc | GroupDoc) -> tuple[Condition, ...]:
        out = []
        if doc.when is not None:
            expr = parse(str(doc.when.value))
            unknown = sorted(expr.names - set(self.indices) - self.sizes)
            if unknown:
                near = closest(unknown[0], [*self.indices, *self.sizes])
                hint = f" (did you mean '{near}'?)" if near else ""
                raise MapError(
                    Problem(
                        f"when: '{unknown[0]}' is no param, index or size of the map{hint}",
                        "map",
                        None,
                        doc.when.origin,
                    )
                )
            out.append(Condition("when", expr, None, doc.when.origin))
        for kind, node in (("with", doc.present), ("without", doc.absent)):
            if node is None:
                continue
            if not isinstance(node.value, str):
                raise node.error(f"{kind} takes one name")
            template = parse_template(node.value)
            self._check_names(template, node.origin)
            out.append(Condition(kind, None, template, node.origin))
        return tuple(out)

    # Rules.

    def _rule(self, doc: RuleDoc, place: _Place) -> Rule:
        shapes = self._stated_shapes(doc)
        sides = []
        for side, terms in enumerate((doc.source, doc.target)):
            sides.append([(t, self._spell(place.prefixes[side], t.name, group=False)) for t in terms])
        if not doc.source and not doc.target:
            raise doc.node.error("a rule needs `from` and `to`")
        if (not doc.source or not doc.target) and doc.fill is None and doc.tied is None:
            raise doc.node.error(
                f"'{'from' if not doc.source else 'to'}' is missing (only fill and tied rules have one side)"
            )
        used = [
            {n for _, spellings in side for s in spellings for n in s.template.names} & set(self.indices)
            for side in sides
        ]
        one_sided = not doc.source or not doc.target
        free = tuple(i for i in self.indices if i in (used[0] | used[1] if one_sided else used[0] & used[1]))
        conditions = place.conditions + self._conditions(doc)
        terms = [[self._term(t, spellings, free, side) for t, spellings in group] for side, group in enumerate(sides)]
        scopes = place.scopes
        if doc.optional:
            label = (terms[0] or terms[1])[0].name
            scopes += (Scope(next(self.numbers), free, label, doc.node.origin),)
        fill = self._fill(doc, terms) if doc.fill is not None else None
        tie = self._tie(doc, place, free) if doc.tied is not None else None
        if doc.untied and tie is None:
            raise doc.node.error("untied says something about `tied`, which is missing", "untied")
        if one_sided:
            if doc.ops:
                raise doc.node.error("a rule with one side has no ops", "ops")
            only = 0 if doc.source else 1
            terms[only] = [Term(t.spellings, s, t.dtype, t.bound) for t, s in zip(terms[only], shapes)]
            empty = Chain((), (), ())
            return Rule(
                next(self.numbers), doc.node.origin, 0, tuple(terms[0]), tuple(terms[1]), empty, empty, (), self._rule_dtypes(doc),
                free, conditions, scopes, tie, fill, doc.optional,
            )  # fmt: skip
        return self._equation(doc, terms, shapes, free, conditions, scopes, tie)

    def _equation(
        self, doc: RuleDoc, terms: list[list[Term]], shapes: list[Shape | None], free: tuple[str, ...],
        conditions: tuple[Condition, ...], scopes: tuple[Scope, ...], tie: Tie | None,
    ) -> Rule:  # fmt: skip
        counts = {name: self._count(name, conditions) for name in self.indices}
        context = OpContext(frozenset(self.sizes), counts, len(doc.target))
        chain = self._chain(doc, context)
        for k, (t, head) in enumerate(zip(terms[0], chain.heads)):
            first = head[0] if head else chain.stages[0][0] if chain.stages and not joint(chain.stages[0][0]) else None
            shape = (
                shapes[k] if shapes[k] is not None else first.shape_of_left() if isinstance(first, Rearrange) else None
            )
            terms[0][k] = Term(t.spellings, shape, t.dtype, t.bound)
        numbers = count(1)
        sources = tuple(Value(tuple((i, counts[i]) for i in t.bound), t.shape) for t in terms[0])
        found = infer(chain, sources, lambda n: Poly.of(f"_{n}~{next(numbers)}"))
        equations = list(found.equations)
        for k, (t, value) in enumerate(zip(terms[1], found.targets)):
            odd = {i for i, _ in value.bound} ^ set(t.bound)
            if odd:
                raise OpError(
                    f"index '{min(odd)}' stands on one side only: "
                    + (f"'{t.name}' has it and no op spreads over it (unstack, split over, replicate)" if min(odd) in t.bound
                       else "no op brings its tensors together (stack, concat over, same)")
                )  # fmt: skip
            stated = self._target_shape(doc.target[k])
            if stated is not None and value.shape is not None:
                equations += self._agree(stated, value.shape, doc.target[k])
            terms[1][k] = Term(t.spellings, value.shape if value.shape is not None else stated, t.dtype, t.bound)
        true_equations = tuple(e for e in equations if e[0] != e[1])
        return Rule(
            next(self.numbers), doc.node.origin, 0, tuple(terms[0]), tuple(terms[1]), chain, found.inverse, true_equations,
            self._rule_dtypes(doc), free, conditions, scopes, tie, None, doc.optional,
        )  # fmt: skip

    def _agree(self, stated: Shape, inferred: Shape, term: TermDoc) -> list[tuple[Dim, Dim]]:
        origin_error = len(stated) != len(inferred) or any(
            isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(stated, inferred)
        )
        if origin_error:
            from converter.dims import render_shape

            raise term.node.error(f"the shape {render_shape(stated)} is stated, the ops give {render_shape(inferred)}")
        return list(zip(stated, inferred))

    def _term(self, doc: TermDoc, spellings: tuple[Spelling, ...], free: tuple[str, ...], side: int) -> Term:
        own = {frozenset(s.template.names & set(self.indices)) for s in spellings}
        if len(own) > 1:
            raise doc.node.error("the spellings of a name have different indices")
        (used,) = own
        missing = [i for i in free if i not in used]
        if missing:
            verb = "read" if side == 0 else "written"
            raise doc.node.error(
                f"'{spellings[0].template}' has no {{{missing[0]}}}: it would be {verb} once for each value of '{missing[0]}'"
            )
        if any(not s.template.text for s in spellings):
            raise doc.node.error("a tensor name is not empty")
        if any(s.template.text == "__metadata__" for s in spellings):
            raise doc.node.error("'__metadata__' is no tensor name: the format keeps its metadata there")
        for n in sorted(used):
            size = self.indices[n].size
            missing = sorted((size.names & set(self.indices)) - used) if size is not None else []
            if size is not None and missing:
                raise doc.node.error(
                    f"'{spellings[0].template}': the count of '{n}' is {size.text}, so a name with {{{n}}} needs {{{missing[0]}}} too"
                )
        order = [n for h in spellings[0].template.holes for n in sorted(names(h.dim))]
        bound = tuple(dict.fromkeys(n for n in order if n in used and n not in free))
        if doc.dtype is not None and doc.dtype.like is not None:
            raise doc.node.error("dtype: {like: NAME} stands on a fill rule")
        return Term(spellings, None, doc.dtype.sides[side] if doc.dtype else None, bound)

    def _stated_shapes(self, doc: RuleDoc) -> list[Shape | None]:
        terms = doc.source or doc.target
        out: list[Shape | None] = [None] * len(terms)
        if doc.shape is not None:
            try:
                out = list(_shapes(doc.shape, len(terms)))
            except ExpressionError as e:
                raise doc.shape.error(f"shape: {e}") from None
        for k, t in enumerate(terms):
            if t.shape is not None:
                if doc.shape is not None:
                    raise t.shape.error("the shape is stated twice, on the term and on the rule")
                out[k] = self._one_shape(t.shape)
        return out

    def _target_shape(self, term: TermDoc) -> Shape | None:
        return self._one_shape(term.shape) if term.shape is not None else None

    def _one_shape(self, node: Node) -> Shape:
        try:
            return _shapes(node, 1)[0]
        except ExpressionError as e:
            raise node.error(f"shape: {e}") from None

    def _count(self, name: str, conditions: Iterable[Condition]) -> Dim:
        index = self.indices[name]
        filtered = any(
            name in (c.expr.names if c.expr is not None else c.name.names if c.name is not None else ())
            for c in conditions
        )
        if filtered or (index.size is not None and index.size.names & set(self.indices)):
            return Poly.of(f"_#{name}")
        return len(index.keys) if index.size is None else index.size.dim()

    def _chain(self, doc: RuleDoc, context: OpContext) -> Chain:
        def parsed(nodes: tuple[Node, ...]) -> tuple[Op, ...]:
            out = []
            for n in nodes:
                op = self._guard(lambda n=n: parse_op(n.plain(), context), n.origin)  # type: ignore[misc]
                if op is not None:
                    unknown = sorted(
                        x for x in op.sizes() if x.isidentifier() and not x.startswith("_") and x not in self.sizes
                    )
                    self.sizes |= set(unknown)
                    out.append(op)
            return tuple(out)

        before = len(self.problems)
        chain = Chain(
            tuple(parsed(t.ops) for t in doc.source),
            tuple((op,) for op in parsed(doc.ops)),
            tuple(parsed(t.ops) for t in doc.target),
        )
        if len(self.problems) > before:
            raise MapError(self.problems.pop())
        return chain

    def _rule_dtypes(self, doc: RuleDoc) -> tuple[str | None, str | None]:
        if doc.dtype is None:
            return (None, None)
        if doc.dtype.like is not None and doc.fill is None:
            raise doc.node.error("dtype: {like: NAME} stands on a fill rule", "dtype")
        return doc.dtype.sides

    def _fill(self, doc: RuleDoc, terms: list[list[Term]]) -> Fill:
        assert doc.fill is not None
        if doc.source and doc.target:
            raise doc.node.error("a fill rule has one side: the one that stores the constant", "fill")
        if doc.tied is not None:
            raise doc.node.error("fill and tied exclude each other", "fill")
        side = 0 if doc.source else 1
        if not all(t.dtype for t in terms[side]) and doc.dtype is None:
            raise doc.node.error("a fill rule needs its dtype", "fill")
        if doc.shape is None and any(t.shape is None for t in (doc.source or doc.target)):
            raise doc.node.error("a fill rule needs its shape", "fill")
        dtype = doc.dtype.sides[side] if doc.dtype else None
        like = parse_template(doc.dtype.like) if doc.dtype and doc.dtype.like else None
        if like is not None:
            self._check_names(like, doc.node.origin)
        what = doc.fill.value
        if what in FILLS:
            return Fill(str(what), None, dtype, like)
        text = (
            {float("inf"): "1e999", float("-inf"): "-1e999"}.get(what, str(what))
            if isinstance(what, float)
            else str(what)
        )
        if text == "nan":
            raise doc.fill.error("a fill of nan cannot be checked on the way back")
        return Fill("value", parse(text, True), dtype, like)

    def _tie(self, doc: RuleDoc, place: _Place, free: tuple[str, ...]) -> Tie:
        assert doc.tied is not None
        side = 0 if doc.source else 1
        template = parse_template(doc.tied.name)
        self._check_names(template, doc.tied.node.origin)
        odd = sorted((template.names & set(self.indices)) - set(free))
        if odd:
            raise doc.tied.node.error(f"tied: '{template}' has {{{odd[0]}}}, which the names of this rule do not share")
        if len(doc.source) > 1 or len(doc.target) > 1:
            raise doc.tied.node.error("a tied rule has one name on each side")
        return Tie(template, side, (doc.tied.source, doc.tied.target), doc.untied == "keep")

    # Regex renames and drops.

    def _regex(self, doc: RegexDoc) -> None:
        forward = Regex(doc.match, doc.to)
        _check_regex(forward)
        back: Regex | str = Regex(doc.reverse.match, doc.reverse.to) if doc.reverse else invert_regex(forward)
        if isinstance(back, Regex):
            _check_regex(back)
        dtypes = (None, None) if doc.dtype is None else doc.dtype.sides
        self.regexes.append(
            RegexRule(next(self.numbers), doc.node.origin, forward, back, dtypes, doc.optional, doc.reverse is None)
        )

    def _drop(self, entry: NameDoc | DropMatchDoc) -> Drop | None:
        origin = entry.node.origin if isinstance(entry, DropMatchDoc) else entry.origin

        def make() -> Drop:
            if isinstance(entry, DropMatchDoc):
                compile_pattern(entry.match)
                return Drop(origin, pattern=entry.match)
            templates = tuple(parse_template(s) for s in entry.spellings)
            for t in templates:
                self._check_names(t, origin)
            return Drop(origin, templates)

        found: Drop | None = self._guard(make, origin)
        return found

    def _check_claims(self) -> None:
        """Find two rules that name one tensor, as far as the map alone shows it."""
        for side, verb in ((0, "read"), (1, "written")):
            seen: dict[str, Rule] = {}
            for rule in self.rules:
                for text in {c for s, t in rule.terms() if s == side for c in self._canonical(t, side)}:
                    first = seen.setdefault(text, rule)
                    if first is not rule and not (first.conditions or rule.conditions):
                        name = next(
                            t.name for s, t in rule.terms() if s == side and text in set(self._canonical(t, side))
                        )
                        self.problems.append(
                            Problem(
                                f"'{name}' is {verb} by two rules, {first.origin} and {rule.origin}",
                                "map",
                                None,
                                rule.origin,
                            )
                        )

    def _canonical(self, term: Term, side: int) -> Iterable[str]:
        template = term.name
        enumerated = [i for i in sorted(template.names) if i in self.indices and self.indices[i].size is None]
        total = 1
        for i in enumerated:
            total *= len(self.indices[i].keys)
        if total > 2000 or any(h.single is None for h in template.holes):
            return [template.text]
        return [
            "".join(
                p if isinstance(p, str) else _hole_text(p, self.indices, dict(zip(enumerated, labels)))
                for p in template.parts
            )
            for labels in product(*(self.indices[i].labels(side) for i in enumerated))
        ]


def _check_regex(rename: Regex) -> None:
    try:
        check_regex(rename)
    except TemplateError as e:
        raise TemplateError(f"match: {e}") from None


def _hole_text(hole: Any, indices: dict[str, Index], labels: dict[str, Any]) -> str:
    index = indices.get(hole.single)
    if index is None or index.size is not None:
        size = index.size.text if index is not None and index.size is not None else hole.single
        return f"{{{size}:{hole.width}}}"
    return str(hole.render(labels))


def _index(name: str, node: Node) -> Index:
    value = node.value
    if isinstance(value, list):
        labels = tuple(_label(n) for n in value)
        _distinct(node, labels)
        return Index(name, None, labels, labels)
    if isinstance(value, dict):
        keys = tuple(value)
        images = tuple(_label(n) for n in value.values())
        _distinct(node, images)
        _distinct(node, keys)
        return Index(name, None, keys, images)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise node.error(f"index '{name}' is a size, a list or a mapping")
    if isinstance(value, int) and value < 0:
        raise node.error(f"index '{name}' runs over {value} values, fewer than none")
    return Index(name, parse(str(value)))


def _label(node: Node) -> Any:
    if isinstance(node.value, bool) or not isinstance(node.value, int | str):
        raise node.error("a label of an index is text or a whole number")
    return node.value


def _distinct(node: Node, labels: tuple[Any, ...]) -> None:
    if not labels:
        raise node.error("the index has no label")
    for kind in (str, lambda v: str(v).replace(".", "_")):
        twice = [v for v in labels if [kind(x) for x in labels].count(kind(v)) > 1]
        if twice and kind is str:
            raise node.error(f"label '{twice[0]}' stands twice")


def _shape_nodes(rules: Iterable[Any]) -> Iterable[Node]:
    for r in rules:
        if isinstance(r, GroupDoc):
            yield from _shape_nodes(r.rules)
        elif isinstance(r, RuleDoc):
            yield from (n for n in (r.shape, *(t.shape for t in (*r.source, *r.target))) if n is not None)


def _shapes(node: Node, terms: int) -> tuple[Shape, ...]:
    """Read one shape for each of ``terms`` terms; raises ExpressionError."""
    value = node.plain()
    if isinstance(value, str):
        return (_shape(value.split()),) * terms
    if isinstance(value, int) and not isinstance(value, bool):
        return (_shape([value]),) * terms
    if not isinstance(value, list):
        raise ExpressionError(f"{value!r} is no shape (dims separated by spaces, or a list)")
    if terms == 1:
        return (_shape(value),)
    if (
        len(value) != terms
        and not any((isinstance(v, str) and " " in v.strip()) or isinstance(v, list) for v in value)
        and terms == 2
    ):
        return (_shape(value),)
    if len(value) != terms:
        raise ExpressionError(f"there are {len(value)} shapes for {terms} terms, one each is needed")
    return tuple(_shape(v if isinstance(v, list) else str(v).split()) for v in value)


def _shape(dims: Sequence[Any]) -> Shape:
    out: list[Dim] = []
    for d in dims:
        if isinstance(d, bool) or not isinstance(d, int | str):
            raise ExpressionError(f"{d!r} is no dim (an integer or an expression of sizes)")
        dim = d if isinstance(d, int) else parse(d).dim()
        if isinstance(dim, int) and dim < 0:
            raise ExpressionError(f"a dim of {dim}")
        if isinstance(dim, Poly) and any(c < 0 for _, c in dim.terms):
            raise ExpressionError(f"'{d}' subtracts; dims have names, integers, + and *")
        if any(not n.isidentifier() for n in names(dim)):
            raise ExpressionError(f"'{d}' is no dim; dims have names, integers, + and * (compute a param with expr)")
        out.append(dim)
    return tuple(out)


__all__ = ["Expr", "build"]
