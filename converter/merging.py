"""One tree out of a map and the files that it includes. Every value keeps the file and line that it comes from.

What the including file states wins over what it includes; two included files that differ are an error, since nobody
said which of them is right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from converter.errors import MapError, Origin, Problem
from converter.fields import kind_of
from converter.folding import clip, closest
from converter.ops.parameters import inline
from converter.ruledoc import IncludeDoc, is_group, name_doc
from converter.yamltree import Node

OWN = ("version", "name", "about", "published", "fragment")  # of the file that states it, never taken over
KEYED = ("sides", "params", "indices", "example")  # taken over key by key
JOINED = ("strip", "drop")  # lists of both sides, one after the other
WHOLE = ("rest", "dtype")
Prefixes = tuple[tuple[str, ...], tuple[str, ...]]  # spellings of what stands before names, of both sides


def merge(own: Node, parts: Sequence[Node], rules: Node | None) -> Node:
    """Make one mapping of a file, its rules, and all else that it includes; raises MapError."""
    value = {k: v for k, v in own.value.items() if k not in ("include", "rules")}
    keys = dict(own.keys)
    problems: list[Problem] = []
    for word in (*KEYED, *JOINED, *WHOLE):
        holders = [p for p in parts if word in p.value]
        if not holders or (word in WHOLE and word in value):
            continue
        keys.setdefault(word, holders[0].keys[word])
        nodes = [p.value[word] for p in holders]
        if word in WHOLE:
            value[word] = nodes[0]
            problems += [_differ(word, nodes[0], n) for n in nodes if n.plain() != nodes[0].plain()]
        elif word in KEYED:
            value[word] = _keyed(word, value.get(word), nodes, problems)
        else:
            value[word] = _joined([*nodes, *([value[word]] if word in value else [])])
    if problems:
        raise MapError(problems)
    if rules is not None:
        value["rules"] = rules
    return replace(own, value=value, keys=keys)


def _differ(what: str, first: Node, second: Node) -> Problem:
    told = (
        f"{what} is {_shown(second)} here and {_shown(first)} at {first.origin}: state it in the map that includes both"
    )
    return Problem(told, "map", None, second.origin)


def _shown(node: Node) -> str:
    return clip(inline(node.plain()))


def _keyed(word: str, own: Node | None, nodes: Sequence[Node], problems: list[Problem]) -> Node:
    for node in (*nodes, *([own] if own is not None else [])):
        if not isinstance(node.value, dict):
            raise node.error(f"{word}: expected a mapping, found {kind_of(node)}")
    stated = own.value if own is not None else {}
    value: dict[Any, Node] = {}
    keys: dict[Any, Origin] = {}
    for node in nodes:
        for k in (k for k in node.value if k not in stated):
            first = value.setdefault(k, node.value[k])
            keys.setdefault(k, node.keys[k])
            if first.plain() != node.value[k].plain():
                problems.append(_differ(f"{word}: '{k}'", first, node.value[k]))
    first = own or nodes[0]
    return Node({**value, **stated}, first.origin, {**keys, **(own.keys if own is not None else {})})


def _joined(nodes: Sequence[Node]) -> Node:
    value: dict[Any, Node] = {}
    keys: dict[Any, Origin] = {}
    for node in nodes:
        if not isinstance(node.value, dict):
            raise node.error(f"expected a mapping, found {kind_of(node)}")
        for side, entries in node.value.items():
            if not isinstance(entries.value, list):
                raise entries.error(f"expected a list, found {kind_of(entries)}")
            keys.setdefault(side, node.keys[side])
            before = value[side].value if side in value else []
            known = [n.plain() for n in before]
            value[side] = Node([*before, *(n for n in entries.value if n.plain() not in known)], entries.origin)
    return Node(value, nodes[0].origin, keys)


def join(parts: Sequence[Node], own: Node | None) -> Node | None:
    """Give the rules of included files and of the including one; a rule that comes by two ways is one rule.

    Raises MapError where it comes in two forms. None: there are no rules.
    """
    lists = [p.value["rules"] for p in parts if "rules" in p.value]
    if own is None and not lists:
        return None
    seen: dict[Origin, Node] = {}
    rules = []
    for part in lists:
        new = [r for r in part.value if r.origin not in seen]
        odd = [r for r in part.value if seen.get(r.origin, r) != r]
        if odd:
            told = "comes twice by includes, once with and once without some of its rules (except)"
            raise MapError(Problem(told, "map", None, r.origin) for r in odd)
        seen.update({r.origin: r for r in new})
        rules += new
    return Node([*rules, *(own.value if own is not None else ())], (own or lists[0]).origin)


# What is left out.


def prune(part: Node, doc: IncludeDoc) -> Node:
    """Leave out the rules and groups that `except` names; raises MapError for an entry that names none."""
    if not doc.besides or not isinstance(part.value, dict):
        return part
    words = {str(n.value) for n in doc.besides}
    known: list[str] = []
    rules = _kept(part.value["rules"], words, ("",), ("",), known) if "rules" in part.value else None
    problems = []
    for n in doc.besides:
        if n.value not in known:
            near = closest(str(n.value), known)
            hint = f" (did you mean '{near}'?)" if near else ""
            problems.append(n.error(f"except: no rule or group of the file is named '{n.value}'{hint}").problems[0])
    if problems:
        raise MapError(problems)
    return replace(part, value={**part.value, "rules": rules})


def _kept(rules: Node, words: set[str], source: tuple[str, ...], target: tuple[str, ...], known: list[str]) -> Node:
    out = []
    for rule in rules.value:
        names = [a + b for a, b in product(*_names(rule, source, target))]
        known += names
        out_whole = not words.isdisjoint(names)
        if is_group(rule):
            below = tuple(a + b for a, b in product(target, spelled(rule, "to")))
            inner = _kept(rule.value["rules"], words, tuple(names), below, known)
            rule = replace(rule, value={**rule.value, "rules": inner})
            out_whole = out_whole or not inner.value
        if not out_whole:
            out.append(rule)
    return Node(out, rules.origin)


def _names(rule: Node, source: tuple[str, ...], target: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Give prefixes and names by which a rule is known: those of its `from` side, or of its only side."""
    if "match" in rule.value:
        return ("",), (str(rule.value["match"].value),)
    side = "from" if "from" in rule.value or is_group(rule) else "to"
    return (source if side == "from" else target), spelled(rule, side)


def spelled(rule: Node, side: str) -> tuple[str, ...]:
    """Give every name (or prefix) of one side of a rule, in every spelling; what cannot be read has none."""
    node = rule.get(side)
    terms = [] if node is None else node.value if isinstance(node.value, list) else [node]
    return tuple(_spellings(terms))


def _spellings(terms: Sequence[Node]) -> Iterator[str]:
    for term in terms:
        named = term.get("name") or term
        try:
            yield from name_doc(named).spellings
        except MapError:  # reported where the rule is read
            continue


# What goes below a prefix.


def lowered(part: Node, prefixes: Prefixes, own: Node, place: Node) -> Node:
    """Put the whole names of an included file below the prefixes of the group that includes it.

    Names of rules are below them by standing in the group; those of ``with``, ``without``, ``tied``, ``like`` and
    ``drop`` are whole names of the file. Raises MapError for what can only be said of whole checkpoints, unless
    ``own``, the including file, says it itself.
    """
    for word in ("strip", *WHOLE):
        if word in part.value and word not in own.value:
            told = f"{word} is about whole checkpoints, and the file is included in a group ({place.origin})"
            raise part.error(f"{told}: state it at the top of the map", word)
    value = {k: v for k, v in part.value.items() if k in ("params", "indices", "example")}
    if "drop" in part.value:
        value["drop"] = _lowered_drop(part.value["drop"], prefixes)
    if "rules" in part.value:
        first = (prefixes[0][0], prefixes[1][0])
        value["rules"] = Node([_lowered(r, first) for r in part.value["rules"].value], part.value["rules"].origin)
    return replace(part, value=value)


def _lowered(rule: Node, first: tuple[str, str]) -> Node:
    value = dict(rule.value)
    before = first[0] if "from" in value else first[1]
    for word, prefix in (("with", first[0]), ("without", first[0]), ("tied", before)):
        if word in value:
            value[word] = _put(value[word], "name", prefix)
    if isinstance(rule.value.get("dtype"), Node) and isinstance(value["dtype"].value, dict):
        value["dtype"] = _put(value["dtype"], "like", before)
    if is_group(rule):
        below = value["rules"]
        value["rules"] = Node([_lowered(r, first) for r in below.value], below.origin)
    return replace(rule, value=value)


def _put(node: Node, key: str, prefix: str) -> Node:
    """Put a prefix before a name, or before the name under a key of a mapping."""
    if isinstance(node.value, str):
        return replace(node, value=prefix + node.value)
    if isinstance(node.value, dict) and key in node.value:
        return replace(node, value={**node.value, key: _put(node.value[key], key, prefix)})
    return node


def _lowered_drop(drop: Node, prefixes: Prefixes) -> Node:
    if not isinstance(drop.value, dict):
        raise drop.error(f"expected a mapping, found {kind_of(drop)}")
    value = dict(drop.value)
    for word, before in zip(("from", "to"), prefixes):
        entries = value[word].value if word in value else None
        if isinstance(entries, list):
            value[word] = replace(value[word], value=[_lowered_entry(n, before) for n in entries])
    return replace(drop, value=value)


def _lowered_entry(entry: Node, before: tuple[str, ...]) -> Node:
    if isinstance(entry.value, dict) and "any" not in entry.value:
        raise entry.error("a drop by pattern is about whole names: it cannot stand in a file that a group includes")
    names = [a + b for a, b in product(before, name_doc(entry).spellings)]
    if len(names) == 1:
        return replace(entry, value=names[0])
    return Node(
        {"any": Node([Node(n, entry.origin) for n in names], entry.origin)}, entry.origin, {"any": entry.origin}
    )
