"""The document of a map: its classes and keys, each with the schema, the help text and the reader of its value.

The JSON Schema that editors use is generated from these fields (:mod:`converter.schema`), so that a key is defined once. Values
that need the rest of the map to be understood (ops, shapes, expressions) stay nodes here; :mod:`converter.rules` reads them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeVar

from converter.errors import MapError, Origin
from converter.folding import closest
from converter.spec import dtype_names, parse_dtype
from converter.yamltree import Node

Json = dict[str, Any]
T = TypeVar("T")
SIDES = ("from", "to")


def key(yaml: str, schema: Json, about: str, read: Callable[[Node], Any], default: Any = MISSING) -> Any:
    """Declare a key of a document class: its YAML word, schema, help and reader; without a default it is required."""
    meta = {"yaml": yaml, "schema": schema, "about": about, "read": read}
    if callable(default) and default is not MISSING:
        return field(default_factory=default, metadata=meta)
    return field(default=default, metadata=meta)


def read_document(cls: type[T], node: Node) -> T:
    """Read a mapping into a document class; raises MapError for unknown, missing or misread keys, with their line."""
    if not isinstance(node.value, dict):
        raise node.error(f"expected a mapping, found {_kind(node)}")
    known = {f.metadata["yaml"]: f for f in fields(cls) if "yaml" in f.metadata}  # type: ignore[arg-type]
    for k in node.value:
        if k not in known:
            near = closest(str(k), known)
            hint = (
                " (names with braces need quotes in YAML's flow style)"
                if node.value[k].value is None and len(node.value) == 1
                else ""
            )
            raise node.error(
                f"unknown key '{k}'"
                + (f" (did you mean '{near}'?)" if near else hint or f" (keys: {', '.join(known)})"),
                k,
            )
    values: dict[str, Any] = {}
    for word, f in known.items():
        if word in node.value:
            values[f.name] = f.metadata["read"](node.value[word])
        elif f.default is MISSING and f.default_factory is MISSING:
            raise node.error(f"'{word}' is missing")
    return cls(node=node, **values)


def _kind(node: Node) -> str:
    v = node.value
    names = {dict: "a mapping", list: "a list", str: f"'{v}'", bool: str(v).lower(), type(None): "nothing"}
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
        raise node.error(f"expected text, found {_kind(node)}{hint}")
    return node.value


def raw(node: Node) -> Node:
    """Keep the node."""
    return node


def one_of(*words: str) -> Callable[[Node], str]:
    """Read one of a few words."""

    def read(node: Node) -> str:
        if node.value not in words:
            raise node.error(f"expected {' or '.join(words)}, found {_kind(node)}")
        return str(node.value)

    return read


def flag(node: Node) -> bool:
    """Read true or false."""
    if not isinstance(node.value, bool):
        raise node.error(f"expected true or false, found {_kind(node)}")
    return node.value


def listed(read: Callable[[Node], T]) -> Callable[[Node], tuple[T, ...]]:
    """Read a list of what ``read`` reads."""

    def inner(node: Node) -> tuple[T, ...]:
        if not isinstance(node.value, list):
            raise node.error(f"expected a list, found {_kind(node)}")
        return tuple(read(n) for n in node.value)

    return inner


def mapped(read: Callable[[Node], T]) -> Callable[[Node], dict[str, T]]:
    """Read a mapping from names to what ``read`` reads."""

    def inner(node: Node) -> dict[str, T]:
        if not isinstance(node.value, dict):
            raise node.error(f"expected a mapping, found {_kind(node)}")
        for k in node.value:
            if not isinstance(k, str) or not k.isidentifier():
                raise node.error(f"'{k}' is not a name (letters, digits and underscores; quote a text)", k)
        return {k: read(v) for k, v in node.value.items()}

    return inner


def document(cls: Callable[[], type[T]]) -> Callable[[Node], T]:
    """Read a document class that is defined further down."""
    return lambda node: read_document(cls(), node)


# The classes.

NAME: Json = {"type": "string", "description": "a tensor name; {index} holds indices, the rest is literal"}
EXPR: Json = {"type": ["string", "integer"], "description": "an expression of sizes"}
DTYPE: Json = {"enum": ["keep", *dtype_names()]}
SHAPE: Json = {
    "description": "dims separated by spaces, or a list; several terms: a list with one shape each",
    "anyOf": [{"type": "string"}, {"type": "array"}],
}


@dataclass(frozen=True)
class AnyDoc:
    """`{any: [a, b]}`: spellings of one name; the first is written."""

    node: Node
    spellings: tuple[str, ...] = key(
        "any",
        {"type": "array", "items": NAME, "minItems": 1},
        "spellings of one tensor; the first is written",
        listed(text),
    )


@dataclass(frozen=True)
class NameDoc:
    """A name, or its spellings, with where it stands."""

    spellings: tuple[str, ...]
    origin: Origin
    any: bool = False


def name_doc(node: Node) -> NameDoc:
    """Read a name or `{any: [...]}`."""
    if isinstance(node.value, dict) and "any" in node.value:
        spellings = read_document(AnyDoc, node).spellings
        if not spellings:
            raise node.error("'any' lists no name")
        for k, name in enumerate(spellings):
            if name in spellings[:k]:
                raise node.error(f"spelling '{name}' stands twice")
        return NameDoc(spellings, node.origin, True)
    return NameDoc((text(node),), node.origin)


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


@dataclass(frozen=True)
class TermDoc:
    """One tensor of a rule with what concerns it alone."""

    node: Node
    name: NameDoc = key("name", {"$ref": "#/$defs/name"}, "the tensor's name", name_doc)
    shape: Node | None = key("shape", SHAPE, "its shape", raw, None)
    ops: tuple[Node, ...] = key("ops", {"$ref": "#/$defs/ops"}, "ops of this term alone", listed(raw), ())
    dtype: DtypeDoc | None = key("dtype", {"$ref": "#/$defs/dtype"}, "its dtype", dtype_doc, None)


def term_doc(node: Node) -> TermDoc:
    """Read a term: a name, spellings, or a mapping with a name."""
    if isinstance(node.value, dict) and "any" not in node.value:
        return read_document(TermDoc, node)
    return TermDoc(node, name_doc(node))


def term_docs(node: Node) -> tuple[TermDoc, ...]:
    """Read a term or a list of terms."""
    if isinstance(node.value, list):
        if not node.value:
            raise node.error("the list of names is empty")
        return tuple(term_doc(n) for n in node.value)
    return (term_doc(node),)


@dataclass(frozen=True)
class TiedDoc:
    """`tied:` in full: the name, and whether a side stores its own copy."""

    node: Node
    name: str = key("name", NAME, "the tensor that this one equals", text)
    source: str | None = key(
        "from", {"enum": ["copy", "omit"]}, "whether the `from` side stores it", one_of("copy", "omit"), None
    )
    target: str | None = key(
        "to", {"enum": ["copy", "omit"]}, "whether the `to` side stores it", one_of("copy", "omit"), None
    )


def tied_doc(node: Node) -> TiedDoc:
    """Read a name or a mapping."""
    return read_document(TiedDoc, node) if isinstance(node.value, dict) else TiedDoc(node, text(node))


def expression(node: Node) -> Node:
    """Read what should be an expression: text or a number."""
    if isinstance(node.value, bool) or not isinstance(node.value, str | int | float):
        raise node.error(f"expected an expression, found {_kind(node)}")
    return node


@dataclass(frozen=True)
class RuleDoc:
    """An equation between tensors of the two sides."""

    node: Node
    source: tuple[TermDoc, ...] = key("from", {"$ref": "#/$defs/terms"}, "names on the `from` side", term_docs, ())
    target: tuple[TermDoc, ...] = key("to", {"$ref": "#/$defs/terms"}, "names on the `to` side", term_docs, ())
    shape: Node | None = key("shape", SHAPE, "shape on the `from` side", raw, None)
    ops: tuple[Node, ...] = key("ops", {"$ref": "#/$defs/ops"}, "ops that lead from `from` to `to`", listed(raw), ())
    dtype: DtypeDoc | None = key("dtype", {"$ref": "#/$defs/dtype"}, "dtype of the tensors", dtype_doc, None)
    when: Node | None = key("when", EXPR, "the rule holds only where this is true", expression, None)
    present: Node | None = key("with", NAME, "the rule holds only where this `from` tensor is there", raw, None)
    absent: Node | None = key("without", NAME, "the rule holds only where this `from` tensor is not there", raw, None)
    optional: bool = key("optional", {"type": "boolean"}, "all of its tensors are there, or none", flag, False)
    tied: TiedDoc | None = key(
        "tied", {"anyOf": [NAME, {"$ref": "#/$defs/tied"}]}, "by default the same tensor as this one", tied_doc, None
    )
    untied: str | None = key("untied", {"const": "keep"}, "a present one is a tensor of its own", one_of("keep"), None)
    fill: Node | None = key(
        "fill",
        {"type": ["string", "number"]},
        "zeros, ones, causal_mask, arange, a number or an expression",
        expression,
        None,
    )


@dataclass(frozen=True)
class GroupDoc:
    """Rules below common prefixes."""

    node: Node
    source: NameDoc = key("from", {"$ref": "#/$defs/name"}, "prefix of the `from` names", name_doc)
    target: NameDoc = key("to", {"$ref": "#/$defs/name"}, "prefix of the `to` names", name_doc)
    rules: tuple[Any, ...] = key(
        "rules",
        {"type": "array", "items": {"$ref": "#/$defs/member"}},
        "the rules below",
        lambda n: listed(rule_doc)(n),
    )
    when: Node | None = key("when", EXPR, "the group holds only where this is true", expression, None)
    present: Node | None = key("with", NAME, "the group holds only where this `from` tensor is there", raw, None)
    absent: Node | None = key("without", NAME, "the group holds only where this `from` tensor is not there", raw, None)
    optional: bool = key("optional", {"type": "boolean"}, "all of its tensors are there, or none", flag, False)


@dataclass(frozen=True)
class ReverseDoc:
    """The way back of a regex rename that does not invert itself."""

    node: Node
    match: str = key("match", {"type": "string"}, "pattern of the `to` name", text)
    to: str = key("to", {"type": "string"}, "the `from` name, with {group}", text)


@dataclass(frozen=True)
class RegexDoc:
    """A rename by regular expression, anchored at both ends."""

    node: Node
    match: str = key("match", {"type": "string"}, "RE2 pattern of the whole `from` name; only named groups", text)
    to: str = key("to", {"type": "string"}, "the `to` name, with {group}", text)
    reverse: ReverseDoc | None = key(
        "reverse",
        {"$ref": "#/$defs/reverse"},
        "the way back, where it does not follow",
        document(lambda: ReverseDoc),
        None,
    )
    dtype: DtypeDoc | None = key("dtype", {"$ref": "#/$defs/dtype"}, "dtype of the tensors", dtype_doc, None)
    optional: bool = key("optional", {"type": "boolean"}, "it may match nothing", flag, False)


def rule_doc(node: Node) -> RuleDoc | GroupDoc | RegexDoc:
    """Read a rule: a regex rename where `match` stands, a group where `rules` stands, else an equation."""
    if not isinstance(node.value, dict):
        raise node.error(f"a rule is a mapping, found {_kind(node)}")
    if "match" in node.value:
        return read_document(RegexDoc, node)
    return read_document(GroupDoc, node) if "rules" in node.value else read_document(RuleDoc, node)


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
class StripDoc:
    """Prefixes that files of a side may carry."""

    node: Node | None
    source: tuple[str, ...] = key(
        "from", {"type": "array", "items": {"type": "string"}}, "prefixes of `from` files", listed(text), ()
    )
    target: tuple[str, ...] = key(
        "to", {"type": "array", "items": {"type": "string"}}, "prefixes of `to` files", listed(text), ()
    )


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


_DROPS: Json = {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/name"}, {"$ref": "#/$defs/drop_match"}]}}


@dataclass(frozen=True)
class DropDoc:
    """Tensors that are left out on purpose."""

    node: Node | None
    source: tuple[Any, ...] = key("from", _DROPS, "names of the `from` side", listed(drop_doc), ())
    target: tuple[Any, ...] = key("to", _DROPS, "names of the `to` side", listed(drop_doc), ())


def version_one(node: Node) -> int:
    """Read the version, which is the integer 1."""
    if node.value != 1 or isinstance(node.value, bool) or not isinstance(node.value, int):
        raise node.error(f"version is the integer 1, found {_kind(node)}")
    return 1


_SIZES: Json = {"type": "object", "additionalProperties": True}
_INDEX: Json = {"anyOf": [EXPR, {"type": "array", "minItems": 1}, {"type": "object", "minProperties": 1}]}
_PARAM: Json = {"anyOf": [{"type": ["string", "number", "boolean", "array", "null"]}, {"$ref": "#/$defs/param"}]}


def plain(node: Node) -> Any:
    """Read plain data."""
    return node.plain()


@dataclass(frozen=True)
class MapDoc:
    """A map: equations between the tensors of two layouts."""

    node: Node
    version: int = key("version", {"const": 1}, "version of the map language", version_one)
    name: str = key("name", {"type": "string", "minLength": 1}, "name of the map", text)
    rules: tuple[Any, ...] = key(
        "rules",
        {"type": "array", "items": {"$ref": "#/$defs/rule"}},
        "the equations; their order never matters",
        listed(rule_doc),
    )
    about: str = key("about", {"type": "string"}, "what the two layouts are", text, "")
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
        "prefixes that files may carry",
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
        raise node.error(f"expected a mapping, found {_kind(node)}")
    return {str(k): mapped(plain)(v) for k, v in node.value.items()}


def check_version_first(node: Node) -> None:
    """Refuse another version before its unknown keys confuse anybody; raises MapError."""
    version = node.get("version")
    if version is not None:
        version_one(version)


__all__ = [name for name in dir() if name.endswith("Doc")] + ["MapError", "read_document"]
