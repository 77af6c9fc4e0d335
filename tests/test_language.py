"""The map language, sentence by sentence: each promise of its reference as a small example, both ways where it has two."""

import json

import ml_dtypes
import numpy as np
import pytest
from lab import Lab, arr, metadata, read, same, write

import converter
from converter.errors import Problem
from converter.forms import Form
from converter.mapfile import load_map, read_map
from converter.verify import folded

LAYERS = "indices: {i: n}\n"
HEAD = "rules: [{from: e, to: E, shape: v d}, {from: h, to: H, shape: v d, tied: e%s}]"


@pytest.fixture
def lab(tmp_path):
    return Lab(tmp_path)


def f16(*values):
    return np.array(values, "<f2")


def f32(*values):
    return np.array(values, "<f4")


# Names


def test_zero_padding_is_written_and_read_as_stated(lab):
    m = LAYERS + "rules: [{from: 'h.{i:02}.w', to: 'b.{i}.w', shape: d}]"
    t = {f"h.{i:02}.w": arr(2, start=i) for i in range(102)}
    lab.both(m, t, {f"b.{i}.w": t[f"h.{i:02}.w"] for i in range(102)})
    lab.fails(m, {"h.00.w": arr(2), "h.1.w": arr(2)}, 1, "h.1.w: unexpected")


def test_07_is_not_7(lab):
    m = LAYERS + "rest: keep\nrules: [{from: 'h.{i}.w', to: 'b.{i}.w', shape: d}]"
    r = lab.gives(m, {"h.0.w": arr(2), "h.01.w": arr(3)}, {"b.0.w": arr(2), "h.01.w": arr(3)})
    assert "kept: h.01.w" in r.out


def test_digits_of_other_scripts_are_no_digits(lab):
    m = LAYERS + "rules: [{from: 'h.{i}.w', to: 'b.{i}.w', shape: d}]"
    lab.fails(m, {"h.0.w": arr(2), "h.١.w": arr(2)}, 1, "h.١.w: unexpected")


def test_a_polynomial_may_stand_on_either_side(lab):
    m = "indices: {i: n, j: m}\nrules: [{from: 'h.{i+1}.{j}.w', to: 'b.{m*i+j}.w', shape: d}]"
    t = {f"h.{i + 1}.{j}.w": arr(2, start=10 * i + j) for i in range(3) for j in range(4)}
    want = {f"b.{4 * i + j}.w": t[f"h.{i + 1}.{j}.w"] for i in range(3) for j in range(4)}
    lab.both(m, t, want, "--set", "m=4")
    lab.fails(m, want, 1, "--set m=", flags=["--reverse"])


def test_a_solved_size_may_stand_in_an_output_name(lab):
    lab.gives("rules: [{from: h, to: 'b.{d}', shape: d}]", {"h": arr(7)}, {"b.7": arr(7)})


@pytest.mark.parametrize(
    ("indices", "name", "code"),
    [
        ("{i: 3, j: 2}", "h.{i+j}", 2),
        ("{i: 3, j: 4}", "h.{3*i+j}", 2),
        ("{i: 3, j: 2}", "h.{i*j}", 2),
        ("{i: 3, j: 2}", "h.{i//2}.{j}", 2),
        ("{i: 3, j: 2}", "h.{i:3}.{j}", 2),
        ("{i: 3, j: 2}", "h.{i}.{k}", 2),
        ("{i: 3, j: 2}", "h.{i.{j}", 2),
        ("{i: 3, j: 2}", "h.i}.{j}", 2),
        ("{i: 3, j: 2}", "h.{}.{j}", 2),
        ("{i: 3, j: 2}", "", 2),
    ],
)
def test_names_that_cannot_be(lab, indices, name, code):
    m = f"indices: {indices}\nrules: [{{from: '{name}', to: 'b.{{i}}.{{j}}', shape: d}}]"
    lab.fails(m, {"h.0": arr(2)}, code, "map.yaml:4: ")


def test_a_polynomial_that_is_ambiguous_only_for_these_sizes(lab):
    m = "indices: {i: n, j: m}\nrules: [{from: 'h.{i}.{j}.w', to: 'b.{2*i+j}.w', shape: d}]"
    t = {f"h.{i}.{j}.w": arr(2, start=10 * i + j) for i in range(3) for j in range(2)}
    lab.gives(m, t, {f"b.{2 * i + j}.w": t[f"h.{i}.{j}.w"] for i in range(3) for j in range(2)})
    lab.fails(m, t | {f"h.{i}.2.w": arr(2) for i in range(3)}, 1, "map.yaml:4: ")


def test_a_count_is_one_more_than_the_highest_index_and_drops_do_not_count(lab):
    m = LAYERS + r"drop: {from: [{match: 'h\.\d+\.mask'}]}" + "\nrules: [{from: 'h.{i}.w', to: 'b.{i}', shape: d}]"
    lab.gives(m, {"h.0.w": arr(1), "h.1.w": arr(2)[1:], "h.5.mask": arr(1)}, {"b.0": arr(1), "b.1": arr(2)[1:]})
    lab.fails(m, {"h.0.w": arr(1), "h.3.w": arr(1)}, 1, "h.{1..2}.w (2): missing")


@pytest.mark.parametrize(
    ("count", "flags"),
    [("n", ["--config", "c.json"]), ("30000000", []), ("n", [])],
)
def test_a_count_out_of_all_proportion_is_never_an_expansion(lab, count, flags):
    (lab / "c.json").write_text('{"n": 30000000}')
    m = f"params: {{n: {{config: n}}}}\nindices: {{i: {count}}}\nrules: [{{from: 'h.{{i}}.w', to: 'b.{{i}}'}}]"
    t = {"h.0.w": arr(1)} | ({} if flags or count != "n" else {"h.30000000.w": arr(1)})
    err = lab.fails(m, t, 1, flags=[f if f != "c.json" else lab / f for f in flags])
    assert len(err) < 1000


def test_only_set_may_exceed_it(lab):
    m = LAYERS + "rules: [{from: 'h.{i}.w', to: 'b.{i}', shape: d}]"
    lab.fails(m, {"h.0.w": arr(1)}, 1, "h.{1..4999}.w (4999): missing", flags=["--set", "n=5000"])


def test_a_typed_billion_ends_in_one_line(lab):
    m = LAYERS + "rules: [{from: 'h.{i}.w', to: 'b.{i}', shape: d}]"
    assert len(lab.fails(m, {"h.0.w": arr(1)}, 1, "1000000000", flags=["--set", "n=1000000000"])) < 1000


def test_a_number_of_thousands_of_digits_is_just_a_name(lab):
    m = LAYERS + "rules: [{from: 'h.{i}.w', to: 'b.{i}', shape: d}]"
    err = lab.fails(m, {"h.0.w": arr(1), "h." + "9" * 5000 + ".w": arr(1)}, 1, "h.999")
    assert len(err) < 2500


def test_labels_from_a_mapping_have_a_value_for_each_side(lab):
    m = "indices: {i: n, p: {weight: scale, bias: shift}}\nrules: [{from: 'h.{i}.{p}', to: 'b.{i}.{p}', shape: d}]"
    t = {f"h.{i}.{p}": arr(2, start=10 * i + len(p)) for i in range(2) for p in ("weight", "bias")}
    names = {"weight": "scale", "bias": "shift"}
    lab.both(m, t, {f"b.{i}.{names[p]}": t[f"h.{i}.{p}"] for i in range(2) for p in names})


def test_in_expressions_a_label_is_its_key(lab):
    m = "indices: {p: {q: x, k: y}}\nrules: [{from: 'a.{p}', to: 'b.{p}', when: p == 'q'}]"
    lab.both(m, {"a.q": arr(2)}, {"b.x": arr(2)})


@pytest.mark.parametrize("labels", ["[q, q]", "{q: x, k: x}", "1.5", "", "-1", "[]", "[q, no]"])
def test_bad_indices_are_one_problem(lab, labels):
    err = lab.fails(f"indices: {{p: {labels}}}\nrules: [{{from: 'h.{{p}}', to: 'b.{{p}}'}}]", {"h.q": arr(1)}, 2)
    assert err.startswith("map.yaml:3: ")
    assert "not an index" not in err


def test_dots_as_underscores_must_stay_distinct(lab):
    m = "indices: {w: [to.q, to.out.0]}\nrules: [{from: 'u.{w}', to: 'l_{w:_}', shape: d}]"
    t = {"u.to.q": arr(2), "u.to.out.0": arr(3)[1:]}
    lab.both(m, t, {"l_to_q": t["u.to.q"], "l_to_out_0": t["u.to.out.0"]})
    m = m.replace("to.q", "to.out_0")
    lab.fails(m, {"u.to.out_0": arr(2), "u.to.out.0": arr(2)}, 2, "map.yaml:")


def test_ragged_counts_are_checked(lab):
    m = "params: {depths: [1, 2]}\nindices: {b: 2, t: 'depths[b]'}\nrules: [{from: 'h.{b}.{t}', to: 'x.{b}.{t}', shape: d}]"
    t = {"h.0.0": arr(2), "h.1.0": arr(2, start=3), "h.1.1": arr(2, start=6)}
    lab.both(m, t, {k.replace("h", "x"): v for k, v in t.items()})
    lab.fails(m, t | {"h.0.1": arr(2)}, 1, "map.yaml:5: h.0.1: unexpected: t = 1 is out of range")


def test_ragged_stacks_have_a_size_of_their_own(lab):
    m = "params: {depths: [1, 3]}\nindices: {b: 2, t: 'depths[b]'}\nrules: [{from: 'h.{b}.{t}', to: 'x.{b}', shape: d, ops: [{stack: t}]}]"
    t = {f"h.{b}.{k}": arr(2, start=10 * b + k) for b, n in enumerate((1, 3)) for k in range(n)}
    lab.both(m, t, {"x.0": t["h.0.0"][None], "x.1": np.stack([t[f"h.1.{k}"] for k in range(3)])})


def test_a_ragged_count_needs_its_index_in_the_name(lab):
    m = "params: {depths: [1, 2]}\nindices: {b: 2, t: 'depths[b]'}\nrules: [{from: 'h.{t}', to: 'x.{t}', shape: d}]"
    lab.fails(m, {"h.0": arr(2)}, 2, "map.yaml:5: ")


def test_labels_are_literal_and_longest_where_one_begins_with_another(lab):
    m = "indices: {k: [a, ab, abc, 'a.b', '(x']}\nrules: [{from: 'n{k}c', to: 'b.{k}'}]"
    t = {f"n{k}c": arr(1, start=i) for i, k in enumerate(("a", "ab", "abc", "a.b", "(x"))}
    lab.both(m, t, {f"b.{k[1:-1]}": v for k, v in t.items()})


@pytest.mark.parametrize(
    ("indices", "name"),
    [
        ("{i: 2, j: 12}", "n{i}{j}"),
        ("{i: [a, ab], j: [c, bc]}", "n{i}{j}"),
        ("{i: [q, v], j: 2}", "n.{i+1}.{j}"),
        ("{i: [1.5, 2], j: 2}", "n.{i}.{j}"),
    ],
)
def test_names_that_could_be_read_in_two_ways(lab, indices, name):
    m = f"indices: {indices}\nrules: [{{from: '{name}', to: 'b.{{i}}.{{j}}'}}]"
    lab.fails(m, {"n00": arr(1)}, 2, "map.yaml:")


def test_whole_number_labels_compute(lab):
    m = "indices: {k: [1, 2, 10]}\nrules: [{from: 'a.{k}', to: 'b.{k+1}', when: k > 1}, {from: a.1, to: c}]"
    lab.both(m, {"a.1": arr(1), "a.2": arr(2), "a.10": arr(3)}, {"c": arr(1), "b.3": arr(2), "b.11": arr(3)})


def test_a_mapping_may_swap(lab):
    m = "indices: {p: {q: k, k: q}}\nrules: [{from: 'x.{p}', to: 'x.{p}'}]"
    lab.both(m, {"x.q": arr(1), "x.k": arr(2)}, {"x.k": arr(1), "x.q": arr(2)})


def test_an_index_may_stand_twice_in_a_name(lab):
    m = LAYERS + "rules: [{from: 'l.{i}.x.{i}', to: 'b.{i}'}]"
    lab.both(m, {"l.0.x.0": arr(1), "l.1.x.1": arr(2)}, {"b.0": arr(1), "b.1": arr(2)})
    lab.fails(m, {"l.0.x.0": arr(1), "l.1.x.2": arr(2)}, 1, "l.1.x.2: unexpected")


# Spellings


@pytest.mark.parametrize("there", ["gamma", "weight"])
@pytest.mark.parametrize("form", ["{any: [weight, gamma]}", "{name: {any: [weight, gamma]}, shape: d}"])
def test_the_spelling_that_is_there_is_read_and_the_first_is_written(lab, form, there):
    m = f"rules: [{{from: {form}, to: scale}}]"
    lab.gives(m, {there: arr(2)}, {"scale": arr(2)})
    lab.gives(m, {"scale": arr(2)}, {"weight": arr(2)}, "--reverse")


def test_both_spellings_are_one_problem(lab):
    m = "rules: [{from: {any: [weight, gamma]}, to: scale}]"
    err = lab.fails(m, {"weight": arr(2), "gamma": arr(2)}, 1, "weight", "gamma")
    assert len(err.splitlines()) == 2, err


def test_a_missing_tensor_is_named_with_all_its_spellings(lab):
    lab.fails(
        "rules: [{from: {any: [w, g]}, to: s}, {from: a, to: b}]", {"a": arr(1)}, 1, "map.yaml:3: w: missing", "g"
    )


def test_spellings_on_the_to_side(lab):
    m = "rules: [{from: a, to: {any: [x, y]}}]"
    lab.both(m, {"a": arr(2)}, {"x": arr(2)})
    lab.gives(m, {"y": arr(2)}, {"a": arr(2)}, "--reverse")


def test_the_same_spelling_twice_is_an_error_of_the_map(lab):
    lab.fails("rules: [{from: {any: [g, g]}, to: b}]", {"g": arr(1)}, 2, "map.yaml:3: ", "g")


def test_groups_choose_their_spelling_each_for_itself(lab):
    m = """
    rules:
      - {from: {any: [m., '']}, to: '', rules: [{from: a, to: x}]}
      - {from: {any: [m., '']}, to: z., rules: [{from: b, to: y}]}
    """
    lab.gives(m, {"m.a": arr(2), "b": arr(3)}, {"x": arr(2), "z.y": arr(3)})


# Jinja2


@pytest.mark.parametrize(
    ("expression", "name"),
    [("m", "dec"), ("m ~ 'oder'", "decoder"), ("'x' if k == 2 else 'y'", "x"), ("k + 1", "3"), ("l[0]", "a")],
)
def test_jinja_values(lab, expression, name):
    m = f'params: {{m: dec, k: 2, l: [a, b]}}\nrules: [{{from: "{{{{ {expression} }}}}.w", to: w}}]'
    lab.gives(m, {f"{name}.w": arr(2)}, {"w": arr(2)})


def test_jinja_takes_set_and_config(lab):
    m = "params: {m: {config: m, default: x}}\nrules: [{from: '{{ m }}.w', to: w}]"
    lab.gives(m, {"x.w": arr(2)}, {"w": arr(2)})
    lab.gives(m, {"y.w": arr(2)}, {"w": arr(2)}, "--set", "m=y")
    (lab / "c.json").write_text('{"m": "z"}')
    lab.gives(m, {"z.w": arr(2)}, {"w": arr(2)}, "--config", lab / "c.json")


def test_jinja_in_a_shape(lab):
    m = "params: {m: 2}\nrules: [{from: x, to: y, shape: '{{ m }} d'}]"
    lab.both(m, {"x": arr(2, 3)}, {"y": arr(2, 3)})
    lab.fails(m, {"x": arr(3, 3)}, 1, "map.yaml:4: x: shape is [3, 3], expected [2, d]")


@pytest.mark.parametrize(
    "expression",
    [
        "nope",
        "range(9)",
        "9**9**9",
        "''.__class__",
        "m.__class__",
        "m | upper",
        "m is defined",
        "'x' * 1000000000",
        "[0] * 1000000000",
        "'%999999999d' % 1",
        "1 // 0",
        "m }",
        "self",
        "cycler",
    ],
)
def test_jinja_has_no_way_out(lab, expression):
    m = f'params: {{m: dec}}\nrules: [{{from: "{{{{ {expression} }}}}.w", to: w}}]'
    err = lab.fails(m, {"w": arr(1)}, 2, "map.yaml:4: ")
    assert len(err) < 300


@pytest.mark.parametrize("text", ["{% for i in range(9) %}x{% endfor %}", "{# note #}w", "{% set x = 1 %}w"])
def test_jinja_statements_are_not_part_of_it(lab, text):
    lab.fails(f"rules: [{{from: '{text}', to: w}}]", {"w": arr(1)}, 2, "map.yaml:3: ")


# Regex renames


def test_a_rename_inverts_itself(lab):
    m = r"rules: [{match: 'encoder\.(?P<rest>.+)', to: 'enc.{rest}'}]"
    lab.both(m, {"encoder.a.b": arr(2), "encoder.c": arr(3)}, {"enc.a.b": arr(2), "enc.c": arr(3)})


@pytest.mark.parametrize("odd", ["encoder.1x", "xencoder.1", "encoder.1.encoder.1", "encoder.1\n", "encoder."])
def test_patterns_take_whole_names_only(lab, odd):
    rename = r"rules: [{match: 'encoder\.(?P<n>\d+)', to: 'enc.{n}'}]"
    lab.fails(rename, {"encoder.1": arr(2), odd: arr(2)}, 1, "unexpected: no rule names it")
    drop = r"drop: {from: [{match: 'encoder\.\d+'}]}" + "\nrules: [{from: a, to: b}]"
    lab.fails(drop, {"a": arr(1), "encoder.1": arr(2), odd: arr(2)}, 1, "unexpected: no rule names it")


def test_renames_swap_at_once(lab):
    m = r"rules: [{match: 'a\.(?P<r>.+)', to: 'b.{r}'}, {match: 'b\.(?P<r>.+)', to: 'a.{r}'}]"
    lab.both(m, {"a.x": arr(2), "b.x": arr(3)}, {"b.x": arr(2), "a.x": arr(3)})


def test_a_rename_with_its_own_reverse(lab):
    m = r"rules: [{match: 'm\.(?P<a>x|y)\.?b', to: '{a}.b', reverse: {match: '(?P<a>.+)\.b', to: 'm.{a}.b'}}]"
    lab.both(m, {"m.x.b": arr(2)}, {"x.b": arr(2)})


@pytest.mark.parametrize(
    ("match", "to", "name"),
    [
        (r"(?P<a>x|y)\.?b", "{a}", "x.b"),
        (r"(?P<a>x|y)\.b", "b", "x.b"),
        (r"(?P<a>.+)\.b", "{a}.{a}", "x.b"),
        (r"(?P<a>ab)+", "x{a}", "abab"),
        (r"(?i)X(?P<a>.*)", "q{a}", "x.b"),
    ],
)
def test_a_rename_that_loses_information_is_one_way(lab, match, to, name):
    m = f"rules: [{{match: '{match}', to: '{to}'}}]"
    r, _ = lab.convert(m, {name: arr(2)})
    assert r.code == 0
    lab.fails(m, {"q": arr(2)}, 2, "map.yaml:3: cannot --reverse", "reverse: {match, to}", flags=["--reverse"])
    assert "one-way" in lab.run("check", lab / "map.yaml").out


@pytest.mark.parametrize(
    ("match", "to"),
    [
        (r"e\.(?P<r>.+)", r"x.\1"),
        (r"e\.(?P<r>.+)", "x.{s}"),
        (r"e\.(?P<r>.+)", "x.{r"),
        (r"m(?!\.v).*", "b"),
        (r"(?P<a>.)(?P=a)", "{a}"),
        (r"(", "b"),
        (r"(?P<a>x{900}{900}{900})", "{a}"),
    ],
)
def test_renames_that_cannot_be(lab, match, to):
    lab.fails(f"rules: [{{match: '{match}', to: '{to}'}}]", {"e.a": arr(1)}, 2, "map.yaml:3: ")


def test_patterns_take_linear_time(lab):
    err = lab.fails("rules: [{match: '(?P<a>(?:x+x+)+y)', to: '{a}'}]", {"x" * 3000: arr(1)}, 1, "matches no tensor")
    assert len(err) < 2500, "long names are clipped"


def test_a_rename_that_does_not_come_back_is_said(lab):
    m = r"rules: [{match: '(?P<p>.+)\.(?P<q>.+)', to: '{q}.{p}'}]"
    lab.both(m, {"a.b": arr(2)}, {"b.a": arr(2)})
    r, _ = lab.convert(m, {"a.b.c": arr(2)})
    assert "b.c.a" in r.err + r.out


def test_renames_stand_at_the_top_only_and_take_no_ops(lab):
    m = "rules: [{from: a., to: b., rules: [{match: '(?P<a>.+)', to: 'r{a}'}]}]"
    lab.fails(m, {"a.x": arr(1)}, 2, "map.yaml:3: ", "top level")
    lab.fails("rules: [{match: '(?P<a>.+)', to: 'r{a}', ops: [transpose]}]", {"a": arr(1)}, 2, "unknown key 'ops'")


@pytest.mark.parametrize(
    ("rules", "code"),
    [
        ("[{from: a, to: x}, {from: a, to: y}]", 2),
        ("[{from: a, to: x}, {from: b, to: x}]", 2),
        ("[{from: 'a.{i}', to: 'x.{i}'}, {from: 'a.{j}', to: 'y.{j}'}]", 2),
        ("[{from: 'a.{i}', to: 'x.{i}'}, {from: 'b.{j}', to: 'x.{j}'}]", 2),
        ("[{from: 'a.{i}', to: 'x.{i}'}, {from: a.0, to: y}]", 1),
        (r"[{match: 'a\.(?P<x>.+)', to: 'r{x}'}, {match: 'a\.0(?P<x>.*)', to: 's{x}'}]", 1),
        (r"[{match: 'a\.(?P<x>.+)', to: 'r{x}'}, {match: 'a\.(?P<x>.+)', to: 's{x}'}]", 2),
        (r"[{match: 'a\.(?P<x>.+)', to: 'r{x}'}, {match: 'b\.(?P<x>.+)', to: 'r{x}'}]", 1),
    ],
)
def test_two_rules_for_one_tensor(lab, rules, code):
    err = lab.fails(f"indices: {{i: n, j: m}}\nrules: {rules}", {"a.0": arr(1), "b.0": arr(1)}, code)
    assert err.count("map.yaml:4") >= (2 if code == 2 else 1)


# Who claims a name


def test_literal_over_regex_and_drop_over_regex(lab):
    m = r"""
    drop: {from: [{match: 'x\..*'}]}
    rules: [{match: '(?P<n>.+)', to: 'z.{n}'}, {from: b, to: q}]
    """
    r = lab.gives(m, {"a": arr(2), "b": arr(3), "x.1": arr(1)}, {"z.a": arr(2), "q": arr(3)})
    assert "dropped: x.1" in r.out


@pytest.mark.parametrize(
    "rest", ["rest: keep\nrules: [", "rules: [{match: '(?P<n>.+)', to: 'z.{n}'}, ", "rest: drop\nrules: ["]
)
@pytest.mark.parametrize(
    ("rule", "name", "why"),
    [
        ("{from: 'h.{i}', to: 'b.{i}'}", "h.2", "i = 2 is out of range"),
        ("{from: 'h.{i+1}', to: 'b.{i}'}", "h.0", "h.{i+1}"),
        ("{from: 'h.{i}', to: 'b.{i}', when: i != 1}", "h.1", "when is false: i != 1"),
        ("{from: 'h.{i}', to: 'b.{i}', when: \"t[i] == 'full'\"}", "h.1", "t[1] is 'win'"),
    ],
)
def test_a_name_of_a_templates_form_never_hides(lab, rest, rule, name, why):
    m = f"indices: {{i: 2}}\nparams: {{t: [full, win]}}\n{rest}{rule}, {{from: a, to: x}}]"
    t = {"h.0": arr(1), "h.1": arr(1), "h.2": arr(1), "a": arr(1), "other": arr(1)}
    lab.fails(m, t, 1, f"{name}: unexpected: ", why)


def test_a_pattern_drop_takes_what_is_out_of_range_and_not_what_is_in_range(lab):
    m = r"drop: {from: [{match: 'h\..*'}]}" + "\nindices: {i: 2}\nrules: [{from: 'h.{i}', to: 'b.{i}', shape: d}]"
    t = {f"h.{i}": arr(2, start=i) for i in range(4)}
    r = lab.gives(m, t, {"b.0": t["h.0"], "b.1": t["h.1"]})
    assert "dropped: h.{2..3} (2)" in r.out


def test_order_of_rules_never_matters(lab):
    rules = ["{from: a, to: b}", "{from: b, to: c}", "{match: '(?P<x>.+)', to: 'z.{x}'}", "{from: c, to: a}"]
    t = {k: arr(2, start=10 * i) for i, k in enumerate("abcd")}
    for turn in range(4):
        turned = ", ".join(rules[turn:] + rules[:turn])
        lab.gives(f"rules: [{turned}]", t, {"b": t["a"], "c": t["b"], "a": t["c"], "z.d": t["d"]})


# Strip, drop, rest


def test_strip_on_either_side_is_never_written(lab):
    m = "strip: {from: [m.], to: [n.]}\nrules: [{from: a, to: b}]"
    r = lab.gives(m, {"m.a": arr(2)}, {"b": arr(2)})
    assert "stripped: prefix 'm.' of 1 name" in r.out
    lab.gives(m, {"n.b": arr(2)}, {"a": arr(2)}, "--reverse")
    lab.gives(m, {"a": arr(2)}, {"b": arr(2)})


def test_reports_give_the_name_as_the_file_has_it(lab):
    m = "strip: {from: [m.]}\ndrop: {from: [x]}\nrules: [{from: a, to: b}]"
    r = lab.gives(m, {"m.a": arr(2), "m.x": arr(1)}, {"b": arr(2)})
    assert "dropped: m.x" in r.out
    lab.fails(m, {"m.a": arr(2), "m.y": arr(1)}, 1, "in.safetensors: m.y: unexpected")


def test_strip_that_makes_two_of_one(lab):
    lab.fails("strip: {from: [m.]}\nrules: [{from: a, to: b}]", {"a": arr(2), "m.a": arr(2)}, 1, "a and as m.a")


def test_a_rule_below_a_stripped_prefix_can_never_match(lab):
    lab.fails("strip: {from: [m.]}\nrules: [{from: m.a, to: b}]", {"m.a": arr(2)}, 2, "map.yaml:4: ", "m.")
    lab.fails("strip: {from: ['']}\nrules: [{from: a, to: b}]", {"a": arr(2)}, 2, "map.yaml:3: ")


def test_a_segment_is_taken_out_wherever_it_stands(lab):
    m = "strip: {from: [m., {segment: w}]}\nindices: {i: n}\nrules: [{from: 'h.{i}.x', to: 'b.{i}.x'}, {from: aw, to: aw}]"
    t = {"m.w.h.0.x": arr(2), "h.1.w.x": arr(2, start=2), "w.h.w.2.w.x.w": arr(2, start=4), "aw": arr(1)}
    want = {f"b.{i}.x": arr(2, start=2 * i) for i in range(3)} | {"aw": arr(1)}
    r = lab.gives(m, t, want)
    assert "stripped: prefix 'm.' of 1 name\nstripped: segment 'w' of 3 names\n" in r.out
    back = lab.convert(m, want, "--reverse")[1]
    assert sorted(read(back)) == ["aw", "h.0.x", "h.1.x", "h.2.x"]
    lab.fails(m, {"h.0.x": arr(2), "h.0.w.x": arr(2), "aw": arr(1)}, 1, "h.0.x and as h.0.w.x", "become b.0.x")
    lab.gives(
        "strip: {from: [{segment: w}]}\nrest: keep\nrules: []", {"w": arr(1), "a.w": arr(2)}, {"w": arr(1), "a": arr(2)}
    )


@pytest.mark.parametrize("segment", ["''", "a.b", "[x]", "1"])
def test_a_segment_that_is_none(lab, segment):
    lab.fails(
        f"strip: {{from: [{{segment: {segment}}}]}}\nrules: [{{from: a, to: b}}]", {"a": arr(1)}, 2, "map.yaml:3: "
    )


def test_a_rule_with_a_stripped_segment_can_never_match(lab):
    m = "strip: {from: [{segment: w}]}\nrules: [{from: a.w.b, to: b}]"
    lab.fails(m, {"a.w.b": arr(2)}, 2, "map.yaml:4: 'a.w.b' has the segment 'w'")


def test_strip_and_rest(lab):
    m = "strip: {from: [m.]}\nrest: keep\nrules: [{from: a, to: b}]"
    lab.gives(m, {"m.a": arr(2), "m.x": arr(1), "y": arr(1)}, {"b": arr(2), "x": arr(1), "y": arr(1)})
    lab.fails(m, {"m.a": arr(2), "m.x": arr(1), "x": arr(1)}, 1, "m.x and as x")


def test_drop_is_of_a_side(lab):
    m = "drop: {from: [x], to: [y]}\nrules: [{from: a, to: b}]"
    lab.gives(m, {"a": arr(2), "x": arr(1)}, {"b": arr(2)})
    lab.gives(m, {"b": arr(2), "y": arr(1)}, {"a": arr(2)}, "--reverse")
    lab.fails(m, {"b": arr(2), "x": arr(1)}, 1, "x: unexpected", flags=["--reverse"])


def test_a_drop_whose_index_has_no_other_use(lab):
    m = "indices: {j: m}\ndrop: {from: ['h.{j}']}\nrules: [{from: a, to: b}]"
    r = lab.gives(m, {"a": arr(2), "h.0": arr(1), "h.5": arr(1)}, {"b": arr(2)})
    assert "2 dropped" in r.out


@pytest.mark.parametrize("rule", ["{from: 'a.{i}', to: 'b.{i}', shape: d}", r"{match: 'a\.(?P<x>\d+)', to: 'b.{x}'}"])
def test_a_kept_name_must_not_pass_for_one_of_the_other_side(lab, rule):
    m = f"indices: {{i: n}}\nrest: keep\nrules: [{rule}]"
    lab.both(m, {"a.0": arr(2), "c": arr(1)}, {"b.0": arr(2), "c": arr(1)})
    lab.fails(m, {"a.0": arr(2), "b.5": arr(1)}, 1, "b.5")
    lab.fails(m, {"b.0": arr(2), "a.5": arr(1)}, 1, "a.5", flags=["--reverse"])


def test_unmatched_overrides_rest(lab):
    t = {"a": arr(1), "x": arr(2)}
    lab.fails("rest: drop\nrules: [{from: a, to: b}]", t, 1, "x: unexpected", flags=["--unmatched", "error"])
    lab.gives("rest: drop\nrules: [{from: a, to: b}]", t, {"b": arr(1), "x": arr(2)}, "--unmatched", "keep")


# Shapes and sizes


@pytest.mark.parametrize(
    ("shape", "of"),
    [
        ("p 2*p", (2, 4)),
        ("[p, 2*p]", (2, 4)),
        ("[2, 4]", (2, 4)),
        ("2", (2,)),
        ("[]", ()),
        ("(q+2)*3", (12,)),
        ("q*q", (9,)),
        ("0 d", (0, 4)),
        ("q+8", (8,)),
    ],
)
def test_shapes_that_hold(lab, shape, of):
    shape = shape if shape[0] == "[" else f"'{shape}'"
    lab.both(f"rules: [{{from: x, to: y, shape: {shape}}}]", {"x": arr(*of)}, {"y": arr(*of)})


@pytest.mark.parametrize(
    ("shape", "of"),
    [("p q r", (8,)), ("[]", (1,)), ("3*q", (8,)), ("q+10", (8,)), ("q*q", (8,)), ("2*p p", (5, 2)), ("p p", (2, 3))],
)
def test_shapes_that_do_not_hold(lab, shape, of):
    shape = shape if shape[0] == "[" else f"'{shape}'"
    m = f"rules: [{{from: x, to: y, shape: {shape}}}]"
    lab.fails(m, {"x": arr(*of)}, 1, "map.yaml:3: x: shape is [")
    lab.fails(m, {"y": arr(*of)}, 1, "map.yaml:3: y: shape is [", flags=["--reverse"])


@pytest.mark.parametrize("shape", ["p, q", "p-1", "p//2", "-1", "q**2", "q + 2 d", "9999999999999999999999*q", "d ++"])
def test_shapes_that_cannot_be(lab, shape):
    lab.fails(f"rules: [{{from: x, to: y, shape: '{shape}'}}]", {"x": arr(2)}, 2, "map.yaml:3: ")


def test_sizes_are_solved_over_the_whole_file(lab):
    m = "rules: [{from: x, to: y, shape: q+2*kv}, {from: z, to: w, shape: kv}, {from: u, to: u, shape: q}]"
    t = {"x": arr(8), "z": arr(2), "u": arr(4)}
    lab.both(m, t, {"y": arr(8), "w": arr(2), "u": arr(4)})
    lab.fails(m, t | {"u": arr(5)}, 1, "x: shape is [8]", "kv = 2 (from z)", "q = 5 (from u)")


def test_a_contradiction_says_where_the_other_value_is_from(lab):
    m = LAYERS + "rules: [{from: e, to: e, shape: v d}, {from: 'h.{i}', to: 'b.{i}', shape: d}]"
    t = {"e": arr(7, 4)} | {f"h.{i}": arr(4) for i in range(12)}
    lab.fails(m, t | {"h.3": arr(5)}, 1, "map.yaml:4: h.3: shape is [5], expected [d] with d = 4 (from ")
    err = lab.fails(m, t | {"e": arr(7, 3)}, 1, "e: shape is [7, 3]", "d = 4 (from h.")
    assert len(err.splitlines()) == 2


@pytest.mark.parametrize("to", ["p q", "3 p", "q 3*p"])
def test_a_shape_on_a_to_term_is_checked(lab, to):
    m = f"rules: [{{from: {{name: x, shape: p q}}, to: {{name: y, shape: {to}}}, ops: [transpose]}}]"
    err = lab.fails(m, {"x": arr(2, 4)}, 1 if to != "p q q" else 2, "map.yaml:3: ")
    assert "y" in err


def test_a_shape_on_a_to_term_that_holds(lab):
    m = "rules: [{from: {name: x, shape: p q}, to: {name: y, shape: q p}, ops: [transpose]}]"
    lab.both(m, {"x": arr(2, 4)}, {"y": arr(2, 4).T})


def test_local_sizes(lab):
    m = LAYERS + "rules: [{from: 'x.{i}', to: 'y.{i}', shape: _p _p}]"
    lab.both(m, {"x.0": arr(2, 2), "x.1": arr(3, 3)}, {"y.0": arr(2, 2), "y.1": arr(3, 3)})
    lab.fails(m, {"x.0": arr(2, 2), "x.1": arr(3, 2)}, 1, "x.1: shape is [3, 2], expected [_p, _p]")


def test_local_sizes_where_an_anchor_reuses_a_block(lab):
    m = """
    rules:
      - {from: a., to: x., rules: &block [{from: u, to: u, shape: _f d}, {from: v, to: v, shape: d}]}
      - {from: b., to: y., rules: *block}
    """
    t = {"a.u": arr(2, 3), "a.v": arr(3), "b.u": arr(5, 3), "b.v": arr(3, start=3)}
    lab.both(m, t, {f"{'x' if k[0] == 'a' else 'y'}{k[1:]}": v for k, v in t.items()})


@pytest.mark.parametrize("value", ["abc", "", "8.5", "-8"])
def test_a_size_that_is_no_size_ends_in_one_line(lab, value):
    m = "rules: [{from: x, to: y, shape: p}]"
    lab.fails(m, {"x": arr(8)}, 1 if value == "-8" else 2, "p", flags=["--set", f"p={value}"])


@pytest.mark.parametrize(("value", "shown"), [("abc", "'abc'"), ("8.5", "'8.5'"), ("-8", "-8"), ("[8]", "[8]")])
def test_a_count_that_is_none_says_where_it_is_from(lab, value, shown):
    says = f"map.yaml:3: layer has {shown} values, not a number of them (n from --set)"
    m = "indices: {layer: n}\nrules: [{from: 'x.{layer}', to: 'y.{layer}', shape: p}]"
    lab.fails(m, {"x.0": arr(8)}, 1 if value == "-8" else 2, says, flags=["--set", f"n={value}"])


def test_an_example_that_is_no_number_is_a_fault_of_the_map(lab):
    count = "indices: {i: n}\nexample: {n: 2*d, d: 3}\nrules: [{from: 'x.{i}', to: 'y.{i}', shape: d}]"
    size = "example: {d: [1]}\nrules: [{from: x, to: y, shape: d}]"
    for m, says in (
        (count, ":3: i has '2*d' values, not a number of them (n from the map's example)"),
        (size, "d is [1] (from the map's example), which is no size (a whole number)"),
    ):
        r = lab.run("check", lab.map(m))
        assert (r.code, says in r.err) == (2, True), r.err
        assert r.err.startswith("map.yaml:3: ")
        r = lab.run("stub", "--map", lab.map(m), lab.output)
        assert (r.code, says in r.err, lab.output.exists()) == (1, True, False), r.err
    r = lab.run("stub", "--map", lab.map(count), "--set", "n=2", lab.output)
    assert r.code == 0, r.err
    r = lab.run("stub", "--map", lab.map(count), "--set", "n=x", lab / "other.safetensors")
    assert (r.code, "i has 'x' values, not a number of them (n from --set)" in r.err) == (2, True), r.err


@pytest.mark.parametrize("value", ['"8"', '"abc"', "8.5", "1e400", "NaN", "[8]"])
def test_a_config_value_that_is_no_size_ends_in_one_line(lab, value):
    (lab / "c.json").write_text(f'{{"p": {value}}}')
    m = "params: {p: {config: p}}\nrules: [{from: x, to: y, shape: p}]"
    err = lab.fails(m, {"x": arr(8)}, 1, "p", "c.json", flags=["--config", lab / "c.json"])
    assert len(err) < 400


def test_config_keys(lab):
    m = "params: {p: {config: %s}}\nrules: [{from: x, to: y, shape: p*q, ops: ['(p q) -> p q']}]"
    for key, doc in (("t.p", {"t": {"p": 2}}), ("[a, b]", {"b": 2}), ("[a, b]", {"a": None, "b": 2}), ("p", {"p": 2})):
        (lab / "c.json").write_text(json.dumps(doc))
        lab.gives(m % key, {"x": arr(8)}, {"y": arr(2, 4)}, "--config", lab / "c.json")
    lab.fails(m % "zz", {"x": arr(8)}, 1, "--set p=", flags=["--config", lab / "c.json"])


def test_each_reads_a_single_value_as_a_list(lab):
    m = "params: {l: {config: l, each: 2}}\nindices: {b: 2, t: 'l[b]'}\nrules: [{from: 'x.{b}.{t}', to: 'y.{b}.{t}'}]"
    t = {f"x.{b}.{t}": arr(1, start=10 * b + t) for b in range(2) for t in range(2)}
    want = {k.replace("x", "y"): v for k, v in t.items()}
    for value, names in ((2, list(t)), ([1, 2], ["x.0.0", "x.1.0", "x.1.1"])):
        (lab / "c.json").write_text(json.dumps({"l": value}))
        lab.gives(
            m,
            {k: t[k] for k in names},
            {k.replace("x", "y"): want[k.replace("x", "y")] for k in names},
            "--config",
            lab / "c.json",
        )
    (lab / "c.json").write_text(json.dumps({"l": [1, 2, 3]}))
    lab.fails(m, t, 1, "l", "3", flags=["--config", lab / "c.json"])


def test_precedence(lab):
    m = "params: {p: {config: p, default: 4}}\nrules: [{from: x, to: y, shape: p*q, ops: ['(p q) -> p q']}]"
    lab.gives(m, {"x": arr(8)}, {"y": arr(4, 2)})
    (lab / "c.json").write_text('{"p": 2}')
    lab.gives(m, {"x": arr(8)}, {"y": arr(2, 4)}, "--config", lab / "c.json")
    lab.gives(m, {"x": arr(8)}, {"y": arr(8, 1)}, "--config", lab / "c.json", "--set", "p=8")


def test_equations_come_before_defaults(lab):
    m = "params: {d: 7}\nrules: [{from: x, to: y, shape: d}]"
    lab.both(m, {"x": arr(8)}, {"y": arr(8)})


def test_an_expression_is_an_equation(lab):
    m = "params: {hd: {expr: d // h}, h: {config: h}}\nrules: [{from: x, to: y, shape: d}, {from: z, to: w, shape: hd}]"
    lab.gives(m, {"x": arr(8), "z": arr(4)}, {"y": arr(8), "w": arr(4)}, "--set", "h=2")
    lab.fails(m, {"x": arr(8), "z": arr(5)}, 1, "hd", "5", "4", flags=["--set", "h=2"])


def test_a_config_stands_in_place_of_an_expression(lab):
    """Head widths are d // h unless a model says otherwise."""
    m = "params: {hd: {config: head_dim, expr: d // h}, h: 2}\nrules: [{from: x, to: y, shape: d}, {from: z, to: w, shape: hd}]"
    for config, hd in ({}, 4), ({"head_dim": 5}, 5):
        (lab / "c.json").write_text(json.dumps(config))
        flags = ["--config", lab / "c.json"]
        lab.gives(m, {"x": arr(8), "z": arr(hd)}, {"y": arr(8), "w": arr(hd)}, *flags)
        lab.fails(m, {"x": arr(8), "z": arr(6)}, 1, f"{hd}", "6", flags=flags)


def test_assumed_values_are_noted_where_something_depends_on_them(lab):
    m = "params: {up: [1, 2]}\nrules: [{from: a, to: b, when: 'up[0] == 1'}]"
    r = lab.gives(m, {"a": arr(1)}, {"b": arr(1)})
    assert "assumed: up = [1, 2]" in r.out
    r = lab.gives(m, {"a": arr(1)}, {"b": arr(1)}, "--set", "up=[1,3]")
    assert "assumed" not in r.out


@pytest.mark.parametrize(
    "when",
    [
        "2 + 3 * 2 - 1 == 7",
        "-7 // 2 == -4 and -7 % 4 == 1",
        "1 < l < 5",
        "(l > 1) + (l > 2) == 2",
        "'a' in s and 'c' not in s",
        "0 if l == 1 else 1",
        "not l == 4",
        "[[1], [2]][1][0] == 2",
        "l in [1, 2, 3] or l == 9",
    ],
)
def test_expressions(lab, when):
    m = f'params: {{l: 3, s: [a, b]}}\nrules: [{{from: a, to: b, when: "{when}"}}]'
    lab.both(m, {"a": arr(1)}, {"b": arr(1)})


@pytest.mark.parametrize(
    "when",
    [
        "__import__('os')",
        "().__class__",
        "9**9**9",
        "lambda: 1",
        "[x for x in [1]]",
        "(l := 1)",
        "l[0:1]",
        "{1: 2}",
        "1j",
        "1 << 100",
        "None",
        "'a' 'b' if",
        "zz == 1",
        "*".join(["999999999"] * 300),
        "(" * 300 + "1" + ")" * 300,
    ],
)
def test_expressions_have_nothing_else(lab, when):
    lab.fails(f'params: {{l: 3}}\nrules: [{{from: a, to: b, when: "{when}"}}]', {"a": arr(1)}, 2, "map.yaml:4: ")


@pytest.mark.parametrize("expr", ["l[5]", "1 // z", "s + 1", "s", "l"])
def test_params_whose_expression_fails(lab, expr):
    m = f"params: {{l: [1, 2], z: 0, s: abc, p: {{expr: '{expr}'}}}}\nrules: [{{from: x, to: y, shape: p}}]"
    r, _ = lab.convert(m, {"x": arr(8)})
    assert r.code in (0, 1, 2)
    assert r.code == 0 or r.err.startswith("map.yaml:3: ")


@pytest.mark.parametrize("when", ["1 // z", "s > 3", "l[5] == 1", "l[-3] == 1", "s[0][0] > 1", "[1] * 1000000000 == 1"])
def test_expressions_that_fail(lab, when):
    m = f'params: {{z: 0, s: abc, l: [1, 2]}}\nrules: [{{from: a, to: b, when: "{when}"}}]'
    r, _ = lab.convert(m, {"a": arr(1)})
    assert r.code in (1, 2)
    assert "map.yaml:4: " in r.err


@pytest.mark.parametrize("when", ["s", "not s", "s and 1", "0 or s", "1 if s else 1"])
def test_text_is_no_condition(lab, when):
    """It would count as true whatever it says: what is set as False with a capital letter, for one."""
    m = f"params: {{s: false}}\nrules: [{{from: a, to: b, when: {when}}}, {{from: c, to: d}}]"
    says = "map.yaml:4: when: s is 'False', a text, which is neither true nor false"
    lab.fails(m, {"a": arr(1), "c": arr(1)}, 1, says, flags=("--set", "s=False"))
    assert lab.convert(m, {"c": arr(1)}, "--set", "s=false")[0].code == int(when in ("not s", "1 if s else 1"))


def test_a_text_is_indexed_by_its_characters(lab):
    """Some configs have a letter for each layer."""
    m = """params: {kind: {config: pattern, default: M*E}}
indices: {i: n}
rules:
  - {from: 'l.{i}.a', to: 'b.{i}', shape: d, when: "kind[i] == '*'"}
  - {from: 'l.{i}.a', to: 'c.{i}', shape: d, when: "kind[i] in 'ME'"}"""
    given = {f"l.{i}.a": arr(3)[i : i + 1] for i in range(3)}
    lab.both(m, given, {"c.0": given["l.0.a"], "b.1": given["l.1.a"], "c.2": given["l.2.a"]})
    says = "when: kind[i]: there is no item 3 in a text of 3 (at i = 3)"
    lab.fails(m, {**given, "l.3.a": arr(1)}, 1, says)


def test_names_share_one_namespace(lab):
    lab.fails("params: {i: 3}\nindices: {i: n}\nrules: [{from: 'x.{i}', to: 'y.{i}'}]", {"x.0": arr(1)}, 2, "map.yaml:")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("from: a,", "from: no,", "'no'"),
        ("from: a,", "from: ~,", "'~'"),
        ("from: a,", "from: 010,", "'010'"),
        ("from: a,", "from: 1:30,", "'1:30'"),
        ("from: a,", "from: 3,", "'3'"),
        ("l: [x, y]", "l: [x, on]", "'on'"),
        ("l: [x, y]", "l: [x, 0o7]", ""),
        ("l: [x, y]", "1: 2", "1"),
        ("version: 1", "version: '1'", "integer 1"),
        ("version: 1", "version: 2", "integer 1"),
        ("version: 1", "version: true", "integer 1"),
        ("from: a,", 'from: "a\\.b",', "single quotes"),
        ("from: a,", "from: !!str a,", "tag"),
        ("from: a,", "from: a, from: c,", "duplicate key 'from'"),
    ],
)
def test_yaml_traps(lab, old, new, says):
    text = "version: 1\nname: test\nparams: {l: [x, y]}\nrules: [{from: a, to: b}]\n"
    (lab / "map.yaml").write_text(text.replace(old, new))
    write(lab.source, {"a": arr(1)})
    r = lab.run("--map", lab / "map.yaml", lab.source, lab.output)
    if says or r.code:
        assert r.code == 2
        assert r.err.startswith("map.yaml:")
        assert says in r.err, r.err


# Rules and groups


def test_terms_with_ops_of_their_own_on_both_sides(lab):
    m = """
    rules:
      - from: [{name: a, shape: p q, ops: [transpose]}, {name: b, shape: r q, ops: [transpose]}]
        to: [{name: y, ops: [transpose]}, z]
        ops: [{concat: 1}, {split: {dim: 1, sizes: [p, r]}}]
    """
    lab.both(m, {"a": arr(2, 4), "b": arr(3, 4)}, {"y": arr(2, 4), "z": arr(3, 4).T})


def test_other_ops_apply_to_each_term(lab):
    m = "rules: [{from: [u, v], to: [y, z], shape: [p d, q d], ops: [transpose]}]"
    lab.both(m, {"u": arr(2, 3), "v": arr(4, 3)}, {"y": arr(2, 3).T, "z": arr(4, 3).T})


@pytest.mark.parametrize(
    "rule",
    [
        "{from: [a, b], to: c, shape: [p, q]}",
        "{from: a, to: [b, c], shape: p}",
        "{from: a}",
        "{to: a}",
        "{from: a, to: b, ops: [{split: {dim: 0, sizes: [1, 1]}}], shape: 2}",
        "{from: [a, b], to: c, shape: [p, q, r], ops: [{concat: 0}]}",
        "{from: {name: a, shape: p}, to: b, shape: p}",
        "{from: 'a.{i}', to: b, shape: p}",
        "{from: a, to: 'b.{i}', shape: p}",
        "{from: 'a.{i}', to: 'b.{i}', shape: p, ops: [{stack: i}]}",
        "{from: a, to: b, shape: p, ops: [{stack: i}]}",
        "{from: a, to: b, when: i == 0}",
        "{from: a, to: b, untied: keep}",
        "{from: a, to: b, shape: p, ops: [transpose]}",
        "{from: a, to: b, shape: p q, ops: ['a b c -> c b a']}",
        "{from: a, to: b, shape: p q, ops: ['(2 2 f) d -> f 2 2 d']}",
        "{from: a, to: b, shape: p q, ops: ['a b -> a']}",
        "{from: a, to: b, shape: p q, ops: [{concat: 2}]}",
        "{from: a, to: b, shape: p q, ops: [{concat: {dm: 0}}]}",
        "{from: a, to: b, shape: p q, ops: [{multiply: 0}]}",
        "{from: a, to: b, shape: p q, ops: [{multiply: .nan}]}",
        "{from: a, to: b, shape: p q, ops: [{order: {dim: 0, to: [0, 2]}}]}",
        "{from: a, to: b, shape: p q, ops: [{pad: {dim: 0}}]}",
        "{from: a, to: b, shape: 4 q, ops: [{split: {dim: 0, sizes: [3, 2]}}]}",
        "{from: a, to: b, shape: p q, ops: [3]}",
        "{from: a, to: b, shape: p q, ops: [{}]}",
        "{from: a, to: b, shape: p q, ops: transpose}",
        "{from: a, to: b, dtype: keeep}",
        "{from: a, to: b, optional: 1}",
    ],
)
def test_rules_that_cannot_be(lab, rule):
    m = f"indices: {{i: n}}\nrules: [{rule}]"
    lab.fails(m, {"a": arr(2, 2)}, 2, "map.yaml:4: ")
    r = lab.run("check", lab / "map.yaml")
    assert r.code == 2
    assert r.err.startswith("map.yaml:4: ")


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("{from: x, to: y, shape: p q, ops: [{pad: {dim: 0, to: 3}}]}", "padded to 3"),
        ("{from: x, to: y, shape: p q, ops: [{trim: {dim: 0, to: 9}}]}", "trimmed to 9"),
        ("{from: x, to: y, shape: p q, ops: [{order: {dim: 1, to: [0, 2, 3, 1]}}]}", "do not divide"),
        ("{from: x, to: [y, z], shape: p q, ops: [{split: {dim: 0, sizes: [3, 4]}}]}", "add up to 7"),
        ("{from: x, to: 'y.{k}', shape: p q, ops: [{split: {dim: 0, over: k}}]}", "do not divide"),
        ("{from: x, to: y, shape: p q, ops: ['(2 f g) d -> f 2 g d']}", "f"),
        ("{from: x, to: y, shape: p q, ops: ['(5 f) d -> f 5 d']}", "x"),
        ("{from: x, to: y, ops: ['a b c -> c b a']}", "x"),
        ("{from: x, to: y, shape: p q, ops: [{pad: {dim: 0, to: P}}]}", "--set P="),
    ],
)
def test_sizes_that_do_not_divide(lab, rule, says):
    lab.fails(f"indices: {{k: 3}}\nrules: [{rule}]", {"x": arr(4, 6)}, 1, "map.yaml:4: x: ", says)


def test_when_on_a_bound_index_selects_members(lab):
    m = """
    indices: {i: n}
    rules:
      - {from: 'h.{i}', to: even, shape: d, when: i % 2 == 0, ops: [{stack: i}]}
      - {from: 'h.{i}', to: odd, shape: d, when: i % 2 == 1, ops: [{stack: i}]}
    """
    t = {f"h.{i}": arr(2, start=10 * i) for i in range(11)}
    want = {k: np.stack([t[f"h.{i}"] for i in range(s, 11, 2)]) for k, s in (("even", 0), ("odd", 1))}
    lab.both(m, t, want, "--set", "n=11")


def test_when_on_a_solved_size(lab):
    m = "rules: [{from: x, to: y, when: d > 2}, {from: a, to: b, shape: d}]"
    lab.both(m, {"a": arr(3), "x": arr(1)}, {"b": arr(3), "y": arr(1)})
    lab.both(m, {"a": arr(2)}, {"b": arr(2)})


def test_with_and_without_follow_the_image_on_the_way_back(lab):
    m = """
    indices: {i: n}
    rules:
      - {from: 'l.{i}.g', to: 'b.{i}.g', optional: true}
      - {from: 'l.{i}.c', to: 'b.{i}.c1', with: 'l.{i}.g'}
      - {from: 'l.{i}.c', to: 'b.{i}.c2', without: 'l.{i}.g'}
      - {from: 'l.{i}.', to: 'b.{i}.', with: 'l.{i}.g', rules: [{from: h, to: h}, {from: k, to: k}]}
    """
    t = {"l.0.c": arr(1), "l.1.g": arr(2), "l.1.c": arr(3), "l.1.h": arr(4), "l.1.k": arr(5)}
    want = {"b.0.c2": arr(1), "b.1.g": arr(2), "b.1.c1": arr(3), "b.1.h": arr(4), "b.1.k": arr(5)}
    lab.both(m, t, want)
    lab.fails(m, t | {"l.0.h": arr(1)}, 1, "l.0.h: unexpected: ", "l.0.g is not there")


@pytest.mark.parametrize(
    "rules",
    [
        "[{from: a, to: x, with: q}]",
        "[{from: a, to: x, with: y}, {from: b, to: y}]",
        "[{from: a, to: x, with: 'q.{i}'}, {from: 'q.{i}', to: 'q.{i}'}]",
        "[{from: {any: [q, q2]}, to: y, optional: true}, {from: a, to: x, with: q2}]",
        "[{from: '', to: '', with: a, rules: [{from: a, to: x}]}]",
        "[{match: 'q(?P<z>.*)', to: 'r{z}'}, {from: a, to: x, with: q1}]",
    ],
)
def test_with_names_a_tensor_that_a_rule_outside_maps_one_to_one(lab, rules):
    lab.fails(f"indices: {{i: n}}\nrules: {rules}", {"a": arr(1)}, 2, "map.yaml:4: ")


def test_optional_of_a_lone_rule_is_for_each_value_of_its_free_indices(lab):
    m = LAYERS + "rules: [{from: 'a.{i}', to: 'x.{i}', optional: true}, {from: 'c.{i}', to: 'y.{i}'}]"
    t = {"a.2": arr(2)} | {f"c.{i}": arr(1, start=i) for i in range(4)}
    lab.both(m, t, {"x.2": arr(2)} | {f"y.{i}": t[f"c.{i}"] for i in range(4)})
    r, _ = lab.convert(m, t)
    assert "absent: a.{0..1,3} (3)" in r.out


def test_optional_of_a_group_without_an_index_is_all_or_none(lab):
    m = """
    indices: {i: n}
    rules:
      - {from: '', to: '', optional: true, rules: [{from: 'h.{i}.b', to: 'x.{i}.b'}]}
      - {from: 'h.{i}.w', to: 'x.{i}.w'}
    """
    t = {f"h.{i}.{p}": arr(1, start=10 * i + (p == "b")) for i in range(2) for p in "wb"}
    lab.both(m, t, {k.replace("h", "x"): v for k, v in t.items()})
    lab.both(
        m, {k: v for k, v in t.items() if k[-1] == "w"}, {k.replace("h", "x"): v for k, v in t.items() if k[-1] == "w"}
    )
    del t["h.1.b"]
    lab.fails(m, t, 1, "map.yaml:5: h.1.b: missing")


def test_optional_stacks_are_all_or_none(lab):
    m = (
        LAYERS
        + "rules: [{from: 'a.{i}', to: x, shape: d, ops: [{stack: i}], optional: true}, {from: 'c.{i}', to: 'y.{i}'}]"
    )
    t = {"c.0": arr(1), "c.1": arr(1)}
    lab.both(m, t, {"y.0": arr(1), "y.1": arr(1)})
    lab.fails(m, t | {"a.0": arr(1)}, 1, "a.1: missing")


# Ties


def test_any_one_of_a_tied_set_may_be_the_one_that_is_stored(lab):
    e = arr(3, 2)
    for name in "eh":
        r = lab.gives(HEAD % "", {name: e}, {"E": e})
        assert metadata(lab.output) == {"format": "pt", "H": "E"}, r.out
    for name in "EH":
        lab.gives(HEAD % "", {name: e}, {"e": e}, "--reverse")


def test_the_whole_set_is_tied_through_a_chain(lab):
    m = "rules: [{from: e, to: E, shape: v d}, {from: h, to: H, shape: v d, tied: e}, {from: k, to: K, shape: v d, tied: h}]"
    for name in "ehk":
        lab.gives(m, {name: arr(3, 2)}, {"E": arr(3, 2)})
    lab.fails(m, {"h": arr(3, 2), "k": arr(3, 2, start=1)}, 1, "differs")
    lab.fails(m, {}, 1, "e: missing", "h", "k")


def test_ties_follow_the_spelling_that_is_there(lab):
    m = "rules: [{from: {any: [e, e2]}, to: E, shape: v d}, {from: h, to: H, shape: v d, tied: e}]"
    lab.gives(m, {"e2": arr(3, 2)}, {"E": arr(3, 2)})
    lab.fails(m, {"e2": arr(3, 2), "h": arr(3, 2, start=1)}, 1, "h: differs from e2")


@pytest.mark.parametrize("flags", [[], ["--untie"], ["--tied", "copy"]])
def test_a_tie_on_the_way_back(lab, flags):
    e = arr(3, 2)
    both = {"e": e, "h": e}
    lab.gives(HEAD % "", {"E": e, "H": e}, both if flags else {"e": e}, "--reverse", *flags)
    r, _ = lab.convert(HEAD % "", {"E": e, "H": e + 1}, "--reverse", *flags)
    assert r.code == (0 if "--untie" in flags else 1)


def test_a_difference_is_counted_and_placed(lab):
    e = arr(3, 2)
    h = e.copy()
    h[1, 1] = 9
    lab.fails(
        HEAD % "", {"e": e, "h": h}, 1, "map.yaml:3: h: differs from e", "1 of 6 elements, first at [1, 1]: 9.0 and 3.0"
    )
    lab.fails(HEAD % "", {"e": e, "h": arr(4, 2)}, 1, "h: shape is [4, 2], e has [3, 2]")


def test_ties_of_different_dtypes(lab):
    t = {"e": arr(3, 2), "h": arr(3, 2, dtype="<f2")}
    lab.fails(HEAD % "", t, 1, "F16", "F32")
    lab.gives("dtype: {to: float32}\n" + HEAD % "", t, {"E": arr(3, 2)})


def test_ties_with_ops_of_their_own(lab):
    m = "rules: [{from: e, to: E, shape: v d}, {from: h, to: H, shape: v d, tied: e, ops: [transpose]}]"
    e = arr(3, 2)
    lab.gives(m, {"e": e}, {"E": e, "H": e.T})
    lab.gives(m, {"E": e, "H": e.T}, {"e": e}, "--reverse")
    assert metadata(lab.output) == {"format": "pt", "h": "e"}
    lab.fails(m, {"E": e, "H": e.T + 1}, 1, "H: differs", flags=["--reverse"])
    m = m.replace("to: E, shape: v d}", "to: E, shape: v d, ops: [transpose]}")
    lab.gives(m, {"e": e}, {"E": e.T})


def test_untied_keep_and_config(lab):
    e = arr(3, 2)
    for other in (e, e + 1):
        lab.both(HEAD % ", untied: keep", {"e": e, "h": other}, {"E": e, "H": other})
    lab.both(HEAD % ", untied: keep", {"e": e}, {"E": e})
    (lab / "c.json").write_text('{"tie_word_embeddings": false}')
    lab.fails(HEAD % "", {"e": e}, 1, "h: missing", flags=["--config", lab / "c.json"])
    lab.fails(HEAD % "", {"E": e}, 1, "H: missing", flags=["--config", lab / "c.json", "--reverse"])


@pytest.mark.parametrize("side", ["from", "to"])
@pytest.mark.parametrize("how", ["copy", "omit"])
def test_a_side_may_state_that_it_stores_the_copy(lab, side, how):
    m = HEAD % ""
    m = m.replace("tied: e", f"tied: {{name: e, {side}: {how}}}")
    e = arr(3, 2)
    flags, t, want = ([], {"e": e}, {"E": e, "H": e}) if side == "to" else (["--reverse"], {"E": e}, {"e": e, "h": e})
    if how == "omit":
        want.popitem()
        flags = [*flags, "--tied", "copy"]
    lab.gives(m, t, want, *flags)


def test_a_tie_of_the_to_side_alone(lab):
    m = "rules: [{from: e, to: E, shape: v d}, {to: H, tied: E}]"
    e = arr(3, 2)
    lab.both(m, {"e": e}, {"E": e})
    lab.gives(m, {"H": e}, {"e": e}, "--reverse")
    lab.gives(m, {"E": e, "H": e}, {"e": e}, "--reverse")
    lab.fails(m, {"E": e, "H": e + 1}, 1, "H: differs", flags=["--reverse"])


@pytest.mark.parametrize(
    "rules",
    [
        "[{from: e, to: E}, {from: h, to: H, tied: x}]",
        "[{from: e, to: E}, {from: h, to: H, tied: h}]",
        "[{from: e, to: E, tied: h}, {from: h, to: H, tied: e}]",
        "[{from: e, to: E}, {to: H, tied: e}]",
    ],
)
def test_ties_that_cannot_be(lab, rules):
    lab.fails(f"rules: {rules}", {"e": arr(1)}, 2, "map.yaml:3: ")


def test_aliases_in_the_metadata_are_resolved_and_written_anew(lab):
    e = arr(3, 2)
    r, out = lab.convert(HEAD % "", {"h": e}, metadata={"format": "pt", "e": "h", "note": "kept"})
    assert r.code == 0, r.err
    assert metadata(out) == {"format": "pt", "note": "kept", "H": "E"}
    r, out = lab.convert("rules: [{from: e, to: E}, {from: h, to: H}]", {"h": e}, metadata={"e": "h"})
    same(read(out), {"E": e, "H": e})
    assert "h" not in metadata(out).values()


def test_layers_that_share_the_weights_of_the_first(lab):
    m = """
    indices: {i: n}
    rules:
      - {from: 'l.{i}.e', to: 'b.{i}.e', shape: d, when: i == 0}
      - {from: 'l.{i}.e', to: 'b.{i}.e', shape: d, when: i > 0, tied: l.0.e}
    """
    lab.both(m, {"l.0.e": arr(2)}, {"b.0.e": arr(2)}, "--set", "n=3")
    assert metadata(lab.output) == {"format": "pt", "l.1.e": "l.0.e", "l.2.e": "l.0.e"}


def test_ties_of_each_layer(lab):
    m = LAYERS + "rules: [{from: 'l.{i}.', to: 'b.{i}.', rules: [{from: e, to: E}, {from: h, to: H, tied: 'l.{i}.e'}]}]"
    t = {f"l.{i}.e": arr(2, start=10 * i) for i in range(12)}
    lab.both(m, t, {f"b.{i}.E": t[f"l.{i}.e"] for i in range(12)})
    assert metadata(lab.output)["l.11.h"] == "l.11.e"


def test_a_tie_to_a_part_of_a_fused_tensor(lab):
    m = "rules: [{from: [q, k], to: qk, shape: [p d, p d], ops: [{concat: 0}]}, {from: h, to: H, shape: p d, tied: q}]"
    q, k = arr(2, 3), arr(2, 3, start=9)
    lab.both(m, {"q": q, "k": k}, {"qk": np.concatenate([q, k]), "H": q})
    lab.fails(m, {"q": q, "k": k, "h": k}, 1, "h: differs from q")


# Fill


@pytest.mark.parametrize(
    ("fill", "shape", "dtype", "value"),
    [
        ("zeros", "d", "float32", np.zeros(3, "<f4")),
        ("ones", "d d", "int64", np.ones((3, 3), "<i8")),
        ("causal_mask", "1 1 d d", "bool", np.tril(np.ones((3, 3), "?"))[None, None]),
        ("causal_mask", "d d", "uint8", np.tril(np.ones((3, 3), "u1"))),
        ("arange", "1 d", "int64", np.arange(3)[None]),
        ("-10000", "[]", "float32", np.array(-1e4, "<f4")),
        ("-.inf", "[]", "float16", np.array(-np.inf, "<f2")),
        ("2*d", "[]", "int32", np.array(6, "<i4")),
        ("d / 2", "[]", "float32", np.array(1.5, "<f4")),
        ("0.1", "2", "bfloat16", np.full(2, 0.1, ml_dtypes.bfloat16)),
        ("1", "0", "float32", np.zeros(0, "<f4")),
    ],
)
def test_constants(lab, fill, shape, dtype, value):
    m = f"rules: [{{from: w, to: w, shape: d}}, {{to: m, fill: {fill}, shape: {shape}, dtype: {dtype}}}]"
    lab.both(m, {"w": arr(3)}, {"w": arr(3), "m": value})
    if value.size and value.dtype.kind == "f":
        lab.fails(m, {"w": arr(3), "m": np.full_like(value, 7)}, 1, "map.yaml:3: m: ", flags=["--reverse"])


@pytest.mark.parametrize(
    ("fill", "shape", "dtype", "code"),
    [
        ("zeroes", "d", "float32", 2),
        ("causal_mask", "d", "float32", 2),
        ("zeros", "d", "keep", 2),
        ("zeros", "d", "flaot32", 2),
        (".nan", "d", "float32", 2),
        ("1.5", "d", "int64", 1),
        ("1000", "d", "int8", 1),
        ("70000", "d", "float16", 1),
        ("2", "d", "bool", 1),
        ("zeros", "q", "float32", 1),
        ("zeros", "d", "{like: nope}", 2),
    ],
)
def test_constants_that_cannot_be(lab, fill, shape, dtype, code):
    m = f"rules: [{{from: w, to: w, shape: d}}, {{to: m, fill: {fill}, shape: {shape}, dtype: {dtype}}}]"
    r, _ = lab.convert(m, {"w": arr(3)})
    assert r.code in {code, 2}
    assert r.err.startswith("map.yaml:3: ")


def test_a_constant_is_compared_in_the_dtype_that_the_file_has(lab):
    m = "rules: [{from: w, to: w}, {to: m, fill: 0.1, shape: '2', dtype: float32}]"
    lab.gives(m, {"w": arr(1), "m": f16(0.1, 0.1)}, {"w": arr(1)}, "--reverse")


def test_a_constant_may_be_absent_where_it_is_optional(lab):
    m = "rules: [{from: w, to: w}, {to: m, fill: 3, shape: '2', dtype: float32%s}]"
    lab.fails(m % "", {"w": arr(1)}, 1, "m: missing", flags=["--reverse"])
    lab.gives(m % ", optional: true", {"w": arr(1)}, {"w": arr(1)}, "--reverse")
    lab.gives(m % ", optional: true", {"w": arr(1)}, {"w": arr(1), "m": f32(3, 3)})


def test_constants_expand_over_their_indices(lab):
    m = LAYERS + "rules: [{from: 'w.{i}', to: 'w.{i}', shape: d}, {to: 'q.{i}', fill: i, shape: d, dtype: float32}]"
    t = {"w.0": arr(2), "w.1": arr(2, start=5)}
    lab.both(m, t, t | {"q.0": f32(0, 0), "q.1": f32(1, 1)})


# Dtypes


def test_the_most_specific_dtype_wins(lab):
    m = """
    dtype: {to: float16}
    rules:
      - {from: a, to: a}
      - {from: b, to: b, dtype: {to: bfloat16}}
      - {from: c, to: c, dtype: keep}
      - {from: {name: d, dtype: {to: float64}}, to: d}
      - {from: [{name: e, dtype: float64}, f], to: ef, ops: [{concat: 0}], dtype: {to: float64}}
    """
    t = {k: arr(2) for k in "abcdef"}
    want = {"a": "F16", "b": "BF16", "c": "F32", "ef": "F64"}
    _, out = lab.convert(m, t)
    got = {k: v.dtype for k, v in read(out).items()}
    assert {k: str(got[k]) for k in want} == {"a": "float16", "b": "bfloat16", "c": "float32", "ef": "float64"}
    _, out = lab.convert(m, t, "--dtype", "float64")
    got = {k: str(v.dtype) for k, v in read(out).items()}
    assert (got["a"], got["b"], got["c"]) == ("float64", "bfloat16", "float32")


def test_from_and_to_are_the_dtypes_of_the_sides(lab):
    m = "dtype: {from: float16, to: float32}\nrules: [{from: a, to: b, shape: d}]"
    lab.both(m, {"a": f16(1, 2)}, {"b": f32(1, 2)})
    lab.gives(m, {"a": f32(1, 2)}, {"b": f32(1, 2)})


def test_a_bare_dtype_is_that_of_both_sides(lab):
    m = "rules: [{from: a, to: b, dtype: float16}]"
    lab.gives(m, {"a": f32(1)}, {"b": f16(1)})
    lab.gives(m, {"b": f32(1)}, {"a": f16(1)}, "--reverse")


def test_terms_of_different_dtypes_join_only_if_a_dtype_brings_them_together(lab):
    m = "rules: [{from: [a, b], to: c, ops: [{concat: 0}]%s}]"
    t = {"a": f16(1), "b": np.array([2], ml_dtypes.bfloat16)}
    lab.fails(m % "", t, 1, "F16", "BF16")
    lab.gives(m % ", dtype: float32", t, {"c": f32(1, 2)})
    lab.gives(m % ", dtype: float16", t, {"c": f16(1, 2)})


def test_integers_are_cast_only_by_a_rule_and_never_inexactly(lab):
    i = np.array([1, 300], "<i8")
    lab.gives("dtype: {to: float32}\nrules: [{from: a, to: b}]", {"a": i}, {"b": i})
    lab.gives("rules: [{from: a, to: b, dtype: {to: int32}}]", {"a": i}, {"b": i.astype("<i4")})
    lab.gives("rules: [{from: a, to: b, dtype: {to: float32}}]", {"a": i}, {"b": i.astype("<f4")})
    for flags in ([], ["--allow-overflow"]):
        lab.fails("rules: [{from: a, to: b, dtype: {to: int8}}]", {"a": i}, 1, "b: 1 value", flags=flags)
    lab.fails("rules: [{from: a, to: b, dtype: {to: int8}}]", {"a": f32(1, 1.5)}, 1, "b: 1 value")


def test_f8_is_never_cast_without_its_scale(lab):
    a = np.array([1, 2], ml_dtypes.float8_e4m3fn)
    m = "rules: [{from: a, to: b}]"
    lab.gives(m, {"a": a}, {"b": a})
    lab.fails(m, {"a": a}, 1, "a: ", "F8_E4M3", "scale", flags=["--dtype", "float32"])
    x = f32(1, 500, 448, -1e9)
    lab.fails(m, {"a": x}, 1, "b: 2 values", flags=["--dtype", "float8_e4m3fn"])
    r = lab.gives(
        m,
        {"a": x},
        {"b": np.array([1, 448, 448, -448], ml_dtypes.float8_e4m3fn)},
        "--dtype",
        "float8_e4m3fn",
        "--allow-overflow",
    )
    assert "2 values did not fit" in r.out


def test_underflow_is_reported_and_infinities_are_kept(lab):
    x = f32(1e-9, np.inf, -np.inf, 1)
    r = lab.gives("dtype: {to: float16}\nrules: [{from: a, to: b}]", {"a": x}, {"b": x.astype("<f2")})
    assert "1 value became zero" in r.out


# Ops that other tests leave out


@pytest.mark.parametrize(
    ("m", "t", "want"),
    [
        ("{from: x, to: y, shape: a b c, ops: [{transpose: [2, 0, 1]}]}", {"x": arr(2, 3, 4)}, {"y": arr(2, 3, 4).transpose(2, 0, 1)}),
        ("{from: x, to: y, shape: a b, ops: ['a b -> a 1 b']}", {"x": arr(2, 3)}, {"y": arr(2, 1, 3)}),
        ("{from: x, to: y, shape: a 1 b, ops: ['a 1 b -> a b']}", {"x": arr(2, 1, 3)}, {"y": arr(2, 3)}),
        ("{from: x, to: y, shape: 2*f d, ops: ['(2 f) d -> (f 2) d']}", {"x": arr(6, 2)}, {"y": arr(2, 3, 2).transpose(1, 0, 2).reshape(6, 2)}),
        ("{from: [u, v], to: y, shape: [2 d, q d], ops: [{concat: -2}]}", {"u": arr(2, 3), "v": arr(4, 3)}, {"y": np.concatenate([arr(2, 3), arr(4, 3)])}),
        ("{from: x, to: [y, z], shape: a 6, ops: [{split: {dim: 1, sizes: [2, 4]}}]}", {"x": arr(2, 6)}, {"y": arr(2, 6)[:, :2], "z": arr(2, 6)[:, 2:]}),
        ("{from: x, to: [y, z], shape: 8 d, ops: [{split: {dim: 0, sizes: [8, 0]}}]}", {"x": arr(8, 2)}, {"y": arr(8, 2), "z": arr(0, 2)}),
        ("{from: 'x.{i}', to: y, shape: a b, ops: [{stack: {over: i, dim: -1}}]}", {f"x.{i}": arr(2, 3, start=9 * i) for i in range(11)}, {"y": np.stack([arr(2, 3, start=9 * i) for i in range(11)], -1)}),
        ("{from: x, to: 'y.{r}', shape: a, ops: [{replicate: r}]}", {"x": arr(2)}, {f"y.{r}": arr(2) for r in range(3)}),
        ("{from: [u, v], to: y, shape: [a, a], ops: [same]}", {"u": f32(np.nan, 1), "v": f32(np.nan, 1)}, {"y": f32(np.nan, 1)}),
        ("{from: x, to: y, shape: 4 a, ops: [{pad: {dim: 0, to: '(4 + 7) // 8 * 8', value: -1}}]}", {"x": arr(4, 2)}, {"y": np.concatenate([arr(4, 2), np.full((4, 2), -1, "<f4")])}),
        ("{from: x, to: y, shape: 4 a, ops: [{trim: {dim: 0, to: 3, fill: 0}}]}", {"x": np.concatenate([arr(3, 2), np.zeros((1, 2), "<f4")])}, {"y": arr(3, 2)}),
        ("{from: x, to: y, shape: 4*a b, ops: [{order: {dim: 0, to: [1, 2, 3, 0]}}]}", {"x": arr(8, 2)}, {"y": arr(8, 2)[[2, 3, 4, 5, 6, 7, 0, 1]]}),
        ("{from: 's.{i}', to: S, shape: [], ops: [{stack: i}]}", {"s.0": arr(), "s.1": arr(start=5)}, {"S": f32(0, 5)}),
        ("{from: 'x.{i}', to: y, shape: p d, ops: [{stack: i}, 'a b c -> c b a']}", {"x.0": arr(0, 3), "x.1": arr(0, 3)}, {"y": arr(3, 0, 2)}),
        ("{from: 'l.{i}.e.{r}', to: y, shape: p d, ops: [{stack: i}, {stack: r}]}", {f"l.{i}.e.{r}": arr(2, 3, start=100 * i + 10 * r) for i in range(2) for r in range(3)}, {"y": np.stack([[arr(2, 3, start=100 * i + 10 * r) for i in range(2)] for r in range(3)])}),
        ("{from: x, to: 'l.{i}.e.{r}', shape: n 3 p d, ops: [{unstack: i}, {unstack: r}]}", {"x": arr(2, 3, 4, 5)}, {f"l.{i}.e.{r}": arr(2, 3, 4, 5)[i, r] for i in range(2) for r in range(3)}),
        ("{from: x, to: y, shape: a, ops: [{add: a/2}, {multiply: 4}]}", {"x": arr(4)}, {"y": (arr(4) + 2) * 4}),
    ],
)  # fmt: skip
def test_ops_both_ways(lab, m, t, want):
    lab.both(f"indices: {{i: n, r: 3}}\nrules: [{m}]", t, want)


@pytest.mark.parametrize("first", "ir")
def test_layers_and_experts_are_numbers_and_labels_keep_their_order(lab, first):
    t = {
        f"l.{i}.e.{r}.{k}": arr(2, 3, start=1000 * i + 50 * r + 10 * m)
        for i in range(12)
        for r in range(11)
        for m, k in enumerate("qab")
    }
    rows = np.stack([[np.concatenate([t[f"l.{i}.e.{r}.{k}"] for k in "qab"]) for r in range(11)] for i in range(12)])
    want = {"y": rows if first == "r" else rows.swapaxes(0, 1)}
    ops = f"[{{concat: {{dim: 0, over: k}}}}, {{stack: {first}}}, {{stack: {'i' if first == 'r' else 'r'}}}]"
    m = f"indices: {{i: n, r: 11, k: [q, a, b]}}\nrules: [{{from: 'l.{{i}}.e.{{r}}.{{k}}', to: y, shape: 2 d, ops: {ops}}}]"
    lab.both(m, t, want)


def test_rope_order_of_meta_and_hugging_face(lab):
    m = """
    rules:
      - {from: wq, to: q, shape: h*hd d, ops: ['(h half 2) d -> (h 2 half) d']}
      - {from: wk, to: k, shape: kv*hd d, ops: ['(kv half 2) d -> (kv 2 half) d']}
    """
    one = [0, 2, 4, 6, 1, 3, 5, 7]
    rows = np.array([8 * h + r for h in range(4) for r in one])
    lab.both(
        m,
        {"wq": arr(32, 1), "wk": arr(8, 1)},
        {"q": arr(32, 1)[rows], "k": arr(8, 1)[one]},
        "--set",
        "h=4",
        "--set",
        "kv=1",
    )


def test_replicas_that_differ(lab):
    m = "indices: {r: 3}\nrules: [{from: x, to: 'y.{r}', ops: [{replicate: r}]}]"
    t = {"y.0": arr(2), "y.1": arr(2), "y.2": arr(2, start=1)}
    lab.fails(m, t, 1, "map.yaml:4: y.2: differs from y.0", flags=["--reverse"])


def test_padding_that_is_not_padding(lab):
    m = "rules: [{from: x, to: y, shape: 4 q, ops: [{pad: {dim: 0, to: 8}}]}]"
    lab.fails(m, {"y": arr(8, 2)}, 1, "map.yaml:3: y: padding", "8 of 8 elements", flags=["--reverse"])
    for at in range(4, 8):  # also one element alone, the first and the last
        y = np.pad(arr(4, 2, start=1), ((0, 4), (0, 0)))
        y[at, 1] = 7
        lab.fails(m, {"y": y}, 1, "map.yaml:3: y: padding", "1 of 8 elements", flags=["--reverse"])


def test_arithmetic_is_not_done_on_integers(lab):
    lab.fails("rules: [{from: x, to: y, ops: [{add: 1}]}]", {"x": arr(2, dtype="<i8")}, 1, "map.yaml:3: x: ", "I64")


@pytest.mark.parametrize(("op", "value"), [("exp", 1000.0), ("log", -1.0), ("log", 0.0)])
def test_arithmetic_that_leaves_the_numbers(lab, op, value):
    m = f"rules: [{{from: x, to: y, ops: [{op}]}}]"
    lab.fails(m, {"x": f32(1, value)}, 1, "map.yaml:3: y: 1 value", "--allow-overflow")
    r, _ = lab.convert(m, {"x": f32(1, value)}, "--allow-overflow")
    assert r.code == 0


@pytest.mark.parametrize(
    "rule",
    [
        "{to: f, shape: d, fill: zeros, dtype: float32, ops: [transpose]}",
        "{to: {name: f, shape: d, ops: [transpose]}, fill: zeros, dtype: float32}",
        "{from: {name: f, shape: d, ops: [transpose]}, fill: zeros, dtype: float32}",
        "{to: {name: f, shape: d, ops: [transpose]}, tied: a}",
    ],
)
def test_a_rule_with_one_side_has_no_ops(lab, rule):
    """There is nothing that they would lead to: not of the rule, nor of its term."""
    lab.fails(f"rules: [{{from: a, to: b}}, {rule}]", {"a": arr(2)}, 2, "map.yaml:3: a rule with one side has no ops")


# What plans are made of.


EVERYTHING = r"""
dtype: {from: float16, to: float32}
indices: {i: 2, p: {weight: scale, bias: shift}}
sides: {from: one, to: other}
strip: {from: ['m.'], to: [{segment: net}]}
drop: {from: [x], to: [y]}
rules:
  - {from: 'a.{i}.{p}', to: 'b.{i}.{p}', shape: d, dtype: {from: bfloat16, to: keep}}
  - {from: {name: q, shape: d e, dtype: float64}, to: Q, ops: [transpose]}
  - {match: 'r\.(?P<n>\d)', to: 's.{n}', dtype: {from: float16, to: bfloat16}}
"""


def test_turned_around_twice_a_map_is_itself(lab):
    there = load_map(read_map(lab.map(EVERYTHING)))
    back = there.reverse()
    assert back.reverse() == there
    assert (back.side, back.sides, back.strip, back.drop, back.dtypes) == (
        1, ("other", "one"), there.strip[::-1], there.drop[::-1], ("F32", "F16"),
    )  # fmt: skip
    assert [r.side for r in back.rules] == [1, 1]
    assert [r.dtypes for r in back.rules] == [r.dtypes[::-1] for r in there.rules]
    assert [r.dtypes for r in back.regexes] == [r.dtypes[::-1] for r in there.regexes] == [("BF16", "F16")]
    assert [r.inverse() for r in back.rules] == list(there.rules)


def test_outputs_lie_in_the_order_of_their_first_source(lab):
    m = "rules: [{from: b, to: y}, {from: [c, a], to: x, ops: [{concat: 0}]}, {from: d, to: w}]"
    lab.gives(
        m,
        {"a": arr(1), "b": arr(2), "c": arr(3), "d": arr(1)},
        {"x": np.concatenate([arr(3), arr(1)]), "y": arr(2), "w": arr(1)},
    )
    assert list(read(lab.output)) == ["x", "y", "w"]


def test_metadata_is_no_name_of_a_tensor(lab):
    lab.fails("rules: [{from: a, to: __metadata__}]", {"a": arr(1)}, 2, "'__metadata__' is no tensor name")
    m = "rules: [{match: 'a(?P<x>.*)', to: '__metadata__{x}'}]"
    lab.fails(m, {"a": arr(1)}, 1, "a: would be written as '__metadata__', where the format keeps its metadata")
    lab.gives(m, {"a_": arr(1)}, {"__metadata___": arr(1)})


def test_only_sizes_with_a_name_of_their_own_are_listed(lab):
    m = "indices: {i: n}\nrules: [{from: 'a.{i}', to: 'b.{i}', shape: _p 2*q}, {from: 'c.{i}.', to: 'd.{i}.', local: [_w], rules: [{from: x, to: y, shape: _w}]}]"
    write(lab.source, {"a.0": arr(3, 4), "a.1": arr(5, 4), "c.0.x": arr(1), "c.1.x": arr(2)})
    plan = converter.plan(lab.source, map=lab.map(m))
    assert [(n, v) for n, v, _ in plan.sizes] == [("n", 2), ("q", 2)]


def test_a_kept_name_with_a_label_of_the_other_side(lab):
    m = "rest: keep\nindices: {p: {weight: scale, bias: shift}}\nrules: [{from: 'a.{p}', to: 'b.{p}', optional: true}]"
    lab.gives(
        m,
        {"a.weight": arr(1), "a.bias": arr(1), "b.weight": arr(2)},
        {"b.scale": arr(1), "b.shift": arr(1), "b.weight": arr(2)},
    )
    lab.fails(m, {"b.shift": arr(1)}, 1, "it would pass for 'b.{p}' of the other side")


def test_a_file_of_the_other_side_of_a_rename_says_reverse(lab):
    m = r"rules: [{match: 'encoder\.(?P<n>\w+)', to: 'enc.{n}'}]"
    lab.fails(m, {"enc.a": arr(1), "enc.b": arr(1)}, 1, "--reverse")
    err = lab.fails(m, {"encoder.a": arr(1)}, 1, flags=["--reverse"])
    assert "without --reverse" in err


def test_names_that_a_stated_reverse_does_not_give_back_are_noted(lab):
    m = r"rules: [{match: 'a\.(?P<n>.+)', to: 'b.{n}', reverse: {match: 'b\.(?P<n>.+)', to: 'c.{n}'}}]"
    r = lab.gives(m, {"a.x": arr(1)}, {"b.x": arr(1)})
    assert "a.x becomes b.x, which --reverse would make c.x, as its `reverse` says" in r.out + r.err
    assert "more such" not in r.out + r.err
    for more in (1, 2):
        r = lab.gives(m, {f"a.{k}": arr(1) for k in "xyz"[: more + 1]}, {f"b.{k}": arr(1) for k in "xyz"[: more + 1]})
        assert f"(and {more} more such names)" in r.out + r.err


def test_an_output_that_63_bits_cannot_count(lab):
    for axis, says in ((2**60 - 1, None), (2**60, "too large to be counted in 63 bits")):
        m = f"rules: [{{from: a, to: b}}, {{to: y, fill: zeros, dtype: float64, shape: '0 {axis}'}}]"
        if says:
            lab.fails(m, {"a": arr(1)}, 1, says)
        else:
            lab.gives(m, {"a": arr(1)}, {"b": arr(1), "y": np.zeros((0, axis), "<f8")})


def test_lines_of_problems_are_folded_and_counted():
    one = [Problem("m", "k", None), Problem("m", "k", "a"), Problem("n", "k", "a.1"), Problem("n", "k", "a.2")]
    assert folded(one) == ["m", "a: m", "a.{1..2} (2): n"] or folded(one) == [": m", "a: m", "a.{1..2} (2): n"]
    assert folded(one, 3) == folded(one)
    assert folded(one, 2) == [*folded(one)[:2], "... and 1 more (--report FILE.json has them all)"]
    assert folded(one, 1)[1].startswith("... and 2 more")
    assert folded([Problem("m", "k", None)]) == ["m"]
    assert folded([]) == []


def test_all_that_leads_one_way_is_named(lab):
    m = r"""
    rules:
      - {match: 'a\.(?P<n>.+)', to: b}
      - {from: q, to: Q, shape: 4, ops: [{trim: {dim: 0, to: 2}}]}
      - {match: 'c\.(?P<n>.+)', to: 'd{n}{n}'}
      - {from: r, to: R, shape: 4, ops: [{trim: {dim: 0, to: 2}}]}
    """
    err = lab.fails(m, {"b": arr(1)}, 2, flags=["--reverse"])
    assert [line.split(": ")[:2] for line in err.splitlines()] == [
        [f"map.yaml:{n}", "cannot --reverse"] for n in (5, 7, 4, 6)
    ]


def test_a_number_that_is_padded_with_zeros_is_told(lab):
    m = LAYERS + "rules: [{from: 'h.{i}.w', to: 'b.{i}'}]"
    err = lab.fails(m, {"h.0.w": arr(1), "h.01.w": arr(1)}, 1)
    assert "h.01.w: unexpected: no rule names it ('h.{i}.w' writes 7 as 7, not as 07)" in err
    assert "writes 7" not in lab.fails(m, {"h.0.w": arr(1), "h.x.w": arr(1)}, 1)


def test_rules_as_text(lab):
    m = (
        LAYERS
        + "drop: {from: [z, {match: 'y.*'}]}\nrules: [{from: [a, b], to: c, ops: [{concat: 0}]}, {to: f, fill: ones, dtype: float32, shape: 2}, {from: g, fill: ones, dtype: float32, shape: 2}]"
    )
    rules = load_map(read_map(lab.map(m)))
    assert [str(r) for r in rules.rules] == ["a, b -> c", "(nothing) -> f", "g -> (nothing)"]
    assert [str(d) for d in rules.drop[0]] == ["z", "{match: y.*}"]


def test_a_name_that_stands_twice_says_what_both_would_become(lab):
    m = "strip: {from: [m.]}\ndrop: {from: [x]}\nrules: [{from: a, to: b}]"
    err = lab.fails(m, {"a": arr(1), "m.a": arr(1)}, 1)
    assert "a: stands in the input twice, as a and as m.a: both would become b\n" in err
    err = lab.fails(m, {"a": arr(1), "x": arr(1), "m.x": arr(1)}, 1)
    assert "x: stands in the input twice, as x and as m.x\n" in err


def test_a_rename_by_pattern_casts_to_the_dtype_of_the_side_it_writes(lab):
    m = r"rules: [{match: 'a\.(?P<x>.+)', to: 'b.{x}', dtype: {from: float16, to: float32}}]"
    lab.both(m, {"a.w": arr(3).astype("<f2")}, {"b.w": arr(3).astype("<f4")})


def test_arithmetic_in_a_name_takes_the_label_of_its_side(lab):
    m = "indices: {i: {0: 5, 1: 7}}\nrules: [{from: 'a.{i+1}', to: 'b.{i+1}', shape: d}]"
    lab.both(m, {"a.1": arr(2), "a.2": arr(2, start=9)}, {"b.6": arr(2), "b.8": arr(2, start=9)})


def test_every_step_is_looked_at_for_outputs_that_63_bits_cannot_count(lab):
    """Steps that share a recipe are looked at once, and those after them still are."""
    m = f"rules: [{{from: 'a.{{i}}', to: 'b.{{i}}', shape: n}}, {{to: y, fill: zeros, dtype: float64, shape: '0 {2**60}'}}]"
    head = "indices: {i: count}\n"
    lab.fails(head + m, {"a.0": arr(1), "a.1": arr(1)}, 1, "y: would be F64")


def test_rules_for_one_layer_each_look_at_the_names_of_that_layer(lab, monkeypatch):
    """As many rules as layers, and as many names of one look, are not held against each other one by one."""
    tried = []
    match = Form.match
    monkeypatch.setattr(Form, "match", lambda form, name: (tried.append(name), match(form, name))[1])
    n = 300
    rules = [f"  - {{from: 'h.{k}.e.{{e}}.w', to: 'l.{n - k}.{{e}}', shape: d}}\n" for k in range(n)]
    rules += [f"  - {{from: 'h.{k}.b', to: 'b.{k}', shape: d}}\n" for k in range(n)]
    t = {f"h.{k}.e.{e}.w": arr(2, start=7 * k + e) for k in range(n) for e in range(3)}
    t |= {f"h.{k}.b": arr(2, start=k) for k in range(n)}
    want = {f"l.{n - k}.{e}": arr(2, start=7 * k + e) for k in range(n) for e in range(3)}
    lab.both("indices: {e: n_e}\nrules:\n" + "".join(rules), t, want | {f"b.{k}": arr(2, start=k) for k in range(n)})
    assert len(tried) < 20 * len(t)


def test_numbers_that_rules_state_are_told_from_those_that_indices_give(lab):
    """Literal numbers before, after and beside those of indices, in labels too; padded ones are other numbers."""
    rules = [
        *(f"  - {{from: 'a1{{i}}.{k}.w', to: 'p.{{i}}.{k}'}}\n" for k in range(12)),
        *(f"  - {{from: 'a.{{i}}.{k}.{{q}}', to: 'q.{{i}}.{k}.{{q}}'}}\n" for k in range(12)),
        "  - {from: 'a.{i}.012.x1', to: 'r.{i}'}\n",
        "  - {from: 'a#.{i}.3.w', to: 's.{i}'}\n",
    ]
    t = {f"a1{i}.{k}.w": arr(1, start=100 * i + k) for i in range(11) for k in range(12)}
    want = {f"p.{i}.{k}": arr(1, start=100 * i + k) for i in range(11) for k in range(12)}
    for j, q in enumerate(("x1", "x2")):
        t |= {f"a.{i}.{k}.{q}": arr(1, start=3000 * j + 50 * i + k) for i in range(11) for k in range(12)}
        want |= {f"q.{i}.{k}.{j + 7}": arr(1, start=3000 * j + 50 * i + k) for i in range(11) for k in range(12)}
    t |= {f"a.{i}.012.x1": arr(1, start=i) for i in range(11)} | {f"a#.{i}.3.w": arr(1, start=-i) for i in range(11)}
    want |= {f"r.{i}": arr(1, start=i) for i in range(11)} | {f"s.{i}": arr(1, start=-i) for i in range(11)}
    lab.both("indices: {i: n, q: {x1: 7, x2: 8}}\nrules:\n" + "".join(rules), t, want)


@pytest.mark.parametrize("place", ["example: {d: '%s'}", "indices: {i: '%s'}", "drop: '%s'", "strip: '%s'", ""])
def test_a_list_of_mappings_has_no_place_in_a_map(lab, place):
    m = "params: {b: [[{x: 1}]]}\n" + (place % "{{ b }}" if place else "# nothing")
    r = lab.run("check", lab.map(f"{m}\nrules: [{{from: w, to: v, shape: 2}}]"))
    assert r.code == (2 if place else 0), r.err
    said = "map.yaml:4: '{{ b }}' becomes a list with a mapping in it, which has no place in a map"
    assert r.err.startswith(said if place else ""), r.err
