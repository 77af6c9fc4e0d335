"""YAML as maps read it: every value with its line; refused is what could mislead or harm (DESIGN 2 and 6)."""

import json

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from converter.errors import MapError
from converter.yamltree import MAX_NODES, Node, load_yaml


def refused(text: str) -> tuple[int, str]:
    """The line and the message with which a text is refused."""
    with pytest.raises(MapError) as caught:
        load_yaml(text, "m.yaml")
    (problem,) = caught.value.problems
    assert str(problem).startswith(f"m.yaml:{problem.origin.line}: ")
    assert len(str(problem)) < 600
    assert "\n" not in str(problem)
    return problem.origin.line, problem.message


# What is read, is read as it looks.

words = st.text(st.characters(exclude_categories=["C", "Z"]) | st.just(" "), max_size=12)
plain_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**15), 10**15) | words,
    lambda s: st.lists(s, max_size=4) | st.dictionaries(words, s, max_size=4),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@given(plain_values, st.booleans())
def test_what_yaml_writes_is_read_back(value, flow):
    text = yaml.safe_dump(value, default_flow_style=flow, allow_unicode=True)
    assert load_yaml(text, "m.yaml").plain() == value


@settings(max_examples=100, deadline=None)
@given(plain_values)
def test_json_is_yaml(value):
    assert load_yaml(json.dumps(value, ensure_ascii=False), "m.yaml").plain() == value


@settings(max_examples=300, deadline=None)
@given(
    st.text(max_size=60)
    | st.lists(st.sampled_from([*"{}[]:-,&*!|>'\"%@`#\n\t ", "a", "no", "1", "<<", "---"]), max_size=20).map("".join)
)
def test_any_text_is_read_or_refused_with_its_line(text):
    try:
        node = load_yaml(text, "m.yaml")
    except MapError as e:
        (problem,) = e.problems
        lines = 1 + len(text.splitlines()) + text.count("\x85")
        if not 1 <= problem.origin.line <= lines + 1:
            pytest.fail(f"line {problem.origin.line} of {lines}")
        return
    assert isinstance(node, Node)


TEXT = """\
version: 1
rules:
  - from: a
    to: b        # a comment
  - {from: 'é.{layer}', to: "x.{layer}"}
"""


def test_every_value_and_key_knows_its_place():
    node = load_yaml(TEXT, "m.yaml")
    first, second = node.get("rules").value
    places = [
        (n.origin.line, n.origin.column)
        for n in (node, node.get("version"), first, first.get("to"), second, second.get("to"))
    ]
    assert places == [(1, 1), (1, 10), (3, 5), (4, 9), (5, 5), (5, 29)]
    assert [(first.keys[k].line, first.keys[k].column) for k in ("from", "to")] == [(3, 5), (4, 5)]
    assert str(first.error("wrong", "to")) == "m.yaml:4: wrong"
    assert str(second.error("wrong")) == "m.yaml:5: wrong"
    assert str(second.error("wrong", "nokey")) == "m.yaml:5: wrong"


def test_walk_visits_everything_once():
    assert [n.value for n in load_yaml(TEXT, "m.yaml").walk() if isinstance(n.value, str | int)] == [
        1, "a", "b", "é.{layer}", "x.{layer}",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 'no'", "no"),
        ("a: '010'", "010"),
        ("a: ''", ""),
        ("a: \"1:30\"", "1:30"),
        ("a:", None),
        ("a: null", None),
        ("a: true", True),
        ("a: 12", 12),
        ("a: -3", -3),
        ("a: 0", 0),
        ("a: 1.5", 1.5),
        ("a: .5", 0.5),
        ("a: -.inf", float("-inf")),
        ("a: .inf", float("inf")),
        ("a: h.0.w", "h.0.w"),
        ("a: 07x", "07x"),
        ("a: no.weight", "no.weight"),
        ("a: |\n  x\n  y\n", "x\ny\n"),
        ("a: q+2*kv", "q+2*kv"),
        ("a: 9223372036854775807", 2**63 - 1),
    ],
)  # fmt: skip
def test_scalars_that_are_what_they_look_like(text, value):
    got = load_yaml(text, "m.yaml").get("a").value
    assert (type(got), got) == (type(value), value)


# What YAML 1.1 reads as something other than it looks.

HAZARDS = [
    "no", "No", "NO", "yes", "Yes", "on", "On", "OFF", "off", "True", "TRUE", "False", "~", "Null", "NULL", "010",
    "-012", "0x1F", "0b11", "1_000", "1:30", "190:20:30", "2001-01-01", "2001-12-14t21:59:43.10-05:00", "1_0.5",
    ".Inf", ".NaN", ".INF", "+.INF", "=", "<<", "99999999999999999999", "1:30.5", "685_230.15",
]  # fmt: skip


@pytest.mark.parametrize("scalar", HAZARDS)
@pytest.mark.parametrize("shape", ["rules:\n- from: {}\n", "rules:\n- [x, {}]\n", "rules:\n- {{from: {}, to: b}}\n"])
def test_a_value_that_yaml_reads_otherwise_is_refused_with_the_quoted_form(scalar, shape):
    line, message = refused(shape.format(scalar))
    assert line == 2
    assert f"'{scalar}'" in message
    assert "quote it" in message


@pytest.mark.parametrize("scalar", ["no", "on", "~", "010", "1:30", "yes"])
def test_a_key_that_yaml_reads_otherwise_is_refused(scalar):
    line, message = refused(f"params:\n  a: 1\n  {scalar}: 2\n")
    assert line == 3
    assert f"'{scalar}'" in message


@pytest.mark.parametrize("quoted", ['"{}"', "'{}'"])
@pytest.mark.parametrize("scalar", [h for h in HAZARDS if h != "<<"])
def test_the_quoted_form_is_text(scalar, quoted):
    assert load_yaml(f"a: {quoted.format(scalar)}", "m.yaml").get("a").value == scalar


def test_lines_count_across_letters_of_several_bytes():
    """Positions are of characters, whatever the parser below counts."""
    line, message = refused("# é漢字🙂 🙂🙂🙂\na: 'é漢字'\nb: ['🙂🙂', no]\n")
    assert line == 3
    assert "'no'" in message
    line, message = refused("a: '漢字漢字漢字漢字'\nb: !!int '3'\n")
    assert line == 2
    assert "tag" in message or "quote" in message


# Merge keys, tags, duplicates.


@pytest.mark.parametrize("text", ["a: &x {b: 1}\nc:\n  <<: *x\n", "a: &x {b: 1}\nc:\n  <<: [*x, *x]\n"])
def test_merge_keys_are_refused(text):
    line, message = refused(text)
    assert line == 3
    assert "<<" in message


TAGS = [
    "!!python/object/apply:os.system ['true']",
    "!!python/name:os.system",
    "!!binary aGk=",
    "!!set {a, b}",
    "!!omap [a: 1]",
    "!mine x",
    "!!int '3'",
    "!!float 1",
    "!!null ''",
    "!!bool true",
    "!!timestamp 2001-01-01",
]
EMPTY_TAGS = {"!!map {}": {}, "!!seq []": [], "!!str x": "x", "! x": "x", "!!str 12": "12"}


@pytest.mark.parametrize("tag", TAGS)
def test_tags_are_refused(tag):
    line, message = refused(f"a: 1\nb: {tag}\n")
    assert line == 2
    assert "tag" in message


@pytest.mark.parametrize("tag", EMPTY_TAGS)
def test_tags_that_say_nothing_new_are_refused_or_mean_nothing_else(tag):
    try:
        got = load_yaml(f"b: {tag}", "m.yaml").get("b").plain()
    except MapError:
        return
    assert got == EMPTY_TAGS[tag]


def test_a_tagged_key_is_refused():
    line, message = refused("a: 1\n!!python/name:os.system x: 2\n")
    assert line == 2
    assert "tag" in message


@pytest.mark.parametrize(
    ("text", "first", "second"),
    [
        ("from: a\nto: b\nfrom: c\n", 1, 3),
        ("x:\n  from: a\n\n  'from': c\n", 2, 4),
        ('x: {from: a,\n  to: b,\n  "from": c}\n', 1, 3),
        ("1: a\n1: b\n", 1, 2),
    ],
)
def test_a_duplicate_key_names_both_lines(text, first, second):
    line, message = refused(text)
    assert line == second
    assert f"line {first}" in message
    assert "duplicate" in message


# Harm.


def test_an_alias_is_the_value_again():
    node = load_yaml("a: &x {b: [1, 2]}\nc: *x\n", "m.yaml")
    assert node.get("c").plain() == {"b": [1, 2]}


def test_an_alias_bomb_is_refused():
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 10)}]" for k in range(1, 12)]
    _, message = refused("\n".join(levels))
    assert str(MAX_NODES) in message


@pytest.mark.parametrize("text", ["a: &x [*x]\n", "a: &x {b: *x}\n", "&x [*x]"])
def test_an_alias_to_itself_is_refused(text):
    line, message = refused(text)
    assert line == 1
    assert message


@pytest.mark.parametrize("depth", [60, 900, 5_000, 100_000])
@pytest.mark.parametrize("piece", ["[", "{a: ", "- ", "? ", "- - ", "[{", "a: [", "&a [", "!!seq ["])
def test_deep_nesting_is_refused(piece, depth):
    _, message = refused(piece * depth)
    assert message


def test_nesting_that_people_write_is_read():
    text = "[" * 20 + "]" * 20
    assert load_yaml(text, "m.yaml").plain() == json.loads(text)


def test_a_large_text_is_refused_before_it_is_parsed():
    _, message = refused("a: " + "x" * 5_000_000)
    assert "characters" in message


def test_long_keys_and_values_do_not_fill_the_screen():
    _, message = refused("a: !" + "x" * 100_000 + " 1")
    assert len(message) < 400
    _, message = refused(f"{'k' * 5000}: 1\n{'k' * 5000}: 2\n")
    assert len(message) < 500


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n"])
def test_an_empty_map_is_refused(text):
    line, _ = refused(text)
    assert line >= 1


@pytest.mark.parametrize("text", ["a: 1\n---\nb: 2\n", "--- a\n--- b\n"])
def test_one_document_only(text):
    refused(text)


@pytest.mark.parametrize(
    "text",
    [
        "a: \x00b",
        "a: \x07",
        "a: *nothing",
        "a: [1, 2",
        "a: {b: 1",
        "a: 'x",
        "\ta: 1",
        "a: b: c",
        "@a: 1",
        "%YAML 9.9\n---\na: 1",
        "a: `x",
    ],
)
def test_what_is_no_yaml_is_refused(text):
    refused(text)


# Hints for the usual slips.


@pytest.mark.parametrize(
    "rule",
    [
        "{from: h.{layer}.w, to: b.{layer}.w}",
        "{from: a, to: b.{layer}.w}",
        "{from: {layer}.w, to: b}",
        "[h.{layer}.w, b]",
        "{from: [q.{layer}, k.{layer}], to: x}",
    ],
)
def test_braces_without_quotes_in_flow_style_say_so(rule):
    """They are a syntax error, or a mapping with an odd key, and then whoever reads the rule says the same."""
    text = f"version: 1\nrules:\n  - {rule}\n"
    try:
        node = load_yaml(text, "m.yaml")
    except MapError as e:
        (problem,) = e.problems
        if problem.origin.line not in (3, 4) or "quotes" not in problem.message:
            pytest.fail(str(problem))
        return
    assert any(isinstance(n.value, dict) and None in [v.value for v in n.value.values()] for n in node.walk())


@pytest.mark.parametrize("pattern", [r'"encoder\.(?P<x>.+)"', r'"a\d"', r'"\w+"', r'"h\.0\.w"'])
def test_a_bad_escape_says_to_use_single_quotes(pattern):
    line, message = refused(f"rules:\n  - to: x\n    match: {pattern}\n")
    assert line == 3
    assert "single quotes" in message
