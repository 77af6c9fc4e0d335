"""What a document says of dtypes: a word for both sides, one for each, or the name whose dtype a fill takes."""

from __future__ import annotations

from dataclasses import dataclass

from converter.fields import NAME, Json, key, read_document, text
from converter.folding import closest
from converter.spec import dtype_names, parse_dtype
from converter.yamltree import Node

DTYPE: Json = {"enum": ["keep", *dtype_names()]}


@dataclass(frozen=True)
class DtypeDoc:
    """dtypes of the two sides: safetensors names, `keep`, or None; or the name whose dtype a fill takes."""

    sides: tuple[str | None, str | None] = (None, None)
    like: str | None = None


def dtype_word(node: Node) -> str:
    """Read a dtype into its safetensors name, or `keep`."""
    word = text(node)
    found = "keep" if word == "keep" else parse_dtype(word)
    if found is None:
        near = closest(word.lower(), dtype_names())
        raise node.error(f"unknown dtype '{word}'" + (f" (did you mean {near}?)" if near else ""))
    return found


def dtype_doc(node: Node) -> DtypeDoc:
    """Read `float32`, `{from: bfloat16, to: float32}` or `{like: NAME}`."""
    if not isinstance(node.value, dict):
        both = dtype_word(node)
        return DtypeDoc((both, both))
    given = read_document(DtypeSidesDoc, node)
    if given.like is not None and (given.source or given.target):
        raise node.error("dtype takes `like` alone")
    return DtypeDoc((given.source, given.target), given.like)


@dataclass(frozen=True)
class DtypeSidesDoc:
    """`{from: bfloat16, to: float32}`, or `{like: NAME}` on a fill."""

    node: Node
    source: str | None = key("from", DTYPE, "dtype of the `from` side", dtype_word, None)
    target: str | None = key("to", DTYPE, "dtype of the `to` side", dtype_word, None)
    like: str | None = key("like", NAME, "on a fill: the dtype of this tensor of the same side", text, None)
