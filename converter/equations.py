"""From a rule of the document to a rule: terms, conditions and ops are read, and shapes are sent through the ops."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count

from converter.dims import Dim, Poly, names
from converter.errors import MapError, Problem
from converter.expressions import ExpressionError, parse
from converter.flow import Chain, complete, infer, joint
from converter.locality import sizes_in_use
from converter.names import parse_template
from converter.naming import Naming
from converter.ops import Op, OpContext, OpError, parse_op
from converter.ops.base import Shape, Value
from converter.ops.rearrange import Rearrange
from converter.readers import read_shapes
from converter.ruledoc import RuleDoc, TermDoc
from converter.rules import FILLS, Condition, Fill, LocalSize, Rule, Scope, Spelling, Term, Tie, stated_dtypes
from converter.yamltree import Node


@dataclass(frozen=True)
class Place:
    """Where a rule stands: prefixes of both sides (with spellings), conditions and optional scopes of the groups
    around it.
    """

    prefixes: tuple[tuple[Spelling, ...], tuple[Spelling, ...]]
    conditions: tuple[Condition, ...] = ()
    scopes: tuple[Scope, ...] = ()
    locals: Mapping[str, LocalSize] = field(default_factory=dict)


@dataclass
class Equations(Naming):
    """Build the rules of a map, one by one."""

    # Rules.

    def _rule(self, doc: RuleDoc, place: Place) -> Rule:
        """Read a rule; raises what :meth:`_guard` turns into a problem of its line."""
        rule = self._read(doc, place)
        return replace(rule, locals=sizes_in_use(rule, place.locals))

    def _read(self, doc: RuleDoc, place: Place) -> Rule:
        shapes = self._stated_shapes(doc)
        if not doc.source and not doc.target:
            raise doc.node.error("a rule needs `from` and `to`")
        one_sided = not doc.source or not doc.target
        if one_sided and doc.fill is None and doc.tied is None:
            missing = "to" if doc.source else "from"
            raise doc.node.error(f"'{missing}' is missing (only fill and tied rules have one side)")
        if doc.untied and doc.tied is None:
            raise doc.node.error("untied says something about `tied`, which is missing", "untied")
        spelled = [
            [(t, self._spell(place.prefixes[side], t.name, group=False)) for t in group]
            for side, group in enumerate((doc.source, doc.target))
        ]
        free = self._free(spelled, one_sided)
        conditions = place.conditions + self._conditions(doc)
        self._check_scope(
            conditions, {n for group in spelled for _, all_ in group for s in all_ for n in s.template.names}
        )
        terms = [[self._term(t, names_, free, side) for t, names_ in group] for side, group in enumerate(spelled)]
        scopes = place.scopes
        if doc.optional:
            scopes += (Scope(next(self.numbers), free, (terms[0] or terms[1])[0].name, doc.node.origin),)
        tie = self._tie(doc, free) if doc.tied is not None else None
        if one_sided:
            return self._one_sided(doc, terms, shapes, free, conditions, scopes, tie)
        if doc.fill is not None:
            raise doc.node.error("a fill rule has one side: the one that stores the constant", "fill")
        return self._equation(doc, terms, shapes, free, conditions, scopes, tie)

    def _check_scope(self, conditions: tuple[Condition, ...], used: set[str]) -> None:
        """Refuse a condition on an index that the names of the rule do not have."""
        for c in conditions:
            asked = c.expr.names if c.expr is not None else c.name.names if c.name is not None else frozenset()
            for n in sorted((asked & set(self.indices)) - used):
                text = f"{c.kind}: index '{n}' does not stand in the names of this rule"
                raise MapError(Problem(text, "map", None, c.origin))

    def _free(self, spelled: list[list[tuple[TermDoc, tuple[Spelling, ...]]]], one_sided: bool) -> tuple[str, ...]:
        """The indices that both sides share; of a rule with one side, all."""
        used = [{n for _, names_ in group for s in names_ for n in s.template.names} for group in spelled]
        both = used[0] | used[1] if one_sided else used[0] & used[1]
        return tuple(i for i in self.indices if i in both)

    def _one_sided(
        self, doc: RuleDoc, terms: list[list[Term]], shapes: list[Shape | None], free: tuple[str, ...],
        conditions: tuple[Condition, ...], scopes: tuple[Scope, ...], tie: Tie | None,
    ) -> Rule:  # fmt: skip
        for node, ops in [(doc.node, doc.ops), *((t.node, t.ops) for t in (*doc.source, *doc.target))]:
            if ops:
                raise node.error("a rule with one side has no ops", "ops")
        only = 0 if doc.source else 1
        fill = self._fill(doc, terms[only]) if doc.fill is not None else None
        terms[only] = [Term(t.spellings, s, t.dtype, t.bound) for t, s in zip(terms[only], shapes)]
        needed = {"causal_mask": 2, "arange": 1}.get(fill.what, 0) if fill is not None else 0
        if any(len(s or ()) < needed for s in shapes):
            raise doc.node.error(f"{fill.what if fill else ''} needs {needed} axes or more", "shape")
        empty = Chain((), (), ())
        return Rule(
            next(self.numbers), doc.node.origin, 0, tuple(terms[0]), tuple(terms[1]), empty, empty, (),
            self._rule_dtypes(doc), free, conditions, scopes, tie, fill, doc.optional,
        )  # fmt: skip

    def _equation(
        self, doc: RuleDoc, terms: list[list[Term]], shapes: list[Shape | None], free: tuple[str, ...],
        conditions: tuple[Condition, ...], scopes: tuple[Scope, ...], tie: Tie | None,
    ) -> Rule:  # fmt: skip
        counts = {name: self._count(name, conditions) for name in self.indices}
        context = OpContext(self.declared, counts, len(doc.target), stated_dtypes(terms, self._rule_dtypes(doc)))
        chain = self._chain(doc, context)
        for k, (t, head) in enumerate(zip(terms[0], chain.heads)):
            first = head[0] if head else chain.stages[0][0] if chain.stages and not joint(chain.stages[0][0]) else None
            shape = (
                shapes[k] if shapes[k] is not None else first.shape_of_left() if isinstance(first, Rearrange) else None
            )
            terms[0][k] = Term(t.spellings, shape, t.dtype, t.bound)
        numbers = count(1)

        def fresh(name: str) -> Dim:
            return Poly.of(f"_{name}~{next(numbers)}")

        sources = tuple(Value(tuple((i, counts[i]) for i in t.bound), t.shape) for t in terms[0])
        sources = complete(chain, sources, fresh)
        terms[0] = [Term(t.spellings, v.shape, t.dtype, t.bound) for t, v in zip(terms[0], sources)]
        found = infer(chain, sources, fresh)
        equations = list(found.equations)
        for k, (t, value) in enumerate(zip(terms[1], found.targets)):
            odd = {i for i, _ in value.bound} ^ set(t.bound)
            if odd:
                spread = f"'{t.name}' has it and no op spreads over it (unstack, split over, replicate)"
                why = spread if min(odd) in t.bound else "no op brings its tensors together (stack, concat over, same)"
                raise OpError(f"index '{min(odd)}' stands on one side only: {why}")
            stated = self._target_shape(doc.target[k])
            if stated is not None and value.shape is not None:
                equations += self._agree(stated, value.shape, doc.target[k])
            terms[1][k] = Term(t.spellings, stated if stated is not None else value.shape, t.dtype, t.bound)
        true_equations = tuple(e for e in equations if e[0] != e[1])
        return Rule(
            next(self.numbers), doc.node.origin, 0, tuple(terms[0]), tuple(terms[1]), chain, found.inverse,
            true_equations, self._rule_dtypes(doc), free, conditions, scopes, tie, None, doc.optional,
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
                f"'{spellings[0].template}' has no {{{missing[0]}}}: it would be {verb} once for "
                f"each value of '{missing[0]}'"
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
                    f"'{spellings[0].template}': the count of '{n}' is {size.text}, so a name with "
                    f"{{{n}}} needs {{{missing[0]}}} too"
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
                out = list(read_shapes(doc.shape, len(terms)))
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
            return read_shapes(node, 1)[0]
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
                op = self._guard(lambda n=n: parse_op(n.plain(), context), n.origin)
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

    def _fill(self, doc: RuleDoc, terms: list[Term]) -> Fill:
        assert doc.fill is not None
        if doc.tied is not None:
            raise doc.node.error("fill and tied exclude each other", "fill")
        side = 0 if doc.source else 1
        if doc.shape is None and any(t.shape is None for t in (doc.source or doc.target)):
            raise doc.node.error("a fill rule needs its shape", "fill")
        dtype = terms[0].dtype or (doc.dtype.sides[side] if doc.dtype else None)
        like = parse_template(doc.dtype.like) if doc.dtype and doc.dtype.like else None
        if like is not None:
            self._check_names(like, doc.node.origin)
        elif dtype in (None, "keep"):
            raise doc.node.error(f"a fill rule needs the dtype of its side ('{'to' if side else 'from'}')", "fill")
        what = doc.fill.value
        if what in FILLS:
            return Fill(str(what), None, dtype, like)
        if isinstance(what, float) and not math.isfinite(what):
            if math.isnan(what):
                raise doc.fill.error("a fill of nan cannot be checked on the way back")
            return Fill("value", None, dtype, like, what)
        expr = parse(str(what), True)
        self.used += [("fill", name, doc.fill.origin) for name in sorted(expr.names)]
        return Fill("value", expr, dtype, like)

    def _tie(self, doc: RuleDoc, free: tuple[str, ...]) -> Tie:
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
