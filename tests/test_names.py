"""Laws of names: what a template writes it reads back, and it reads nothing that it could not have written.

Holes are drawn with affine arithmetic, zero padding and enumerated labels (dots, digits, underscores in them).
"""

from itertools import product
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from lab import Lab, arr, read, write

import converter
from converter.errors import MismatchError
from converter.expressions import parse
from converter.forms import Form, ambiguity
from converter.names import Index, Strip, TemplateError, parse_template, skeleton
from converter.regexes import MAX_RENAMED, Regex, Sieve, check_length, check_regex, compile_pattern, invert_regex

laws = settings(max_examples=120, deadline=None)

SIZES = {"n_block": 4, "n_level": 12, "lpb": 2}
COUNTS = {"i": 12, "j": 3, "b": 5, "one": 1}
LABELS = {
    "w": (("q_proj", "k.proj", "self_attn.v"), ("q", "k", "v.x")),
    "p": (("weight", "bias"), ("scale", "shift")),
    "k": ((1, 2, 10), (0, 1, 7)),
    "g": (("1a", "a1", "10"), ("x10", "x1", "1")),
}
INDICES = {n: Index(n, parse(str(c))) for n, c in COUNTS.items()} | {
    n: Index(n, None, a, b) for n, (a, b) in LABELS.items()
}

HOLES = [
    "{i}",
    "{j}",
    "{b}",
    "{i:02}",
    "{i:03}",
    "{j+1}",
    "{2*i+1}",
    "{n_level-1-i}",
    "{3*b+j}",
    "{j+3*b+1}",
    "{(lpb+1)*b+j+1}",
    "{6*n_block+i}",
    "{n_block*j+k-k+one}",
    "{20*k+i}",
    "{w}",
    "{w:_}",
    "{p}",
    "{k}",
    "{g}",
    "{k:02}",
    "{k+5}",
    "{one}",
]
LITERALS = ["/", "/x.", "/ln_1.", "/a[0]+.", "/é-1/", "/.*/", "/00", "/(b)|", "/\\d/"]


@st.composite
def templates(draw: st.DrawFn) -> str:
    """Names whose holes are kept apart by a mark that no label has."""
    pieces = [draw(st.sampled_from(["h.", "", "10.", "[x]"]))]
    for _ in range(draw(st.integers(0, 4))):
        pieces += [draw(st.sampled_from(HOLES)), draw(st.sampled_from(LITERALS))]
    return "".join(pieces[: None if draw(st.booleans()) else -1 or None])


def form_of(text: str, side: int = 0, counts: dict[str, int | None] = COUNTS) -> Form:
    return Form(parse_template(text), INDICES, side, SIZES, counts)


def labels(name: str) -> tuple[Any, ...]:
    return tuple(range(COUNTS[name])) if name in COUNTS else LABELS[name][0]


def shown(values: dict[str, Any], side: int) -> dict[str, Any]:
    """Index values as a side spells them."""
    return {n: LABELS[n][side][LABELS[n][0].index(v)] if n in LABELS else v for n, v in values.items()}


def used(text: str) -> list[str]:
    return sorted(parse_template(text).names & set(INDICES))


@st.composite
def named(draw: st.DrawFn) -> tuple[str, int, dict[str, Any], str]:
    """A template, a side, index values in range, and the name that they give."""
    text, side = draw(templates()), draw(st.integers(0, 1))
    values = {n: draw(st.sampled_from(labels(n))) for n in used(text)}
    return text, side, values, parse_template(text).render(SIZES | shown(values, side))


@laws
@given(named())
def test_match_reads_back_what_render_wrote(case):
    text, side, values, name = case
    form = form_of(text, side)
    assert ambiguity(form) is None
    assert form.match(name) == values


@laws
@given(named())
def test_counts_need_not_be_known(case):
    text, side, values, name = case
    open_counts: dict[str, int | None] = dict.fromkeys(COUNTS)
    try:
        form = form_of(text, side, open_counts)
        unclear = ambiguity(form)
    except KeyError:
        return  # a count that must be known, as the next test has it
    if unclear is None:
        assert form.match(name) == values


@laws
@given(named())
def test_the_skeleton_never_loses_a_match(case):
    text, side, _, name = case
    assert skeleton(name) in set(form_of(text, side).skeletons())


@st.composite
def near_names(draw: st.DrawFn) -> tuple[str, int, str]:
    """A template, and a name that is almost or wholly one of its own."""
    text, side, _, name = draw(named())
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(name)))
        cut = draw(st.integers(0, 1))
        name = name[:at] + draw(st.sampled_from([*"01279/.x_- ", "", "00", "é"])) + name[at + cut :]
    return text, side, name


@settings(max_examples=300, deadline=None)
@given(near_names())
@example(("h.{i}/", 0, "h.07/"))
@example(("h.{i:02}/", 0, "h.7/"))
@example(("h.{i:02}/", 0, "h.007/"))
@example(("h.{i}/{i}/", 0, "h.1/2/"))
@example(("h.{j+1}/", 0, "h.0/"))
@example(("h.{k}/", 1, "h.2/"))
@example(("h.{w:_}/", 0, "h.k.proj/"))
@example(("h.{i}/", 0, "h.1\n/"))
@example(("h.{i}", 0, "h.1\n"))
@example(("h.{i}/", 0, "h.٣/"))
@example(("h.{i}/", 0, "hx1/"))
def test_match_reads_nothing_that_render_could_not_write(case):
    text, side, name = case
    values = form_of(text, side).match(name)
    if values is not None:
        assert parse_template(text).render(SIZES | shown(values, side)) == name
        assert sorted(values) == used(text)
        assert all(v in labels(n) for n, v in values.items() if n in LABELS)
        assert all(v >= 0 for n, v in values.items() if n in COUNTS)


@laws
@given(near_names())
def test_a_match_beyond_the_count_is_still_a_match(case):
    """Being of the form is one thing, being in range another: nothing that could be read is lost."""
    text, side, name = case
    form = form_of(text, side)
    for combination in product(*(labels(n) for n in used(text)[:3])):
        values = dict(zip(used(text), combination))
        if len(values) == len(used(text)) and parse_template(text).render(SIZES | shown(values, side)) == name:
            assert form.match(name) == values


@laws
@given(st.integers(12, 2000), st.sampled_from(["{i}", "{i:02}", "{2*i+1}", "{6*n_block+i}"]))
def test_values_out_of_range_are_read(value, hole):
    name = parse_template(f"h.{hole}.w").render(SIZES | {"i": value})
    assert form_of(f"h.{hole}.w").match(name) == {"i": value}


# Index arithmetic: an ambiguous hole is found, a clear one is let pass.


class Affine(NamedTuple):
    """A hole `a*i + b*j + c*k + constant` with the counts of its indices."""

    slopes: tuple[int, ...]
    constant: int
    counts: tuple[int, ...]

    @property
    def text(self) -> str:
        terms = [f"{s}*{n}" for s, n in zip(self.slopes, "xyz") if s]
        return "{" + "+".join([*terms, str(self.constant)]).replace("+-", "-") + "}"


affine = st.integers(1, 3).flatmap(
    lambda n: st.builds(
        Affine,
        st.tuples(*[st.integers(-4, 9)] * n).filter(any),
        st.integers(0, 30),
        st.tuples(*[st.integers(0, 4)] * n),
    )
)


@settings(max_examples=250, deadline=None)
@given(affine)
def test_ambiguity_is_what_counting_shows(hole):
    names = [n for n, s in zip("xyz", hole.slopes) if s]
    counts = {n: c for n, c in zip("xyz", hole.counts) if n in names}
    slopes = {n: s for n, s in zip("xyz", hole.slopes) if n in names}
    indices = {n: Index(n, parse(str(c))) for n, c in counts.items()}
    form = Form(parse_template(f"w.{hole.text}"), indices, 0, {}, counts)
    rows = list(product(*(range(counts[n]) for n in names)))
    values = [sum(slopes[n] * v for n, v in zip(names, row)) + hole.constant for row in rows]
    assert (ambiguity(form) is None) == (len(set(values)) == len(values))
    if ambiguity(form) is None:
        for row, value in zip(rows, values):
            if value >= 0:
                assert form.match(f"w.{value}") == dict(zip(names, row))


@pytest.mark.parametrize(
    ("hole", "clear"),
    [
        ("{3*b+j}", True),
        ("{2*b+j}", False),
        ("{b+j}", False),
        ("{3*b+j+1}", True),
        ("{(lpb+1)*b+j+1}", True),
        ("{b-j}", False),
    ],
)
def test_ambiguity_of_the_designs_own_names(hole, clear):
    assert (ambiguity(form_of(f"x.{hole}")) is None) == clear


def test_ambiguity_needs_counts():
    counts: dict[str, int | None] = {**COUNTS, "j": None}
    with pytest.raises(KeyError):
        ambiguity(form_of("x.{2*i+j+7*b}", 0, {**counts, "b": None}))


# Reading templates.

BAD = [
    "h.{", "h.}", "h.{}", "h.{ }", "h.{layer", "h.{i}}", "h.{{i}", "h.{i:2}", "h.{i:x}", "h.{i:0}", "h.{i:00}",
    "h.{i!r}", "h.{i.real}", "h.{i[0]}", "h.{i()}", "h.{3}", "h.{i//2}", "h.{i%2}", "h.{'a'}", "h.{i if j else b}",
    "h.{*}", "h.{i,j}", "h.{i-i}",
]  # fmt: skip


@pytest.mark.parametrize("text", BAD)
def test_bad_templates(text):
    with pytest.raises(TemplateError) as caught:
        parse_template(text)
    assert text in str(caught.value)


@pytest.mark.parametrize("text", ["h.{i*j}", "h.{i*i}", "h.{i*j+b}"])
def test_what_is_not_linear_in_indices_is_refused(text):
    with pytest.raises(TemplateError, match="linear"):
        form_of(text)


def test_a_size_that_is_not_known_is_named():
    with pytest.raises(KeyError) as caught:
        Form(parse_template("h.{6*n_block+i}"), INDICES, 0, {}, COUNTS)
    assert caught.value.args == ("n_block",)


@laws
@given(templates(), templates())
def test_templates_join_as_their_texts_do(a, b):
    assert parse_template(a) + parse_template(b) == parse_template(a + b)
    assert str(parse_template(a)) == a


@laws
@given(st.text(max_size=12))
def test_any_text_is_a_template_or_refused(text):
    try:
        template = parse_template(text)
    except TemplateError:
        assert "{" in text or "}" in text
        return
    if not template.holes:
        assert template.render({}) == text
        assert Form(template, {}, 0, {}, {}).match(text) == {}


def test_a_negative_number_is_no_part_of_a_name():
    with pytest.raises(TemplateError, match="negative"):
        parse_template("h.{i-1}").render({"i": 0})


def test_a_number_beyond_all_bounds_is_no_index():
    assert form_of("h.{i}").match("h." + "9" * 5000) is None


def test_labels_that_multiply_beyond_all_bounds_are_refused():
    many = Index("m", None, tuple(f"l{chr(97 + i)}" for i in range(26)), ())
    indices = {n: Index(n, None, many.keys, many.keys) for n in "abcdef"}
    with pytest.raises(TemplateError, match="308915776 combinations of labels"):
        Form(parse_template("{a}.{b}.{c}.{d}.{e}.{f}"), indices, 0, {}, {})


# What the map alone shows to be wrong.


@pytest.mark.parametrize(
    ("indices", "name"),
    [
        ("{w: ['a.b', 'a_b']}", "x.{w:_}"),
        ("{k: [q, v]}", "x.{k+1}"),
        ("{k: [-1, 2]}", "x.{k}"),
        ("{k: [q, qk], m: [kx, x]}", "x.{k}{m}"),
        ("{i: 2, j: 2}", "x.{i+j}"),
        ("{i: 2}", "x.{j}"),
        ("{i: 2, j: 2}", "x.{i*j}"),
        ("{k: [q, q]}", "x.{k}"),
        ("{k: [1, '1']}", "x.{k}"),
        ("{k: []}", "x.{k}"),
        ("{k: {a: x, b: x}}", "x.{k}"),
    ],
)
def test_names_that_no_checkpoint_could_tell_apart(tmp_path, indices, name):
    """A map whose names say one thing twice is refused (2) before any tensor is looked at."""
    lab = Lab(tmp_path)
    other = name.replace("x.", "y.")
    m = lab.map(f"indices: {indices}\nrules: [{{from: '{name}', to: '{other}'}}]")
    source = write(lab.source, {"x.0": arr(2)})
    with pytest.raises((converter.MapError, converter.UsageError)):
        converter.plan(source, m)


# Regex renames.

PARTS = [r"[^.]+", r"\d+", r"[a-z]+", r"[0-9]+|x", r"layer(?:s)?\d*", r"(?:a|b)c?", r"[\].)(]*"]
SAMPLES = {
    r"[^.]+": ["a", "12", "é x"],
    r"\d+": ["0", "07", "123"],
    r"[a-z]+": ["abc", "z"],
    r"[0-9]+|x": ["x", "42"],
    r"layer(?:s)?\d*": ["layers12", "layer"],
    r"(?:a|b)c?": ["a", "bc"],
    r"[\].)(]*": ["", "])("],
}
TEXT = st.sampled_from(["enc", "w-1", "é", "a b", "x_", "+", "*^$"])


@st.composite
def renames(draw: st.DrawFn) -> tuple[Regex, str]:
    """A rename whose groups are kept apart by slashes on both sides, and a name that it matches."""
    groups = [(f"g{k}", draw(st.sampled_from(PARTS))) for k in range(draw(st.integers(0, 3)))]
    match, name = [], []
    for g, pattern in groups:
        literal = draw(TEXT)
        match += ["".join(c if c.isalnum() or c in "_ é" else "\\" + c for c in literal), f"(?P<{g}>{pattern})"]
        name += [literal, draw(st.sampled_from(SAMPLES[pattern]))]
    to = [draw(TEXT)]
    for g, _ in draw(st.permutations(groups)):
        to += [f"{{{g}}}", draw(TEXT)]
    anchors = draw(st.sampled_from([("", ""), ("^", "$"), ("^", ""), ("", "$")]))  # which say nothing new
    return Regex("/".join([*match, "end"]).join(anchors), "/".join(to)), "/".join([*name, "end"])


@settings(max_examples=300, deadline=None)
@given(renames())
def test_the_inverse_of_a_rename_undoes_it(case):
    rename, name = case
    check_regex(rename)
    inverse = invert_regex(rename)
    assert isinstance(inverse, Regex), inverse
    check_regex(inverse)
    new = rename.rename(name)
    assert new is not None
    assert inverse.rename(new) == name
    again = invert_regex(inverse)
    assert isinstance(again, Regex)
    assert again.rename(name) == new


@laws
@given(renames(), st.text(max_size=10))
def test_a_rename_matches_whole_names_only(case, more):
    rename, name = case
    assume(more)
    assert rename.rename(more + name) is None or (more + name).startswith("/".join(name.split("/")[:1]))
    assert rename.rename(name + more) is None


NO_INVERSE = [
    (r"(?P<a>.+)\.b", "x"),
    (r"(?P<a>.+)\.b", "{a}.{a}"),
    (r"a.b", "c"),
    (r"a|b", "c"),
    (r"(a)b", "c"),
    (r"(?:a)b", "c"),
    (r"ab*", "c"),
    (r"a?b", "c"),
    (r"[ab]", "c"),
    (r"a^b", "c"),
    (r"a$b", "c"),
    (r"^^a", "c"),
    (r"^*a", "c"),
    (r"(?P<a>^x)$*", "{a}"),
    (r"\d", "c"),
    (r"(?P<a>x)+", "{a}"),
    (r"(?P<a>x(?P<b>y))", "{a}{b}"),
    (r"(?P<a>x)\w", "{a}"),
    (r"a\{b", "c"),
]


@pytest.mark.parametrize(("match", "to"), NO_INVERSE)
def test_what_loses_something_says_why_it_has_no_inverse(match, to):
    why = invert_regex(Regex(match, to))
    assert isinstance(why, str)
    assert why


@pytest.mark.parametrize(
    ("match", "to"),
    [
        (r"(?P<a>.+", "{a}"),
        (r"(?=a)b", "c"),
        (r"(?P<a>.)\1", "{a}"),
        (r"[", "c"),
        (r"a{1,9999}", "c"),
        (r"(?P<a>.)", "{b}"),
        (r"(?P<a>.)", "{a"),
        (r"(?P<a>.)", "{a}}"),
        (r"(?P<a>.)(?P<a>.)", "{a}"),
    ],
)
def test_bad_renames(match, to):
    with pytest.raises(TemplateError):
        check_regex(Regex(match, to))


@pytest.mark.parametrize(
    ("match", "to", "name"),
    [
        (r"(?P<a>.+)\.(?P<b>.+)", "{b}.{a}", "x.y.z"),
        (r"(?P<a>.*)(?P<b>.*)", "{b}{a}", "xyz"),
        (r"(?P<a>[a-z]+)_(?P<b>[a-z_]+)", "{b}_{a}", "x_y_z"),
    ],
)
def test_a_rename_that_would_not_come_back_is_refused_or_comes_back(tmp_path, match, to, name):
    """Where groups share characters the inverse may read a name otherwise: that must never pass in silence."""
    lab = Lab(tmp_path)
    m = lab.map(f"rules: [{{match: '{match}', to: '{to}'}}]")
    source = write(lab.source, {name: arr(3)})
    try:
        converter.convert(source, lab / "there.safetensors", m)
        converter.convert(lab / "there.safetensors", lab / "back.safetensors", m, reverse=True)
    except converter.ConvertError:
        return
    assert list(read(lab / "back.safetensors")) == [name]


# Bounds, and how numbers are read.


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a" * 1000, ""),
        ("a" * 1001, "is a name of 1001 characters (at most 1000)"),
        ("{i}" * 16, ""),
        ("{i}" * 17, "has 17 placeholders (at most 16)"),
    ],
)
def test_names_are_bounded(text, says):
    if says:
        with pytest.raises(TemplateError) as e:
            parse_template(text)
        assert says in str(e.value)
    else:
        assert str(parse_template(text)) == text


def test_labels_may_have_so_many_combinations_and_no_more():
    def form(*counts):
        indices = {n: Index(n, None, keys := tuple(f"k{v}" for v in range(c)), keys) for n, c in zip("xyz", counts)}
        return Form(parse_template(".".join(f"{{{n}}}" for n in indices)), indices, 0, {}, {})

    assert form(100, 200).match("k99.k199") == {"x": "k99", "y": "k199"}
    with pytest.raises(TemplateError, match="stands for 20001 combinations"):
        form(3, 59, 113)


def test_formats_are_whole_or_wrong():
    for fmt in ("02x", "002", "0", "2", "00", "_2", "__", "x02"):
        with pytest.raises(TemplateError, match="formats are"):
            parse_template(f"a.{{i:{fmt}}}")
    assert parse_template("a.{i:09}").render({"i": 7}) == "a.000000007"
    assert parse_template("a.{i:_}").render({"i": "x.y.z"}) == "a.x_y_z"


def test_numbers_of_eighteen_digits_are_read_and_longer_ones_are_no_index():
    form = form_of("x.{i}", 0, {**COUNTS, "i": None})
    assert form.match("x." + "9" * 18) == {"i": 10**18 - 1}
    assert form.match("x." + "9" * 19) is None
    assert form.looks_like("x." + "9" * 19)


def test_digits_are_taken_apart_however_many_values_there_are():
    """More values than could be tried: only reading digit by digit tells them."""
    counts = {"x": 1000, "y": 1000, "z": None}
    indices = {n: Index(n, parse(n)) for n in counts}
    for text, give in (
        ("{1000000*z+1000*y+x+5}", lambda x, y, z: 1000000 * z + 1000 * y + x + 5),
        ("{1000000*z-1000*y-x+999999}", lambda x, y, z: 1000000 * z - 1000 * y - x + 999999),
    ):
        form = Form(parse_template(text), indices, 0, {}, counts)
        assert ambiguity(form) is None
        for row in ((0, 0, 0), (999, 999, 0), (0, 999, 7), (5, 0, 123456), (999, 0, 1)):
            assert form.match(str(give(*row))) == dict(zip("xyz", row))
    uneven = Form(parse_template("{1000000*z+1001*y+x}"), indices, 0, {}, {"x": 1000, "y": 900, "z": None})
    assert uneven.match("1000") is None  # x has no 1000
    assert uneven.match("1001") == {"x": 0, "y": 1, "z": 0}
    assert uneven.match(str(900 * 1001)) is None


def test_values_that_are_tried_are_bounded():
    indices = {n: Index(n, parse(n)) for n in "xyz"}
    few = {"x": 200, "y": 100, "z": 3}
    assert Form(parse_template("{7*z+2*x+2*y}"), indices, 0, {}, few).match("1") is None
    with pytest.raises(TemplateError, match="has 20100 combinations of indices"):
        Form(parse_template("{7*z+2*x+2*y}"), indices, 0, {}, {"x": 201, "y": 100, "z": 3}).match("1")


@pytest.mark.parametrize("keys", [(3, 5, 9), (0,), (2,), ()])
def test_labels_that_are_numbers_are_read_as_they_stand(keys):
    indices = {"k": Index("k", None, keys, keys), "i": Index("i", parse("i"))}
    form = Form(parse_template("{10*i+k}"), indices, 0, {}, {"i": 4})
    want = {10 * i + k: {"i": i, "k": k} for i in range(6) for k in keys}
    for n in range(60):
        assert form.match(str(n)) == want.get(n), n


@pytest.mark.parametrize(
    ("match", "to", "back", "home"),
    [
        (r"a(?P<x>[)]+)b", "{x}c", r"(?P<x>[)]+)c", "a{x}b"),
        (r"a(?P<x>[^)]x)b", "{x}", r"(?P<x>[^)]x)", "a{x}b"),
        (r"a(?P<x>[])]+)b", "{x}", r"(?P<x>[])]+)", "a{x}b"),
        (r"a(?P<x>[^])]+)b", "{x}", r"(?P<x>[^])]+)", "a{x}b"),
        (r"a(?P<x>\)y)b", "{x}", r"(?P<x>\)y)", "a{x}b"),
        (r"a(?P<x>[\])]y)b", "{x}", r"(?P<x>[\])]y)", "a{x}b"),
        (r"a(?P<x>(b)(?:c|(d)))e", "{x}", r"(?P<x>(b)(?:c|(d)))", "a{x}e"),
        (r"(?P<x>\d)\.(?P<y>[a-z]+)", "{y}-{x}+", r"(?P<y>[a-z]+)\-(?P<x>\d)\+", "{x}.{y}"),
    ],
)
def test_a_group_ends_where_the_engine_ends_it(match, to, back, home):
    rename = Regex(match, to)
    check_regex(rename)
    assert invert_regex(rename) == Regex(back, home)
    check_regex(Regex(back, home))


def test_what_is_no_text_outside_the_groups_is_said():
    for pattern, at in ((r"a\.b*", "*"), (r"ab\d", r"\d"), ("abc\\", "\\"), ("a[bc]", "[bc]"), ("a{2}", "{2}")):
        assert invert_regex(Regex(pattern, "x")) == f"'{pattern}' is not literal outside its named groups (at '{at}')"


def test_new_names_and_patterns_are_bounded():
    rename = Regex("(?P<a>x*)", "{a}{a}")
    n = (MAX_RENAMED - 6) // 2
    assert rename.rename("x" * n) == "x" * (2 * n)
    with pytest.raises(MismatchError, match="makes a name of more than 100000 characters"):
        rename.rename("x" * (n + 1))
    check_length("a" * 1000, "")
    with pytest.raises(TemplateError, match="has 1001 characters"):
        check_length("", "a" * 1001)


def test_the_engine_says_nothing_by_itself(capfd):
    with pytest.raises(TemplateError, match="patterns are RE2's"):
        compile_pattern("(")
    with pytest.raises(TemplateError):
        compile_pattern("((a{1,100}){1,100}){1,9}")
    assert capfd.readouterr() == ("", "")
    assert compile_pattern("(?P<a>.{1,500})").fullmatch("b" * 500)


def test_an_index_without_values_has_no_two():
    indices = {n: Index(n, parse(n)) for n in "ij"}
    for counts, clear in (({"i": 0, "j": 5}, True), ({"i": 1, "j": 0}, True), ({"i": 2, "j": 3}, False)):
        assert (ambiguity(Form(parse_template("{2*i+j}"), indices, 0, {}, counts)) is None) == clear


def test_a_template_has_no_empty_parts():
    for text, kinds in (("a{i}", "sH"), ("{i}a", "Hs"), ("{i}{i}", "HH"), ("a", "s"), ("", ""), ("{i}", "H")):
        assert "".join("s" if isinstance(p, str) else "H" for p in parse_template(text).parts) == kinds


def test_the_index_whose_count_is_not_known_is_read_last():
    indices = {n: Index(n, parse(n)) for n in "ij"}
    form = Form(parse_template("{100*i+j}"), indices, 0, {}, {"i": 3, "j": None})
    assert form.match("7") == {"i": 0, "j": 7}
    keys = (0, 1, 2)
    indices["k"] = Index("k", None, keys, keys)
    form = Form(parse_template("{100*k+j}"), indices, 0, {}, {"j": None})
    assert form.match("7") == {"k": 0, "j": 7}


def test_strip_leaves_a_name_that_is_nothing_else():
    assert Strip("model.").off("model.w") == "w"
    assert Strip("model.").off("model.") == "model."


def test_a_group_that_is_not_there_adds_nothing_to_the_length():
    rename = Regex("(?P<a>a)?b", "x" * (MAX_RENAMED - 3) + "{a}")
    assert rename.rename("b") == "x" * (MAX_RENAMED - 3)
    with pytest.raises(MismatchError, match="makes a name of more than"):
        rename.rename("ab")


PATTERNS = [
    r"a(?P<x>[0-9]+)b",
    r"(?P<x>a|b)c*",
    r"a.*",
    r"(?i)X{2,3}",
    r"^é(?P<x>.)$",
    r"(?:)",
    r"c|d|cd",
    r"[(?P<x>]+",
    r"b\(?Pc",
]


@given(st.lists(st.sampled_from(PATTERNS), max_size=9), st.lists(st.text("abcdé12xX(?P<>\\", max_size=6), max_size=9))
@example(PATTERNS, ["", "a1b", "ac", "bcc", "xxX", "éé", "é", "cd", "(?P<x>", "b(Pc", "bPc", "zz"])
@laws
def test_a_sieve_leaves_out_nothing_that_matches(patterns, names):
    sieve = Sieve(patterns)
    for name in names:
        matching = [k for k, p in enumerate(patterns) if compile_pattern(p).fullmatch(name)]
        tried = list(sieve.of(name))
        assert set(matching) <= set(tried)
        assert tried == (matching if len(patterns) >= 4 else list(range(len(patterns))))


def test_a_set_that_finds_nothing_for_want_of_memory_is_not_believed(monkeypatch):
    sieve = Sieve(PATTERNS)
    assert list(sieve.of("zz")) == []
    monkeypatch.setattr(sieve, "_set", SimpleNamespace(Match=lambda name: None))
    assert list(sieve.of("a1b")) == list(range(len(PATTERNS)))
    assert list(sieve.of("zz")) == []


@pytest.mark.parametrize("odd", [r"\Qa.b", "(a{1000}){1000}"])
def test_patterns_that_do_not_go_together_are_tried_one_by_one(odd):
    assert list(Sieve([odd, "x", "y", "z", "w"]).of("q")) == [0, 1, 2, 3, 4]
