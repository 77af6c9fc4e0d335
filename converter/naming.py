"""Names of a map while its rules are built: spelled below group prefixes, checked against indices and sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, product
from math import prod
from typing import Any

from converter.dims import SizeError, names
from converter.document import MapDoc
from converter.errors import ConvertError, MapError, Origin, Problem
from converter.expressions import ExpressionError, parse
from converter.folding import Hints, clip, repeated
from converter.forms import Form, ambiguity
from converter.names import MAX_COMBINATIONS, Hole, Index, Template, TemplateError, parse_template
from converter.ruledoc import MAX_SPELLINGS, GroupDoc, NameDoc, RuleDoc
from converter.rules import Condition, Rule, Spelling
from converter.yamltree import Node

MAX_SPELLED = 200_000  # of all names of a map


@dataclass
class Naming:
    """What building knows of names: indices, names of sizes, and the problems found so far."""

    doc: MapDoc
    problems: list[Problem] = field(default_factory=list)
    indices: dict[str, Index] = field(default_factory=dict)
    sizes: set[str] = field(default_factory=set)
    declared: frozenset[str] = frozenset()  # the sizes that params, indices and shapes declare, without those of ops
    used: list[tuple[str, str, Origin]] = field(
        default_factory=list
    )  # (where, name, line), judged when all sizes are known
    labels: dict[tuple[str, bool], list[tuple[str, ...]]] = field(default_factory=dict)  # as names write them
    spelled: int = 0  # names so far, in all their spellings
    hints: Hints = field(default_factory=Hints)
    numbers: Iterator[int] = field(default_factory=count)
    rules: list[Rule] = field(default_factory=list)

    def _guard(self, make: Any, origin: Origin) -> Any:
        """Run one step; what goes wrong becomes a problem of this line, and None."""
        try:
            return make()
        except ConvertError as e:
            self.problems += e.problems
        except (TemplateError, ExpressionError, SizeError) as e:
            self.problems.append(Problem(str(e), "map", None, origin))
        return None

    def _spell(self, outer: Sequence[Spelling], name: NameDoc, group: bool) -> tuple[Spelling, ...]:
        number = next(self.numbers) if group and name.any else None
        ways = len(outer) * len(name.spellings)
        if ways > MAX_SPELLINGS:
            told = f"a name in {ways} spellings, with those of its groups (at most {MAX_SPELLINGS})"
            raise MapError(Problem(told, "map", None, name.origin))
        out = []
        for prefix, (k, text) in product(outer, enumerate(name.spellings)):
            template = parse_template(prefix.template.text + text)
            out.append(Spelling(template, prefix.choices + (((number, k),) if number is not None else ())))
        for s in out:
            self._check_names(s.template, name.origin)
            self._spend(s.template, name.origin)
            for hole in s.template.holes:
                self._check_hole(hole, name.origin)
            for a, b in zip(s.template.parts, s.template.parts[1:]):
                if isinstance(a, Hole) and isinstance(b, Hole):
                    self._check_touching(s.template, a, b, name.origin)
            self._check_numbers(s.template, name.origin)
        return tuple(out)

    def _spend(self, template: Template, origin: Origin) -> None:
        """Refuse names whose labels multiply, or that are too many in all."""
        ways = prod(len(self._labels(h)[0]) for h in template.holes if self._labels(h))
        if ways > MAX_COMBINATIONS:
            told = f"'{template}' stands for {ways} combinations of labels (at most {MAX_COMBINATIONS})"
            raise MapError(Problem(told, "map", None, origin))
        self.spelled += ways
        if self.spelled > MAX_SPELLED:
            told = f"up to here the map has more than {MAX_SPELLED} names, in all spellings and with all labels"
            raise MapError(Problem(told, "map", None, origin))

    def _constant(self, name: str) -> bool:
        """Whether an index runs over values that the map alone states."""
        index = self.indices.get(name)
        return index is not None and (index.size is None or index.size.text.isdigit())

    def _labels(self, hole: Hole) -> list[tuple[str, ...]]:
        """What an enumerated hole can write, on either side; empty for a number."""
        index = self.indices.get(hole.single or "")
        if index is None or index.size is not None:
            return []
        key = (index.name, hole.underscore)
        if key not in self.labels:
            sides = (index.keys, index.images)
            self.labels[key] = [tuple(hole.render({index.name: v}) for v in labels) for labels in sides]
        return self.labels[key]

    def _check_touching(self, template: Template, a: Hole, b: Hole, origin: Origin) -> None:
        """Refuse neighbours of which some name could be read in two ways."""
        for left, right in zip(self._labels(a) or [()] * 2, self._labels(b) or [()] * 2):
            if not left and not right:
                clash = "numbers that touch"
            elif not left or not right:
                odd = next((t for t in left if t[-1:].isdigit()), next((t for t in right if t[:1].isdigit()), None))
                clash = f"'{odd}' and a number that touch" if odd else ""
            else:
                if len(left) * len(right) > MAX_COMBINATIONS:
                    clash = f"{len(left)} and {len(right)} labels"
                else:
                    odd = repeated(x + y for x in left for y in right)
                    clash = f"two readings of '{odd}'" if odd is not None else ""
            if clash:
                text = f"'{{{a.text}}}{{{b.text}}}' in '{template}': {clash} cannot be told apart"
                raise MapError(Problem(text, "map", None, origin))

    def _check_numbers(self, template: Template, origin: Origin) -> None:
        """Refuse numbers with nothing between them but what may be digits too: 1{j} after {i} could begin anywhere."""
        before: Hole | None = None
        for part in template.parts:
            labels = [t for side in self._labels(part) for t in side] if isinstance(part, Hole) else [part]
            if isinstance(part, Hole) and not labels:
                if before is not None:
                    text = f"'{template}': {{{before.text}}} and {{{part.text}}} have nothing but digits between them"
                    raise MapError(Problem(f"{text}, so that they cannot be told apart", "map", None, origin))
                before = part
            elif not any(not t or t.isdigit() for t in labels):
                before = None

    def _check_hole(self, hole: Hole, origin: Origin) -> None:
        """Refuse arithmetic on text labels, and `{w:_}` where dots as underscores make two labels one."""
        for name in sorted(names(hole.dim)) if hole.single is None else ():
            index = self.indices.get(name)
            if index is not None and any(not isinstance(v, int) for v in (*index.keys, *index.images)):
                text = f"'{{{hole.text}}}' computes with '{name}', whose labels are not all whole numbers"
                raise MapError(Problem(text, "map", None, origin))
        if hole.single is None and all(self._constant(name) for name in names(hole.dim)):
            counts = {n: int(i.size.text) for n, i in self.indices.items() if i.size is not None and self._constant(n)}
            form = Form(Template(hole.text, (hole,)), self.indices, 0, {}, dict(counts))
            if ambiguity(form) is not None:
                raise MapError(Problem(f"{ambiguity(form)}", "map", None, origin))
        for shown in self._labels(hole) if hole.underscore else ():
            twice = repeated(shown)
            if twice is not None:
                text = f"'{{{hole.text}:_}}' writes two labels of '{hole.single}' as '{twice}'"
                raise MapError(Problem(text, "map", None, origin))

    def _check_names(self, template: Template, origin: Origin) -> None:
        for n in sorted(template.names - set(self.indices) - self.sizes):
            hint = self.hints.of(n, (*self.indices, *self.sizes))
            hint = hint or f" (indices: {clip(', '.join(self.indices)) or 'none'})"
            raise MapError(
                Problem(
                    f"'{{{n}}}' in '{template}': '{n}' is neither an index nor a size of the map{hint}",
                    "map",
                    None,
                    origin,
                )
            )

    def _when(self, node: Node | None, kind: str = "when") -> tuple[Condition, ...]:
        if node is None:
            return ()
        expr = parse(str(node.value))
        self.used += [("when", name, node.origin) for name in sorted(expr.names)]
        return (Condition(kind, expr, None, node.origin),)

    def _conditions(self, doc: RuleDoc | GroupDoc) -> tuple[Condition, ...]:
        out = [*self._when(doc.when)]
        for kind, node in (("with", doc.present), ("without", doc.absent)):
            if node is None:
                continue
            if not isinstance(node.value, str):
                raise node.error(f"{kind} takes one name")
            template = parse_template(node.value)
            self._check_names(template, node.origin)
            out.append(Condition(kind, None, template, node.origin))
        return tuple(out)
