"""What the README and the pages in docs/ show is what happens: sessions, programs, maps, tables and worked examples.

In the README a `console` block is a session, a `python` block a program, a `text` block after it what that prints, and
a `yaml` block whose first line is a comment with a file name is that file; all of them run in order, in one folder. In
docs/language.md a `yaml` block that begins with `version: 1` is a map, and a `text` block after it has its tensors on
both sides. To write the README's outputs anew: python tests/test_readme.py
"""

import io
import json
import os
import re
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
from lab import DTYPES, Lab, read, same, write

from converter.cli import VERBS, main
from converter.mapfile import shipped_maps
from converter.ops import OPS
from converter.schema import map_schema
from converter.spec import DTYPES as ALL_DTYPES

ROOT = Path(__file__).parent.parent
README, LANGUAGE, FORMATS = ROOT / "README.md", ROOT / "docs" / "language.md", ROOT / "docs" / "formats.md"
NEW = ROOT / "docs" / "new-architecture.md"
PAGES = (README, LANGUAGE, FORMATS, NEW, ROOT / "docs" / "architectures.md")

# The tables of docs/language.md, by the class of the schema whose keys they list.
TABLES = {
    "map": "Keys of a map",
    "sides": "Keys of `sides`",
    "param": "Keys of a param",
    "strip": "Keys of `strip`",
    "segment": "Keys of a segment",
    "drop": "Keys of `drop`",
    "drop_match": "Keys of a drop by pattern",
    "equation": "Keys of a rule",
    "form": "Keys of a form",
    "group": "Keys of a group",
    "include_file": "Keys of an include",
    "regex": "Keys of a rename",
    "reverse": "Keys of `reverse`",
    "term": "Keys of a term",
    "any": "Keys of spellings",
    "tied": "Keys of a tie",
    "dtype_sides": "Keys of a dtype",
}
PRELUDE = """\
version: 1
name: tour
params: {n_head: 4, layer_types: {config: layer_types, default: [full, sliding]}}
indices: {layer: n_layer, expert: n_expert, rank: 2, qkv: [q, k, v]}
example: {n_layer: 2, n_expert: 3}
"""


class Block(NamedTuple):
    """A fenced block: its language, its text, the line that it begins at, and the heading that it stands under."""

    kind: str
    text: str
    line: int
    heading: str


def blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    kind: str | None = None
    heading, start, lines = "", 0, list[str]()
    for number, line in enumerate(page.read_text(encoding="utf-8").split("\n"), 1):
        if line.startswith("```"):
            if kind is None:
                kind, start, lines = line[3:].strip(), number, []
            else:
                found.append(Block(kind, "\n".join(lines), start, heading))
                kind = None
        elif kind is not None:
            lines.append(line)
        elif line.startswith("#"):
            heading = line.lstrip("# ")
    assert kind is None, f"{page.name}:{start}: a block is not closed"
    return found


def section(page: Path, heading: str) -> str:
    """The text from a heading to the next one of its depth or less."""
    text = page.read_text(encoding="utf-8")
    begun = re.search(rf"^(#+) {re.escape(heading)}$", text, re.MULTILINE)
    assert begun is not None, f"{page.name} has no heading '{heading}'"
    rest = text[begun.end() :]
    end = re.search(rf"^#{{1,{len(begun[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def first_column(text: str) -> list[str]:
    """What stands in backticks at the start of each row of the tables in a text."""
    return [m[1] for m in re.finditer(r"^\| `([^`]+)`", text, re.MULTILINE)]


# Sessions.


class Session:
    """A folder in which the blocks of the README happen, one after the other."""

    def __init__(self) -> None:
        self.code = 0
        self.names: dict[str, Any] = {"__name__": "readme"}

    def command(self, line: str) -> str:
        """Run one command and give what a terminal would show."""
        words = shlex.split(line)
        if words == ["echo", "$?"]:
            return f"{self.code}\n"
        assert words[0] == "convert", f"only convert and 'echo $?' are run: {line}"
        out = io.StringIO()
        with redirect_stdout(out), redirect_stderr(out), pytest.raises(SystemExit) as exited:
            main(words[1:])
        self.code = exited.value.code
        return out.getvalue()

    def python(self, text: str, line: int) -> str:
        out = io.StringIO()
        with redirect_stdout(out):
            exec(compile("\n" * line + text, README.name, "exec"), self.names)
        return out.getvalue()

    def block(self, block: Block, printed: str) -> str:
        """Let a block happen and give what it should have been: what it is, where only times differ."""
        if block.kind == "text":
            return block.text if agrees(block.text, printed) else printed.strip("\n")
        lines = list[str]()
        for command, shown in commands(block.text):
            got = self.command(command.replace("\\\n", ""))
            lines.append(f"$ {command}")
            lines += [shown if agrees(shown, got) else got.strip("\n")] if got else []
        return "\n".join(lines)


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Cut a console block into commands (a line that ends with a backslash goes on) and what they show."""
    for m in re.finditer(r"^\$ ((?:.*\\\n)*.*)\n?((?:(?!\$ ).*\n?)*)", text, re.MULTILINE):
        yield m[1], m[2].removesuffix("\n")


def agrees(shown: str, got: str) -> bool:
    """Compare line by line: times may differ, and a line of three dots stands for any lines."""
    pattern = re.escape(_timeless(shown).strip("\n"))
    pattern = re.sub(r"^\s*\\\.\\\.\\\.$", r"(?:.*\n)*?.*", pattern.replace("\\\n", "\n"), flags=re.MULTILINE)
    return re.fullmatch(pattern, _timeless(got).strip("\n")) is not None


def _timeless(text: str) -> str:
    return re.sub(r"\d+\.\d s\b", "T s", "\n".join(line.rstrip() for line in text.split("\n")))


def play(page: Path, folder: Path) -> list[tuple[Block, str]]:
    """Run a page in a folder, and give its sessions and outputs with what they should be.

    A python block whose first line is a comment with a file name is that file of the project, which it has to equal.
    """
    session, printed, found = Session(), "", list[tuple[Block, str]]()
    with chdir(folder), mock.patch.dict(os.environ, {"NO_COLOR": "1", "COLUMNS": "200"}):
        for block in blocks(page):
            source = re.match(r"# (\S+\.py)\n", block.text)
            named = re.match(r"# (\S+\.yaml)\n", block.text)
            if block.kind in ("console", "text"):
                found.append((block, session.block(block, printed)))
            elif block.kind == "python" and source:
                assert (ROOT / source[1]).read_text(encoding="utf-8").strip() == block.text.split("\n", 1)[1].strip()
            elif block.kind == "python":
                printed = session.python(block.text, block.line)
            elif block.kind == "yaml" and named:
                Path(named[1]).write_text(block.text + "\n", encoding="utf-8")
            else:
                assert block.kind in ("yaml", "sh"), f"{block.line}: a block of an unknown kind, '{block.kind}'"
                assert not re.search(r"^(\$ )?convert ", block.text, re.MULTILINE), f"{block.line}: not run"
    return found


def test_the_sessions_of_the_readme(tmp_path):
    found = play(README, tmp_path)
    assert [f"{b.line}: {b.text}" for b, _ in found] == [f"{b.line}: {real}" for b, real in found]
    kinds = [b.kind for b in blocks(README)]
    assert (kinds.count("console"), kinds.count("python"), kinds.count("text")) >= (7, 6, 3)
    assert (tmp_path / "tower-again.safetensors").exists()
    assert not (tmp_path / "never.safetensors").exists()


def beside_the_tests(folder: Path) -> Path:
    """A folder in which the project's tests are, as in a checkout."""
    (folder / "tests").symlink_to(ROOT / "tests")
    return folder


def test_the_page_on_a_new_architecture(tmp_path):
    """Its map and its peer are those that ship, so that all that it says of them is held by other tests too."""
    found = play(NEW, beside_the_tests(tmp_path))
    assert [f"{b.line}: {b.text}" for b, _ in found] == [f"{b.line}: {real}" for b, real in found]
    shipped = (ROOT / "maps" / "transformerlens" / "bloom.yaml").read_text().splitlines()
    assert (tmp_path / "bloom.yaml").read_text().splitlines()[1:] == shipped[1:]
    assert f"| `{shipped[0]}`" in NEW.read_text()


def snippets() -> list[Any]:
    found = [(p, b) for p in (README, LANGUAGE) for b in blocks(p) if b.kind == "yaml"]
    found = [(p, b) for p, b in found if not b.text.startswith(("version: 1", "# "))]
    return [pytest.param(b, id=f"{p.stem}-{b.line}") for p, b in found]


@pytest.mark.parametrize("block", snippets())
def test_snippets_are_of_the_language(block, tmp_path):
    """A block that is no whole map is rules, or keys of a map: put where it belongs, it is checked."""
    body = block.text if not block.text.startswith("- ") else "rules:\n" + block.text
    keys = set(re.findall(r"^(\w+):", body, re.MULTILINE))
    prelude = "".join(line + "\n" for line in PRELUDE.splitlines() if line.split(":")[0] not in keys)
    rules = "" if "rules" in keys else "rules: [{from: w, to: w, shape: d}]\n"
    lab = Lab(tmp_path)
    (tmp_path / "tour.yaml").write_text(prelude + rules + body + "\n")
    r = lab.run("check", tmp_path / "tour.yaml")
    assert r.code == 0, r.err


# The language.


def lay(folder: Path) -> list[str]:
    """Write the files of docs/language.md that others include: blocks whose first line is a comment with a name."""
    named = {m[1]: b.text for b in blocks(LANGUAGE) if (m := re.match(r"# (\S+\.yaml)\n", b.text))}
    for name, text in named.items():
        (folder / name).write_text(text + "\n")
    return list(named)


def test_fragments_of_the_language_reference(tmp_path):
    lab = Lab(tmp_path)
    for name in lay(tmp_path):
        r = lab.run("check", tmp_path / name)
        assert r.code == 0, r.err
        assert "a fragment" in r.out


def maps() -> list[Any]:
    found = [b for b in blocks(LANGUAGE) if b.kind == "yaml" and b.text.startswith("version: 1")]
    return [pytest.param(b, id=f"{b.heading.strip('`').replace(' ', '-')}-{b.line}") for b in found]


@pytest.mark.parametrize("block", maps())
def test_maps_of_the_language_reference(block, tmp_path):
    lab = Lab(tmp_path)
    lay(tmp_path)
    (tmp_path / "map.yaml").write_text(block.text + "\n")
    r = lab.run("check", tmp_path / "map.yaml")
    assert r.code == 0, r.err


def worked() -> list[Any]:
    """The maps that are followed by tensors: `from` tensors, an arrow, `to` tensors."""
    found = blocks(LANGUAGE)
    pairs = [(a, b) for a, b in pairwise(found) if a.text.startswith("version: 1") and b.kind == "text"]
    return [pytest.param(a, b, id=f"{a.heading.strip('`').replace(' ', '-')}-{a.line}") for a, b in pairs]


def tensors(text: str) -> dict[str, np.ndarray]:
    """Read lines such as `w (BF16) = [[1, 2], [3, 4]]`; without a dtype they are F32."""
    out = {}
    for line in text.strip().split("\n"):
        m = re.fullmatch(r"(\S+)(?: \((\w+)\))? += (.+)", line)
        assert m is not None, line
        out[m[1]] = np.array(json.loads(m[3])).astype(DTYPES[m[2] or "F32"])
    return out


@pytest.mark.parametrize(("block", "shown"), worked())
def test_worked_examples(block, shown, tmp_path):
    lab = Lab(tmp_path)
    m = re.fullmatch(r"(.*?)\n(<->|->)\n(.*)", shown.text, re.DOTALL)
    assert m is not None, f"line {shown.line}: no arrow"
    left, right = tensors(m[1]), tensors(m[3])
    lay(tmp_path)
    (tmp_path / "map.yaml").write_text(block.text + "\n")
    write(lab.source, left)
    r = lab.run("--map", tmp_path / "map.yaml", lab.source, lab.output)
    assert r.code == 0, r.err
    same(read(lab.output), right)
    r = lab.run("--map", tmp_path / "map.yaml", "--reverse", lab.output, lab / "back.safetensors")
    if m[2] == "<->":
        assert r.code == 0, r.err
        same(read(lab / "back.safetensors"), left)
    else:
        assert r.code == 2 or any(
            n not in left or a.tobytes() != left[n].tobytes() for n, a in read(lab / "back.safetensors").items()
        )


def classes() -> dict[str, dict[str, Any]]:
    """The classes of the schema that have keys: the map itself, and each definition that is a mapping."""
    schema = map_schema()
    return {"map": schema} | {name: d for name, d in schema["$defs"].items() if "properties" in d}


def test_every_class_of_the_schema_has_its_table():
    assert set(classes()) == set(TABLES)


@pytest.mark.parametrize("name", classes())
def test_every_key_is_in_its_table(name):
    assert sorted(first_column(section(LANGUAGE, TABLES[name]))) == sorted(classes()[name]["properties"])


def properties(schema: Any) -> set[str]:
    if isinstance(schema, dict):
        own = set(schema.get("properties", ()))
        return own.union(*(properties(v) for v in schema.values()))
    return set().union(*(properties(v) for v in schema)) if isinstance(schema, list) else set()


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.word)
def test_every_op_is_documented(op):
    text = section(LANGUAGE, f"`{op.word}`" if op.word != "rearrange" else "rearrange")
    for word in ("There", "Back", "Arguments"):
        assert f"**{word}**" in text, word
    for key in properties(op.schema()):
        assert f"`{key}`" in text or re.search(rf"`[^`]*\b{key}:[^`]*`", text), key
    assert [b for b, _ in (p.values for p in worked()) if b.heading.strip("`") == op.word], "no worked example"


def test_every_dtype_is_in_the_table():
    rows = section(LANGUAGE, "Names of dtypes")
    for dtype in ALL_DTYPES.values():
        for word in (dtype.name, dtype.numpy, *dtype.aliases):
            assert f"`{word}`" in rows, word


# The README's tables.


def options(*arguments: str) -> set[str]:
    out = io.StringIO()
    with redirect_stdout(out), pytest.raises(SystemExit):
        main([*arguments, "--help"])
    return set(re.findall(r"^ +(?:-\w, )?(--[a-z][a-z-]*)", out.getvalue(), re.MULTILINE))


def test_every_flag_is_in_the_table():
    shown = {re.match(r"--[a-z-]+", c)[0] for c in first_column(section(README, "Flags")) if c.startswith("--")}
    assert shown == options()


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_in_the_table_with_its_flags(verb):
    (row,) = re.findall(rf"^\| `convert {verb}\b.*$", section(README, "Flags"), re.MULTILINE)
    for flag in options(verb) - {"--help"}:
        assert flag in row, flag


def test_every_shipped_map_is_listed():
    """Those at the top by name, the others by their folder: docs/architectures.md has a row for each."""
    want = {name if not folder else f"{folder}/" for folder, _, name in (m.rpartition("/") for m in shipped_maps())}
    assert sorted(first_column(section(README, "The maps that ship"))) == sorted(want)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith(("http://", "https://")):
            continue
        file, _, anchor = target.partition("#")
        goal = (page.parent / file).resolve() if file else page
        assert goal.exists(), target
        if anchor:
            heads = re.findall(r"^#+ (.+)$", goal.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in heads}, target


def rewrite() -> None:
    """Write what the pages show anew."""
    for page, lay_out in ((README, Path), (NEW, beside_the_tests)):
        with tempfile.TemporaryDirectory() as folder:
            text = page.read_text(encoding="utf-8").split("\n")
            for block, real in reversed(play(page, lay_out(Path(folder)))):
                text[block.line : block.line + len(block.text.split("\n"))] = real.split("\n")
            page.write_text("\n".join(text), encoding="utf-8")


if __name__ == "__main__":
    rewrite()
