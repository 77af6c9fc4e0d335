"""What became of every name: the report of a run, as a dataclass, as JSON, and as text folded by layer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from converter.errors import MismatchError, Problem
from converter.folding import fold, natural_key, visible
from converter.formats.text import many_objects
from converter.lowering import Lowering, pairs
from converter.names import skeleton
from converter.steps import Plan, plain


class Loaded(NamedTuple):
    """A source that became (part of) a destination: ops as the map writes them, dtype and shape of the destination."""

    source: str
    destination: str
    ops: tuple[Any, ...]
    dtype: str
    shape: tuple[int, ...]


class Cast(NamedTuple):
    """A tensor that changed its dtype, with the counts of values that the new one could not keep."""

    name: str
    source: str
    dtype: str
    to: str
    overflow: int = 0
    underflow: int = 0


@dataclass(frozen=True)
class Fate:
    """A name with what is wrong with it."""

    name: str
    reason: str


@dataclass(frozen=True)
class TiedName:
    """A name that is another tensor; ``alias`` is (name, of) in the output, None where a copy or nothing is written."""

    name: str
    of: str
    alias: tuple[str, str] | None = None


@dataclass(frozen=True)
class Written:
    """A file that was written and read back: its name in the output folder ("" without one), bytes and SHA-256."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Report:
    """The fate of every name on both sides. Names are those of the files; ``problems`` are the lines that the user
    saw.
    """

    map: str
    direction: str
    loaded: tuple[Loaded, ...] = ()
    missing: tuple[Fate, ...] = ()
    unexpected: tuple[Fate, ...] = ()
    shape_mismatch: tuple[Fate, ...] = ()
    dropped: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    assumed: tuple[tuple[str, Any], ...] = ()
    tied: tuple[TiedName, ...] = ()
    untied: tuple[str, ...] = ()
    cast: tuple[Cast, ...] = ()
    filled: tuple[str, ...] = ()
    stripped: tuple[tuple[str, int, str], ...] = ()  # text, number of names, prefix or segment
    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    bytes_written: int = 0
    seconds: float = 0.0
    verified: str = ""  # what `--verify` proved, empty without it
    files: tuple[Written, ...] = ()  # what it read back, the index too

    @property
    def checksum(self) -> str:
        """The SHA-256 of the one file that was read back, or of the lines that ``sha256sum`` prints for several."""
        if len(self.files) < 2:
            return "".join(f.sha256 for f in self.files)
        from hashlib import sha256

        return sha256("".join(f"{f.sha256}  {f.name}\n" for f in self.files).encode()).hexdigest()

    def to_json(self) -> str:
        """Write the report as JSON."""
        doc = {f.name: plain(getattr(self, f.name)) for f in fields(self)}
        doc |= {"problems": [str(p) for p in self.problems], "checksum": self.checksum, "summary": self.summary()}
        return json.dumps(doc, ensure_ascii=False, indent=1)

    def summary(self) -> str:
        """One sentence with all the counts; converted counts input tensors, and where nothing was written those that
        fit.
        """
        converted = len({x.source for x in self.loaded})
        counts = [
            (converted, "tensors fit" if self.problems else f"tensors {self.verb()}"),
            (len(self.dropped), "dropped"),
            (len(self.tied), "tied"),
        ]
        counts += [(len(self.kept), "kept")] if self.kept else []
        counts += [
            (len(self.missing), "missing"),
            (len(self.unexpected), "unexpected"),
            (len(self.shape_mismatch), "mismatched"),
        ]
        text = ", ".join(f"{n} {word}" for n, word in counts)
        text = text.replace("tensors fit", "tensor fits", 1).replace("tensors", "tensor", 1) if converted == 1 else text
        return f"{text}; {size(self.bytes_written)} in {self.seconds:.1f} s" if self.bytes_written else text

    def verb(self) -> str:
        """What was done with the tensors that are counted first."""
        return "converted"

    def raise_for_problems(self) -> None:
        """Raise a ConvertError that carries this report, if there is any problem."""
        if self.problems:
            raise MismatchError(self.problems, self)

    def lines(self) -> list[str]:
        """The text of the report, folded by layer, less the summary."""
        out: list[str] = []
        plain: Sequence[tuple[str, Iterable[str]]] = (
            ("dropped", self.dropped),
            ("kept", self.kept),
            ("absent", self.absent),
            ("filled", self.filled),
            ("untied", self.untied),
        )
        for word, names in plain:
            out += [f"{word}: {name}" for name in fold(names)]
        out += [
            f"tied: {t.name} = {t.of}" + (f" (alias {t.alias[0]} of {t.alias[1]})" if t.alias else "")
            for t in self.tied
        ]
        out += [f"assumed: {name} = {value}, the map's default" for name, value in self.assumed]
        out += [f"stripped: {what} '{text}' of {n} {'name' if n == 1 else 'names'}" for text, n, what in self.stripped]
        casts: dict[tuple[str, str], list[str]] = {}
        for c in self.cast:
            casts.setdefault((c.dtype, c.to), []).append(c.name)
        out += [*_lost(self.cast)]
        out += [
            f"cast: {a} -> {b}: {len(names)} {'tensor' if len(names) == 1 else 'tensors'}"
            for (a, b), names in casts.items()
        ]
        return [visible(line) for line in [*out, *(f"note: {n}" for n in self.notes)]]

    def __str__(self) -> str:
        return "\n".join([*self.lines(), self.summary()])


def _lost(casts: Iterable[Cast]) -> Iterator[str]:
    """One line for what tensors that differ in numbers lost together."""
    groups: dict[tuple[str, str, str], dict[str, int]] = {}
    for c in casts:
        for count, what in ((c.underflow, "became zero in"), (c.overflow, "did not fit")):
            if count:
                groups.setdefault((skeleton(c.name), what, c.to), {})[c.name] = count
    for (_, what, to), counts in groups.items():
        total = sum(counts.values())
        yield f"cast: {', '.join(fold(counts))}: {total} {'value' if total == 1 else 'values'} {what} {to}"


def size(n: float) -> str:
    """Write a number of bytes: 548 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.0f} {unit}" if unit == "B" or n >= 10 else f"{n:.1f} {unit}"
        n /= 1000
    return f"{n:.1f} TB"


@many_objects()
def make_report(
    plan: Plan,
    problems: Iterable[Problem] = (),
    casts: Mapping[str, Any] | None = None,
    bytes_written: int = 0,
    seconds: float = 0.0,
    verified: str = "",
    files: tuple[Written, ...] = (),
) -> Report:
    """Put together what a plan decided and what a run found; ``casts`` are the counts of casts by destination."""
    fates = plan.fates
    loaded, cast = _flows(plan, casts or {})
    return Report(
        map=plan.map_name,
        direction=" -> ".join(plan.sides),
        loaded=tuple(loaded),
        missing=tuple(Fate(n, text) for n, _, text in fates.missing),
        unexpected=tuple(Fate(n, text) for n, _, text in fates.unexpected),
        shape_mismatch=tuple(Fate(n, text) for n, _, text in fates.shape_mismatch),
        dropped=tuple(sorted(fates.dropped, key=natural_key)),
        kept=tuple(sorted(fates.kept, key=natural_key)),
        absent=tuple(sorted(fates.absent, key=natural_key)),
        assumed=fates.assumed,
        tied=tuple(TiedName(t.name, t.of, t.alias) for t in fates.tied),
        untied=fates.untied,
        cast=tuple(cast),
        filled=tuple(n for s in plan.steps if s.kind == "fill" for n in s.target_names()),
        stripped=fates.stripped,
        notes=plan.notes,
        problems=tuple(problems),
        bytes_written=bytes_written,
        seconds=seconds,
        verified=verified,
        files=files,
    )


def _flows(plan: Plan, casts: Mapping[str, Any]) -> tuple[list[Loaded], list[Cast]]:
    """List every pair of a source and a destination, and the casts among them."""
    lowering, dtypes = Lowering(plan.header), {s.name: s.dtype for s in plan.outputs}
    loaded: list[Loaded] = []
    cast: list[Cast] = []
    ops_of: dict[int, tuple[Any, ...]] = {}
    tensors = plan.header.tensors
    for step in plan.steps:
        if step.recipe is None or step.kind != "move":
            continue
        key = id(step.recipe)
        if key not in ops_of:
            ops_of[key] = tuple(op.yaml() for op in step.recipe.chain.ops())
        ops, outputs = ops_of[key], step.recipe.outputs
        for source, target, k, own in pairs(lowering, step):
            dtype = dtypes[target]
            loaded.append(Loaded(source, target, ops, dtype, outputs[k].shape))
            was = tensors[source].dtype
            if own and was != dtype:
                lost = (casts[target].overflow, casts[target].underflow) if target in casts else (0, 0)
                cast.append(Cast(target, source, was, dtype, *lost))
    return loaded, cast
