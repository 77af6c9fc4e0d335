"""The document of a map: its classes and keys, each with the schema, the help text and the reader of its value.

The JSON Schema that editors use is generated from these fields (:mod:`converter.schema`), so that a key is defined
once. Values that need the rest of the map to be understood (ops, shapes, expressions) stay nodes here;
:mod:`converter.rules` reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from converter.dtypedoc import DtypeDoc, dtype_doc
from converter.fields import (
    Json,
    document,
    expression,
    flag,
    key,
    kind_of,
    listed,
    mapped,
    one_of,
    plain,
    raw,
    read_document,
    text,
    version_one,
    words,
)
from converter.names import Strip
from converter.ruledoc import (
    EXPR,
    INCLUDE,
    IncludeDoc,
    NameDoc,
    include_docs,
    name_doc,
    rule_doc,
)
from converter.yamltree import Node


@dataclass(frozen=True)
class ParamDoc:
    """Where a param's value comes from."""

    node: Node
    config: tuple[str, ...] = key(
        "config",
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        "key of config.json (dots go down), or keys of which the first present counts",
        lambda n: listed(text)(n) if isinstance(n.value, list) else (text(n),),
        (),
    )
    expr: Node | None = key("expr", EXPR, "computed from other params and sizes", expression, None)
    default: Any = key("default", {}, "the value where nothing else gives one", lambda n: n.plain(), None)
    each: Node | None = key("each", EXPR, "read a single value as a list of this length", expression, None)
    length: bool = key("length", {"type": "boolean"}, "of a list, the number of its items", flag, False)
    over: str | None = key("over", {"type": "string"}, "an index: `expr` gives an item for each value", text, None)


def param_doc(node: Node) -> ParamDoc:
    """Read a param: a bare value is a default."""
    if isinstance(node.value, dict):
        return read_document(ParamDoc, node)
    return ParamDoc(node, default=node.plain())


@dataclass(frozen=True)
class SidesDoc:
    """Names of the two layouts."""

    node: Node
    source: str = key("from", {"type": "string"}, "name of the `from` layout", text, "from")
    target: str = key("to", {"type": "string"}, "name of the `to` layout", text, "to")


@dataclass(frozen=True)
class SegmentDoc:
    """A part between dots that names of files may carry anywhere."""

    node: Node
    segment: str = key("segment", {"type": "string", "minLength": 1}, "what stands between two dots", text)


def strip_doc(node: Node) -> Strip:
    """Read a prefix or `{segment: ...}`."""
    if isinstance(node.value, dict):
        return Strip(read_document(SegmentDoc, node).segment, segment=True)
    return Strip(text(node))


MAX_STRIPS, MAX_DROPS = 100, 2000  # of a side
_STRIP: Json = {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/segment"}]}
_STRIPS: Json = {"type": "array", "maxItems": MAX_STRIPS, "items": _STRIP}


@dataclass(frozen=True)
class StripDoc:
    """What names of files of a side may carry: prefixes, and segments anywhere."""

    node: Node | None
    source: tuple[Strip, ...] = key("from", _STRIPS, "of `from` files", listed(strip_doc, MAX_STRIPS), ())
    target: tuple[Strip, ...] = key("to", _STRIPS, "of `to` files", listed(strip_doc, MAX_STRIPS), ())


@dataclass(frozen=True)
class DropMatchDoc:
    """A pattern of names that are left out."""

    node: Node
    match: str = key("match", {"type": "string"}, "RE2 pattern of the whole name", text)


def drop_doc(node: Node) -> NameDoc | DropMatchDoc:
    """Read a name or `{match: ...}`."""
    if isinstance(node.value, dict) and "any" not in node.value:
        return read_document(DropMatchDoc, node)
    return name_doc(node)


_DROP: Json = {"anyOf": [{"$ref": "#/$defs/name"}, {"$ref": "#/$defs/drop_match"}]}
_DROPS: Json = {"type": "array", "maxItems": MAX_DROPS, "items": _DROP}


@dataclass(frozen=True)
class DropDoc:
    """Tensors that are left out on purpose."""

    node: Node | None
    source: tuple[Any, ...] = key("from", _DROPS, "names of the `from` side", listed(drop_doc, MAX_DROPS), ())
    target: tuple[Any, ...] = key("to", _DROPS, "names of the `to` side", listed(drop_doc, MAX_DROPS), ())


_SIZES: Json = {"type": "object", "additionalProperties": True}
_INDEX: Json = {"anyOf": [EXPR, {"type": "array", "minItems": 1}, {"type": "object", "minProperties": 1}]}
_PARAM: Json = {"anyOf": [{"type": ["string", "number", "boolean", "array", "null"]}, {"$ref": "#/$defs/param"}]}


@dataclass(frozen=True)
class MapDoc:
    """A map: equations between the tensors of two layouts."""

    node: Node
    version: int = key("version", {"const": 1}, "version of the map language", version_one)
    name: str = key("name", {"type": "string", "minLength": 1}, "name of the map", words)
    rules: tuple[Any, ...] = key(
        "rules",
        {"type": "array", "items": {"$ref": "#/$defs/rule"}},
        "the equations; their order never matters",
        listed(rule_doc),
    )
    about: str = key("about", {"type": "string"}, "what the two layouts are", text, "")
    include: tuple[IncludeDoc, ...] = key("include", INCLUDE, "files that this one takes over", include_docs, ())
    fragment: bool = key("fragment", {"type": "boolean"}, "the file is there to be included only", flag, False)
    sides: SidesDoc | None = key(
        "sides", {"$ref": "#/$defs/sides"}, "names of the two layouts", document(lambda: SidesDoc), None
    )
    params: dict[str, ParamDoc] = key(
        "params",
        {"type": "object", "additionalProperties": _PARAM},
        "values that no header holds",
        mapped(param_doc),
        dict,
    )
    indices: dict[str, Node] = key(
        "indices",
        {"type": "object", "additionalProperties": _INDEX},
        "what {index} in names runs over",
        mapped(raw),
        dict,
    )
    strip: StripDoc = key(
        "strip",
        {"$ref": "#/$defs/strip"},
        "prefixes and segments that names of files may carry",
        document(lambda: StripDoc),
        lambda: StripDoc(None),
    )
    drop: DropDoc = key(
        "drop",
        {"$ref": "#/$defs/drop"},
        "tensors left out on purpose",
        document(lambda: DropDoc),
        lambda: DropDoc(None),
    )
    rest: str = key(
        "rest",
        {"enum": ["error", "keep", "drop"]},
        "what becomes of tensors that nothing names",
        one_of("error", "keep", "drop"),
        "error",
    )
    dtype: DtypeDoc | None = key("dtype", {"$ref": "#/$defs/dtype"}, "dtype of floating tensors", dtype_doc, None)
    example: dict[str, Any] = key(
        "example", _SIZES, "sizes of the stub that tests and `convert stub` invent", mapped(plain), dict
    )
    published: dict[str, Any] = key(
        "published",
        {"type": "object", "additionalProperties": _SIZES},
        "sizes of published models",
        lambda n: _published(n),
        dict,
    )


def _published(node: Node) -> dict[str, Any]:
    if not isinstance(node.value, dict):
        raise node.error(f"expected a mapping, found {kind_of(node)}")
    return {str(k): mapped(plain)(v) for k, v in node.value.items()}
