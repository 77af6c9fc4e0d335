"""YAML text as a tree in which every key and value knows its line, with everything refused that could mislead or
harm.

Safe constructs only: tags, duplicate keys, alias bombs and deep nesting are refused; so are scalars that YAML 1.1
reads as something other than they look (`no`, `010`, `1:30`), with the quoted form that was meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from converter.errors import MapError, Origin, Problem
from converter.folding import clip

MAX_NODES = 40_000  # values, once aliases are followed
MAX_DEPTH = 40
MAX_TEXT = 4_000_000  # characters, also once aliases are followed
MAX_SCALAR = 20_000  # characters of one text
MAX_MARKS = 4 * MAX_NODES  # in what is parsed at all, since the parser makes all of its values before any is counted
_MARKS = ",:-?[{\n"
_BARE_HOLE = re.compile(r"(?<!['\"\w{])\{+ *[A-Za-z_][\w+*-]*(:0\d|:_)? *\}+")


@dataclass(frozen=True)
class Node:
    """A value of the document: a scalar, a list of nodes, or a dict of nodes with the origins of its keys."""

    value: Any
    origin: Origin
    keys: dict[str, Origin] = field(default_factory=dict, compare=False)
    rendered: bool = False  # the value of a {{ expression }}, which is text where text is wanted

    def plain(self) -> Any:
        """Give the value as plain data."""
        if isinstance(self.value, dict):
            return {k: v.plain() for k, v in self.value.items()}
        return [v.plain() for v in self.value] if isinstance(self.value, list) else self.value

    def get(self, key: str) -> Node | None:
        """Give the node under a key of a mapping, None where there is none."""
        return self.value.get(key) if isinstance(self.value, dict) else None

    def walk(self) -> Iterator[Node]:
        """Visit this node and all below it."""
        yield self
        children = (
            self.value.values() if isinstance(self.value, dict) else self.value if isinstance(self.value, list) else ()
        )
        for child in children:
            yield from child.walk()

    def error(self, message: str, key: str | None = None) -> MapError:
        """Make the error that something is wrong here (or at a key of this mapping)."""
        return MapError(
            Problem(message, "map", None, self.keys.get(key, self.origin) if key is not None else self.origin)
        )


def load_yaml(text: str, file: str) -> Node:
    """Read one document; ``file`` is the name for messages. Raises MapError with the line of what is wrong."""
    if len(text) > MAX_TEXT:
        raise MapError(
            Problem(f"the map has {len(text)} characters, at most {MAX_TEXT} are read", "map", None, Origin(file, 1))
        )
    marks = sum(text.count(c) for c in _MARKS)
    if marks > MAX_MARKS:
        told = (
            f"the map has {marks} of the marks that part values ({_MARKS[:-1]} and line ends), at most {MAX_MARKS} are"
        )
        raise MapError(Problem(f"{told} read", "map", None, Origin(file, 1)))
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
    try:
        root = loader.get_single_node()
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        origin = Origin(file, mark.line + 1 if mark else 1, mark.column + 1 if mark else 1)
        raise MapError(
            Problem(f"not valid YAML: {e.problem or e.context}{_hint(text, origin.line)}", "map", None, origin)
        ) from None
    except yaml.YAMLError as e:
        odd = next((k for k, c in enumerate(text) if not c.isprintable() and c not in "\n\r\t"), None)
        line = text.count("\n", 0, odd or 0) + 1
        what = f"a control character ({text[odd]!r})" if odd is not None else clip(str(e).split("\n")[0])
        raise MapError(Problem(f"not valid YAML: {what}", "map", None, Origin(file, line))) from None
    except RecursionError:
        raise MapError(Problem("the YAML is nested too deeply", "map", None, Origin(file, 1))) from None
    finally:
        loader.dispose()
    if root is None:
        raise MapError(Problem("the map is empty", "map", None, Origin(file, 1)))
    return _Builder(file, text, loader).build(root, 0)


def _hint(text: str, line: int) -> str:
    """Guess the usual reasons of a syntax error: a hole without quotes, a backslash in double quotes."""
    lines = text.split("\n")
    near = "\n".join(lines[max(0, line - 2) : line])
    if re.search(r'"[^"\n]*\\[^"\\/abefnrtvxuULNP_0 \n]', near):
        return " (a backslash in double quotes is an escape: use single quotes, 'a\\.b')"
    bare = re.sub(r"'[^'\n]*'|\"[^\"\n]*\"", "''", near)
    if _BARE_HOLE.search(bare):
        return " (names with braces need quotes in YAML's flow style: 'h.{layer}.w')"
    if re.search(r"[:,] *\w+\[\w+\]", bare):
        return " (a value with brackets needs quotes in YAML's flow style: 'depths[b]')"
    return ""


class _Builder:
    def __init__(self, file: str, text: str, loader: Any) -> None:
        self.file, self.text, self.loader, self.count, self.letters = file, text, loader, 0, 0

    def build(self, node: Any, depth: int) -> Node:
        origin = Origin(self.file, node.start_mark.line + 1, node.start_mark.column + 1)
        self.count += 1
        if self.count > MAX_NODES:
            raise self._error(origin, f"the map expands to more than {MAX_NODES} values (aliases that multiply?)")
        if depth > MAX_DEPTH:
            raise self._error(origin, f"the YAML is nested more than {MAX_DEPTH} levels deep")
        if isinstance(node, yaml.MappingNode):
            self._check_tag(node, "map", origin)
            return self._mapping(node, origin, depth)
        if isinstance(node, yaml.SequenceNode):
            self._check_tag(node, "seq", origin)
            return Node([self.build(x, depth + 1) for x in node.value], origin)
        return Node(self._scalar(node, origin), origin)

    def _check_tag(self, node: Any, kind: str, origin: Origin) -> None:
        if node.tag != f"tag:yaml.org,2002:{kind}" or self.text[node.start_mark.index] == "!":
            raise self._error(origin, f"tag {clip(node.tag)} is not allowed in a map")

    def _mapping(self, node: Any, origin: Origin, depth: int) -> Node:
        value: dict[str, Node] = {}
        keys: dict[str, Origin] = {}
        for key_node, value_node in node.value:
            at = Origin(self.file, key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._error(
                    at, "a key is a name" + (" (names with braces need quotes in YAML's flow style: 'h.{layer}.w')")
                )
            key = self._scalar(key_node, at)
            if key in value:
                raise self._error(at, f"duplicate key '{key}' (first at line {keys[key].line})")
            value[key], keys[key] = self.build(value_node, depth + 1), at
        return Node(value, origin, keys)

    def _scalar(self, node: Any, origin: Origin) -> Any:
        kind = node.tag.removeprefix("tag:yaml.org,2002:")
        text = node.value
        self.letters += len(text)
        if len(text) > MAX_SCALAR:
            raise self._error(origin, f"a text of {len(text)} characters (at most {MAX_SCALAR})")
        if self.letters > MAX_TEXT:
            raise self._error(origin, f"the map expands to more than {MAX_TEXT} characters (aliases that multiply?)")
        written = self.text[node.start_mark.index : node.end_mark.index]
        if kind == "str" and not written.startswith("!"):
            return text
        if node.style or written.startswith("!"):
            raise self._error(origin, f"tag {clip(node.tag)} is not allowed in a map")
        if kind == "null":
            if text in ("", "null"):
                return None
        elif kind == "bool":
            if text in ("true", "false"):
                return text == "true"
        elif kind == "int":
            if re.fullmatch(r"[-+]?(0|[1-9][0-9]{0,18})", text):
                return int(text)
        elif kind == "float":
            if re.fullmatch(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?", text):
                return float(text)
            if text in (".inf", "-.inf", "+.inf", ".nan"):
                return float(text.replace(".", ""))
        elif kind not in ("timestamp", "merge", "value"):
            raise self._error(origin, f"tag {clip(node.tag)} is not allowed in a map")
        if kind in ("merge", "value"):
            meant = "a merge key of YAML, which maps do not have (use an alias, *name)"
            raise self._error(origin, f"{clip(text)} is {meant}: as text, quote it, '{clip(text)}'")
        if kind == "bool":
            meant = "true" if text.lower() in ("yes", "y", "on", "true") else "false"
            text = f"YAML reads {clip(text)} as {meant}: write {meant}, or quote it if it is text, '{clip(text)}'"
            raise self._error(origin, text)
        a = "an" if kind[0] in "aeiou" else "a"
        raise self._error(
            origin, f"YAML reads {clip(text)} as {a} {kind}, not as the text it looks like: quote it, '{clip(text)}'"
        )

    def _error(self, origin: Origin, message: str) -> MapError:
        return MapError(Problem(message, "map", None, origin))
