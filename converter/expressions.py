"""The small expression language of maps: sizes, conditions and constants, and nothing that could run code.

Integers, strings in quotes, lists, names, indexing, ``+ - * // %``, comparisons, ``and or not in``, ``a if c else b``;
where ``decimals`` is allowed (fill, add, multiply) also decimal numbers, ``/`` and the square root ``** 0.5``. The text
is parsed by Python's own parser and only these node types are let through, so ``a.b``, calls, other powers and
comprehensions are refused.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from converter.dims import MAX_SIZE, Dim, Poly, SizeError
from converter.folding import clip

MAX_LENGTH = 1000
MAX_DEPTH = 40

Value = Any  # int | float | str | bool | list | None; checked where it is used


class ExpressionError(ValueError):
    """The text is no expression of this language, or its values do not fit together."""


class UnknownName(Exception):
    """A name has no value (yet); ``name`` says which."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is not known")
        self.name = name


_BINARY: dict[type[ast.AST], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("+", lambda a, b: a + b),
    ast.Sub: ("-", lambda a, b: a - b),
    ast.Mult: ("*", lambda a, b: a * b),
    ast.FloorDiv: ("//", lambda a, b: a // b),
    ast.Mod: ("%", lambda a, b: a % b),
    ast.Div: ("/", lambda a, b: a / b),
    ast.Pow: ("**", lambda a, b: a**b),
}
_COMPARE: dict[type[ast.AST], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Eq: ("==", lambda a, b: a == b),
    ast.NotEq: ("!=", lambda a, b: a != b),
    ast.Lt: ("<", lambda a, b: a < b),
    ast.LtE: ("<=", lambda a, b: a <= b),
    ast.Gt: (">", lambda a, b: a > b),
    ast.GtE: (">=", lambda a, b: a >= b),
    ast.In: ("in", lambda a, b: a in b),
    ast.NotIn: ("not in", lambda a, b: a not in b),
}
_KINDS = (
    ast.Expression, ast.Constant, ast.Name, ast.List, ast.Subscript, ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp,
    ast.IfExp, ast.Load, ast.And, ast.Or, ast.Not, ast.USub, ast.UAdd, *_BINARY, *_COMPARE,
)  # fmt: skip


@dataclass(frozen=True)
class Expr:
    """A parsed expression: its text and the names it uses."""

    text: str
    names: frozenset[str]
    _tree: ast.expr = field(compare=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return parse, (self.text, True)

    def evaluate(self, values: Mapping[str, Value]) -> Value:
        """Compute the value; raises UnknownName for a name without one and ExpressionError for values that do not
        fit.
        """
        return _evaluate(self._tree, values)

    def holds(self, values: Mapping[str, Value]) -> bool:
        """Decide whether the value counts as true; raises as :meth:`evaluate`, and ExpressionError for text."""
        return truth(_evaluate(self._tree, values), self._tree)

    def number(self, values: Mapping[str, Value]) -> int:
        """Compute an integer (true counts as 1); raises as :meth:`evaluate`, and ExpressionError for anything else."""
        value = self.evaluate(values)
        if not isinstance(value, int):
            raise ExpressionError(f"{self.text} is {show(value)}, not an integer")
        return int(value)

    @property
    def item(self) -> tuple[str, str] | None:
        """The two names of `list[index]`, None for anything else."""
        match self._tree:
            case ast.Subscript(value=ast.Name(id=a), slice=ast.Name(id=b)):
                return a, b
        return None

    def dim(self) -> Dim:
        """Give the expression as a dim: a polynomial where it is one, else one opaque name that is this text.

        Raises ExpressionError for sizes that nobody could mean.
        """
        try:
            found = _dim(self._tree)
        except SizeError as e:
            raise ExpressionError(f"'{clip(self.text)}' is {e}") from None
        except ExpressionError:
            return Poly.of(self.text)
        if isinstance(found, int) and abs(found) >= MAX_SIZE:
            raise ExpressionError(f"'{clip(self.text)}' is too large")
        return found

    def explain(self, values: Mapping[str, Value]) -> str:
        """Say which values the names and items of the expression have: ``layer_types[3] is 'full'``."""
        shown: dict[str, str] = {}
        plain: dict[str, str] = {}
        for node in ast.walk(self._tree):
            if not isinstance(node, ast.Subscript | ast.Name):
                continue
            try:
                value = _evaluate(node, values)
            except (UnknownName, ExpressionError):
                continue
            if isinstance(node, ast.Subscript):
                index = _evaluate(node.slice, values)
                shown[ast.unparse(node)] = f"{ast.unparse(node.value)}[{show(index)}] is {show(value)}"
            elif not isinstance(value, list) or len(value) <= 8:
                plain[node.id] = f"{node.id} is {show(value)}"
        return ", ".join((shown or plain).values())


def show(value: Value) -> str:
    """Write a value as an expression would have it."""
    return repr(value)


@lru_cache(maxsize=1 << 15)
def parse(text: str, decimals: bool = False) -> Expr:
    """Parse an expression; raises ExpressionError with the reason."""
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"an expression of {len(text)} characters (at most {MAX_LENGTH})")
    bare = re.sub(r"'[^']*'|\"[^\"]*\"", "''", text)
    if "#" in bare or re.search(r"\b0[xXbBoO]|[0-9]_[0-9]", bare):
        raise ExpressionError(f"'{text}' is not an expression")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ExpressionError(f"'{text}' is not an expression") from None
    _check(tree, decimals, text, 0)
    tree = ast.fix_missing_locations(_Truth().visit(tree))
    used = frozenset(n.id for n in ast.walk(tree) if isinstance(n, ast.Name))
    return Expr(ast.unparse(tree.body), used, tree.body)


class _Truth(ast.NodeTransformer):
    """Read `true` and `false` as 1 and 0, which is what they count as."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Replace the two words."""
        return ast.copy_location(ast.Constant(int(node.id == "true")), node) if node.id in ("true", "false") else node


def _check(node: ast.AST, decimals: bool, text: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ExpressionError(f"'{text[:40]}...' is nested too deeply")
    if not isinstance(node, _KINDS):
        raise ExpressionError(f"'{text}' has something ({type(node).__name__.lower()}) that expressions do not have")
    if isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            raise ExpressionError(f"'{text}' has {node.value}, which is no integer or string")
        allowed = (int, str, float) if decimals else (int, str)
        if not isinstance(node.value, allowed):
            raise ExpressionError(f"'{text}' has {node.value!r}, which is no integer or string")
        if isinstance(node.value, float) and not math.isfinite(node.value):
            raise ExpressionError(f"'{text}' has a number that is too large")
        if isinstance(node.value, int) and abs(node.value) >= 2**63:
            raise ExpressionError(f"'{text}' has a number that is too large")
    if isinstance(node, ast.Div) and not decimals:
        raise ExpressionError(f"'{text}' has /, use // for sizes")
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and not (decimals and _half(node.right)):
        raise ExpressionError(f"'{text}' has a power; the only one is ** 0.5, in add, multiply and fill")
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        raise ExpressionError(f"'{text}' has a slice, which expressions do not have")
    for child in ast.iter_child_nodes(node):
        _check(child, decimals, text, depth + 1)


def _half(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0.5


def _evaluate(node: ast.AST, values: Mapping[str, Value]) -> Value:
    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            if node.id not in values:
                raise UnknownName(node.id)
            return values[node.id]
        case ast.List():
            return [_evaluate(x, values) for x in node.elts]
        case ast.IfExp():
            test = truth(_evaluate(node.test, values), node.test)
            return _evaluate(node.body if test else node.orelse, values)
        case ast.BoolOp():
            result: Value = None
            for x in node.values:
                result = _evaluate(x, values)
                if truth(result, x) == isinstance(node.op, ast.Or):
                    return result
            return result
        case ast.UnaryOp():
            operand = _evaluate(node.operand, values)
            if isinstance(node.op, ast.Not):
                return int(not truth(operand, node.operand))
            return _number(operand, node) * (-1 if isinstance(node.op, ast.USub) else 1)
        case ast.Subscript():
            return _item(node, values)
        case ast.Compare():
            return _compare(node, values)
        case ast.BinOp():
            symbol, compute = _BINARY[type(node.op)]
            left = _number(_evaluate(node.left, values), node)
            right = _number(_evaluate(node.right, values), node)
            if symbol in ("/", "//", "%") and not right:
                raise ExpressionError(f"{ast.unparse(node)} divides by zero")
            if symbol == "**" and left < 0:
                raise ExpressionError(f"{ast.unparse(node)} is the square root of {show(left)}")
            result = compute(left, right)
            if isinstance(result, int) and abs(result) >= 2**63:
                raise ExpressionError(f"{ast.unparse(node)} is too large")
            return result
    raise ExpressionError(f"{type(node).__name__} is not part of expressions")


def truth(value: Value, node: ast.AST) -> bool:
    """Decide whether a value counts as true; raises ExpressionError for text, since 'False' would."""
    if isinstance(value, str):
        raise ExpressionError(f"{ast.unparse(node)} is {show(value)}, a text, which is neither true nor false")
    return bool(value)


def _number(value: Value, node: ast.AST) -> Any:
    if not isinstance(value, int | float):
        raise ExpressionError(f"{ast.unparse(node)} computes with {show(value)}, which is no number")
    return value


def _item(node: ast.Subscript, values: Mapping[str, Value]) -> Value:
    base, index = _evaluate(node.value, values), _evaluate(node.slice, values)
    if not isinstance(base, list | str) or not isinstance(index, int):
        raise ExpressionError(f"{ast.unparse(node)}: {show(base)} has no item {show(index)}")
    if not 0 <= index < len(base):
        kind = "text" if isinstance(base, str) else "list"
        raise ExpressionError(f"{ast.unparse(node)}: there is no item {index} in a {kind} of {len(base)}")
    return base[index]


def _compare(node: ast.Compare, values: Mapping[str, Value]) -> int:
    left = _evaluate(node.left, values)
    for op, right_node in zip(node.ops, node.comparators):
        right = _evaluate(right_node, values)
        symbol, compute = _COMPARE[type(op)]
        try:
            holds = compute(left, right)
        except TypeError:
            raise ExpressionError(f"{show(left)} {symbol} {show(right)} cannot be compared") from None
        if not holds:
            return 0
        left = right
    return 1


def _dim(node: ast.AST) -> Dim:
    match node:
        case ast.Constant() if isinstance(node.value, int):
            return node.value
        case ast.Name():
            return Poly.of(node.id)
        case ast.UnaryOp() if isinstance(node.op, ast.USub):
            return _dim(node.operand) * -1
        case ast.BinOp() if isinstance(node.op, ast.Add | ast.Sub | ast.Mult):
            left, right = _dim(node.left), _dim(node.right)
            if isinstance(node.op, ast.Mult):
                return left * right
            return left + right if isinstance(node.op, ast.Add) else left - right
    raise ExpressionError(f"{ast.unparse(node)} is no polynomial of sizes")
