"""Rules and a header become a plan: facts are gathered, names are claimed, ties settled, steps made. No data is read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from converter.casting import Stated
from converter.claims import Claims, Ledger
from converter.errors import ConvertError, Origin, Problem
from converter.expand import Instance
from converter.facts import Facts, Settings, check_params, check_settings
from converter.inputs import read_inputs
from converter.learning import learn
from converter.matching import Matcher
from converter.recipes import Recipes
from converter.regexes import Regex
from converter.rules import Rule, Ruleset
from converter.spec import Header, TensorSpec
from converter.steps import Fates, Plan, Recipe, Step, Tied
from converter.ties import Ties, TieWork


def make_plan(rules: Ruleset, header: Header, settings: Settings) -> Plan:
    """Plan a conversion in the direction of ``rules``.

    Problems of the checkpoint are collected in the plan (see :func:`converter.verify.verify`); raises UsageError and
    MapError for what no checkpoint could mend.
    """
    check_params(rules)
    check_settings(rules, settings)
    return _Planner(rules, header, settings).plan()


class _Planner:
    def __init__(self, rules: Ruleset, header: Header, settings: Settings) -> None:
        self.rules, self.header, self.settings = rules, header, settings
        self.inputs = read_inputs(header, rules.strip[0])
        self.facts = Facts(rules.params, rules.atoms)
        self.problems: list[Problem] = [
            Problem(f"stands in the input twice, as {a} and as {b}", "claim", name)
            for name, a, b in self.inputs.clashes
        ]
        self.steps: list[Step] = []

    def plan(self) -> Plan:
        ledger, work = Ledger(), TieWork()
        recipes: Recipes | None = None
        try:
            matcher = learn(self.rules, self.inputs, self.facts, self.settings)
            claims = Claims(matcher, self.settings.unmatched or self.rules.rest)
            ledger = claims.run()
            self.problems += ledger.problems
            before = len(ledger.problems)
            recipes = Recipes(self.rules, matcher, self.settings)
            work, plain = Ties(matcher, ledger, self.settings, claims.expander).run()
            self.problems += ledger.problems[before:]
            self._make_steps(recipes, ledger, work, plain)
            self.problems += recipes.problems
            self._check_kept(matcher, ledger)
        except ConvertError as e:
            if e.exit_code != 1:
                raise
            self.problems += e.problems
        return self._finish(ledger, work, recipes)

    # Steps.

    def _make_steps(self, recipes: Recipes, ledger: Ledger, work: TieWork, plain: list[Instance]) -> None:
        fills: list[Instance] = []
        for instance in (*plain, *work.moves):
            if instance.rule.fill is not None:
                fills.append(instance)
            elif instance.complete and instance.sources:
                self._add(recipes.move(instance))
        for name, (regex, new) in ledger.renamed.items():
            self._rename(recipes, name, new, recipes.stated(regex.dtypes[1]), regex.origin)
        for name in ledger.kept:
            self._rename(recipes, name, name, recipes.stated(None), None)
        self._compare_names(recipes, work)
        for instance, of in work.compare:
            self._compare_flows(recipes, instance, of)
        made = {t.name: t.dtype for s in self.steps for t in step_outputs(s)} if fills else {}
        for instance in fills:
            self._fill(recipes, instance, made)

    def _add(self, step: Step | None) -> None:
        if step is not None:
            self.steps.append(step)

    def _rename(self, recipes: Recipes, name: str, new: str, stated: Any, origin: Any) -> None:
        entry = self.inputs.entries[name]
        recipe = recipes.plain(entry, stated)
        if recipe is not None:
            self.steps.append(Step("move", origin, recipe, ((entry.name,),), ((new,),)))

    def _compare_names(self, recipes: Recipes, work: TieWork) -> None:
        """Compare tied tensors of the input, as they are or as the one dtype that they become."""
        for instance, name, stored in work.compare_names:
            a, b = self.inputs.entry(name), self.inputs.entry(stored)
            rule = instance.rule
            if a.shape != b.shape:
                recipes.mismatches.append(
                    (
                        a.name,
                        rule.origin,
                        f"shape is {list(a.shape)}, {b.name} has {list(b.shape)}, and the map ties them",
                    )
                )
                continue
            stated = recipes.stated(rule.dtypes[1], rule.target[0].dtype) if rule.target else None
            left, right = (
                recipes.plain(e, stated) if stated and a.dtype != b.dtype else recipes.plain(e, _KEEP) for e in (a, b)
            )
            if left is None or right is None:
                continue
            if left.outputs[0].dtype != right.outputs[0].dtype:
                text = f"is {a.dtype} and differs from {b.name}, which is {b.dtype}, although the map ties them (state a dtype for both, or --untie)"
                self.problems.append(Problem(text, "tied", a.name, rule.origin))
                continue
            self.steps.append(Step("compare", rule.origin, left, ((a.name,),), (), None, right, ((b.name,),)))

    def _compare_flows(self, recipes: Recipes, instance: Instance, of: Instance) -> None:
        """Compare what two tensors of the input become, where the map ties what they become."""
        left, right = recipes.recipe(instance), recipes.recipe(of)
        if left is None or right is None:
            return
        name, origin = self.inputs.entry(instance.sources[0][0]).name, instance.rule.origin
        a, b = left.outputs[0], right.outputs[0]
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            text = f"becomes {a.dtype} {list(a.shape)}, {of.sources[0][0]} becomes {b.dtype} {list(b.shape)}, and the map ties them"
            self.problems.append(Problem(text, "tied", name, origin))
            return
        self.steps.append(
            Step(
                "compare",
                origin,
                left,
                recipes.file_names(instance.sources),
                (),
                None,
                right,
                recipes.file_names(of.sources),
            )
        )

    def _fill(self, recipes: Recipes, instance: Instance, made: dict[str, str]) -> None:
        rule = instance.rule
        assert rule.fill is not None
        making = not instance.sources
        term = (rule.target if making else rule.source)[0]
        group = (instance.targets if making else instance.sources)[0]
        for name in group:
            if not making:
                self._check_fill(recipes, instance, term, name)
                continue
            dtype = term.dtype or rule.fill.dtype
            if rule.fill.like is not None:
                like = rule.fill.like.render({**self.facts.numbers, **instance.values})
                dtype = made.get(like)
                if dtype is None:
                    self.problems.append(
                        Problem(f"dtype: like '{like}', which the output does not have", "dtype", name, rule.origin)
                    )
                    continue
            constant = recipes.constant(instance, term, str(dtype))
            if constant is not None:
                self.steps.append(Step("fill", rule.origin, None, (), ((name,),), constant))

    def _check_fill(self, recipes: Recipes, instance: Instance, term: Any, name: str) -> None:
        if name not in self.inputs:
            return
        entry = self.inputs.entry(name)
        constant = recipes.constant(instance, term, entry.dtype)
        if constant is None:
            return
        if constant.shape != entry.shape:
            text = f"shape is {list(entry.shape)}, expected {list(constant.shape)}"
            recipes.mismatches.append((entry.name, instance.rule.origin, text))
            return
        self.steps.append(Step("check", instance.rule.origin, None, ((entry.name,),), (), constant))

    def _check_kept(self, matcher: Matcher, ledger: Ledger) -> None:
        """Refuse a kept name that has the form of a name of the other side: it would come back as something else."""
        written = {n for step in self.steps if step.origin is not None for n in step.target_names()}
        kept = set(ledger.kept) - written  # a name that a rule writes too is a collision
        if not kept:
            return
        for rule in self.rules.rules:
            for term in rule.target:
                for spelling in term.spellings:
                    for _, name in matcher.hits(matcher.form(spelling.template, 1 - rule.side, rule.origin)):
                        self._refuse_kept(name, spelling.template.text, rule.origin, kept)
        for regex in self.rules.regexes:
            for name in sorted(kept) if isinstance(regex.back, Regex) else ():
                if isinstance(regex.back, Regex) and regex.back.rename(name) is not None:
                    self._refuse_kept(name, regex.back.match, regex.origin, kept)

    def _refuse_kept(self, name: str, form: str, origin: Origin, kept: set[str]) -> None:
        if name in kept:
            text = f"no rule names it, and kept under its name it would pass for '{form}' of the other side"
            self.problems.append(Problem(text, "claim", self.inputs.entries[name].name, origin))

    # The plan.

    def _finish(self, ledger: Ledger, work: TieWork, recipes: Recipes | None) -> Plan:
        position = {name: k for k, name in enumerate(self.header.tensors)}
        steps = sorted(self.steps, key=lambda s: _order(s, position))
        outputs = tuple(spec for step in steps for spec in step_outputs(step))
        self._check_collisions(steps)
        notes = (*self.header.notes, *self._one_way_names(ledger))
        stored = {t.name for t in outputs}
        aliases = {a: b for a, b in work.aliases.items() if b in stored and a not in stored}
        return Plan(
            map_name=self.rules.name,
            map_file=self.rules.file,
            reverse=self.rules.side == 1,
            sides=self.rules.sides,
            header=self.header,
            steps=tuple(steps),
            outputs=outputs,
            metadata=self._metadata(aliases),
            fates=self._fates(ledger, work, recipes),
            problems=tuple(dict.fromkeys(self.problems)),
            sizes=tuple(
                (n, self.facts.values[n], self.facts.why[n])
                for n in sorted(self.facts.values)
                if n.isidentifier() and not n.startswith("_")
            ),
            allow_overflow=self.settings.allow_overflow,
            notes=notes,
            expected=(
                tuple(sorted({s.template.text for r in self.rules.rules for t in r.source for s in t.spellings})),
                tuple(sorted({s.template.text for r in self.rules.rules for t in r.target for s in t.spellings})),
            ),
        )

    def _check_collisions(self, steps: list[Step]) -> None:
        seen: dict[str, Step] = {}
        for step in steps:
            for name in step.target_names():
                if name == "__metadata__":
                    text = "would be written as '__metadata__', where the format keeps its metadata"
                    self.problems.append(Problem(text, "claim", next(iter(step.source_names()), None), step.origin))
                first = seen.setdefault(name, step)
                if first is not step:
                    a, b = next(iter(first.source_names()), "a fill"), next(iter(step.source_names()), "a fill")
                    self.problems.append(
                        Problem(f"is written twice, from {a} and from {b}", "claim", name, step.origin)
                    )

    def _one_way_names(self, ledger: Ledger) -> list[str]:
        """Find renamed names that the way back would not give back: a problem where it follows from the pattern, else a note."""
        odd = []
        for name, (regex, new) in ledger.renamed.items():
            back = regex.back.rename(new) if isinstance(regex.back, Regex) else name
            if back == name:
                continue
            text = f"becomes {new}, which --reverse would make {back or 'unexpected'}"
            if regex.automatic:
                why = "the groups of the pattern can share characters, so give it a `reverse: {match, to}`"
                self.problems.append(Problem(f"{text}: {why}", "claim", self.inputs.entries[name].name, regex.origin))
            else:
                odd.append(f"{name} {text}, as its `reverse` says")
        more = f" (and {len(odd) - 1} more such names)" if len(odd) > 1 else ""
        return [odd[0] + more] if odd else []

    def _metadata(self, aliases: dict[str, str]) -> dict[str, str]:
        """Keep the input's metadata less its alias entries, and record the new aliases."""
        tensors = self.header.tensors
        kept = {k: v for k, v in self.header.metadata.items() if not (v in tensors and k not in tensors)}
        return (kept or {"format": "pt"}) | {a: aliases[a] for a in sorted(aliases)}

    def _fates(self, ledger: Ledger, work: TieWork, recipes: Recipes | None) -> Fates:
        def original(name: str) -> str:
            return self.inputs.entries[name].name if name in self.inputs.entries else name

        missing: dict[str, tuple[Any, str]] = {}
        for instance, name, tied in work.missing:
            text = f"missing from the input, and so is every name that is tied to it ({tied})"
            missing[name] = (instance.rule.origin, text)
        for instance in ledger.instances:
            for name in instance.missing if not (instance.rule.fill and instance.rule.lone_optional) else ():
                others = instance.other_spellings.get(name)
                text = "missing from the input" + (
                    f", and so is {' and '.join(others)}, which would do as well" if others else ""
                )
                missing.setdefault(name, (instance.rule.origin, text))
        made = {n for step in self.steps for n in step.target_names()}
        return Fates(
            missing=tuple((n, o, text) for n, (o, text) in missing.items()),
            unexpected=tuple((original(n), origin, text) for n, (text, origin) in ledger.unexpected.items()),
            shape_mismatch=tuple(dict.fromkeys(recipes.mismatches)) if recipes else (),
            dropped=(
                *(original(n) for n in ledger.dropped),
                *(n for step in self.steps if step.kind == "check" for n in step.source_names()),
            ),
            kept=tuple(original(n) for n in ledger.kept),
            absent=tuple(ledger.absent),
            assumed=tuple((n, v) for n, v in self.facts.assumed.items() if n in self._matters()),
            tied=tuple(Tied(original(a), original(b), alias) for a, b, alias in work.notes),
            untied=tuple(original(n) for n in work.untied),
            stripped=tuple(sorted(self.inputs.stripped.items())),
            unmade=tuple(
                (n, original(i.missing[0]) if i.missing else "")
                for i in ledger.instances
                for names in i.targets
                for n in names
                if n not in made
            ),
            spared=tuple(n for n in ledger.spared if n not in made),
        )

    def _matters(self) -> set[str]:
        """Names that conditions, patterns and names depend on, through expressions too."""
        rules: Iterable[Rule] = self.rules.rules
        used = {n for r in rules for _, t in r.terms() for s in t.spellings for n in s.template.names}
        used |= {n for r in rules for c in r.conditions if c.expr is not None for n in c.expr.names}
        used |= {n for r in rules for op in r.chain.ops() for n in op.sizes()}
        used |= {n for i in self.rules.indices.values() if i.size is not None for n in i.size.names}
        return used


_KEEP = Stated(None, False)


def _order(step: Step, position: dict[str, int]) -> tuple[int, str, tuple[str, ...]]:
    """Order steps by their first source, whatever the order of rules; what has no source comes last, by name."""
    first = min((position[n] for n in step.source_names()), default=len(position))
    return first, step.kind, tuple(step.target_names())


def step_outputs(step: Step) -> list[TensorSpec]:
    """The tensors that a step makes."""
    if step.kind == "fill" and step.constant is not None:
        return [TensorSpec(n, step.constant.dtype, step.constant.shape) for n in step.target_names()]
    if step.kind != "move" or step.recipe is None:
        return []
    return [TensorSpec(n, o.dtype, o.shape) for o, group in zip(step.recipe.outputs, step.targets) for n in group]


__all__ = ["Plan", "Recipe", "make_plan", "step_outputs"]
