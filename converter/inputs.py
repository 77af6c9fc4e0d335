"""The tensors of an input under the names that rules see: less what strip takes off, with aliases of the metadata."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from converter.names import Numbers, Strip, numbers_of, skeleton
from converter.spec import Header, TensorEntry

FEW = 8  # names of one skeleton that are looked at one by one
MAX_TABLES = 8  # of names by their numbers, for one skeleton


@dataclass
class Inputs:
    """The tensors of an input under the names that rules see: what strip takes off is gone, aliases are resolved."""

    entries: dict[str, TensorEntry]
    stripped: dict[Strip, int]
    aliases: dict[str, str]
    clashes: list[tuple[str, str, str]]
    by_skeleton: dict[str, list[str]]
    _by_numbers: dict[str, dict[tuple[int, ...], dict[tuple[str, ...], list[str]]]] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return name in self.entries or name in self.aliases

    def entry(self, name: str) -> TensorEntry:
        """The tensor under a name, or that its alias stands for."""
        return self.entries[name] if name in self.entries else self.entries[self.aliases[name]]

    def with_numbers(self, look: str, numbers: Numbers) -> Sequence[str]:
        """The names of a skeleton that have these numbers, and perhaps some that have not.

        Where many rules name few tensors each (one for each layer, say), each looks at its own alone.
        """
        names = self.by_skeleton.get(look, ())
        if not numbers or len(names) < FEW:
            return names
        places = tuple([k for k, _ in numbers])
        tables = self._by_numbers.setdefault(look, {})
        if places not in tables:
            if len(tables) == MAX_TABLES:
                return names
            table = tables[places] = {}
            for name in names:
                found = numbers_of(name)
                if places[-1] < len(found):
                    table.setdefault(tuple([found[k] for k in places]), []).append(name)
        return tables[places].get(tuple([n for _, n in numbers]), ())


def read_inputs(header: Header, strips: tuple[Strip, ...]) -> Inputs:
    """Strip names and resolve the aliases that the metadata records."""
    entries: dict[str, TensorEntry] = {}
    stripped: dict[Strip, int] = {}
    clashes: list[tuple[str, str, str]] = []

    def short(name: str, tally: bool) -> str:
        for strip in strips:
            left = strip.off(name)
            if tally and left != name:
                stripped[strip] = stripped.get(strip, 0) + 1
            name = left
        return name

    for entry in header.tensors.values():
        name = short(entry.name, True) if strips else entry.name
        if name in entries:
            clashes.append((name, entries[name].name, entry.name))
        else:
            entries[name] = entry
    aliases: dict[str, str] = {}
    for alias, stored in header.metadata.items():
        a, s = short(alias, False), short(stored, False)
        if s in entries and a not in entries and stored in header.tensors:
            aliases[a] = s
    by_skeleton: dict[str, list[str]] = {}
    for name in (*entries, *aliases):
        by_skeleton.setdefault(skeleton(name), []).append(name)
    return Inputs(entries, stripped, aliases, clashes, by_skeleton)
