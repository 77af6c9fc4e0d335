"""Small checkpoints from a map alone: every name of a side, with invented sizes and values that differ everywhere."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from converter.checks import Checks
from converter.dims import Poly, names, render_shape
from converter.errors import MismatchError, Problem
from converter.expand import Expander, Instance
from converter.facts import Facts
from converter.formats import Output, layout, open_checkpoint
from converter.implied import implied_dtype, implied_shapes
from converter.inputs import read_inputs
from converter.invented import invent_values
from converter.learning import check_sizes
from converter.locality import shared_sizes
from converter.matching import Matcher
from converter.ops.base import Shape
from converter.planning import make_plan
from converter.recipes import Recipes
from converter.rules import Rule, Ruleset
from converter.run import plan_open
from converter.settings import Settings
from converter.spec import Header, TensorEntry, TensorSpec
from converter.steps import Constant, Plan
from converter.writing import Job, write

LOCAL = 5  # the size of a dim that is local to a rule


@dataclass(frozen=True)
class Stub:
    """The tensors of a side as a map implies them, and those of them that are constants."""

    specs: tuple[TensorSpec, ...]
    constants: Mapping[str, Constant]

    @property
    def header(self) -> Header:
        """The stub as a header without data."""
        entries: dict[str, TensorEntry] = {}
        at = 0
        for s in self.specs:
            entries[s.name] = TensorEntry(*s, 0, at, at + s.nbytes)
            at += s.nbytes
        return Header(entries)


def stub_settings(rules: Ruleset, sizes: Mapping[str, Any]) -> Settings:
    """The settings of a stub: the map's example sizes, and what is set instead."""
    known = rules.names | set(rules.params)
    return Settings(set=sizes, example={k: v for k, v in rules.example.items() if k in known})


def invent(rules: Ruleset, settings: Settings) -> Stub:
    """List the tensors of the source side of ``rules``; raises MismatchError naming what has no size or shape.

    Tensors of optional rules are there; tied ones are not, where the side does not store them.
    """
    first = _Inventor(rules, settings, Header({}), conditional=False).stub()
    if not any(c.name for r in rules.rules for c in r.conditions):
        return first
    return _Inventor(rules, settings, first.header, conditional=True).stub()


class _Inventor:
    def __init__(self, rules: Ruleset, settings: Settings, header: Header, conditional: bool) -> None:
        if not conditional:
            rules = replace(rules, rules=tuple(r for r in rules.rules if not any(c.name for c in r.conditions)))
        self.rules, self.settings = rules, settings
        self.shared = sorted({size.name for rule in rules.rules for size in rule.locals})
        self.facts = Facts(rules.params, rules.atoms, rules.indices)
        self.facts.add_settings(settings)
        self.facts.settle()
        self.facts.add_defaults(rules.params)
        self.facts.settle()
        check_sizes(rules, self.facts)
        self.matcher = Matcher(rules, read_inputs(header, ()), self.facts)
        self.expander = Expander(self.matcher)
        self.specs: list[TensorSpec] = []
        self.constants: dict[str, Constant] = {}
        self._known: dict[tuple[int, ...], list[tuple[str | None, tuple[int, ...]]]] = {}

    def stub(self) -> Stub:
        for rule in self.rules.rules:
            self._check_counts(rule)
            for values in self.expander.free_values(rule) if rule.source else ():
                self._share(rule, values)
                members = self.expander.members(rule, values)
                if members is not None:
                    self._add(self.expander.instance(rule, values, members))
        return Stub(tuple(self.specs), self.constants)

    def _check_counts(self, rule: Rule) -> None:
        for name in (*rule.free, *rule.bound):
            index = self.rules.indices[name]
            for n in sorted(index.size.names if index.size is not None else ()):
                if n not in self.facts.values and n not in self.rules.indices:
                    raise self.matcher.unknown(n, "and a stub needs it (give the map an `example`)", rule.origin)

    def _add(self, instance: Instance) -> None:
        rule = instance.rule
        if rule.tie is not None and rule.tie.side == rule.side and rule.tie.stores[rule.side] != "copy":
            return
        for group, (dtype, shape) in zip(instance.sources, self._kinds(instance)):
            for name in group:
                self._put(instance, name, dtype, shape)

    def _kinds(self, instance: Instance) -> list[tuple[str | None, tuple[int, ...]]]:
        """The dtype and shape of the tensors of each term; instances whose local sizes agree share them."""
        rule = instance.rule
        counts = {f"_#{n}": len(v) for n, v in instance.members.items()}
        shared = shared_sizes(rule, instance.values).numbers(self.facts.numbers)
        key = (rule.number, *counts.values(), *shared.values())
        if key in self._known:
            return self._known[key]
        known = {**self.facts.numbers, **counts, **shared}
        local = {n: v for t in rule.source for d in t.shape or () for n, v in self._locals(d).items()}
        out: list[tuple[str | None, tuple[int, ...]]] = []
        for k, shape in enumerate(implied_shapes(rule, {**local, **known})):
            self._check(instance, k, shape)
            numbers = tuple(d for d in shape or () if isinstance(d, int))
            out.append((implied_dtype(self.rules, rule, k), numbers))
        return self._known.setdefault(key, out)

    def _check(self, instance: Instance, k: int, shape: Shape | None) -> None:
        """Refuse a shape that is no shape in numbers; raises MismatchError."""
        stated, group, origin = instance.rule.source[k].shape, instance.sources[k], instance.rule.origin
        if stated is None or shape is None:
            text = "has no shape in the map, so no stub can be made of it"
            raise MismatchError(Problem(text, "stub", group[0], origin))
        if any(isinstance(d, int) and d < 0 for d in shape):
            text = f"shape {render_shape(stated)} becomes {render_shape(shape)}: a size is 0 or more"
            raise MismatchError(Problem(text, "stub", group[0], origin))
        if any(isinstance(d, Poly) for d in shape):
            unknown = sorted(n for d in shape for n in names(d))[0]
            text = (
                f"shape {render_shape(stated)}: {unknown} is not known (give the map an `example`, or "
                f"--set {unknown}=...)"
            )
            raise MismatchError(Problem(text, "stub", group[0], origin))

    def _locals(self, dim: Any) -> dict[str, int]:
        """Invented values for the local sizes of a dim: another one for each name."""
        return {n: LOCAL + self.shared.index(n) + 1 if n in self.shared else LOCAL for n in names(dim) if n[0] == "_"}

    def _share(self, rule: Rule, values: Mapping[str, Any]) -> None:
        """Make the sizes known that an instance shares with its groups."""
        for size in rule.locals:
            self.facts.state(size, values)
            self.facts.know(size.full(values), self._locals(Poly.of(size.name))[size.name], "invented")

    def _put(self, instance: Instance, name: str, stated: str | None, shape: tuple[int, ...]) -> None:
        fill = instance.rule.fill
        dtype = "F32" if stated in (None, "keep") else str(stated)
        if fill is not None:
            like = next(
                (
                    s.dtype
                    for s in self.specs
                    if fill.like is not None and s.name == fill.like.render({**self.facts.numbers, **instance.values})
                ),
                None,
            )
            dtype = like or fill.dtype or dtype
            recipes = Recipes(self.rules, self.matcher, self.settings)
            constant = Checks(recipes).constant(instance, instance.rule.source[0], dtype)
            if constant is None:
                raise MismatchError(recipes.problems)
            self.constants[name] = constant
        self.specs.append(TensorSpec(name, dtype, shape))


def write_stub(
    rules: Ruleset,
    side: int,
    output: str,
    sizes: Mapping[str, Any],
    force: bool = False,
    max_shard_size: int | None = None,
) -> Plan:
    """Write a stub of a side (0: from, 1: to) of a map given `from` -> `to`; returns the plan that converts it.

    Where the map relies on facts about the data (equal replicas, padding), the values are made to hold them. Raises
    MismatchError for sizes that are not known and what writing raises.
    """
    settings = stub_settings(rules, sizes)
    with tempfile.TemporaryDirectory(
        prefix="convert-stub-", dir=Path(output).resolve().parent if Path(output).resolve().parent.is_dir() else None
    ) as folder:
        stub = invent(rules, settings)
        first = Path(folder) / "from.safetensors"
        plan = make_plan(rules, stub.header, settings)
        consistent = not any(s.kind == "compare" or _checked(s) for s in plan.steps)
        settled = not any(_rounds(s) for s in plan.steps)
        if side == 0 and consistent and settled:
            _write_values(stub, output, force, max_shard_size)
            return plan
        _write_values(stub, str(first), False, None)
        job = Job(output, max_shard_size, force)
        if side == 1 and settled:
            return _convert(rules, settings, str(first), job, checks=consistent)
        second, third = (Path(folder) / f"{name}.safetensors" for name in ("to", "again"))
        _convert(rules, settings, str(first), Job(second), checks=False)
        _convert(rules.reverse(), settings, str(second), job if side == 0 else Job(third), checks=True)
        return plan if side == 0 else _convert(rules, settings, str(third), job, checks=True)


def _checked(step: Any) -> bool:
    from converter.ops.same import Same
    from converter.ops.trim import Trim

    ops = step.recipe.chain.ops() if step.recipe is not None else ()
    return any(isinstance(op, Same) or (isinstance(op, Trim) and op.checked) for op in ops)


def _rounds(step: Any) -> bool:
    """Whether invented values need a round trip first, after which they come back bit for bit."""
    from converter.ops.blocks import Blockwise

    ops = step.recipe.chain.ops() if step.recipe is not None else ()
    return any(isinstance(op, Blockwise) and not op.exact for op in ops)


def _convert(rules: Ruleset, settings: Settings, source: str, job: Job, checks: bool) -> Plan:
    with open_checkpoint(source) as checkpoint:
        plan = plan_open(checkpoint, rules, settings)
        write(plan, checkpoint, job, checks=checks)
        return plan


def _write_values(stub: Stub, output: str, force: bool, max_shard_size: int | None) -> None:
    """Write invented values, chunk by chunk."""
    from converter.formats.staging import write_all

    made = layout(stub.specs, {"format": "pt"}, max_shard_size)
    with Output(output, made, force) as out:
        for spec in stub.specs:
            file, offset = made.place[spec.name]
            for data in invent_values(spec, stub.constants.get(spec.name)):
                write_all(out.fd(file), data, offset)
                offset += len(data)
        out.commit()
