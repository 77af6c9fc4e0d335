"""Sizes of a group, forms of a rule, lists that are counted or computed: each promise as a small example, both ways."""

import numpy as np
import pytest
from lab import Lab, arr, read, write

ADAPTER = """
indices: {i: n, w: [q, k.x]}
params: {widths: {config: widths}, alpha: {default: 0}}
rules:
  - from: 'l.{i}.'
    to: 'b.{i}.'
    local: {_c: 'widths[i]'}
    rules:
      - {from: norm, to: norm, shape: _c}
      - from: '{w}.'
        to: '{w:_}.'
        optional: true
        local: [_r]
        rules:
          - {from: A, to: down, shape: _r _c}
          - {from: B, to: up, shape: _c _r}
          - {to: alpha, shape: [], fill: _r if alpha == 0 else alpha, dtype: int64}
"""
FORMS = """
indices: {i: n}
params: {linear: {config: linear}}
rules:
  - from: 'l.{i}.'
    to: 'b.{i}.'
    local: [_c]
    rules:
      - {from: p, to: p, any: [{shape: _c _c 1 1, when: not linear}, {shape: _c _c}]}
      - {from: q, to: q, any: [{shape: _c _c 1 1, ops: ['o i 1 1 -> o i']}, {shape: _c _c}]}
"""
DEPTHS = """
indices: {b: n_level, t: 'depth[b]', m: n_mid}
params:
  kind: {config: kinds}
  layers: {config: layers, each: n_level}
  depth: {over: b, expr: "layers[b] * (kind[b] == 'attn')"}
  n_mid: {expr: 'layers[n_level - 1]'}
rules:
  - {from: 'l.{b}.norm', to: 'b.{b}.norm', shape: d}
  - {from: 'l.{b}.t.{t}', to: 'b.{b}.t.{t}', shape: d}
  - {from: 'l.{b}.proj', to: 'b.{b}.proj', shape: d, when: 'depth[b] > 0'}
  - {from: 'mid.{m}', to: 'middle.{m}', shape: d}
"""


@pytest.fixture
def lab(tmp_path):
    return Lab(tmp_path)


# Sizes that the rules of a group share.


def adapter():
    """Three layers of other widths; the second has one adapter, and each adapter has a rank of its own."""
    there, want = {}, {}
    for i in range(3):
        there[f"l.{i}.norm"] = want[f"b.{i}.norm"] = arr(4 + i, start=i)
        for k, w in enumerate(["q", "k.x"][: 2 - (i == 1)]):
            rank, to = 2 + i + 5 * k, f"b.{i}.{w.replace('.', '_')}"
            there[f"l.{i}.{w}.A"] = want[f"{to}.down"] = arr(rank, 4 + i, start=10 * i)
            there[f"l.{i}.{w}.B"] = want[f"{to}.up"] = arr(4 + i, rank, start=20 * i)
            want[f"{to}.alpha"] = np.array(rank, "<i8")
    return there, want


def test_a_group_has_sizes_of_its_own_and_constants_may_use_them(lab):
    there, want = adapter()
    lab.both(ADAPTER, there, want)
    seven = {k: np.array(7, "<i8") if k.endswith("alpha") else v for k, v in want.items()}
    lab.both(ADAPTER, there, seven, "--set", "alpha=7")
    lab.fails(ADAPTER, want, 1, "alpha", flags=["--reverse", "--set", "alpha=7"])


def test_a_tensor_that_differs_from_the_others_of_its_group_is_named(lab):
    there, want = adapter()
    odd = there | {"l.0.q.B": arr(4, 1)}
    err = lab.fails(ADAPTER, odd, 1, "l.0.q.B: shape is [4, 1], expected [_c, _r] with _c = 4 (from l.0.norm), _r = 2")
    assert "l.1." not in err
    odd = want | {"b.2.k_x.down": arr(9, 5)}
    lab.fails(ADAPTER, odd, 1, "b.2.k_x.down: shape is [9, 5], expected [_r, _c] with _c = 6", flags=["--reverse"])


def test_what_a_size_should_be_is_checked_where_it_is_known(lab):
    there, want = adapter()
    lab.both(ADAPTER, there, want, "--set", "widths=[4,5,6]")
    err = lab.fails(ADAPTER, there, 1, "expected [_c] with _c = 7 (= widths[i])", flags=["--set", "widths=[4,5,7]"])
    assert "l.1." not in err
    lab.fails(ADAPTER, there, 1, "widths[i]", flags=["--set", "widths=[4,5]"])
    lab.fails(ADAPTER, there, 1, "_c", flags=["--set", 'widths=["4",5,6]'])


def test_a_size_that_is_solved_before_it_is_said_is_checked_too(lab):
    m = """
    indices: {i: n}
    params: {twice: {expr: 2 * d}}
    rules:
      - {from: 'l.{i}.', to: 'b.{i}.', local: {_c: twice + i}, rules: [{from: w, to: w, shape: _c}]}
      - {from: d, to: d, shape: d}
    """
    lab.both(m, {"l.0.w": arr(6), "l.1.w": arr(7), "d": arr(3)}, {"b.0.w": arr(6), "b.1.w": arr(7), "d": arr(3)})
    lab.fails(m, {"l.0.w": arr(6), "l.1.w": arr(8), "d": arr(3)}, 1, "7", "8")


def test_a_condition_may_ask_for_a_size_of_the_group(lab):
    m = """
    indices: {i: n}
    params: {widths: {config: widths}}
    rules:
      - from: 'l.{i}.'
        to: 'b.{i}.'
        local: {_a: 'widths[i]', _b: null}
        rules:
          - {from: w, to: w, shape: _a _b}
          - {from: skip, to: short, shape: _b _a, when: _a != _b}
    """.replace("_b: null", "_b: 'widths[i+1]'")
    t = {"l.0.w": arr(2, 2), "l.1.w": arr(2, 3), "l.1.skip": arr(3, 2, start=9)}
    lab.both(m, t, {k.replace("l.", "b.").replace("skip", "short"): v for k, v in t.items()})
    lab.both(m, t, {k.replace("l.", "b.").replace("skip", "short"): v for k, v in t.items()}, "--set", "widths=[2,2,3]")
    lab.fails(m, {k: v for k, v in t.items() if "skip" not in k}, 1, "l.1.skip: missing")
    lab.fails(m, t | {"l.0.skip": arr(2, 2)}, 1, "l.0.skip: unexpected: when is false: _a != _b (_a is 2, _b is 2)")
    lab.fails(m.replace("_a != _b", "_c != _b"), t, 2, "'_c' is no local size")
    lab.fails(m, {"l.0.skip": arr(2, 2), **t, "l.2.skip": arr(1, 1)}, 1, "l.2.w: missing")


def test_what_a_size_should_be_is_solved_where_it_is_a_sum_of_products(lab):
    m = """
    indices: {i: n, j: m}
    rules:
      - {from: 'a.{i}.', to: 'b.{i}.', local: {_c: d, _f: 2*d+i}, rules: &block [{from: w, to: w, shape: _c _f}]}
      - {from: 'x.{j}.', to: 'y.{j}.', local: {_c: e, _f: 3}, rules: *block}
      - {from: both, to: both, shape: d e}
    """
    t = {f"a.{i}.w": arr(4, 8 + i) for i in range(3)} | {"x.0.w": arr(5, 3), "both": arr(4, 5)}
    want = {k.replace("a.", "b.").replace("x.", "y."): v for k, v in t.items()}
    lab.both(m, t, want)
    err = lab.fails(m, t | {"a.2.w": arr(4, 11)}, 1, "_f is 11 (from a.2.w), 2 * d + i is 10")
    assert "a.1.w" not in err
    lab.fails(m, t | {"a.2.w": arr(3, 8)}, 1, "_c is 3 (from a.2.w), d is 4")
    lab.fails(m, t | {"x.0.w": arr(5, 4)}, 1, "x.0.w: shape is [5, 4], expected [_c, _f]")
    assert (
        lab.run(
            "stub", "--map", lab.map(m), *(f"--set={x}" for x in ("n=2", "m=1", "d=4", "e=5")), lab / "s.safetensors"
        ).code
        == 0
    )
    assert {k: v.shape for k, v in read(lab / "s.safetensors").items()} == {
        "a.0.w": (4, 8), "a.1.w": (4, 9), "x.0.w": (5, 3), "both": (4, 5),
    }  # fmt: skip


def test_an_inner_group_may_declare_a_name_anew_and_ops_may_use_it(lab):
    m = """
    indices: {i: n}
    rules:
      - from: 'l.{i}.'
        to: 'b.{i}.'
        local: [_c]
        rules:
          - {from: w, to: w, shape: _c}
          - {from: in., to: in., local: [_c], rules: [{from: w, to: w, shape: _c _c}]}
          - {from: ab, to: [a, b], shape: 3*_c, ops: [{split: {dim: 0, sizes: [_c, 2*_c]}}]}
    """
    t = {
        "l.0.w": arr(2),
        "l.0.in.w": arr(3, 3),
        "l.0.ab": arr(6),
        "l.1.w": arr(4),
        "l.1.in.w": arr(2, 2),
        "l.1.ab": arr(12),
    }
    want = {k.replace("l.", "b."): v for k, v in t.items() if not k.endswith("ab")}
    want |= {"b.0.a": arr(6)[:2], "b.0.b": arr(6)[2:], "b.1.a": arr(12)[:4], "b.1.b": arr(12)[4:]}
    lab.both(m, t, want)


@pytest.mark.parametrize(
    "group",
    [
        "local: [c]",
        "local: []",
        "local: _c",
        "local: {_c: 'widths[j]'}",
        "local: {_c: 'unknown[0]'}",
        "local: {_c: 'unknown if i else 2'}",
        "local: {_c: '2 +'}",
        "local: {_c: [2]}",
        "local: {_c.d: 2}",
    ],
)
def test_local_sizes_that_cannot_be(lab, group):
    m = f"""
    indices: {{i: n, j: m}}
    params: {{widths: {{config: widths}}}}
    rules:
      - {{from: 'l.{{i}}.', to: 'b.{{i}}.', {group}, rules: [{{from: w, to: w, shape: _c}}]}}
      - {{from: 'x.{{j}}', to: 'y.{{j}}', shape: d}}
    """
    lab.fails(m, {"l.0.w": arr(2), "x.0": arr(2)}, 2, "map.yaml:6: ")


def test_a_rule_that_gathers_over_an_index_has_no_size_of_each(lab):
    m = "indices: {i: n}\nrules: [{from: 'l.{i}.', to: '', local: [_c], rules: [{from: w, to: w, shape: _c, ops: [{stack: i}]}]}]"
    lab.fails(m, {"l.0.w": arr(2)}, 2, "map.yaml:4: '_c' is a size of each {i}")


def test_a_stub_has_sizes_of_a_group(lab):
    path = lab.map(ADAPTER)
    assert lab.run("stub", "--map", path, "--set", "n=2", "--set", "widths=[3,8]", lab / "s.safetensors").code == 0
    shapes = {k: v.shape for k, v in read(lab / "s.safetensors").items()}
    assert shapes["l.0.norm"] == (3,)
    assert shapes["l.1.q.B"] == (8, shapes["l.1.q.A"][0])
    assert shapes["l.1.q.A"][0] not in (3, 8)
    assert lab.run("stub", "--map", path, "--side", "to", "--set", "n=2", lab / "t.safetensors").code == 0
    made = read(lab / "t.safetensors")
    assert made["b.1.k_x.alpha"] == made["b.1.k_x.down"].shape[0]


def test_an_optional_constant_of_an_absent_group_is_absent(lab):
    m = ADAPTER.replace("dtype: int64}", "dtype: int64, optional: true}")
    there, want = adapter()
    lab.both(m, there, want)
    less = {k: v for k, v in want.items() if k != "b.2.q.alpha"}
    lab.gives(m, less, there, "--reverse")
    lab.fails(m, {k: v for k, v in want.items() if k != "b.2.q.up"}, 1, "b.2.q.up: missing", flags=["--reverse"])


def test_a_constant_of_a_group_that_nothing_counts_is_absent(lab):
    m = """
    indices: {i: n, j: m}
    rules:
      - {from: 'x.{i}', to: 'y.{i}', shape: d}
      - from: 'a.{j}.'
        to: 'b.{j}.'
        optional: true
        local: [_r]
        rules: [{from: w, to: w, shape: _r}, {to: alpha, shape: [], fill: _r, dtype: int64}]
    """
    lab.both(m, {"x.0": arr(2)}, {"y.0": arr(2)})
    t = {"x.0": arr(2), "a.1.w": arr(5)}
    lab.both(m, t, {"y.0": arr(2), "b.1.w": arr(5), "b.1.alpha": np.array(5, "<i8")})


# Forms of a rule.


def matrices(conv_p, conv_q):
    shape = {True: (3, 3, 1, 1), False: (3, 3)}
    return {"l.0.p": arr(*shape[conv_p]), "l.0.q": arr(*shape[conv_q], start=9)}


def test_the_form_that_is_there_is_read_and_the_first_is_written(lab):
    for conv_p in (False, True):
        want = {"b.0.p": matrices(conv_p, True)["l.0.p"], "b.0.q": arr(3, 3, start=9)}
        lab.both(FORMS, matrices(conv_p, True), want)
        lab.gives(FORMS, matrices(conv_p, False), want)
        r, _ = lab.convert(FORMS, matrices(conv_p, False), "--verify")
        assert r.code == 0
        assert "2 input tensors came back from it bit for bit" in r.out


def test_each_value_of_the_indices_has_its_own_form(lab):
    t = matrices(True, False) | {k.replace("0", "1"): v for k, v in matrices(False, True).items()}
    lab.gives(FORMS, t, {k.replace("l", "b"): v if "p" in k else v.reshape(3, 3) for k, v in t.items()})


def test_a_form_that_fits_nothing_is_judged_by_the_first(lab):
    t = matrices(True, True)
    lab.fails(FORMS, t | {"l.0.q": arr(3, 3, 1)}, 1, "l.0.q: shape is [3, 3, 1], expected [_c, _c, 1, 1]")
    lab.fails(FORMS, {"l.0.p": t["l.0.p"]}, 1, "map.yaml:11: l.0.q: missing")
    err = lab.fails(FORMS, {}, 1, "map.yaml:10: matches no tensor", "map.yaml:11: matches no tensor")
    assert err.count("matches no tensor") == 2


def test_a_form_that_is_known_not_to_be_meant_is_left_out(lab):
    lab.gives(FORMS, matrices(False, True), {"b.0.p": arr(3, 3), "b.0.q": arr(3, 3, start=9)}, "--set", "linear=1")
    lab.fails(
        FORMS, matrices(True, True), 1, "l.0.p: shape is [3, 3, 1, 1], expected [_c, _c]", flags=["--set", "linear=1"]
    )
    path = lab.map(FORMS)
    for linear, shape in ((0, (6, 6, 1, 1)), (1, (6, 6))):
        flags = ["--set", "n=1", "--set", f"linear={linear}", "--force"]
        assert lab.run("stub", "--map", path, *flags, lab / "s.safetensors").code == 0
        assert read(lab / "s.safetensors")["l.0.p"].shape == shape


def test_forms_of_an_optional_rule_and_of_several_terms(lab):
    m = """
    indices: {i: n}
    rules:
      - {from: 'n.{i}', to: 'm.{i}', shape: d}
      - {from: ['a.{i}', 'b.{i}'], to: 'ab.{i}', optional: true, any: [{shape: [d, 2], ops: [{concat: 0}]}, {shape: [d 3, 2 3], ops: [{concat: 0}]}]}
    """
    t = {"n.0": arr(2), "n.1": arr(2), "n.2": arr(2), "a.0": arr(2), "b.0": arr(2), "a.2": arr(2, 3), "b.2": arr(2, 3)}
    want = {"m.0": arr(2), "m.1": arr(2), "m.2": arr(2), "ab.0": np.concatenate([arr(2)] * 2)}
    lab.both(m, t, want | {"ab.2": np.concatenate([arr(2, 3)] * 2)})
    lab.fails(m, t | {"b.2": arr(2)}, 1, "a.2: shape is [2, 3]")


@pytest.mark.parametrize(
    "rule",
    [
        "any: [{shape: d}]",
        "any: [{shape: d}, {ops: [transpose]}]",
        "shape: d, any: [{shape: d}, {shape: d d}]",
        "ops: [transpose], any: [{shape: d}, {shape: d d}]",
        "tied: x, any: [{shape: d}, {shape: d d}]",
        "any: [{shape: d}, {shape: d d, when: nothing}]",
        "any: {shape: d}",
    ],
)
def test_forms_that_cannot_be(lab, rule):
    m = f"rules: [{{from: x, to: y, shape: d}}, {{from: a, to: b, {rule}}}]"
    lab.fails(m, {"x": arr(2), "a": arr(2)}, 2, "map.yaml:3: ")


# Lists that are counted, and lists that are computed.


def levels(depths, mid):
    t = {}
    for b, depth in enumerate(depths):
        t[f"l.{b}.norm"] = arr(3, start=b)
        t |= {f"l.{b}.t.{k}": arr(3, start=10 * b + k) for k in range(depth)}
        t |= {f"l.{b}.proj": arr(3, start=7 * b)} if depth else {}
    t |= {f"mid.{k}": arr(3, start=k) for k in range(mid)}
    return t, {k.replace("l.", "b.").replace("mid", "middle"): v for k, v in t.items()}


def test_a_list_of_counts_is_counted_from_names(lab):
    there, want = levels([0, 2, 12], 3)
    lab.both(DEPTHS, there, want)
    r = lab.run("--map", lab / "map.yaml", "--dry-run", write(lab / "there.safetensors", there))
    assert "depth = [0, 2, 12] (counted from names)" in r.out
    lab.fails(DEPTHS, {k: v for k, v in there.items() if k != "l.2.t.5"}, 1, "l.2.t.5: missing")
    lab.fails(DEPTHS, {k: v for k, v in there.items() if k != "l.1.proj"}, 1, "l.1.proj: missing")
    lab.fails(
        DEPTHS, there | {"l.0.proj": arr(3)}, 1, "l.0.proj: unexpected: when is false: depth[b] > 0 (depth[0] is 0)"
    )


def test_a_list_over_an_index_comes_from_a_config(lab):
    there, want = levels([0, 2, 1], 1)
    (lab / "config.json").write_text('{"kinds": ["", "attn", "attn"], "layers": [5, 2, 1]}')
    lab.both(DEPTHS, there, want)
    lab.fails(
        DEPTHS, {k: v for k, v in there.items() if not k.startswith(("l.1.t", "l.1.p"))}, 1, "l.1.t.{0..1} (2): missing"
    )
    lab.fails(DEPTHS, there | {"l.2.t.1": arr(3)}, 1, "l.2.t.1: unexpected: t = 1 is out of range")
    there, want = levels([3, 0, 3], 3)
    (lab / "config.json").write_text('{"kinds": ["attn", "", "attn"], "layers": 3}')
    lab.both(DEPTHS, there, want)


def test_a_list_may_tell_how_many_items_it_has(lab):
    m = "params: {n: {config: widths, length: true}}\nindices: {i: n}\nrules: [{from: 'h.{i}', to: 'x.{i}', shape: d}]"
    (lab / "config.json").write_text('{"widths": [3, 4]}')
    lab.both(m, {"h.0": arr(2), "h.1": arr(2, start=2)}, {"x.0": arr(2), "x.1": arr(2, start=2)})
    lab.fails(m, {"h.0": arr(2)}, 1, "h.1: missing from the input; n = 2 (from config.json)")
    lab.fails(m, {f"h.{i}": arr(2) for i in range(3)}, 1, "h.2: unexpected: i = 2 is out of range")


def test_a_list_with_a_default_is_not_counted(lab):
    m = "params: {depth: [1, 2]}\nindices: {b: 2, t: 'depth[b]'}\nrules: [{from: 'h.{b}.{t}', to: 'x.{b}.{t}', shape: d}]"
    t = {"h.0.0": arr(2), "h.1.0": arr(2), "h.1.1": arr(2)}
    lab.gives(m, t, {k.replace("h", "x"): v for k, v in t.items()})
    lab.fails(m, t | {"h.0.1": arr(2)}, 1, "h.0.1: unexpected: t = 1 is out of range")


def test_a_list_of_counts_out_of_all_proportion_is_never_an_expansion(lab):
    m = "indices: {b: n, t: 'depth[b]'}\nrules: [{from: 'h.{b}.{t}', to: 'x.{b}.{t}', shape: d}]"
    err = lab.fails(m, {"h.0.0": arr(2), "h.0.30000000": arr(2)}, 1)
    assert len(err) < 1000


@pytest.mark.parametrize("param", ["{over: b}", "{over: x, expr: 1}", "{over: b, expr: y}", "{over: [b], expr: 1}"])
def test_lists_that_cannot_be(lab, param):
    m = f"indices: {{b: n}}\nparams:\n  depth: {param}\nrules: [{{from: 'h.{{b}}', to: 'x.{{b}}', shape: d}}]"
    lab.fails(m, {"h.0": arr(2)}, 2, "map.yaml:5: ")


def test_a_size_in_a_name_may_be_counted_from_other_names(lab):
    m = "indices: {i: n}\nrules: [{from: 'e.{i}', to: 'x.{i}', shape: d}, {from: 'd.{i}', to: 'u.{n-1-i}', shape: d}]"
    t = {f"{k}.{i}": arr(2, start=10 * i + len(t)) for t, k in (("", "e"), ("1", "d")) for i in range(12)}
    want = {f"x.{i}": t[f"e.{i}"] for i in range(12)} | {f"u.{11 - i}": t[f"d.{i}"] for i in range(12)}
    lab.both(m, t, want)
    m = "drop: {from: [{match: 'e.99'}], to: [{match: 'x.99'}]}\n" + m
    lab.gives(m, t | {"e.99": arr(1)}, want)
    lab.gives(m, want | {"x.99": arr(1)}, t, "--reverse")
    lone = "indices: {i: n}\nrules: [{from: 'd.{i}', to: 'u.{n-1-i}', shape: d}]"
    write(lab / "u.safetensors", {"u.0": arr(2)})
    lab.fails(lone, {"u.0": arr(2)}, 1, "--set n=", flags=["--reverse"])
