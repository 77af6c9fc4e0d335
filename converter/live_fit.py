"""Hold a plan against the tensors of a live model: what goes where, in which dtype, and what does not fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from converter.errors import Origin, Problem
from converter.folding import closest, natural_key
from converter.hints import LOOK, model_hint
from converter.lowering import Label, Lowering
from converter.report import Report, TiedName
from converter.spec import DTYPES, Shape, TensorSpec
from converter.steps import Plan, Step
from converter.values import Compare, Produce
from converter.verify import verify

NO_SOURCE = "nothing in the checkpoint becomes it"


@dataclass(frozen=True)
class Entry:
    """A tensor of a model under one of its names.

    ``first`` is the first name of the same tensor (its own, unless it is tied), ``dtype`` the safetensors name that
    it has or shall have. An entry that is not ``required`` (a buffer that checkpoints leave out) may stay as it is.
    ``trouble`` says why it cannot be filled.
    """

    name: str
    first: str
    dtype: str
    shape: Shape
    required: bool = True
    meta: bool = False
    trouble: str = ""


@dataclass(frozen=True)
class Lenience:
    """What is let pass: entries without a value, tensors without a place, and casts to float8 (where asked for)."""

    missing: bool = False
    unexpected: bool = False
    float8: bool = False


@dataclass(frozen=True)
class Fitted:
    """A plan held against a model.

    ``place`` gives the written entry (by first name) of each output that goes into the model, ``retie`` the names that
    become the tensor of another name, ``missing`` and so on what the report says beyond the plan.
    """

    plan: Plan
    problems: tuple[Problem, ...]
    place: Mapping[str, str]
    doubles: tuple[tuple[str, str], ...]
    retie: Mapping[str, str]
    missing: tuple[tuple[str, str], ...]
    tied: tuple[TiedName, ...] = field(default=())

    def report(self, report: Report) -> Report:
        """Leave out of a report what does not go into the model."""
        return replace(
            report,
            loaded=tuple(x for x in report.loaded if x.destination in self.place),
            cast=tuple(x for x in report.cast if x.name in self.place),
            filled=tuple(n for n in report.filled if n in self.place),
            tied=(*report.tied, *self.tied),
        )

    def produces(self, lowering: Lowering) -> list[Produce]:
        """Every tensor that is written, once each, by the first name of the model's tensor; all at offset 0."""
        second = {b for _, b in self.doubles}
        names = [n for n in self.place if n not in second]
        place = {s.name: (-1, 0) for s in self.plan.outputs} | {n: (k, 0) for k, n in enumerate(names)}
        return [p for p in lowering.produces(self.plan, place) if p.file >= 0]

    def compares(self, lowering: Lowering) -> list[Compare]:
        """Every check on data: those of the plan, and that the values for one tensor of the model are equal."""
        if not self.doubles:
            return lowering.compares(self.plan)
        all_places = {s.name: (k, 0) for k, s in enumerate(self.plan.outputs)}
        made = {p.name: p for p in lowering.produces(self.plan, all_places)}
        steps = {n: s for s in self.plan.steps for n in s.target_names()}
        return [*lowering.compares(self.plan), *(_double(made[a], made[b], steps[b]) for a, b in self.doubles)]


def _double(a: Produce, b: Produce, step: Step) -> Compare:
    count = len(b.sources)
    shifted = a.value.renumber(lambda slot, _: slot + count)
    label = Label(step, "differs from {other}, and in the model they are one tensor", b.name, a.name)
    return Compare(label, b.dtype, b.value, shifted, (*b.sources, *a.sources))


def fit(plan: Plan, entries: Mapping[str, Entry], lenience: Lenience) -> Fitted:
    """Hold a plan against the entries of a model; nothing is read and nothing is changed."""
    return _Fit(plan, entries, lenience).run()


class _Fit:
    def __init__(self, plan: Plan, entries: Mapping[str, Entry], lenience: Lenience) -> None:
        self.plan, self.entries, self.lenience = plan, entries, lenience
        self.problems: list[Problem] = []
        self.steps = {n: s for s in plan.steps for n in s.target_names()}
        self.unexpected: list[tuple[str, Origin | None, str]] = []
        self.mismatched: list[tuple[str, Origin | None, str]] = []
        self.outputs: list[TensorSpec] = []
        self.place: dict[str, str] = {}
        self.doubles: list[tuple[str, str]] = []
        self.tied: list[TiedName] = []

    def run(self) -> Fitted:
        holder: dict[str, str] = {}
        for spec in self.plan.outputs:
            entry = self.entries.get(spec.name)
            if entry is None:
                self.outputs.append(spec)
                self._no_place(spec)
            else:
                self.outputs.append(spec._replace(dtype=self._dtype(spec, entry)))
                self._check(spec, entry)
                self.place[spec.name] = entry.first
                if holder.setdefault(entry.first, spec.name) != spec.name:
                    self.doubles.append((holder[entry.first], spec.name))
        retie = self._ties(holder)
        missing = self._missing(holder, retie)
        return self._finish(retie, missing)

    def _origin(self, name: str) -> Origin | None:
        return self.steps[name].origin if name in self.steps else None

    def _no_place(self, spec: TensorSpec) -> None:
        """An output that the model has no tensor for: its sources are unexpected."""
        step = self.steps[spec.name]
        if not any(True for _ in step.source_names()):
            return  # a constant that this model does not keep
        near = closest(spec.name, self.entries) if len(self.problems) < LOOK else None
        hint = f" (did you mean {near}?)" if near else ""
        for source in step.source_names():
            became = "is not in the model" if source == spec.name else f"becomes {spec.name}, which is not in the model"
            self.unexpected.append((source, step.origin, became + hint))
        if not self.lenience.unexpected:
            text = f"is in the checkpoint and not in the model{hint}"
            self.problems.append(Problem(text, "unexpected", spec.name, step.origin))

    def _dtype(self, spec: TensorSpec, entry: Entry) -> str:
        """The dtype that is written: the model's; what cannot become it is a problem."""
        have, want = DTYPES[spec.dtype].kind, DTYPES.get(entry.dtype)
        if want is None or spec.dtype == entry.dtype:
            return spec.dtype
        if have == "float" and (want.kind == "float" or (want.kind == "float8" and self.lenience.float8)):
            return entry.dtype
        text = (
            f"the checkpoint gives {spec.dtype}, the model has {entry.dtype}: only floating dtypes are cast on loading"
        )
        self.problems.append(Problem(text, "dtype", spec.name, self._origin(spec.name)))
        return spec.dtype

    def _check(self, spec: TensorSpec, entry: Entry) -> None:
        origin = self._origin(spec.name)
        if entry.trouble:
            self.problems.append(Problem(entry.trouble, "model", spec.name, origin))
        elif spec.shape != entry.shape:
            text = f"the checkpoint gives {list(spec.shape)}, the model has {list(entry.shape)}"
            self.mismatched.append((spec.name, origin, text))

    def _ties(self, holder: dict[str, str]) -> dict[str, str]:
        """Names that become the tensor of another name, because the map says that they are one."""
        retie: dict[str, str] = {}
        noted = {t.alias[0] for t in self.plan.fates.tied if t.alias} | {t.name for t in self.plan.fates.tied}
        for t in self.plan.fates.tied:
            if t.alias is None or t.alias[0] not in self.entries or t.alias[1] not in self.place:
                continue
            alias, image = (self.entries[n] for n in t.alias)
            if alias.first == image.first or alias.first in holder:
                continue
            if alias.shape != image.shape:
                here = f"in the model it is {list(alias.shape)} and that {list(image.shape)}"
                self.problems.append(Problem(f"is {image.name} by the map, but {here}", "tied", alias.name))
                continue
            retie |= {e.name: image.first for e in self.entries.values() if e.first == alias.first}
        for e in self.entries.values():
            if e.first in holder and e.name not in self.place and e.name not in noted:
                self.tied.append(TiedName(e.name, holder[e.first]))
        return retie

    def _missing(self, holder: dict[str, str], retie: dict[str, str]) -> tuple[tuple[str, str], ...]:
        """Entries that get no value, each tensor under its first name, with the reason."""
        unmade, spared = dict(self.plan.fates.unmade), set(self.plan.fates.spared)
        names: dict[str, list[str]] = {}
        for e in self.entries.values():
            names.setdefault(e.first, []).append(e.name)
        out = []
        for first, every in names.items():
            entry = self.entries[first]
            if first in holder or first in retie:
                continue
            absent = any(n in spared for n in every)
            named = next((n for n in every if n in unmade), None)
            if not absent and named is not None and unmade[named]:
                out.append((named, f"{unmade[named]} is missing from the checkpoint"))
            elif not absent and named is None and entry.required:
                out.append((first, NO_SOURCE))
                if not self.lenience.missing:
                    self.problems.append(Problem(f"is in the model, and {NO_SOURCE}", "missing", first))
            if (
                entry.meta
                and entry.required
                and (absent or (self.lenience.missing and (named is None or unmade[named])))
            ):
                text = "gets no value and is on the meta device, where it has none either"
                self.problems.append(Problem(text, "missing", first))
        return tuple(out)

    def _finish(self, retie: dict[str, str], missing: tuple[tuple[str, str], ...]) -> Fitted:
        fates = self.plan.fates
        outputs = tuple(self.outputs)
        asked = replace(
            fates,
            missing=() if self.lenience.missing else fates.missing,
            unexpected=() if self.lenience.unexpected else fates.unexpected,
            shape_mismatch=(*fates.shape_mismatch, *self.mismatched),
        )
        found = verify(replace(self.plan, outputs=outputs, fates=asked))
        hints = [p for p in found if p.kind == "hint"]
        problems = sorted(
            dict.fromkeys([*(p for p in found if p.kind != "hint"), *self.problems]),
            key=lambda p: natural_key(p.subject or ""),
        )
        if problems and not hints:
            hints += model_hint(self.plan, (n for n, text in missing if text == NO_SOURCE))
        if problems and not hints:
            hints += prefix_hint(self.unexpected, missing, self.plan.reverse)
        told = replace(
            asked,
            missing=tuple((n, None, text) for n, text in missing) if missing else fates.missing,
            unexpected=(*fates.unexpected, *self.unexpected),
        )
        plan = replace(self.plan, outputs=outputs, fates=told)
        return Fitted(plan, (*problems, *hints), self.place, tuple(self.doubles), retie, missing, tuple(self.tied))


def prefix_hint(
    unexpected: Iterable[tuple[str, object, str]], missing: Iterable[tuple[str, str]], reverse: bool
) -> Iterable[Problem]:
    """Say when most unexpected names are missing ones behind one prefix."""
    wanted = {n for n, _ in missing}
    tally: dict[str, int] = {}
    names = [n for n, _, _ in unexpected][:LOOK]
    for name in names:
        parts = name.split(".")
        for k in range(1, len(parts)):
            if ".".join(parts[k:]) in wanted:
                prefix = ".".join(parts[:k]) + "."
                tally[prefix] = tally.get(prefix, 0) + 1
                break
    prefix, count = max(tally.items(), key=lambda x: x[1], default=("", 0))
    if 2 * count > len(names):
        side = "to" if reverse else "from"
        are = "is a missing one" if count == 1 else "are missing ones"
        text = f"{count} of the unexpected names {are} behind the prefix '{prefix}': strip prefix {prefix}"
        yield Problem(f"{text} (`strip: {{{side}: ['{prefix}']}}` in the map)", "hint")
