"""How a class of a document declares its keys, and how their values are read."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Mapping
from dataclasses import MISSING, field, fields
from functools import cache
from typing import Any, TypeVar

from converter.errors import MapError, Problem
from converter.folding import clip, closest
from converter.yamltree import Node

Json = dict[str, Any]
NAME: Json = {"type": "string", "description": "a tensor name; {index} holds indices, the rest is literal"}
T = TypeVar("T")


def key(yaml: str, schema: Json, about: str, read: Callable[[Node], Any], default: Any = MISSING) -> Any:
    """Declare a key of a document class: its YAML word, schema, help and reader; without a default it is required."""
    meta = {"yaml": yaml, "schema": schema, "about": about, "read": read}
    if callable(default) and default is not MISSING:
        return field(default_factory=default, metadata=meta)
    return field(default=default, metadata=meta)


def read_document(cls: type[T], node: Node) -> T:
    """Read a mapping into a document class; raises MapError for unknown, missing or misread keys, with their line."""
    if not isinstance(node.value, dict):
        raise node.error(f"expected a mapping, found {kind_of(node)}")
    known = keys_of(cls)  # type: ignore[arg-type]  # a class is hashable
    problems = unknown_keys(cls, node)
    values: dict[str, Any] = {}
    for word, f in known.items():
        if word in node.value:
            try:
                values[f.name] = f.metadata["read"](node.value[word])
            except MapError as e:
                problems += e.problems
        elif f.default is MISSING and f.default_factory is MISSING:
            problems += node.error(f"'{word}' is missing").problems
    if problems:
        raise MapError(problems)
    make: Callable[..., T] = cls
    return make(node=node, **values)


@cache
def keys_of(cls: type) -> Mapping[str, Any]:
    """Give the fields of a document class by their YAML words."""
    return {f.metadata["yaml"]: f for f in fields(cls) if "yaml" in f.metadata}


def unknown_keys(cls: type, node: Node) -> list[Problem]:
    """Find the keys of a mapping that its class does not have."""
    known = keys_of(cls)
    return [_unknown_key(node, k, known) for k in node.value if k not in known]


def _unknown_key(node: Node, word: Any, known: Mapping[str, Any]) -> Problem:
    from converter.ops import OPS

    if "ops" in known and any(word == op.word for op in OPS):
        value = node.value[word].value
        shown = "..." if isinstance(value, dict | list) else value
        item = str(word) if value is None or value is True else f"{{{word}: {shown}}}"
        return node.error(f"unknown key '{word}', which is an op: write `ops: [{item}]`", word).problems[0]
    near = closest(str(word), known)
    hole = node.value[word].value is None and len(node.value) == 1
    hint = " (names with braces need quotes in YAML's flow style)" if hole else f" (keys: {', '.join(known)})"
    return node.error(f"unknown key '{word}'" + (f" (did you mean '{near}'?)" if near else hint), word).problems[0]


def kind_of(node: Node) -> str:
    """Say what stands at a node, for a message."""
    v = node.value
    names = {dict: "a mapping", list: "a list", str: f"'{clip(str(v))}'", bool: str(v).lower(), type(None): "nothing"}
    return names.get(type(v), str(v))


# Readers of simple values.


def text(node: Node) -> str:
    """Read a string."""
    if node.rendered and isinstance(node.value, int) and not isinstance(node.value, bool):
        return str(node.value)
    if not isinstance(node.value, str):
        hint = f"; quote it, '{node.value}'" if isinstance(node.value, int | float) else ""
        if isinstance(node.value, dict) and node.value and all(v.value is None for v in node.value.values()):
            hint = "; names with braces need quotes in YAML's flow style"
        raise node.error(f"expected text, found {kind_of(node)}{hint}")
    return node.value


def words(node: Node) -> str:
    """Read a string that says something."""
    found = text(node)
    if not found:
        raise node.error("expected text, found an empty one")
    return found


def raw(node: Node) -> Node:
    """Keep the node."""
    return node


def one_of(*words: str) -> Callable[[Node], str]:
    """Read one of a few words."""

    def read(node: Node) -> str:
        if node.value not in words:
            raise node.error(f"expected {' or '.join(words)}, found {kind_of(node)}")
        return str(node.value)

    return read


def flag(node: Node) -> bool:
    """Read true or false."""
    if not isinstance(node.value, bool):
        raise node.error(f"expected true or false, found {kind_of(node)}")
    return node.value


def listed(read: Callable[[Node], T], most: int | None = None) -> Callable[[Node], tuple[T, ...]]:
    """Read a list of what ``read`` reads, of ``most`` entries at most."""

    def inner(node: Node) -> tuple[T, ...]:
        if not isinstance(node.value, list):
            raise node.error(f"expected a list, found {kind_of(node)}")
        if most is not None and len(node.value) > most:
            raise node.error(f"a list of {len(node.value)} (at most {most} here)")
        out: list[T] = []
        problems: list[Problem] = []
        for n in node.value:
            try:
                out.append(read(n))
            except MapError as e:
                problems += e.problems
        if problems:
            raise MapError(problems)
        return tuple(out)

    return inner


def mapped(read: Callable[[Node], T]) -> Callable[[Node], dict[str, T]]:
    """Read a mapping from names to what ``read`` reads."""

    def inner(node: Node) -> dict[str, T]:
        if not isinstance(node.value, dict):
            raise node.error(f"expected a mapping, found {kind_of(node)}")
        for k in node.value:
            if isinstance(k, str) and keyword.iskeyword(k):
                raise node.error(f"'{k}' is a word of expressions and cannot be a name", k)
            if not isinstance(k, str) or not k.isidentifier():
                raise node.error(f"'{k}' is not a name (letters, digits and underscores; quote a text)", k)
        return {k: read(v) for k, v in node.value.items()}

    return inner


def document(cls: Callable[[], type[T]]) -> Callable[[Node], T]:
    """Read a document class that is defined further down."""
    return lambda node: read_document(cls(), node)


def expression(node: Node) -> Node:
    """Read what should be an expression: text or a number."""
    if isinstance(node.value, bool) or not isinstance(node.value, str | int | float):
        raise node.error(f"expected an expression, found {kind_of(node)}")
    return node


def plain(node: Node) -> Any:
    """Read plain data."""
    return node.plain()


def version_one(node: Node) -> int:
    """Read the version, which is the integer 1."""
    if node.value != 1 or isinstance(node.value, bool) or not isinstance(node.value, int):
        raise node.error(f"version is the integer 1, found {kind_of(node)}")
    return 1


def check_version_first(node: Node) -> None:
    """Refuse another version before its unknown keys confuse anybody; raises MapError."""
    version = node.get("version")
    if version is not None:
        version_one(version)
