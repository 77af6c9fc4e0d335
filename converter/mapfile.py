"""From a YAML file to a checked map: find it, read it, fill in `{{ expressions }}`, build its rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Any

from converter.braces import Braces, has_braces
from converter.build import build
from converter.document import MapDoc
from converter.errors import MapError, Problem, UsageError
from converter.fields import check_version_first, mapped, read_document
from converter.folding import clip, closest
from converter.including import Source, has_includes, resolve
from converter.paths import path_fault
from converter.rules import Ruleset
from converter.yamltree import MAX_TEXT, Node, load_yaml

_PACKAGE = Path(__file__).resolve().parent


def data_dir(name: str) -> Path:
    """Give the folder of shipped data (`maps`, `schemas`): inside the package in a wheel, beside it in a checkout."""
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parent / name


def shipped_files() -> dict[str, Path]:
    """List the files that ship with the package, by name: maps (`gpt2`, `litgpt/falcon_mq`) and fragments of maps."""
    root = data_dir("maps")
    return {p.relative_to(root).with_suffix("").as_posix(): p for p in sorted(root.rglob("*.yaml"))}


def shipped_maps() -> dict[str, Path]:
    """List the maps that ship with the package, by name; fragments are kept in a folder of their own."""
    return {name: path for name, path in shipped_files().items() if not name.startswith("shared/")}


def find_map(name: str | Path) -> Path:
    """Give the file of a map named by path or by shipped name; raises UsageError."""
    path = Path(name)
    if path.is_file():
        return path
    files = shipped_files()
    if str(name) in files:
        return files[str(name)]
    near = closest(str(name), files) or closest(Path(name).stem, files)
    hint = f" (did you mean {near}?)" if near else " (`convert maps` lists those that ship)"
    if path.is_dir():
        raise UsageError(Problem("this is a folder, not a map", "usage", str(name)))
    raise UsageError(Problem(f"no such map{hint}", "usage", str(name)))


def read_map(name: str | Path) -> Node:
    """Read a map with all that it includes into one YAML tree; raises MapError and UsageError."""
    source = read_source(name)
    if is_fragment(source.node):
        raise source.node.error("this is a fragment: maps include it, it is none itself", "fragment")
    return read_includes(source)[0]


def read_source(name: str | Path) -> Source:
    """Read a file that is named by path or by shipped name, by itself; raises MapError and UsageError."""
    file = find_map(name)
    return _read(file, str(name) if Path(name).is_file() else _short(file))


def read_includes(source: Source) -> tuple[Node, tuple[Source, ...]]:
    """Give the tree of a map with its includes in place, and all files that it is made of; raises MapError."""
    return resolve(source, _find) if has_includes(source.node) else (source.node, (source,))


def is_fragment(node: Node) -> bool:
    """Tell whether a file is there to be included only."""
    given = node.get("fragment")
    return given is not None and given.value is True


def _read(file: Path, shown: str) -> Source:
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise MapError(Problem("the map is not UTF-8 text (is it a checkpoint?)", "map", shown)) from None
    except OSError as e:
        raise UsageError(Problem(f"cannot read the map: {e.strerror}", "usage", shown)) from None
    return Source(file, load_yaml(text, shown))


def _find(source: Source, name: Node) -> Source:
    """Open the file that a text in another one names: a path from its folder, or the name of one that ships."""
    word = str(name.value)
    if not word.endswith((".yaml", ".yml")):
        files = shipped_files()
        if word not in files:
            near = closest(word, files)
            hint = f"did you mean {near}?" if near else "a path ends in .yaml"
            raise name.error(f"include: no file '{clip(word)}' ships with the package ({hint})")
        return _read(files[word], _short(files[word]))
    fault = path_fault(word, "map")
    if fault:
        raise name.error(f"include: '{clip(word)}': {fault}")
    file = source.path.parent / word
    shown = str(PurePath(source.node.origin.file).parent / word)
    try:
        if not file.is_file():
            near = closest(file.name, [p.name for p in file.parent.glob("*.y*ml")])
            hint = f" (did you mean {(PurePath(word).parent / near).as_posix()}?)" if near else ""
            raise name.error(f"include: {'not a file' if file.exists() else 'no such file'}: {shown}{hint}")
        if file.stat().st_size > 4 * MAX_TEXT:  # a character has at most 4 bytes
            raise name.error(f"include: {shown} is too large for a map")
    except OSError as e:
        raise name.error(f"include: {clip(shown)}: {e.strerror}") from None
    return _read(file, shown)


def _short(file: Path) -> str:
    return f"maps/{file.relative_to(data_dir('maps'))}"


def load_map(node: Node, values: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None) -> Ruleset:
    """Build the rules of a map, `from` -> `to`.

    ``values`` turns the map's params (documents by name) into the values that ``{{ expressions }}`` see. Raises
    MapError.
    """
    check_version_first(node)
    if has_includes(node):
        raise node.error("the includes of this map were not read")
    if any(map(has_braces, node.walk())):
        from converter.document import param_doc

        params = node.get("params")
        read = mapped(param_doc)(params) if params is not None else {}
        node = Braces(values(read) if values else {}, set(read)).fill(node)
    return build(read_document(MapDoc, node))
