"""`include`: a map and the files that it names, read into one tree.

Files are looked for beside and below the including file, or among those that ship with the package, and nowhere else.
How many there are, how deep they nest and how much they hold is bounded, so that a small map of a stranger stays
small.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

from converter.document import MapDoc
from converter.errors import MapError, Origin, Problem
from converter.fields import check_version_first, flag, kind_of, unknown_keys
from converter.merging import Prefixes, join, lowered, merge, prune, spelled
from converter.ruledoc import IncludeDoc, include_docs, is_group
from converter.yamltree import MAX_DEPTH, MAX_NODES, Node

MAX_WAY = 10  # files that include each other
MAX_INCLUDES = 200


@dataclass(frozen=True)
class Source:
    """A file: its path, and its tree as it was read."""

    path: Path
    node: Node


@dataclass(frozen=True)
class Place:
    """Where an include is met: the file around it, and the files on the way there with the lines that include them."""

    source: Source
    way: tuple[tuple[Path, Origin | None], ...]


def has_includes(node: Node) -> bool:
    """Tell whether a map includes anything, at its top or in a group."""
    rules = node.get("rules")
    below = rules.value if rules is not None and isinstance(rules.value, list) else ()
    return node.get("include") is not None or any(has_includes(rule) for rule in below)


def resolve(source: Source, find: Callable[[Source, Node], Source]) -> tuple[Node, tuple[Source, ...]]:
    """Give the tree of a map with all that it includes in place, and the files, itself first.

    ``find`` opens the file that a text in a file names. Raises MapError with the line of what is wrong.
    """
    includer = _Includer(find, {source.path.resolve(): source})
    tree = includer.tree(Place(source, ((source.path.resolve(), None),)))
    if len(includer.files) > 1:
        includer._count(tree, source.node.origin)
    return tree, tuple(includer.files.values())


def measure(node: Node) -> tuple[int, int]:
    """Count the values of a tree, and its levels."""
    below = node.value.values() if isinstance(node.value, dict) else node.value if isinstance(node.value, list) else ()
    found = [measure(n) for n in below]
    return 1 + sum(n for n, _ in found), 1 + max((d for _, d in found), default=-1)


@dataclass
class _Includer:
    find: Callable[[Source, Node], Source]
    files: dict[Path, Source]
    includes: int = 0
    values: int = 0
    trees: dict[Path, Node] = field(default_factory=dict)

    def tree(self, place: Place) -> Node:
        """Give the tree of a file without its includes: they are in place."""
        node = place.source.node
        own = node.get("include")
        parts = [self.part(doc, place) for doc in include_docs(own)] if own is not None else []
        rules = node.get("rules")
        hoisted: list[Node] = []
        if rules is not None:
            rules = self.members(rules, (("",), ("",)), place, hoisted)
        return merge(node, [*parts, *hoisted], join(parts, rules))

    def part(self, doc: IncludeDoc, place: Place) -> Node:
        """Give the tree of an included file, less what `except` names."""
        source = self.find(place.source, doc.file)
        origin, path = doc.file.origin, source.path.resolve()
        self._check_way(place, path, origin)
        if path not in self.trees:
            source = self.files.setdefault(path, source)
            self._check_file(source.node)
            self.trees[path] = self.tree(Place(source, (*place.way, (path, origin))))
        tree = self.trees[path]
        self._count(tree, origin)
        return prune(tree, doc)

    def _count(self, tree: Node, origin: Origin) -> None:
        values, depth = measure(tree)
        self.includes += 1
        self.values += values
        told = ""
        if self.includes > MAX_INCLUDES or self.values > MAX_NODES:
            told = f"the map includes more than {MAX_INCLUDES} files or {MAX_NODES} values"
        if depth > MAX_DEPTH:
            told = f"with what it includes, the file is nested more than {MAX_DEPTH} levels deep"
        if told:
            raise MapError(Problem(told, "map", None, origin))

    def _check_way(self, place: Place, path: Path, origin: Origin) -> None:
        for k, (file, _) in enumerate(place.way):
            if file == path:
                lines = [o for _, o in (*place.way[k + 1 :], (path, origin))]
                told = (
                    "the file includes itself"
                    if len(lines) == 1
                    else f"a circle of includes: {', '.join(map(str, lines))}"
                )
                raise MapError(Problem(told, "map", None, origin))
        if len(place.way) > MAX_WAY:
            raise MapError(Problem(f"includes are nested more than {MAX_WAY} deep", "map", None, origin))

    def _check_file(self, node: Node) -> None:
        if not isinstance(node.value, dict):
            raise node.error(f"expected a mapping, found {kind_of(node)}")
        check_version_first(node)
        problems = unknown_keys(MapDoc, node)
        if "version" not in node.value:
            problems += node.error("'version' is missing").problems
        if "fragment" in node.value:
            flag(node.value["fragment"])
        if problems:
            raise MapError(problems)

    def members(self, rules: Node, prefixes: Prefixes, place: Place, hoisted: list[Node]) -> Node:
        """Give rules with the includes of their groups in place; what else the files have goes to ``hoisted``."""
        if not isinstance(rules.value, list):
            raise rules.error(f"expected a list, found {kind_of(rules)}")
        return replace(rules, value=[self.member(r, prefixes, place, hoisted) for r in rules.value])

    def member(self, rule: Node, prefixes: Prefixes, place: Place, hoisted: list[Node]) -> Node:
        """Give a rule as it is, a group with its includes in place."""
        if not isinstance(rule.value, dict):
            raise rule.error(f"a rule is a mapping, found {kind_of(rule)}")
        if not is_group(rule):
            return rule
        below: Prefixes = tuple(  # type: ignore[assignment]
            tuple(a + b for a, b in product(before, spelled(rule, side) or ("",)))
            for before, side in zip(prefixes, ("from", "to"))
        )
        own, include = rule.get("rules"), rule.get("include")
        if own is not None:
            own = self.members(own, below, place, hoisted)
        parts = []
        for doc in include_docs(include) if include is not None else ():
            parts.append(lowered(self.part(doc, place), below, place.source.node, doc.file))
        hoisted += [replace(p, value={k: v for k, v in p.value.items() if k != "rules"}) for p in parts]
        inner = join(parts, own)
        if inner is None:
            raise rule.error("no file that the group includes has rules", "include")
        value = {k: v for k, v in rule.value.items() if k not in ("rules", "include")}
        return replace(rule, value={**value, "rules": inner})
