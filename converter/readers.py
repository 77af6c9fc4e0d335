"""Small parts of a map that are read by themselves: indices and shapes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from converter.dims import Dim, Poly, names
from converter.expressions import ExpressionError, parse
from converter.folding import repeated
from converter.names import Index
from converter.ops.base import Shape
from converter.ruledoc import GroupDoc, RuleDoc
from converter.yamltree import Node

MAX_LABEL = 200  # characters


def read_index(name: str, node: Node) -> Index:
    """Read an index: a size, a list of labels, or a mapping from labels to labels; raises MapError."""
    value = node.value
    if isinstance(value, list):
        labels = tuple(_label(n) for n in value)
        _distinct(node, labels)
        return Index(name, None, labels, labels)
    if isinstance(value, dict):
        keys = tuple(value)
        images = tuple(_label(n) for n in value.values())
        _distinct(node, images)
        _distinct(node, keys)
        return Index(name, None, keys, images)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise node.error(f"index '{name}' is a size, a list or a mapping")
    if isinstance(value, int) and value < 0:
        raise node.error(f"index '{name}' runs over {value} values, fewer than none")
    return Index(name, parse(str(value)))


def _label(node: Node) -> Any:
    if isinstance(node.value, bool) or not isinstance(node.value, int | str):
        raise node.error("a label of an index is text or a whole number")
    if isinstance(node.value, int) and node.value < 0:
        raise node.error(f"label {node.value}: a name cannot have a negative number")
    return node.value


def _distinct(node: Node, labels: tuple[Any, ...]) -> None:
    if not labels:
        raise node.error("the index has no label")
    twice = repeated(str(v) for v in labels)
    if twice is not None:
        raise node.error(f"label '{twice}' stands twice")
    long = next((v for v in labels if len(str(v)) > MAX_LABEL), None)
    if long is not None:
        raise node.error(f"a label of {len(str(long))} characters (at most {MAX_LABEL})")


def shape_nodes(rules: Iterable[Any]) -> Iterable[tuple[Node, int]]:
    """Find every shape of a document, with the number of terms that it is for."""
    for r in rules:
        if isinstance(r, GroupDoc):
            yield from shape_nodes(r.rules)
        elif isinstance(r, RuleDoc):
            for shape in (r.shape, *(form.shape for form in r.forms)):
                if shape is not None:
                    yield shape, len(r.source or r.target)
            yield from ((t.shape, 1) for t in (*r.source, *r.target) if t.shape is not None)


def local_sizes_of(rules: Iterable[Any]) -> set[str]:
    """The sizes that groups say their local ones are, where they say it with `+` and `*` alone."""
    out: set[str] = set()
    for group in (r for r in rules if isinstance(r, GroupDoc)):
        out |= local_sizes_of(group.rules)
        for node in group.local.values():
            try:
                used = names(parse(str(node.value)).dim())
            except ExpressionError:
                continue  # reported where the group is read
            out |= {n for n in used if n[0] != "_"} if all(n.isidentifier() for n in used) else set()
    return out


def read_shapes(node: Node, terms: int) -> tuple[Shape, ...]:
    """Read one shape for each of ``terms`` terms; raises ExpressionError."""
    value = node.plain()
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if isinstance(value, str):
        if terms > 1:
            raise ExpressionError(f"there is one shape for {terms} terms: give a list with one for each")
        return (_shape(value.split()),)
    if not isinstance(value, list):
        raise ExpressionError(f"{value!r} is no shape (dims separated by spaces, or a list)")
    if terms == 1:
        return (_shape(value),)
    if len(value) != terms:
        raise ExpressionError(f"there are {len(value)} shapes for {terms} terms, one each is needed")
    return tuple(_shape(v if isinstance(v, list) else str(v).split()) for v in value)


def _shape(dims: Sequence[Any]) -> Shape:
    out: list[Dim] = []
    for d in dims:
        if isinstance(d, bool) or not isinstance(d, int | str):
            raise ExpressionError(f"{d!r} is no dim (an integer or an expression of sizes)")
        if d in ("true", "false"):
            raise ExpressionError(f"'{d}' is no dim")
        if isinstance(d, str) and set(d) <= set("+*"):
            raise ExpressionError(f"'{d}' stands by itself: dims are separated by spaces, so write q+2, not q + 2")
        dim = d if isinstance(d, int) else parse(d).dim()
        if isinstance(dim, int) and dim < 0:
            raise ExpressionError(f"a dim of {dim}")
        if isinstance(dim, Poly) and any(c < 0 for _, c in dim.terms):
            raise ExpressionError(f"'{d}' subtracts; dims have names, integers, + and *")
        if any(not n.isidentifier() for n in names(dim)):
            raise ExpressionError(f"'{d}' is no dim; dims have names, integers, + and * (compute a param with expr)")
        out.append(replace(dim, text=str(d)) if isinstance(dim, Poly) else dim)
    return tuple(out)
