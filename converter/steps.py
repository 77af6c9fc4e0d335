"""A plan as values: steps from named sources to named targets, made from headers alone.

Everything here is frozen, picklable and made of plain data, so that a plan can be printed, compared, saved and divided.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from converter.errors import Origin, Problem, UsageError
from converter.flow import Chain
from converter.names import Strip
from converter.ops.base import Op
from converter.spec import Header, Shape, TensorSpec


@dataclass(frozen=True)
class Operand:
    """The tensors of one term: dtype and shape of each, and the indices that they run over, with counts."""

    dtype: str
    shape: Shape
    bound: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Recipe:
    """What becomes of some tensors, whatever their names: inputs, a chain whose sizes are numbers, outputs.

    Steps of equal layers share one recipe.
    """

    inputs: tuple[Operand, ...]
    chain: Chain
    outputs: tuple[Operand, ...]


@dataclass(frozen=True)
class Constant:
    """A tensor that a map states: `zeros`, `ones`, `value`, `arange` or `causal_mask`, with value, dtype and shape."""

    what: str
    value: float
    dtype: str
    shape: Shape


Names = tuple[tuple[str, ...], ...]  # per term, in row-major order over its bound indices


class Step(NamedTuple):
    """One thing to do. ``kind`` says which:

    - ``move``: sources go through the recipe into targets;
    - ``fill``: the constant is written to the one target;
    - ``check``: the one source must equal the constant;
    - ``compare``: what the recipe makes of the sources must equal what ``other`` makes of ``other_sources``.
    """

    kind: str
    origin: Origin | None
    recipe: Recipe | None
    sources: Names
    targets: Names
    constant: Constant | None = None
    other: Recipe | None = None
    other_sources: Names = ()

    def source_names(self) -> Sequence[str]:
        """All names that are read."""
        groups = (*self.sources, *self.other_sources) if self.other_sources else self.sources
        return groups[0] if len(groups) == 1 else [n for group in groups for n in group]

    def target_names(self) -> Sequence[str]:
        """All names that are written."""
        return self.targets[0] if len(self.targets) == 1 else [n for group in self.targets for n in group]


@dataclass(frozen=True)
class Tied:
    """A tensor that is another one: on the side that says so, and what was written for it.

    ``alias`` is (name, of) as the output's metadata records it, None where a copy or nothing was written.
    """

    name: str
    of: str
    alias: tuple[str, str] | None = None


@dataclass(frozen=True)
class Fates:
    """The fate of every name that does not simply flow, as planning decides it. Names are those of the files.

    ``unmade`` are (target, missing source or "") that a rule names and no step makes, ``spared`` the targets of
    optional rules that are absent: what a live model needs to know of its own names.
    """

    missing: tuple[tuple[str, Origin | None, str], ...] = ()
    unexpected: tuple[tuple[str, Origin | None, str], ...] = ()
    shape_mismatch: tuple[tuple[str, Origin | None, str], ...] = ()
    dropped: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    assumed: tuple[tuple[str, Any], ...] = ()
    tied: tuple[Tied, ...] = ()
    untied: tuple[str, ...] = ()
    stripped: tuple[tuple[str, int, str], ...] = ()  # text, number of names, prefix or segment
    unmade: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    spared: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Looks:
    """What names of a side look like: templates, RE2 patterns of renames, and what strip takes off."""

    templates: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    strips: tuple[Strip, ...] = ()


@dataclass(frozen=True)
class Plan:
    """What a conversion will do, decided from headers: steps, outputs in the order of their bytes, metadata, fates.

    ``problems`` are those that planning itself met; :func:`converter.verify.verify` adds the rest. ``sizes`` are
    (name, value, reason). ``expected`` is what names of either side look like, for hints.
    """

    map_name: str
    map_file: str
    reverse: bool
    sides: tuple[str, str]
    header: Header
    steps: tuple[Step, ...]
    outputs: tuple[TensorSpec, ...]
    metadata: Mapping[str, str]
    fates: Fates
    problems: tuple[Problem, ...]
    sizes: tuple[tuple[str, Any, str], ...]
    allow_overflow: bool = False
    notes: tuple[str, ...] = ()
    expected: tuple[Looks, Looks] = field(default=(Looks(), Looks()), repr=False)

    @cached_property
    def output_bytes(self) -> int:
        """Bytes of all output tensors."""
        return sum(s.nbytes for s in self.outputs)

    def part(self, names: Iterable[str]) -> Plan:
        """Give the plan that makes only some of the outputs, with the data checks that belong to no output left out."""
        wanted = set(names)
        unknown = sorted(wanted - {o.name for o in self.outputs})
        if unknown:
            raise UsageError(Problem("is no output of this plan", "usage", unknown[0]))
        steps = tuple(s for s in self.steps if wanted & set(s.target_names()))
        made = {n for s in steps for n in s.target_names()}
        every = {o.name for o in self.outputs}
        tied = tuple(t for t in self.fates.tied if t.alias is not None and t.alias[1] in made)
        read = {n for s in steps for n in s.source_names()}
        header = replace(self.header, tensors={n: e for n, e in self.header.tensors.items() if n in read})
        metadata = {k: v for k, v in self.metadata.items() if v in made or v not in every}
        outputs = tuple(o for o in self.outputs if o.name in made)
        return replace(self, header=header, steps=steps, outputs=outputs, metadata=metadata, fates=Fates(tied=tied))

    def to_json(self) -> str:
        """Write the plan as JSON: steps with their ops, outputs, metadata, fates, sizes."""
        doc = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("header", "expected")}
        return json.dumps(plain(doc), ensure_ascii=False, indent=1)


def step_outputs(step: Step) -> list[TensorSpec]:
    """The tensors that a step makes."""
    if step.kind == "fill" and step.constant is not None:
        return [TensorSpec(n, step.constant.dtype, step.constant.shape) for n in step.target_names()]
    if step.kind != "move" or step.recipe is None:
        return []
    return [TensorSpec(n, o.dtype, o.shape) for o, group in zip(step.recipe.outputs, step.targets) for n in group]


def plain(value: Any) -> Any:
    """Turn plan values into plain JSON data: ops as a map writes them, origins as `file:line`."""
    if isinstance(value, Op):
        return value.yaml()
    if isinstance(value, Origin):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: plain(field) for name, field in zip(value._fields, value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [plain(v) for v in value]
    return value if isinstance(value, str | int | float | bool | type(None)) else str(value)
