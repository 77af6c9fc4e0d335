"""Names of a map while its rules are built: spelled below group prefixes, checked against indices and sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, product
from typing import Any

from converter.document import MapDoc
from converter.errors import ConvertError, MapError, Origin, Problem
from converter.expressions import ExpressionError, parse
from converter.folding import closest
from converter.names import Hole, Index, Template, TemplateError, parse_template
from converter.ops import OpError
from converter.ruledoc import GroupDoc, NameDoc, RuleDoc
from converter.rules import Condition, Spelling


@dataclass
class Naming:
    """What building knows of names: indices, names of sizes, and the problems found so far."""

    doc: MapDoc
    problems: list[Problem] = field(default_factory=list)
    indices: dict[str, Index] = field(default_factory=dict)
    sizes: set[str] = field(default_factory=set)
    declared: frozenset[str] = frozenset()  # the sizes that params, indices and shapes declare, without those of ops
    used: list[tuple[str, Origin]] = field(default_factory=list)  # names in conditions, judged when all sizes are known
    numbers: Iterator[int] = field(default_factory=count)

    def _guard(self, make: Any, origin: Origin) -> Any:
        """Run one step; what goes wrong becomes a problem of this line, and None."""
        try:
            return make()
        except ConvertError as e:
            self.problems += e.problems
        except (TemplateError, ExpressionError, OpError) as e:
            self.problems.append(Problem(str(e), "map", None, origin))
        return None

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
            self.used += [(name, doc.when.origin) for name in sorted(expr.names)]
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
