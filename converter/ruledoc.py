"""The part of a document that says what equals what: names, terms, rules, groups and renames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from converter.dtypedoc import DtypeDoc, dtype_doc
from converter.errors import Origin
from converter.fields import (
    NAME,
    Json,
    document,
    expression,
    flag,
    key,
    kind_of,
    listed,
    one_of,
    raw,
    read_document,
    text,
)
from converter.folding import repeated
from converter.yamltree import Node

MAX_SPELLINGS = 64  # of one name, with those of its groups
MAX_OPS = 100  # of one list

# The classes.

EXPR: Json = {"type": ["string", "integer"], "description": "an expression of sizes"}
SHAPE: Json = {
    "description": "dims separated by spaces, or a list; several terms: a list with one shape each",
    "anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "array"}],
}


@dataclass(frozen=True)
class IncludeDoc:
    """Another file that is put in this place, less some of its rules."""

    node: Node
    file: Node = key("file", {"type": "string"}, "a path below this file's folder, or the name of a shipped file", raw)
    besides: tuple[Node, ...] = key(
        "except",
        {"type": "array", "items": {"type": "string"}},
        "names of the rules, and prefixes of the groups, that are left out",
        listed(raw),
        (),
    )


def include_docs(node: Node) -> tuple[IncludeDoc, ...]:
    """Read what stands under `include`: a file, a mapping with a file, or a list of these."""
    entries = node.value if isinstance(node.value, list) else [node]
    if not entries:
        raise node.error("include names no file")
    out = tuple(read_document(IncludeDoc, n) if isinstance(n.value, dict) else IncludeDoc(n, n) for n in entries)
    for n in (n for doc in out for n in (doc.file, *doc.besides)):
        text(n)
    return out


INCLUDE: Json = {
    "anyOf": [
        {"$ref": "#/$defs/include"},
        {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/include"}},
    ]
}


@dataclass(frozen=True)
class AnyDoc:
    """`{any: [a, b]}`: spellings of one name; the first is written."""

    node: Node
    spellings: tuple[str, ...] = key(
        "any",
        {"type": "array", "items": NAME, "minItems": 1, "maxItems": MAX_SPELLINGS},
        "spellings of one tensor; the first is written",
        listed(text, MAX_SPELLINGS),
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
        twice = repeated(spellings)
        if twice is not None:
            raise node.error(f"spelling '{twice}' stands twice")
        return NameDoc(spellings, node.origin, True)
    return NameDoc((text(node),), node.origin)


op_docs = listed(raw, MAX_OPS)


@dataclass(frozen=True)
class TermDoc:
    """One tensor of a rule with what concerns it alone."""

    node: Node
    name: NameDoc = key("name", {"$ref": "#/$defs/name"}, "the tensor's name", name_doc)
    shape: Node | None = key("shape", SHAPE, "its shape", raw, None)
    ops: tuple[Node, ...] = key("ops", {"$ref": "#/$defs/ops"}, "ops of this term alone", op_docs, ())
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


@dataclass(frozen=True)
class FormDoc:
    """One form that the tensors of a rule may have."""

    node: Node
    shape: Node = key("shape", SHAPE, "shape on the `from` side", raw)
    ops: tuple[Node, ...] = key("ops", {"$ref": "#/$defs/ops"}, "ops that lead from `from` to `to`", op_docs, ())
    when: Node | None = key("when", EXPR, "this form is meant only where this is true", expression, None)


def form_docs(node: Node) -> tuple[FormDoc, ...]:
    """Read the forms of a rule: two or more."""
    forms = listed(lambda n: read_document(FormDoc, n))(node)
    if len(forms) < 2:
        raise node.error("'any' lists two forms or more")
    return forms


@dataclass(frozen=True)
class RuleDoc:
    """An equation between tensors of the two sides."""

    node: Node
    source: tuple[TermDoc, ...] = key("from", {"$ref": "#/$defs/terms"}, "names on the `from` side", term_docs, ())
    target: tuple[TermDoc, ...] = key("to", {"$ref": "#/$defs/terms"}, "names on the `to` side", term_docs, ())
    shape: Node | None = key("shape", SHAPE, "shape on the `from` side", raw, None)
    ops: tuple[Node, ...] = key("ops", {"$ref": "#/$defs/ops"}, "ops that lead from `from` to `to`", op_docs, ())
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
    forms: tuple[FormDoc, ...] = key(
        "any",
        {"type": "array", "items": {"$ref": "#/$defs/form"}, "minItems": 2},
        "forms that differ in their number of axes; the first is written",
        form_docs,
        (),
    )


LOCAL: Json = {
    "description": "names that begin with _, or a mapping from such names to what their sizes should be",
    "anyOf": [
        {"type": "array", "items": {"type": "string", "pattern": "^_"}, "minItems": 1},
        {"type": "object", "propertyNames": {"pattern": "^_"}, "additionalProperties": EXPR, "minProperties": 1},
    ],
}


def local_docs(node: Node) -> dict[str, Node]:
    """Read `[_a, _b]` or `{_a: expression}`; a name without an expression has itself as node."""
    given = node.value
    if not isinstance(given, list | dict) or not given:
        raise node.error("local lists sizes ([_a, _b]), or says what they should be ({_a: 2*d})")
    out = {text(n): n for n in given} if isinstance(given, list) else {k: expression(n) for k, n in given.items()}
    for name in out:
        if not isinstance(name, str) or not name.isidentifier() or not name.startswith("_"):
            raise node.error(f"local: '{name}' is no name of a local size, which begins with _")
    return out


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
    include: tuple[IncludeDoc, ...] = key(
        "include", INCLUDE, "files whose rules stand below the prefixes too", include_docs, ()
    )
    when: Node | None = key("when", EXPR, "the group holds only where this is true", expression, None)
    present: Node | None = key("with", NAME, "the group holds only where this `from` tensor is there", raw, None)
    absent: Node | None = key("without", NAME, "the group holds only where this `from` tensor is not there", raw, None)
    optional: bool = key("optional", {"type": "boolean"}, "all of its tensors are there, or none", flag, False)
    local: dict[str, Node] = key("local", LOCAL, "sizes of each of its instances", local_docs, dict)


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
    """Read a rule: a regex rename where `match` stands, a group where `rules` or `include` stands, else an equation."""
    if not isinstance(node.value, dict):
        raise node.error(f"a rule is a mapping, found {kind_of(node)}")
    if "match" in node.value:
        return read_document(RegexDoc, node)
    return read_document(GroupDoc, node) if is_group(node) else read_document(RuleDoc, node)


def is_group(node: Node) -> bool:
    """Tell a group from an equation: it has rules below it, its own or a file's."""
    return isinstance(node.value, dict) and not {"rules", "include"}.isdisjoint(node.value)
