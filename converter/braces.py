"""`{{ expressions }}` of Jinja2 in the texts of a map: plain expressions over params, and nothing that could run long.

Jinja2 is imported only for a map that has braces of that kind.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from converter.errors import MapError, Problem
from converter.folding import clip
from converter.yamltree import Node

MAX_TEXTS = 1_000  # different texts with braces in one map
MAX_LENGTH = 1_000  # characters of one
MAX_RESULT = 10_000  # characters that one becomes
_BRACES = re.compile(r"\{[{%#]")
_KINDS = (
    "Template Output TemplateData Name Const List Getitem Add Sub Mul FloorDiv Mod Neg Compare Operand And Or Not "
    "CondExpr Concat"
)

_DEEP = (RecursionError, SyntaxError, MemoryError)  # what Python's own compiler says of brackets in brackets


def has_braces(node: Node) -> bool:
    """Tell whether a value is a text that Jinja2 has to read."""
    return isinstance(node.value, str) and _BRACES.search(node.value) is not None


class Braces:
    """Puts values in the place of ``{{ expressions }}``; ``declared`` are the params, ``values`` those with a value."""

    def __init__(self, values: Mapping[str, Any], declared: set[str]) -> None:
        self.values, self.declared = values, declared
        self._known: dict[str, Any] = {}

    def fill(self, node: Node) -> Node:
        """Fill in every text below a node; raises MapError."""
        if isinstance(node.value, dict):
            return Node({k: self.fill(v) for k, v in node.value.items()}, node.origin, node.keys)
        if isinstance(node.value, list):
            return Node([self.fill(v) for v in node.value], node.origin)
        if not has_braces(node):
            return node
        if node.value not in self._known:
            if len(self._known) == MAX_TEXTS:
                raise node.error(f"the map has more than {MAX_TEXTS} different texts with {{{{ expressions }}}}")
            self._known[node.value] = self._expand(node)
        return _placed(self._known[node.value], node)

    def _expand(self, node: Node) -> Any:
        import jinja2

        text = node.value
        if "{%" in text or "{#" in text:
            told = "has a Jinja2 statement or comment; only {{ expressions }} are allowed"
            raise node.error(f"'{clip(text)}' {told}")
        if len(text) > MAX_LENGTH:
            raise node.error(f"'{clip(text)}' is an expression of {len(text)} characters (at most {MAX_LENGTH})")
        try:
            value = self._evaluate(node)
        except jinja2.UndefinedError as e:
            params = clip(", ".join(sorted(self.declared))) or "none"
            raise node.error(f"'{clip(text)}': {e.message} (params: {params})") from None
        except (
            jinja2.TemplateError,
            TypeError,
            ArithmeticError,
            RecursionError,
            ValueError,
            SyntaxError,
            MemoryError,
        ) as e:
            raise node.error(f"'{clip(text)}': {clip(str(e))}") from None
        if isinstance(value, int) and abs(value) >= 2**63:
            raise node.error(f"'{clip(text)}' becomes a number that is too large")
        if isinstance(value, str) and len(value) > MAX_RESULT:
            raise node.error(f"'{clip(text)}' becomes {len(value)} characters")
        return value

    def _evaluate(self, node: Node) -> Any:
        """Give the value of a text that is one expression for a number or a list, else the text that it becomes."""
        from jinja2 import nodes

        env, text = self._environment, node.value
        tree = env.parse(text)
        self._check(node, tree)
        whole = re.fullmatch(r"\{\{(.*)\}\}", text.strip(), re.DOTALL)
        first = tree.body[0] if len(tree.body) == 1 else None
        if whole is not None and isinstance(first, nodes.Output) and len(first.nodes) == 1:
            value = env.compile_expression(whole[1], undefined_to_none=False)(self.values)
            if isinstance(value, int | list):
                return value
        return str(env.from_string(tree).render(self.values))

    def _check(self, node: Node, tree: Any) -> None:
        import jinja2
        from jinja2 import nodes

        allowed = tuple(getattr(nodes, kind) for kind in _KINDS.split())
        for part in tree.find_all(nodes.Node):
            if not isinstance(part, allowed):
                kind = type(part).__name__.lower()
                told = f"has something ({kind}) that is not allowed; only plain {{{{ expressions }}}} are allowed"
                raise node.error(f"'{clip(node.value)}' {told}")
        for part in tree.find_all(nodes.Name):
            if part.name not in self.declared:
                raise jinja2.UndefinedError(f"'{part.name}' is undefined")
            if part.name not in self.values:
                told = f"'{{{{ {part.name} }}}}' has no value here: --set {part.name}=..."
                raise MapError(Problem(told, "map", None, node.origin))

    @cached_property
    def _environment(self) -> Any:
        from jinja2 import StrictUndefined
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        class Environment(ImmutableSandboxedEnvironment):
            intercepted_binops = frozenset(["*", "%"])

            def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
                if not isinstance(left, int) or not isinstance(right, int):
                    raise TypeError(f"{operator} takes integers")
                return super().call_binop(context, operator, left, right)

        return Environment(undefined=StrictUndefined, autoescape=False, cache_size=0)


def _placed(value: Any, node: Node) -> Node:
    """A value of an expression as a node of the document; raises MapError."""
    if isinstance(value, list):
        return Node([_placed(v, node) for v in value], node.origin, rendered=True)
    if isinstance(value, Mapping):
        raise node.error(f"'{clip(node.value)}' becomes a list with a mapping in it, which has no place in a map")
    return Node(value, node.origin, rendered=True)
