"""Sources that have to be computed first, numbered after the tensors that a recipe reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from converter.moves import check_castable
from converter.values import FileSource, ScaleSource, Source
from converter.virtual import COMPUTED, CONSTANT, RowScales, Virtual


@dataclass
class Numbering:
    """Slots for what is computed: ``made`` has it in an order in which each needs only what comes before it."""

    slots: int  # of tensors that are read
    made: list[RowScales] = field(default_factory=list)
    _numbers: dict[RowScales, int] = field(default_factory=dict)

    def virtual(self, value: Virtual) -> Virtual:
        """Put numbers in the place of what is computed."""
        found = {b.slot for b in value.blocks} | {o.slot for b in value.blocks for o in b.operands}
        return value.renumber(self._number) if COMPUTED in found else value

    def _number(self, slot: int, of: RowScales | None) -> int:
        if of is None:
            return slot
        if of not in self._numbers:
            numbered = RowScales(self.virtual(of.value), of.largest)
            self._numbers[of] = self.slots + len(self.made)
            self.made.append(numbered)
        return self._numbers[of]


def with_computed(read: Sequence[FileSource], made: Sequence[RowScales]) -> tuple[Source, ...]:
    """Give the sources of a recipe: the tensors that it reads, and what is computed from them."""
    out: list[Source] = list(read)
    for scales in made:
        double = check_castable("F32", out, scales.value.blocks)
        out.append(ScaleSource(scales.value, tuple(out), scales.largest, double))
    return tuple(out)


def reads(value: Virtual, slots: int, made: Sequence[RowScales]) -> tuple[set[int], set[int]]:
    """Give the tensors whose elements a value has, and those that it is computed with beside, by slot."""
    direct = {b.slot for b in value.blocks}
    beside = {o.slot for b in value.blocks for o in b.operands}
    for slot in {s for s in direct | beside if s >= slots}:
        beside |= set().union(*reads(made[slot - slots].value, slots, made))
    own = {s for s in direct if s < slots} - {CONSTANT}
    return own, {s for s in beside if s < slots} - {CONSTANT} - own
