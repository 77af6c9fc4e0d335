"""The house: imports go down floors only, and what is costly to import is imported late.

The tables are the design. A module that they do not name fails: whoever adds one says here where it lives.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "converter"

# Floor of each module. A package stands for all modules in it.
FLOORS = {
    # notation and facts
    "folding": 0,
    "dims": 0,
    "arrays": 0,
    "layout": 0,
    "operands": 0.1,
    "pool": 0,
    "paths": 0,
    "shared": 0,
    "errors": 0.1,
    "spec": 0.1,
    "expressions": 0.1,
    "writeback": 0,
    "signals": 0,
    "transfer": 0.2,
    "casting": 0.2,
    "names": 0.2,
    "readings": 0.25,
    "forms": 0.3,
    "regexes": 0.3,
    # what knows tensors, and what knows bytes
    "ops": 1,
    "formats": 1,
    "kernels": 1,
    "halves": 1.1,
    "eighths": 1.1,
    "virtual": 1,
    "values": 1.1,
    "casts": 1.2,
    "blockwise": 1.3,
    "eager": 1.4,
    # a map's text
    "yamltree": 2,
    "fields": 2.1,
    "dtypedoc": 2.2,
    "ruledoc": 2.25,
    "document": 2.3,
    "schema": 2.4,
    "merging": 2.4,
    "including": 2.5,
    # a map's meaning
    "flow": 3,
    "rules": 3.1,
    "readers": 3.1,
    "implied": 3.2,
    "locality": 3.2,
    "naming": 3.2,
    "equations": 3.3,
    "canonical": 3.2,
    "consistency": 3.3,
    "build": 3.4,
    "braces": 3.2,
    "mapfile": 3.5,
    # a map and a header
    "steps": 4,
    "settings": 4,
    "facts": 4.05,
    "inputs": 4,
    "unknowns": 4.1,
    "matching": 4.1,
    "observing": 4.2,
    "counting": 4.2,
    "alternatives": 4.15,
    "budget": 4.15,
    "namer": 4.15,
    "expand": 4.2,
    "claims": 4.3,
    "learning": 4.3,
    "ties": 4.4,
    "shaping": 4.3,
    "recipes": 4.4,
    "checks": 4.5,
    "fates": 4.5,
    "planning": 4.6,
    # a plan: checked, and lowered to bytes and tiles
    "hints": 4.9,
    "verify": 5,
    "boxes": 5,
    "packed": 5,
    "moves": 5.1,
    "accounting": 5.15,
    "computed": 5.2,
    "lowering": 5.3,
    "pieces": 5.1,
    "tiles": 5.2,
    "compare": 5.3,
    # a plan and the data
    "execute": 6,
    "report": 6,
    "html": 6.1,
    "printing": 6,
    "proof": 6.1,
    "writing": 6.5,
    # the ways in
    "run": 7,
    "checking": 7,
    "invented": 4.1,
    "stub": 7.1,
    "live_report": 6.2,
    "live_fit": 6.2,
    "live_model": 6.3,
    "live_export": 6.4,
    "live_write": 7.1,
    "live": 7.2,
    "__init__": 7.5,
    "options": 7.9,
    "verbs": 7.95,
    "cli": 8,
    "__main__": 9,
}

# Floors inside a package; what is not named stands on top of these.
INNER = {
    "ops": {"parameters": 0, "results": 0, "base": 0.5, "arithmetic": 1, "blocks": 1},
    "formats": {
        "text": 0,
        "decode": 0,
        "pickles": 0,
        "torch_values": 0.5,
        "base": 1,
        "zips": 1.2,
        "torch_files": 1.5,
        "safetensors": 2,
        "torch_pickle": 2,
        "index": 2,
        "staging": 2,
        "shards": 3,
        "ranks": 2,
        "locate": 4,
        "target": 4,
        "swap": 3.5,
        "output": 5,
    },
}
TOP = 9

# An op and its inverse are two sides of one thing and know each other.
PAIRS = [
    {"concat", "split"},
    {"stack", "unstack"},
    {"pad", "trim"},
    {"same", "replicate"},
    {"exp", "log"},
    {"dequantize", "quantize"},
]

# What may import a costly package at module level: modules that are imported late themselves, where data are touched.
# Anywhere else the first use pays, inside a function.
AT_IMPORT: dict[str, set[str]] = {
    "numpy": {"casts", "halves", "eighths", "blockwise", "eager", "kernels", "pieces", "compare"},
    "ml_dtypes": set(),
    "torch": {"live", "live_model", "live_export", "live_write"},
    "jsonschema": set(),
    "jinja2": set(),
    "re2": set(),
    "rich": set(),
    "safetensors": set(),
}
# torch is not even imported late by others: it is an extra of the package.
NEVER_ELSEWHERE = {"torch"}

FILES = sorted(p for p in ROOT.rglob("*.py"))


def name_of(path: Path) -> str:
    """Name a file as the tables do: `plan`, `ops.concat`, `ops` for a package's __init__, `__init__` for the top."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[-1] == "__init__" and len(parts) > 1:
        parts = parts[:-1]
    return ".".join(parts)


MODULES = {name_of(p): p for p in FILES}


def head(module: str) -> str:
    return module.split(".")[0]


def imports(path: Path) -> Iterator[tuple[int, str, bool]]:
    """List line, absolute dotted name and whether it is at module level, for every import of a file.

    What only a type checker imports counts for the floors too, but costs nothing: it is not at module level.
    """
    tree = ast.parse(path.read_text())
    deferred = set()
    for node in ast.walk(tree):
        checking = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        if checking or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            deferred |= {id(n) for n in ast.walk(node)}
    package = ["converter", *path.relative_to(ROOT).parts[:-1]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, id(node) not in deferred
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = [*base, *(node.module or "").split(".")] if node.module else base
            for alias in node.names:
                yield node.lineno, ".".join([*base, alias.name]), id(node) not in deferred


def own_module(dotted: str) -> str | None:
    """Give the module of the package that an import reaches (`converter.ops.concat.Concat` is `ops.concat`), if any."""
    parts = dotted.split(".")
    if parts[0] != "converter":
        return None
    for stop in range(len(parts), 1, -1):
        if ".".join(parts[1:stop]) in MODULES:
            return ".".join(parts[1:stop])
    return "__init__"


def climbs(module: str, target: str) -> bool:
    """Tell whether an import breaks the rule; a package's __init__ may import its own modules."""
    package, _, name = module.partition(".")
    if package != head(target) or package not in INNER:
        return FLOORS[head(target)] >= FLOORS[package]
    other = target.removeprefix(f"{package}.")
    if not name or {name, other} in PAIRS:
        return False
    return INNER[package].get(other, TOP) >= INNER[package].get(name, TOP)


def test_every_module_has_a_floor():
    unknown = {head(m) for m in MODULES} - set(FLOORS)
    assert not unknown, "say in FLOORS where it lives"


@pytest.mark.parametrize("module", [m for m in MODULES if head(m) in FLOORS])
def test_imports_go_down(module):
    path = MODULES[module]
    wrong = []
    for line, dotted, _ in imports(path):
        target = own_module(dotted)
        if target is not None and target != module and head(target) in FLOORS and climbs(module, target):
            wrong.append(f"{path.relative_to(ROOT.parent)}:{line}: {module} imports {target}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("module", [m for m in MODULES if head(m) in FLOORS])
def test_costly_packages_are_imported_late(module):
    path = MODULES[module]
    wrong = []
    for line, dotted, at_import in imports(path):
        costly = dotted.split(".")[0]
        if costly in AT_IMPORT and (at_import or costly in NEVER_ELSEWHERE) and module not in AT_IMPORT[costly]:
            wrong.append(f"{path.relative_to(ROOT.parent)}:{line}: {module} imports {costly}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import converter", "numpy torch jsonschema jinja2 rich yaml"),
        ("import converter.cli", "numpy torch jsonschema jinja2"),
        ("import converter.planning", "numpy torch"),
    ],
)
def test_what_starting_up_leaves_alone(code, absent):
    show = f"import sys; {code}; print(*[m for m in {absent.split()} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, cwd=ROOT.parent)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_the_walk_finds_what_it_should():
    """The rule itself, on made-up names: it would be no use if it let these pass."""
    assert climbs("spec", "planning")
    assert climbs("verify", "moves")
    assert climbs("ops.concat", "ops.stack")
    assert climbs("ops.base", "ops.arithmetic")
    assert climbs("ops.concat", "ops")
    assert climbs("ops.concat", "rules")
    assert not climbs("ops.concat", "ops.base")
    assert not climbs("ops.concat", "ops.split")
    assert not climbs("ops", "ops.concat")
    assert not climbs("planning", "ops.concat")
