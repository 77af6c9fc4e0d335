"""From a YAML file to a checked map: find it, read it, fill in `{{ expressions }}`, build its rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from converter.build import build
from converter.document import MapDoc
from converter.errors import MapError, Problem, UsageError
from converter.fields import check_version_first, mapped, read_document
from converter.folding import clip, closest
from converter.rules import Ruleset
from converter.yamltree import Node, load_yaml

_BRACES = re.compile(r"\{[{%#]")
_PACKAGE = Path(__file__).resolve().parent


def data_dir(name: str) -> Path:
    """Give the folder of shipped data (`maps`, `schemas`): inside the package in a wheel, beside it in a checkout."""
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parent / name


def shipped_maps() -> dict[str, Path]:
    """List the maps that ship with the package, by name (`gpt2`, `litgpt/falcon`)."""
    root = data_dir("maps")
    return {p.relative_to(root).with_suffix("").as_posix(): p for p in sorted(root.rglob("*.yaml"))}


def find_map(name: str | Path) -> Path:
    """Give the file of a map named by path or by shipped name; raises UsageError."""
    path = Path(name)
    if path.is_file():
        return path
    maps = shipped_maps()
    if str(name) in maps:
        return maps[str(name)]
    near = closest(str(name), maps) or closest(Path(name).stem, maps)
    hint = f" (did you mean {near}?)" if near else f" (shipped maps: {', '.join(maps)})"
    if path.is_dir():
        raise UsageError(Problem("this is a folder, not a map", "usage", str(name)))
    raise UsageError(Problem(f"no such map{hint}", "usage", str(name)))


def read_map(path: str | Path) -> Node:
    """Read a map file into its YAML tree; raises MapError and UsageError."""
    file = find_map(path)
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise MapError(Problem("the map is not UTF-8 text (is it a checkpoint?)", "map", str(path))) from None
    except OSError as e:
        raise UsageError(Problem(f"cannot read the map: {e.strerror}", "usage", str(path))) from None
    return load_yaml(text, str(path) if Path(path).is_file() else _short(file))


def _short(file: Path) -> str:
    return f"maps/{file.relative_to(data_dir('maps'))}"


def load_map(node: Node, values: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None) -> Ruleset:
    """Build the rules of a map, `from` -> `to`.

    ``values`` turns the map's params (documents by name) into the values that ``{{ expressions }}`` see. Raises
    MapError.
    """
    check_version_first(node)
    if any(isinstance(n.value, str) and _BRACES.search(n.value) for n in node.walk()):
        from converter.document import param_doc

        params = node.get("params")
        read = mapped(param_doc)(params) if params is not None else {}
        node = _render(node, values(read) if values else {}, set(read))
    return build(read_document(MapDoc, node))


def _render(node: Node, values: Mapping[str, Any], declared: set[str]) -> Node:
    """Put values in the place of ``{{ expressions }}`` in every string below a node."""
    if isinstance(node.value, dict):
        return Node({k: _render(v, values, declared) for k, v in node.value.items()}, node.origin, node.keys)
    if isinstance(node.value, list):
        return Node([_render(v, values, declared) for v in node.value], node.origin)
    if isinstance(node.value, str) and _BRACES.search(node.value):
        return Node(_expand(node, values, declared), node.origin, rendered=True)
    return node


def _expand(node: Node, values: Mapping[str, Any], declared: set[str]) -> Any:
    import jinja2
    from jinja2 import nodes

    if "{%" in node.value or "{#" in node.value:
        raise node.error(
            f"'{clip(node.value)}' has a Jinja2 statement or comment; only {{{{ expressions }}}} are allowed"
        )
    env = _environment()
    kinds = (
        "Template Output TemplateData Name Const List Getitem Add Sub Mul FloorDiv Mod Neg Compare Operand And Or Not"
    )
    allowed = tuple(getattr(nodes, kind) for kind in (*kinds.split(), "CondExpr", "Concat"))
    try:
        tree = env.parse(node.value)
        for part in tree.find_all(nodes.Node):
            if not isinstance(part, allowed):
                raise node.error(
                    f"'{clip(node.value)}' has something ({type(part).__name__.lower()}) that is not "
                    f"allowed; only plain {{{{ expressions }}}} are allowed"
                )
        for part in tree.find_all(nodes.Name):
            if part.name not in declared:
                raise jinja2.UndefinedError(f"'{part.name}' is undefined")
            if part.name not in values:
                raise MapError(
                    Problem(
                        f"'{{{{ {part.name} }}}}' has no value here: --set {part.name}=...", "map", None, node.origin
                    )
                )
        whole = re.fullmatch(r"\{\{(.*)\}\}", node.value.strip(), re.DOTALL)
        if whole is not None and len(tree.body) == 1 and len(tree.body[0].nodes) == 1:
            value = env.compile_expression(whole[1], undefined_to_none=False)(values)
            if isinstance(value, int | list):
                return value
        result = env.from_string(tree).render(values)
    except jinja2.UndefinedError as e:
        raise node.error(
            f"'{clip(node.value)}': {e.message} (params: {', '.join(sorted(declared)) or 'none'})"
        ) from None
    except (jinja2.TemplateError, TypeError, ArithmeticError, RecursionError, ValueError) as e:
        raise node.error(f"'{clip(node.value)}': {clip(str(e))}") from None
    if len(result) > 10_000:
        raise node.error(f"'{clip(node.value)}' becomes {len(result)} characters")
    return str(result)


def _environment() -> Any:
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Environment(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(["*", "%"])

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            if not isinstance(left, int) or not isinstance(right, int):
                raise TypeError(f"{operator} takes integers")
            return super().call_binop(context, operator, left, right)

    return Environment(undefined=StrictUndefined, autoescape=False, cache_size=0)
