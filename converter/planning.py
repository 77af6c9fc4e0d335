"""Rules and a header become a plan: facts are gathered, names claimed, ties settled, steps made. No data is read."""

from __future__ import annotations

from typing import Any

from converter.checks import Checks
from converter.claims import Claims, Ledger
from converter.errors import ConvertError, Origin, Problem
from converter.expand import Instance
from converter.facts import Facts
from converter.fates import make_fates
from converter.inputs import read_inputs
from converter.learning import learn
from converter.matching import Matcher
from converter.recipes import Recipes
from converter.regexes import Regex, Sieve
from converter.rules import Ruleset
from converter.settings import Settings
from converter.spec import Header
from converter.steps import Looks, Plan, Step, step_outputs
from converter.ties import Ties, TieWork
from converter.unknowns import check_params, check_settings


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
        self.facts = Facts(rules.params, rules.atoms, rules.indices)
        self.problems: list[Problem] = []
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
            self.problems += self.facts.contradicted()
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
        checks = Checks(recipes)
        self.steps += checks.tied(work)
        made = {t.name: t.dtype for s in self.steps for t in step_outputs(s)} if fills else {}
        for instance in fills:
            self.steps += checks.constants(instance, made)

    def _add(self, step: Step | None) -> None:
        if step is not None:
            self.steps.append(step)

    def _rename(self, recipes: Recipes, name: str, new: str, stated: Any, origin: Any) -> None:
        entry = self.inputs.entries[name]
        recipe = recipes.plain(entry, stated)
        if recipe is not None:
            self.steps.append(Step("move", origin, recipe, ((entry.name,),), ((new,),)))

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
        backs = [(r.back, r.origin) for r in self.rules.regexes if isinstance(r.back, Regex)]
        sieve = Sieve([back.match for back, _ in backs])
        for name in sorted(kept):
            for back, origin in (backs[k] for k in sieve.of(name)):
                if back.rename(name) is not None:
                    self._refuse_kept(name, back.match, origin, kept)

    def _refuse_kept(self, name: str, form: str, origin: Origin, kept: set[str]) -> None:
        if name in kept:
            text = f"no rule names it, and kept under its name it would pass for '{form}' of the other side"
            self.problems.append(Problem(text, "claim", self.inputs.entries[name].name, origin))

    # The plan.

    def _finish(self, ledger: Ledger, work: TieWork, recipes: Recipes | None) -> Plan:
        position = {name: k for k, name in enumerate(self.header.tensors)}
        steps = sorted(self.steps, key=lambda s: _order(s, position))
        outputs = tuple(spec for step in steps for spec in step_outputs(step))
        self._check_twice()
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
            fates=make_fates(self.rules, self.inputs, self.facts, self.steps, ledger, work, recipes),
            problems=tuple(dict.fromkeys(self.problems)),
            sizes=tuple(
                (n, self.facts.values[n], self.facts.why[n])
                for n in sorted(self.facts.values)
                if n.isidentifier() and not n.startswith("_")
            ),
            allow_overflow=self.settings.allow_overflow,
            notes=notes,
            expected=(self._looks(0), self._looks(1)),
        )

    def _looks(self, side: int) -> Looks:
        """What names of a side look like (0: the one that is read)."""
        terms = (t for r in self.rules.rules for t in (r.target if side else r.source))
        renames = (r.back if side else r.forward for r in self.rules.regexes)
        return Looks(
            tuple(sorted({s.template.text for t in terms for s in t.spellings})),
            tuple(r.match for r in renames if isinstance(r, Regex)),
            self.rules.strip[side],
        )

    def _check_twice(self) -> None:
        """Refuse names that are one without what strip takes off, with what both would become."""
        if not self.inputs.clashes:
            return
        files = self.header.files
        becomes: dict[str, list[str]] = {}
        for step in self.steps:
            for name in step.source_names() if step.kind == "move" else ():
                becomes.setdefault(name, []).extend(step.target_names())
        for name, a, b in self.inputs.clashes:
            text = f"stands in the input twice, as {a} and as {b}"
            text += f": both would become {' and '.join(becomes[a][:2])}" if a in becomes else ""
            self.problems.append(Problem(text, "claim", name, place=files[0].path if len(files) == 1 else None))

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
                        Problem(f"is written twice, from {a} and from {b}", "claim", name, step.origin or first.origin)
                    )

    def _one_way_names(self, ledger: Ledger) -> list[str]:
        """Find renamed names that the way back would not give back: a problem where it follows from the pattern, else
        a note.
        """
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


def _order(step: Step, position: dict[str, int]) -> tuple[int, str, tuple[str, ...]]:
    """Order steps by their first source, whatever the order of rules; what has no source comes last, by name."""
    names = step.source_names()
    if len(names) == 1:
        first = position[names[0]]
    else:
        first = min([position[n] for n in names], default=len(position))
    return first, step.kind, tuple(step.target_names())
