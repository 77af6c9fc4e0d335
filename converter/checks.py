"""Steps that compare tied tensors with each other and constants with what the map states, or make constants."""

from __future__ import annotations

from typing import Any

from converter.casting import Stated, constant_problem
from converter.dims import names, substitute
from converter.errors import Problem
from converter.expand import Instance
from converter.expressions import ExpressionError, UnknownName
from converter.locality import shared_sizes
from converter.recipes import Recipes
from converter.rules import Term
from converter.shaping import unknown_sizes
from converter.steps import Constant, Step
from converter.ties import TieWork

_KEEP = Stated(None, False)


class Checks:
    """Make the steps that check facts about data, and constants; problems go to those of the recipes."""

    def __init__(self, recipes: Recipes) -> None:
        self.recipes = recipes
        self.steps: list[Step] = []

    def tied(self, work: TieWork) -> list[Step]:
        """Compare what ties say is equal."""
        self.steps = []
        self._compare_names(work)
        for instance, of in work.compare:
            self._compare_flows(instance, of)
        return self.steps

    def constants(self, instance: Instance, made: dict[str, str]) -> list[Step]:
        """Make the constants of a fill, or check them; ``made`` has the dtypes of the other outputs."""
        self.steps = []
        self._fill(instance, made)
        return self.steps

    def _compare_names(self, work: TieWork) -> None:
        """Compare tied tensors of the input, as they are or as the one dtype that they become."""
        for instance, name, stored in work.compare_names:
            a, b = self.recipes.inputs.entry(name), self.recipes.inputs.entry(stored)
            rule = instance.rule
            if a.shape != b.shape:
                self.recipes.mismatches.append(
                    (
                        a.name,
                        rule.origin,
                        f"shape is {list(a.shape)}, {b.name} has {list(b.shape)}, and the map ties them",
                    )
                )
                continue
            stated = self.recipes.stated(rule.dtypes[1], rule.target[0].dtype) if rule.target else None
            left, right = (
                self.recipes.plain(e, stated) if stated and a.dtype != b.dtype else self.recipes.plain(e, _KEEP)
                for e in (a, b)
            )
            if left is None or right is None:
                continue
            if left.outputs[0].dtype != right.outputs[0].dtype:
                text = (
                    f"is {a.dtype} and differs from {b.name}, which is {b.dtype}, although the map "
                    f"ties them (state a dtype for both, or --untie)"
                )
                self.recipes.problems.append(Problem(text, "tied", a.name, rule.origin))
                continue
            self.steps.append(Step("compare", rule.origin, left, ((a.name,),), (), None, right, ((b.name,),)))

    def _compare_flows(self, instance: Instance, of: Instance) -> None:
        """Compare what two tensors of the input become, where the map ties what they become."""
        left, right = self.recipes.recipe(instance), self.recipes.recipe(of)
        if left is None or right is None:
            return
        name, origin = self.recipes.inputs.entry(instance.sources[0][0]).name, instance.rule.origin
        a, b = left.outputs[0], right.outputs[0]
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            text = (
                f"becomes {a.dtype} {list(a.shape)}, {of.sources[0][0]} becomes {b.dtype} "
                f"{list(b.shape)}, and the map ties them"
            )
            self.recipes.problems.append(Problem(text, "tied", name, origin))
            return
        self.steps.append(
            Step(
                "compare",
                origin,
                left,
                self.recipes.file_names(instance.sources),
                (),
                None,
                right,
                self.recipes.file_names(of.sources),
            )
        )

    def _fill(self, instance: Instance, made: dict[str, str]) -> None:
        rule = instance.rule
        assert rule.fill is not None
        making = not instance.sources
        term = (rule.target if making else rule.source)[0]
        group = (instance.targets if making else instance.sources)[0]
        for name in group:
            if not making:
                self._check_fill(instance, term, name)
                continue
            dtype = term.dtype or rule.fill.dtype
            if rule.fill.like is not None:
                like = rule.fill.like.render({**self.recipes.facts.numbers, **instance.values})
                dtype = made.get(like)
                if dtype is None:
                    self.recipes.problems.append(
                        Problem(f"dtype: like '{like}', which the output does not have", "dtype", name, rule.origin)
                    )
                    continue
            constant = self.constant(instance, term, str(dtype))
            if constant is not None:
                self.steps.append(Step("fill", rule.origin, None, (), ((name,),), constant))

    def _check_fill(self, instance: Instance, term: Any, name: str) -> None:
        if name not in self.recipes.inputs:
            return
        entry = self.recipes.inputs.entry(name)
        constant = self.constant(instance, term, entry.dtype)
        if constant is None:
            return
        if constant.shape != entry.shape:
            text = f"shape is {list(entry.shape)}, expected {list(constant.shape)}"
            self.recipes.mismatches.append((entry.name, instance.rule.origin, text))
            return
        self.steps.append(Step("check", instance.rule.origin, None, ((entry.name,),), (), constant))

    def constant(self, instance: Instance, term: Term, dtype: str) -> Constant | None:
        """The constant of a fill in some dtype; None where a size or value is not known, which is then a problem."""
        rule = instance.rule
        assert rule.fill is not None
        name = (instance.targets or instance.sources)[0][0]
        known = self.recipes.local_numbers(instance, shared_sizes(rule, instance.values))
        shape = tuple(substitute(d, known) for d in term.shape or ())
        open_names = {n for d in shape for n in names(d)}
        if open_names:
            self.recipes.problems.append(
                Problem(unknown_sizes(open_names, "the shape of this rule needs"), "size", name, rule.origin)
            )
            return None
        try:
            expr = rule.fill.value
            value = (
                float(rule.fill.what == "ones")
                if expr is None
                else float(expr.evaluate({**self.recipes.facts.values, **known, **instance.values}))
            )
            value = rule.fill.number or value
        except UnknownName as e:
            self.recipes.problems.append(Problem(f"fill: {e}: --set {e.name}=...", "size", name, rule.origin))
            return None
        except (ExpressionError, TypeError, ValueError) as e:
            self.recipes.problems.append(Problem(f"fill: {e}", "map", name, rule.origin))
            return None
        last = float(shape[-1]) - 1 if rule.fill.what == "arange" and isinstance(shape[-1], int) else value
        wrong = constant_problem(rule.fill.what, last, dtype)
        if wrong is not None:
            self.recipes.problems.append(Problem(f"fill: {wrong}", "dtype", name, rule.origin))
            return None
        return Constant(rule.fill.what, value, dtype, tuple(d for d in shape if isinstance(d, int)))
