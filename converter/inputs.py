"""The tensors of an input under the names that rules see: less what strip takes off, with aliases of the metadata."""

from __future__ import annotations

from dataclasses import dataclass

from converter.names import Strip, skeleton
from converter.spec import Header, TensorEntry


@dataclass
class Inputs:
    """The tensors of an input under the names that rules see: what strip takes off is gone, aliases are resolved."""

    entries: dict[str, TensorEntry]
    stripped: dict[Strip, int]
    aliases: dict[str, str]
    clashes: list[tuple[str, str, str]]
    by_skeleton: dict[str, list[str]]

    def __contains__(self, name: str) -> bool:
        return name in self.entries or name in self.aliases

    def entry(self, name: str) -> TensorEntry:
        """The tensor under a name, or that its alias stands for."""
        return self.entries[name] if name in self.entries else self.entries[self.aliases[name]]


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
