"""From instances to steps: shapes are checked against what is known, ops get their numbers, dtypes are decided.

Instances with equal inputs share one recipe, so that sixty layers of experts are worked out once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from converter.casting import CastError, Stated, decide, state
from converter.dims import Dim, Poly, SizeError, names, render_shape, substitute
from converter.errors import Problem
from converter.expand import Instance
from converter.facts import Facts
from converter.flow import Chain, infer, results
from converter.inputs import Inputs
from converter.locality import Locals, local_sizes
from converter.matching import Matcher
from converter.ops.base import Value
from converter.ops.results import Result
from converter.rules import Rule, Ruleset, Term
from converter.settings import Settings
from converter.shaping import Shaping, unknown_sizes
from converter.spec import TensorEntry
from converter.steps import Operand, Recipe, Step

PLAIN = Chain(((),), (), ((),))


@dataclass
class Recipes:
    """The recipes of one plan, and the problems met on the way."""

    rules: Ruleset
    matcher: Matcher
    settings: Settings
    problems: list[Problem] = field(default_factory=list)
    _cache: dict[Any, Recipe | tuple[Problem, ...]] = field(default_factory=dict)
    _simple: dict[Any, Recipe | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.shaping = Shaping(self.matcher.facts, self.problems)

    @property
    def mismatches(self) -> list[tuple[str, Any, str]]:
        """Tensors of a wrong shape: name, line of the map, what is wrong."""
        return self.shaping.mismatches

    @property
    def facts(self) -> Facts:
        """What is known."""
        return self.matcher.facts

    @property
    def inputs(self) -> Inputs:
        """The tensors of the input."""
        return self.matcher.inputs

    def recipe(self, instance: Instance) -> Recipe | None:
        """Give the recipe of a complete instance; None where something does not fit, which is then a problem."""
        if len(instance.sources) == 1 and len(instance.sources[0]) == 1 and not instance.members:
            entry = self.inputs.entry(instance.sources[0][0])
            rule = instance.rule
            local = local_sizes(rule, instance.values, [(0, entry.shape)])
            sizes = local.values(self.facts.numbers) if rule.local else None
            simple = (rule.number, entry.dtype, entry.shape, sizes)
            found = self._simple.get(simple)
            if found is None and simple not in self._simple:
                fits = self.shaping.problem(rule.source[0], entry, local) is None
                found = self._simple[simple] = self._any(instance) if fits else None
            return found or self._any(instance)
        return self._any(instance)

    def _any(self, instance: Instance) -> Recipe | None:
        entries = [[self.inputs.entry(n) for n in group] for group in instance.sources]
        shapes = [(k, e.shape) for k, group in enumerate(entries) for e in group]
        rule = instance.rule
        local = local_sizes(rule, instance.values, shapes)
        if not self.shaping.fit(rule, entries, local) or not self.shaping.agree(rule, entries):
            return None
        key = (
            rule.number,
            local.values(self.facts.numbers),
            tuple((g[0].dtype, g[0].shape) for g in entries),
            tuple((i, len(v)) for i, v in instance.members.items()),
        )
        if key not in self._cache:
            self._cache[key] = self._make(instance, [g[0] for g in entries], local)
        found = self._cache[key]
        if isinstance(found, tuple):
            for p in found:
                subject = entries[0][0].name
                if p.kind == "shape":
                    self.mismatches.append((subject, rule.origin, p.message))
                    continue
                self.problems.append(Problem(p.message.removeprefix(f"{subject} "), p.kind, subject, rule.origin))
            return None
        return found

    # Recipes.

    def local_numbers(self, instance: Instance, local: Locals) -> dict[str, int]:
        """The numbers that ops of an instance see: facts, its local sizes, and the counts of its members."""
        out = self.facts.numbers | local.numbers(self.facts.numbers)
        return out | {f"_#{name}": len(labels) for name, labels in instance.members.items()}

    def _make(self, instance: Instance, entries: list[TensorEntry], local: Locals) -> Recipe | tuple[Problem, ...]:
        rule = instance.rule
        counts = {name: len(labels) for name, labels in instance.members.items()}
        known = self.local_numbers(instance, local)

        def unknown(name: str) -> Dim:
            return Poly.of(f"_{name}")

        try:
            chain = rule.chain.bind(known)
            values = tuple(Value(tuple((i, counts[i]) for i in t.bound), e.shape) for t, e in zip(rule.source, entries))
            found = infer(chain, values, unknown)
        except SizeError as e:
            return (Problem(f"shape is {list(entries[0].shape)}: {e}", "shape"),)
        for left, right in found.equations:
            if isinstance(left, int) and isinstance(right, int) and left != right:
                return (Problem(f"shape is {list(entries[0].shape)}: an axis of {right} should be {left}", "shape"),)
        open_names = {n for v in found.targets for d in v.shape or () for n in names(d)} | {
            n for op in chain.ops() for n in op.sizes() if n.isidentifier() and not n.startswith("_")
        }
        if open_names:
            return (Problem(unknown_sizes(open_names), "size"),)
        return self._with_dtypes(rule, chain, entries, found.targets, counts, known)

    def _with_dtypes(
        self,
        rule: Rule,
        chain: Chain,
        entries: list[TensorEntry],
        targets: tuple[Value, ...],
        counts: dict[str, int],
        known: dict[str, int],
    ) -> Recipe | tuple[Problem, ...]:
        inputs = tuple(
            Operand(e.dtype, e.shape, tuple((i, counts[i]) for i in t.bound)) for t, e in zip(rule.source, entries)
        )
        outputs = []
        try:
            for term, value, made in zip(rule.target, targets, results(chain, [e.dtype for e in entries])):
                dtype = self._dtype(rule, term, entries, made)
                shape = tuple(d for d in value.shape or () if isinstance(d, int))
                if term.shape is not None:
                    wanted = tuple(substitute(d, known) for d in term.shape)
                    if any(isinstance(w, int) and w != s for w, s in zip(wanted, shape)):
                        reason = self.facts.reason(term.shape)
                        return (
                            Problem(
                                f"{term.name} becomes {list(shape)}, expected {render_shape(term.shape)} with {reason}",
                                "shape",
                            ),
                        )
                outputs.append(Operand(dtype, shape, tuple((i, int(n)) for i, n in value.bound if isinstance(n, int))))
        except (CastError, SizeError) as e:
            return (Problem(str(e), "dtype"),)
        return Recipe(inputs, chain, tuple(outputs))

    def _dtype(self, rule: Rule, term: Term, entries: list[TensorEntry], made: Result) -> str:
        """The dtype of a target; raises CastError."""
        if made.dtype and made.cast == "none":
            return made.dtype
        leaves = sorted(made.leaves)[:1] if made.dtype else sorted(made.leaves)
        joining = {entries[k].name: rule.source[k].dtype or rule.dtypes[0] or self.rules.dtypes[0] for k in leaves}
        stated = self.stated(rule.dtypes[1], term.dtype) if made.cast == "any" else state(term.dtype, None, None, None)
        return decide({entries[k].name: made.dtype or entries[k].dtype for k in leaves}, joining, stated)

    def stated(self, rule: str | None, term: str | None = None) -> Stated:
        """The dtype that is stated for a target, by its term, its rule, `--dtype` or the map."""
        return state(term, rule, self.settings.dtype, self.rules.dtypes[1])

    def plain(self, entry: TensorEntry, stated: Stated) -> Recipe | None:
        """The recipe of a rename; None where its cast is refused, which is then a problem."""
        key = ("plain", entry.dtype, entry.shape, stated)
        if key not in self._cache:
            try:
                dtype = decide({entry.name: entry.dtype}, {}, stated)
                self._cache[key] = Recipe((Operand(entry.dtype, entry.shape),), PLAIN, (Operand(dtype, entry.shape),))
            except CastError as e:
                self._cache[key] = (Problem(str(e), "dtype"),)
        found = self._cache[key]
        if isinstance(found, tuple):
            self.problems.append(Problem(found[0].message.removeprefix(f"{entry.name} "), "dtype", entry.name))
            return None
        return found

    # Steps.

    def move(self, instance: Instance) -> Step | None:
        """The step of a complete instance."""
        recipe = self.recipe(instance)
        if recipe is None:
            return None
        sources, targets = self.file_names(instance.sources), self.ordered_targets(instance, recipe)
        return Step("move", instance.rule.origin, recipe, sources, targets)

    def file_names(self, groups: list[list[str]]) -> tuple[tuple[str, ...], ...]:
        """Names as the files have them."""
        entry = self.inputs.entry
        return tuple([tuple([entry(n).name for n in group]) for group in groups])

    def ordered_targets(self, instance: Instance, recipe: Recipe) -> tuple[tuple[str, ...], ...]:
        """Target names in the order in which the chain gives the members (its bound indices may come in another
        order).
        """
        if not instance.members:
            return tuple(map(tuple, instance.targets))
        out = []
        for term, operand, group in zip(instance.rule.target, recipe.outputs, instance.targets):
            order = [i for i, _ in operand.bound] if term.bound else []
            if not order or order == list(term.bound):
                out.append(tuple(group))
                continue
            sizes = [len(instance.members[i]) for i in term.bound]
            strides = {i: _product(sizes[k + 1 :]) for k, i in enumerate(term.bound)}
            rows: list[int] = [0]
            for i, n in operand.bound:
                rows = [r + k * strides[i] for r in rows for k in range(n)]
            out.append(tuple(group[r] for r in rows))
        return tuple(out)


def _product(sizes: list[int]) -> int:
    out = 1
    for s in sizes:
        out *= s
    return out
