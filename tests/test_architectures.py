"""docs/architectures.md says what the maps and their cases say. To write it anew: python tests/test_architectures.py

Every row follows from one map and its cases alone, so that maps which land at the same time do not meet in one line.
"""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from converter.checking import example_values
from converter.mapfile import load_map, read_includes, read_map, read_source, shipped_files, shipped_maps
from converter.rules import Ruleset
from converter.yamltree import Node

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "architectures.md"
CASES = ROOT / "tests" / "peers" / "cases"
MAPS = shipped_maps()
HEAD = """\
# Architectures

Each map that ships, by folder, with what it is held against. The tests write this page from the maps and from their
[cases](../tests/peers/README.md): `python tests/test_architectures.py`.

- **ops** are those of [the language](language.md#operations); after the dash, what else a map uses: ties, constants,
  conditions, drops.
- **YAML** counts the lines of the map without blanks and comments, and without the sizes that tests invent
  checkpoints of; both directions and all checks are in them. What it includes is counted apart.
- **the same job elsewhere** is the code whose result the map equals, bit for bit: its lines without blanks, comments
  and docstrings, of both directions where it has both. The cases say which functions these are.
- **back** says what `--reverse` gives: all bits, or what is lost and why.
"""


class Row(NamedTuple):
    """A row of the page: cells of text."""

    map: str
    about: str
    ops: str
    yaml: str
    peer: str
    back: str


def lines(path: Path) -> int:
    """Count lines less blanks, comments, and the sizes of the example and of published models."""
    text = re.sub(r"^(example|published):.*\n([ ].*\n)*", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return sum(1 for x in text.splitlines() if x.strip() and not x.strip().startswith("#"))


@cache
def rules_of(name: str) -> Ruleset:
    node = read_map(MAPS[name])
    return load_map(node, example_values(node, {}))


def case_of(name: str) -> tuple[Path, dict[str, Any]] | None:
    """The case of a map: the one without a variant, or the first."""
    found = [p for p in [CASES / name / "case.json", *sorted(CASES.glob(f"{name}@*/case.json"))] if p.exists()]
    return (found[0].parent, json.loads(found[0].read_text())) if found else None


def ops(name: str, rules: Ruleset) -> str:
    words = sorted({op.word for r in rules.rules for op in r.chain.ops()})
    docs = list(members(read_map(MAPS[name])))
    else_ = [
        w for w in ("tied", "fill", "when", "with", "without", "optional", "match") if any(w in d.value for d in docs)
    ]
    else_ += ["drop"] * any(rules.drop) + ["dtype"] * any(rules.dtypes)
    return (", ".join(words) or "renames only") + (f" - {', '.join(else_)}" if else_ else "")


def members(node: Node) -> Iterator[Node]:
    for rule in node.get("rules").value:
        yield rule
        if "rules" in rule.value:
            yield from members(rule)


def yaml(name: str) -> str:
    _, files = read_includes(read_source(MAPS[name]))
    shared = sum(lines(f.path) for f in files[1:])
    return str(lines(MAPS[name])) + (f" + {shared}" if shared else "")


def peer(name: str) -> str:
    found = case_of(name)
    if found is None:
        return ""
    folder, about = found
    link = f"../{folder.relative_to(ROOT).as_posix()}/case.json"
    who = about["peer"] if about["peer"].startswith("numpy") else f"{about['peer']} {about['version']}"
    return f"{about['lines']} lines, [{who}]({link})"


def back(name: str, rules: Ruleset) -> str:
    one_way = sorted({reason for _, reason in rules.one_way()})
    if one_way:
        return f"one-way: {'; '.join(one_way)}"
    rounds = sorted({op.word for r in rules.rules if not r.chain.exact for op in r.chain.ops() if not op.exact})
    said = [f"rounds ({', '.join(rounds)})" if rounds else "all bits"]
    drops = [str(d) for d in rules.drop[0]]
    said += (
        [f"less {', '.join(f'`{d}`' for d in drops[:2])}{f' and {len(drops) - 2} more' * (len(drops) > 2)}"]
        if drops
        else []
    )
    found = case_of(name)
    said += [found[1]["why"]] if found is not None and found[1]["why"] else []
    return ", ".join(said)


def line(name: str) -> str:
    """The row of a map as the page has it."""
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row(name)) + " |"


def row(name: str) -> Row:
    rules = rules_of(name)
    path = MAPS[name].relative_to(ROOT).as_posix()
    link = f"[`{name.rpartition('/')[2]}`](../{path})"
    return Row(link, rules.about, ops(name, rules), yaml(name), peer(name), back(name, rules))


def page() -> str:
    out = [HEAD]
    for folder in sorted({n.rpartition("/")[0] for n in MAPS}):
        names = [n for n in MAPS if n.rpartition("/")[0] == folder]
        out.append(f"## {folder or 'Maps of their own'}\n")
        out.append("| map | what it equates | ops | YAML | the same job elsewhere | back |\n|---|---|---|---|---|---|")
        out += [line(n) for n in names]
        out[-1] += "\n"
    return "\n".join(out)


def total() -> str:
    """One sentence on all of them."""
    found = [c for n in MAPS if (c := case_of(n)) is not None]
    own = sum(map(lines, shipped_files().values()))
    return f"{len(MAPS)} maps of {own} lines, against {sum(c['lines'] for _, c in found)} lines elsewhere"


def test_the_page_is_fresh():
    assert PAGE.read_text(encoding="utf-8") == page(), "write it anew: python tests/test_architectures.py"


@pytest.mark.parametrize("name", MAPS)
def test_a_row_says_something_in_every_cell(name):
    cells = row(name)
    assert all(cells)
    assert int(re.match(r"\d+", cells.yaml)[0]) > 5
    assert ("one-way" in cells.back) == bool(rules_of(name).one_way())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(total())
