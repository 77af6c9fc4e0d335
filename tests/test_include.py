"""`include`: one map made of several files is the map that one file would be, and every message knows its file."""

import os
import random
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from lab import SCHEMA, Lab, arr, read, run, write

from converter import merging
from converter.checking import example_values
from converter.document import MapDoc
from converter.dtypedoc import DtypeSidesDoc
from converter.errors import MapError
from converter.fields import NAME, keys_of
from converter.including import MAX_INCLUDES, MAX_WAY, Source
from converter.mapfile import is_fragment, load_map, read_includes, read_map, read_source, shipped_files, shipped_maps
from converter.planning import make_plan
from converter.ruledoc import GroupDoc, RuleDoc, TiedDoc
from converter.rules import Ruleset
from converter.settings import Settings
from converter.spec import Header
from converter.steps import Plan
from converter.stub import Stub, invent, stub_settings
from converter.yamltree import MAX_DEPTH, MAX_NODES, Node

BLOCK = """
rules:
  - {from: norm, to: ln, shape: d}
  - {from: attn.q, to: q, shape: d d, ops: [transpose]}
  - from: mlp.
    to: mlp.
    rules:
      - {from: {any: [up, w1]}, to: fc, shape: f d}
      - {from: down, to: proj, shape: d f}
"""
BASE = """
params: {n_layer: {config: n_layer}}
indices: {layer: n_layer}
example: {n_layer: 2, d: 3, f: 5}
rules:
  - {from: embed, to: wte, shape: vocab d}
  - {from: 'l.{layer}.', to: 'h.{layer}.', include: block.yaml}
"""


def checkpoint(layers=2, vocab=7, d=3, f=5):
    out = {"embed": arr(vocab, d)}
    for i in range(layers):
        at = 100 * (i + 1)
        out |= {f"l.{i}.norm": arr(d, start=at), f"l.{i}.attn.q": arr(d, d, start=at + 10)}
        out |= {f"l.{i}.mlp.up": arr(f, d, start=at + 30), f"l.{i}.mlp.down": arr(d, f, start=at + 60)}
    return out


class Files(Lab):
    """A lab with fragments beside its map."""

    def file(self, name: str, text: str, fragment: bool = True) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        head = "version: 1\n" + ("fragment: true\n" if fragment else f"name: {path.stem}\n")
        path.write_text(head + textwrap.dedent(text).lstrip("\n"))
        return path

    def rules(self, text: str) -> list[str]:
        node = read_map(self.map(text))
        return [str(r) for r in load_map(node, example_values(node, {})).rules]

    def error(self, text: str, *flags: str) -> str:
        """What the check of a map says that is wrong, one problem a line."""
        r = self.run("check", self.map(text))
        assert r.code == 2, r.out
        assert "Traceback" not in r.err
        return r.err.rstrip("\n")


@pytest.fixture
def lab(tmp_path):
    files = Files(tmp_path)
    files.file("block.yaml", BLOCK)
    files.file("base.yaml", BASE)
    return files


# One map of several files is the map that one file would be.


def test_a_map_that_includes_all_it_has(lab):
    want = {"wte": arr(7, 3)}
    for name, x in list(checkpoint().items())[1:]:
        _, i, rest = name.split(".", 2)
        new = {"norm": "ln", "attn.q": "q", "mlp.up": "mlp.fc", "mlp.down": "mlp.proj"}[rest]
        want[f"h.{i}.{new}"] = x.T.copy() if rest == "attn.q" else x
    lab.both("include: base.yaml\n", checkpoint(), want)


def plain_plan(rules: Ruleset, header: Header) -> Plan:
    """The plan of a map, less the lines that rules stand at, and less which of the rules told a size first."""
    plan = make_plan(rules, header, Settings(set={k: v for k, v in rules.example.items() if k in rules.params}))
    assert not plan.problems
    sizes = tuple((n, v, "") for n, v, _ in plan.sizes)
    return replace(plan, steps=tuple(s._replace(origin=None) for s in plan.steps), sizes=sizes, map_file="")


class Cutter:
    """Moves parts of a map into files at random, and puts includes in their place."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.roll, self.made = folder, random.Random(seed), 0

    def file(self, content: dict) -> str:
        self.made += 1
        name = f"{'deep/' * self.roll.randrange(2)}part{self.made}.yaml"
        (self.folder / name).parent.mkdir(exist_ok=True)
        (self.folder / name).write_text(yaml.safe_dump({"version": 1, "fragment": True, **content}, sort_keys=False))
        return name

    def some(self, items: list) -> tuple[list, list]:
        taken = [self.roll.random() < 0.6 for _ in items]
        return [x for x, t in zip(items, taken) if t], [x for x, t in zip(items, taken) if not t]

    def group(self, rule: dict) -> dict:
        """Move rules of a group whose names have no prefix to care for."""
        if "rules" not in rule:
            return rule
        taken, left = self.some(rule["rules"])
        rule = {k: v for k, v in rule.items() if k != "rules"} | ({"rules": left} if left else {})
        return rule | ({"include": self.file({"rules": taken})} if taken else {})

    def map(self, doc: dict) -> dict:
        keys, _ = self.some([k for k in doc if k not in (*merging.OWN, "rules")])
        files = [self.file({k: doc[k]}) for k in keys]
        taken, left = self.some(doc["rules"])
        files.append(self.file({"rules": taken}))
        kept = {k: v for k, v in doc.items() if k not in keys}
        return {**kept, "include": files, "rules": [self.group(r) for r in left]}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen2", "glassllm"])
def test_a_map_cut_into_files_is_the_same_map(tmp_path, name, seed):
    node = read_map(name)
    whole = load_map(node, example_values(node, {}))
    doc = Cutter(tmp_path, seed).map(node.plain())
    (tmp_path / "map.yaml").write_text(yaml.safe_dump(doc, sort_keys=False))
    source = read_source(tmp_path / "map.yaml")
    tree, files = read_includes(source)
    assert len(files) > 1
    cut = load_map(tree, example_values(tree, {}))
    header = invent(whole, stub_settings(whole, {})).header
    there = plain_plan(whole, header)
    assert plain_plan(cut, header) == there
    header = replace(Stub(there.outputs, {}).header, metadata=dict(there.metadata))
    assert plain_plan(cut.reverse(), header) == plain_plan(whole.reverse(), header)
    assert run("check", tmp_path / "map.yaml").code == 0
    assert not [e.message for f in files for e in SCHEMA.iter_errors(f.node.plain())]


def test_a_whole_map_may_be_included_too(lab):
    lab.file("whole.yaml", "about: whole\nsides: {from: old, to: new}\npublished: {big: {d: 9}}\n" + BASE, False)
    source = read_source(lab.map("include: whole.yaml\n"))
    tree, _ = read_includes(source)
    assert tree.get("name").value == "test"
    assert [tree.get(k) for k in ("about", "published", "include", "fragment")] == [None] * 4
    assert tree.get("sides").plain() == {"from": "old", "to": "new"}
    assert tree.get("sides").origin.file.endswith("whole.yaml")


def test_every_key_of_a_map_is_merged_in_some_way():
    ways = [*merging.OWN, *merging.KEYED, *merging.JOINED, *merging.WHOLE, "rules", "include"]
    assert sorted(ways) == sorted(keys_of(MapDoc))


# Who wins.


KEYS = {
    "sides: {from: a, to: b}": "sides: {to: c}",
    "params: {x: 1, y: {default: 2}}": "params: {x: 3}",
    "indices: {i: 2, j: [p, q]}": "indices: {j: [r]}",
    "example: {d: 1, e: 2}": "example: {d: 3}",
    "rest: keep": "rest: drop",
    "dtype: float32": "dtype: {to: bfloat16}",
}


def tree_of(lab, text: str) -> dict:
    return read_includes(read_source(lab.map(text)))[0].plain()


@pytest.mark.parametrize("key", KEYS)
def test_what_the_including_file_states_wins(lab, key):
    lab.file("one.yaml", key)
    word = key.split(":")[0]
    taken = tree_of(lab, "include: one.yaml\nrules: []\n")[word]
    assert taken == yaml.safe_load(key)[word]
    own = yaml.safe_load(KEYS[key])[word]
    got = tree_of(lab, f"include: one.yaml\nrules: []\n{KEYS[key]}\n")[word]
    assert got == ({**taken, **own} if word in merging.KEYED else own)


@pytest.mark.parametrize("key", KEYS)
def test_two_files_that_differ_are_an_error_unless_the_map_states_it(lab, key):
    lab.file("one.yaml", key)
    lab.file("two.yaml", KEYS[key])
    both = "include: [one.yaml, two.yaml]\nrules: []\n"
    said = lab.error(both)
    assert said.startswith("two.yaml:3: ")
    assert "one.yaml:3: state it in the map that includes both" in said
    assert tree_of(lab, both + KEYS[key])
    lab.file("two.yaml", key)
    assert tree_of(lab, both)[key.split(":")[0]] == yaml.safe_load(key)[key.split(":")[0]]


def test_an_including_file_wins_over_all_below_it(lab):
    lab.file("low.yaml", "params: {x: 1, y: 1, z: 1}")
    lab.file("mid.yaml", "include: low.yaml\nparams: {x: 2, y: 2}")
    got = tree_of(lab, "include: mid.yaml\nparams: {x: 3}\nrules: []\n")
    assert got["params"] == {"x": 3, "y": 2, "z": 1}


@pytest.mark.parametrize("word", merging.JOINED)
def test_strips_and_drops_are_joined(lab, word):
    lab.file("one.yaml", f"{word}: {{from: [a., b.], to: [x.]}}")
    lab.file("two.yaml", f"{word}: {{from: [b., c.]}}")
    got = tree_of(lab, f"include: [one.yaml, two.yaml]\n{word}: {{from: [d., a.]}}\nrules: []\n")
    assert got[word] == {"from": ["a.", "b.", "c.", "d."], "to": ["x."]}


def test_a_file_that_comes_by_two_ways_counts_once(lab):
    lab.file("one.yaml", "include: base.yaml\nrules: [{from: a, to: a, shape: d}]")
    lab.file("two.yaml", "include: base.yaml\nrules: [{from: b, to: b, shape: d}]")
    twice = "include: [one.yaml, two.yaml, base.yaml, base.yaml]\n"
    assert sorted(lab.rules(twice)) == sorted([*lab.rules("include: base.yaml\n"), "a -> a", "b -> b"])
    lab.file("two.yaml", "include: {file: base.yaml, except: ['l.{layer}.norm']}")
    assert lab.error(twice) == (
        "base.yaml:8: comes twice by includes, once with and once without some of its rules (except)"
    )


def test_a_rule_that_stands_twice_in_one_file_is_an_error_as_ever(lab):
    lab.file("one.yaml", "rules: [&r {from: a, to: b}, *r]")
    assert "is read by two rules" in lab.error("include: one.yaml\n")


def test_an_example_size_that_the_map_has_no_use_for(lab):
    text = "include: {file: base.yaml, except: ['l.{layer}.mlp.']}\n"
    node = read_map(lab.map(text))
    assert load_map(node).example == {"n_layer": 2, "d": 3}
    assert "example has 'f', which the map does not have" in lab.error(text + "example: {f: 2}\n")


# Leaving out.


def test_rules_and_groups_are_left_out_by_name(lab):
    whole = lab.rules("include: base.yaml\n")
    for entry, gone in {
        "embed": ["embed -> wte"],
        "l.{layer}.norm": ["l.{layer}.norm -> h.{layer}.ln"],
        "l.{layer}.mlp.w1": ["l.{layer}.mlp.up -> h.{layer}.mlp.fc"],
        "l.{layer}.mlp.": [r for r in whole if ".mlp." in r],
        "l.{layer}.": [r for r in whole if r.startswith("l.")],
    }.items():
        left = lab.rules(f"include: {{file: base.yaml, except: ['{entry}']}}\n")
        assert left == [r for r in whole if r not in gone]
    both = "include: {file: base.yaml, except: ['l.{layer}.mlp.', 'l.{layer}.mlp.down']}\n"
    assert lab.rules(both) == [r for r in whole if ".mlp." not in r]


def test_a_left_out_rule_is_written_anew(lab):
    text = """
    indices: {expert: n_expert}
    include: {file: base.yaml, except: ['l.{layer}.mlp.']}
    rules:
      - {from: 'l.{layer}.e.{expert}', to: 'h.{layer}.experts', shape: f d, ops: [{stack: expert}]}
    """
    tensors = {n: x for n, x in checkpoint().items() if ".mlp." not in n}
    tensors |= {f"l.{i}.e.{e}": arr(5, 3, start=1000 * i + 20 * e) for i in range(2) for e in range(12)}
    r, out = lab.convert(text, tensors)
    assert r.code == 0, r.err
    assert read(out)["h.1.experts"].tobytes() == b"".join(tensors[f"l.1.e.{e}"].tobytes() for e in range(12))


def test_names_of_fused_and_one_sided_rules(lab):
    lab.file("odd.yaml", """
      rules:
        - {from: [a, {name: b, shape: d}], to: ab, ops: [{concat: 0}]}
        - {to: made, fill: zeros, shape: 2, dtype: float32}
        - {match: 'x\\.(?P<r>.+)', to: '{r}'}
        - {from: c, to: c}
    """)  # fmt: skip
    assert lab.rules("include: {file: odd.yaml, except: [b, made, 'x\\.(?P<r>.+)']}\n") == ["c -> c"]


def test_an_exception_that_names_nothing(lab):
    said = lab.error("include:\n  - {file: base.yaml, except: [embed, 'l.{layer}.mlp.ups', wte]}\n")
    assert said.splitlines() == [
        "map.yaml:4: except: no rule or group of the file is named 'l.{layer}.mlp.ups' (did you mean 'l.{layer}.mlp.up'?)",
        "map.yaml:4: except: no rule or group of the file is named 'wte'",
    ]


# In a group.


def test_whole_names_of_a_file_go_below_the_prefixes(lab):
    lab.file("part.yaml", """
      drop: {from: [freq, {any: [mask, bias]}], to: [cache]}
      params: {hd: 2}
      indices: {qk: [q, k]}
      example: {d: 3}
      rules:
        - {from: w, to: w, shape: d}
        - {from: v, to: v, shape: d, tied: w, untied: keep}
        - {from: '{qk}', to: 'att.{qk}', shape: hd, with: w}
        - {from: other, to: other, shape: d, without: w, optional: true}
        - {to: ones, fill: ones, shape: d, dtype: {like: w}}
        - {to: again, shape: d, tied: {name: w, to: copy}}
    """)  # fmt: skip
    text = """
    indices: {i: 2}
    rules:
      - from: {any: ['net.', '']}
        to: new.
        rules: [{from: 'l.{i}.', to: 'h.{i}.', include: part.yaml}]
    """
    node = read_map(lab.map(text))
    assert node.get("drop").plain() == {
        "from": [{"any": ["net.l.{i}.freq", "l.{i}.freq"]}, {"any": [f"{p}l.{{i}}.{n}" for p in ("net.", "") for n in ("mask", "bias")]}],
        "to": ["new.h.{i}.cache"],
    }  # fmt: skip
    assert {k: v.value for k, v in node.get("params").value.items()} == {"hd": 2}
    want: dict = {}
    tensors: dict = {}
    for i in range(2):
        w, q, k = arr(3, start=i), arr(2, start=20 + i), arr(2, start=30 + i)
        tensors |= {f"l.{i}.w": w, f"l.{i}.q": q, f"l.{i}.k": k, f"l.{i}.freq": arr(1)}
        want |= {f"new.h.{i}.{n}": w for n in ("w", "again")} | {f"new.h.{i}.att.q": q, f"new.h.{i}.att.k": k}
        want[f"new.h.{i}.ones"] = arr(3) * 0 + 1
    r = lab.gives(text, tensors, want)
    assert "tied: l.0.v = l.0.w" in r.out
    assert "dropped: l.{0..1}.freq (2)" in r.out


def test_one_file_in_two_groups(lab):
    text = """
    indices: {i: 2, j: 3}
    rules:
      - {from: 'enc.{i}.', to: 'e.{i}.', include: block.yaml}
      - {from: 'dec.{j}.', to: 'd.{j}.', include: {file: block.yaml, except: [mlp.down]}, rules: [{from: x, to: x}]}
    """
    assert len(lab.rules(text)) == 4 + 4
    assert lab.rules(text)[-1] == "dec.{j}.x -> d.{j}.x"


def test_the_keys_that_hold_whole_names_are_known():
    """A new key that names a tensor has to go below the prefixes too: `lowered` in converter/merging.py."""
    keys = {**keys_of(RuleDoc), **keys_of(GroupDoc), **keys_of(TiedDoc), **keys_of(DtypeSidesDoc)}
    holders = {
        word for word, f in keys.items() if NAME in (f.metadata["schema"], *f.metadata["schema"].get("anyOf", ()))
    }
    assert holders == {"with", "without", "tied", "name", "like"}


@pytest.mark.parametrize("line", ["strip: {from: [a.]}", "rest: keep", "dtype: float32"])
def test_what_only_a_whole_map_can_say(lab, line):
    lab.file("part.yaml", line + "\nrules: [{from: w, to: w}]")
    text = "rules: [{from: a, to: b, include: part.yaml}]\n"
    word = line.split(":")[0]
    said = f"part.yaml:3: {word} is about whole checkpoints, and the file is included in a group (map.yaml:3)"
    assert lab.error(text) == f"{said}: state it at the top of the map"
    assert lab.rules(text + line + "\n")


def test_what_cannot_stand_in_a_group(lab):
    text = "rules: [{from: a., to: b., include: part.yaml}]\n"
    lab.file("part.yaml", "rules: [{match: x, to: y}]")
    assert lab.error(text) == "part.yaml:3: a regex rename stands at the top level of rules only"
    lab.file("part.yaml", "rules: [{from: w, to: w}]\ndrop: {from: [{match: x}]}")
    assert lab.error(text).startswith("part.yaml:4: a drop by pattern is about whole names")
    lab.file("part.yaml", "params: {x: 1}")
    assert lab.error(text) == "map.yaml:3: no file that the group includes has rules"


# Files.


def test_a_path_is_relative_to_the_file_that_has_it(lab):
    lab.file("sub/mid.yaml", "include: deep/low.yaml")
    lab.file("sub/deep/low.yaml", "rules: [{from: a, to: b}]")
    assert lab.rules("include: sub/mid.yaml\n") == ["a -> b"]


def test_a_shipped_file_is_included_by_name(lab):
    assert len(lab.rules("include: {file: gpt2, except: ['h.{layer}.']}\n")) == 5
    near = "include: no file 'gtp2' ships with the package (did you mean gpt2?)"
    assert lab.error("include: gtp2\n") == f"map.yaml:3: {near}"
    assert lab.error("include: base.yam\n").endswith("(a path ends in .yaml)")


@pytest.mark.parametrize(
    ("path", "why"),
    {
        "../base.yaml": "a path that leaves the folder of the map is refused",
        "sub/../../base.yaml": "a path that leaves the folder of the map is refused",
        "/etc/base.yaml": "an absolute path is refused",
        "https://example.com/base.yaml": "not a plain file name",
        "./base.yaml": "not a plain file name",
        "C:/base.yaml": "backslashes and drive letters are refused",
        "sub\\base.yaml": "backslashes and drive letters are refused",
        "nothing.yaml": "no such file: nothing.yaml",
        "folder.yaml": "not a file: folder.yaml",
        "pipe.yaml": "not a file: pipe.yaml",
        "{{ x }}.yaml": "no such file",
        "x" * 5000 + ".yaml": "ile name too long",
    }.items(),
    ids=lambda x: x[:30],
)  # fmt: skip
def test_paths_that_are_refused(lab, path, why):
    (lab / "folder.yaml").mkdir()
    os.mkfifo(lab / "pipe.yaml")
    said = lab.error(f"params: {{x: 1}}\ninclude: '{path}'\n")
    assert said.startswith("map.yaml:4: include: ")
    assert why in said
    assert len(said) < 400


def test_a_file_that_is_too_large(lab):
    with open(lab / "large.yaml", "wb") as file:
        file.truncate(2**40)
    assert lab.error("include: large.yaml\n") == "map.yaml:3: include: large.yaml is too large for a map"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "map.yaml:3: include names no file"),
        ("a: b", "map.yaml:3: unknown key 'a' (keys: file, except)"),
        ("file: {a: b}", "map.yaml:3: expected text, found a mapping"),
        ("file: base.yaml, except: [1]", "map.yaml:3: expected text, found 1; quote it, '1'"),
    ],
)
def test_includes_that_cannot_be_read(lab, text, said):
    assert said in lab.error(f"include: {{{text}}}\n" if text else "include: []\n")


def test_a_circle_is_refused_with_its_lines(lab):
    lab.file("self.yaml", "\ninclude: self.yaml")
    assert lab.error("include: self.yaml\n") == "self.yaml:3: the file includes itself"
    assert lab.error("include: map.yaml\n") == "map.yaml:3: the file includes itself"
    lab.file("a.yaml", "include: b.yaml")
    lab.file("b.yaml", "rules: [{from: x, to: x, include: c.yaml}]")
    lab.file("c.yaml", "params: {x: 1}\ninclude: [a.yaml]")
    want = "c.yaml:4: a circle of includes: a.yaml:3, b.yaml:3, c.yaml:4"
    assert lab.error("include: a.yaml\n") == want
    os.symlink("c.yaml", lab / "link.yaml")
    lab.file("b.yaml", "include: link.yaml")
    assert "a circle of includes" in lab.error("include: a.yaml\n")


def test_bounds(lab):
    for k in range(MAX_WAY + 2):
        lab.file(f"d{k}.yaml", f"include: d{k + 1}.yaml")
    assert lab.error("include: d0.yaml\n") == f"d{MAX_WAY - 1}.yaml:3: includes are nested more than {MAX_WAY} deep"
    many = [f"{{from: p{k}, to: q{k}, include: block.yaml}}" for k in range(MAX_INCLUDES + 1)]
    told = f"the map includes more than {MAX_INCLUDES} files or {MAX_NODES} values"
    assert lab.error(f"rules: [{', '.join(many)}]\n") == f"map.yaml:3: {told}"
    lab.file("e0.yaml", BLOCK)
    for k in range(9):
        lines = [f"{{from: p{i}, to: q{i}, include: e{k}.yaml}}" for i in range(10)]
        lab.file(f"e{k + 1}.yaml", f"rules: [{', '.join(lines)}]")
    assert told in lab.error("include: e9.yaml\n")
    nest = "{from: w, to: w}"
    for _ in range(12):
        nest = f"{{from: a, to: b, rules: [{nest}]}}"
    lab.file("n0.yaml", f"rules: [{nest}]")
    lab.file("n1.yaml", f"rules: [{nest.replace('{from: w, to: w}', '{from: w, to: w, include: n0.yaml}')}]")
    assert f"more than {MAX_DEPTH} levels deep" in lab.error("include: n1.yaml\n")


# Messages.


def test_messages_name_the_included_file(lab):
    for text, said in {
        "rules:\n  - {from: a, too: b}": "part.yaml:4: unknown key 'too' (did you mean 'to'?)",
        "rules: [{from: a, to: b, ops: [transpoze]}]": "part.yaml:3: unknown op 'transpoze' (did you mean transpose?)",
        "rules: [": "part.yaml:4: not valid YAML",
        "naem: x\nrules: []": "part.yaml:3: unknown key 'naem' (did you mean 'name'?)",
        "rules: x": "part.yaml:3: expected a list, found 'x'",
        "rules: [x]": "part.yaml:3: a rule is a mapping, found 'x'",
        "params: [x]": "part.yaml:3: params: expected a mapping, found a list",
        "drop: [x]": "part.yaml:3: expected a mapping, found a list",
        "drop: {from: x}": "part.yaml:3: expected a list, found 'x'",
        "rules: [{from: c, to: b}]": "'b' is written by two rules, part.yaml:3 and map.yaml:4",
    }.items():
        lab.file("part.yaml", text)
        assert said in lab.error("include: part.yaml\nrules: [{from: x, to: b}]\n"), text
    (lab / "part.yaml").write_text("fragment: true\n")
    assert lab.error("include: part.yaml\n") == "part.yaml:1: 'version' is missing"
    (lab / "part.yaml").write_text("version: 2\n")
    assert lab.error("include: part.yaml\n") == "part.yaml:1: version is the integer 1, found 2"
    (lab / "part.yaml").write_bytes(b"\xff")
    assert lab.error("include: part.yaml\n").startswith("part.yaml: the map is not UTF-8 text")


def test_a_checkpoint_that_does_not_fit_names_the_included_file(lab):
    tensors = checkpoint() | {"l.1.norm": arr(4)}
    del tensors["l.0.mlp.down"]
    said = lab.fails("include: base.yaml\n", tensors, 1)
    assert "block.yaml:4: l.1.norm: shape is [4], expected [d] with d = 3" in said
    assert "block.yaml:10: l.0.mlp.down: missing from the input" in said


def test_the_check_of_a_map_names_the_included_file(lab):
    lab.file(
        "part.yaml",
        "rules:\n  - {from: a, to: a, ops: [{trim: {dim: 0, to: 2}}]}\n  - {from: b, to: b, shape: n, ops: [exp]}",
    )
    r = lab.run("check", lab.map("include: part.yaml\nrules: [{from: c, to: c}]\n"))
    assert r.code == 0, r.err
    assert r.out.splitlines() == [
        "map.yaml: one-way, 3 rules, from <-> to",
        "  includes part.yaml",
        "  one-way at part.yaml:4: trim loses information (`{trim: {dim: 0, to: 2}}`)",
        "  inexact at part.yaml:5: exp gives back rounded values",
        "  without a shape, so that nothing is checked there: 2 rules (lines part.yaml:4, 4)",
    ]


def test_jinja_sees_the_params_of_the_whole_map(lab):
    lab.file("part.yaml", "rules: [{from: w, to: 'w{{ n }}', shape: '{{ n }}'}]")
    lab.gives("include: part.yaml\nparams: {n: 3}\n", {"w": arr(3)}, {"w3": arr(3)})
    assert "part.yaml:3: '{{ n }}'" in lab.error("include: part.yaml\n").replace("w{{ n }}", "{{ n }}")


# Fragments.


def test_a_fragment_is_no_map(lab):
    r = lab.run("check", lab / "base.yaml")
    assert r.out == (
        "base.yaml: a fragment, with 2 rules and groups; its names, shapes and ops are checked in the maps that include it\n"
    )
    for command in (
        ["--map", lab / "base.yaml", lab.source, lab.output],
        ["stub", "--map", lab / "base.yaml", lab.output],
    ):
        write(lab.source, checkpoint())
        r = lab.run(*command)
        assert (r.code, r.err) == (2, "base.yaml:2: this is a fragment: maps include it, it is none itself\n")
    lab.file("bad.yaml", "rules: [{from: a, too: b}]")
    assert "bad.yaml:3: unknown key 'too'" in lab.run("check", lab / "bad.yaml").err
    lab.file("bad.yaml", "rest: maybe")
    assert lab.run("check", lab / "bad.yaml").err == "bad.yaml:3: expected error or keep or drop, found 'maybe'\n"
    lab.file("bad.yaml", "fragmet: true")
    assert lab.run("check", lab / "bad.yaml").code == 2


@pytest.mark.parametrize(
    ("text", "fits"),
    {
        "{version: 1, fragment: true}": True,
        "{version: 1, name: m, include: a.yaml}": True,
        "{version: 1, name: m, rules: [{from: a, to: b, include: [{file: a.yaml, except: [x]}]}]}": True,
        "{version: 1, fragment: false, rules: []}": False,
        "{version: 1, name: m}": False,
        "{version: 1, include: a.yaml}": False,
        "{version: 1, name: m, include: []}": False,
        "{version: 1, name: m, include: {except: [x]}}": False,
        "{version: 1, name: m, rules: [{to: b, include: a.yaml}]}": False,
    }.items(),
)
def test_the_schema_of_includes(text, fits):
    assert SCHEMA.is_valid(yaml.safe_load(text)) == fits


def test_a_map_needs_its_name_and_some_rules(lab):
    (lab / "m.yaml").write_text("version: 1\ninclude: base.yaml\n")
    assert lab.run("check", lab / "m.yaml").err == "m.yaml:1: 'name' is missing\n"
    lab.file("part.yaml", "params: {x: 1}")
    assert lab.error("include: part.yaml\n") == "map.yaml:1: 'rules' is missing"


def test_trees_with_includes_are_not_taken_for_maps(lab):
    source = read_source(lab.map("include: base.yaml\n"))
    with pytest.raises(MapError, match="not read"):
        load_map(source.node)


FRAGMENTS = {n: p for n, p in shipped_files().items() if n not in shipped_maps()}


def test_fragments_are_the_files_of_the_shared_folder():
    assert {n for n, p in shipped_files().items() if is_fragment(read_source(p).node)} == set(FRAGMENTS)
    assert all(n.startswith("shared/") for n in FRAGMENTS)
    assert not any(n in run("maps").out for n in FRAGMENTS)


def test_every_shipped_fragment_is_included():
    used = {f.path for name in shipped_maps() for f in read_includes(read_source(name))[1][1:]}
    assert set(FRAGMENTS.values()) <= used
    for name, path in FRAGMENTS.items():
        assert run("check", path).code == 0, name
        assert read_source(path).node.get("about").value
        assert path.read_text().startswith("# yaml-language-server: $schema=")


def test_the_files_of_a_map_are_told(lab):
    source = read_source(lab.map("include: base.yaml\n"))
    tree, files = read_includes(source)
    assert isinstance(tree, Node)
    assert all(isinstance(f, Source) for f in files)
    assert [f.path.name for f in files] == ["map.yaml", "base.yaml", "block.yaml"]
