"""Laws of folding: what a folded line says is exactly the names that went in."""

import re
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from converter.folding import clip, closest, fold, natural_key

laws = settings(max_examples=200, deadline=None)
RANGE = re.compile(r"\{([0-9.,]+)\}")


def expand(line: str) -> list[str]:
    """Read a folded line as its reader does: ranges count up, in as many digits as they begin with."""
    text, count = line, 1
    if m := re.fullmatch(r"(.*) \(([0-9]+)\)", line, re.DOTALL):
        text, count = m[1], int(m[2])
    pieces = RANGE.split(text)
    choices = [[p] if k % 2 == 0 else numbers(p) for k, p in enumerate(pieces)]
    names = ["".join(c) for c in product(*choices)]
    assert len(names) == count, line
    return names


def numbers(text: str) -> list[str]:
    out: list[str] = []
    for part in text.split(","):
        first, dots, last = part.partition("..")
        out += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)] if dots else [part]
    return out


digits = st.integers(0, 13).map(str) | st.sampled_from(["00", "01", "007", "08", "9", "09", "10", "099", "99", "100"])
words = st.sampled_from(["h", ".", "w", "_", "é", "e.", "-"])
names = st.lists(digits | words, min_size=1, max_size=6).map("".join)


@laws
@given(st.lists(names, max_size=40))
def test_expanding_gives_the_set_back(several):
    found = [n for line in fold(several) for n in expand(line)]
    assert len(found) == len(set(found))
    assert set(found) == set(several)


@laws
@given(st.sets(st.tuples(st.integers(0, 5), st.integers(0, 12)), min_size=1))
def test_grids_with_holes(cells):
    several = {f"l.{a}.e.{b}.w" for a, b in cells}
    assert {n for line in fold(several) for n in expand(line)} == several


@laws
@given(st.lists(st.text(max_size=8), max_size=12))
def test_any_text_folds_without_loss_of_count(several):
    lines = fold(several)
    counts = [int(m[1]) if (m := re.search(r" \((\d+)\)$", line)) and line not in several else 1 for line in lines]
    assert sum(counts) == len(set(several))


@laws
@given(st.lists(names, min_size=1, max_size=20))
def test_order_and_repetition_do_not_matter(several):
    assert fold(several) == fold(list(reversed(several)) + several)


def test_digits_of_other_scripts_are_letters():
    several = ["h.٣.w", "h.4.w"]
    assert sorted(fold(several)) == sorted(several)


@pytest.mark.parametrize(
    ("several", "lines"),
    [
        ([f"h.{i}.ln_1.weight" for i in range(12)], ["h.{0..11}.ln_1.weight (12)"]),
        ([f"l.{i}.e.{j}.w" for i in range(3) for j in range(12)], ["l.{0..2}.e.{0..11}.w (36)"]),
        ([f"h.{i}.w" for i in range(24) if i != 11], ["h.{0..10,12..23}.w (23)"]),
        (["wte.weight"], ["wte.weight"]),
        ([], []),
        (["b", "a"], ["a", "b"]),
        (["x.1.w", "x.01.w", "x.2.w"], ["x.{1,01,2}.w (3)"]),
    ],
)
def test_as_the_design_shows_it(several, lines):
    found = fold(reversed(several))
    if "01" not in "".join(several):
        assert found == lines
    assert {n for line in found for n in expand(line)} == set(several)


def test_natural_order():
    several = ["h.10.w", "h.2.w", "h.1.w", "h.w", "g.3", "wte"]
    assert sorted(several, key=natural_key) == ["g.3", "h.1.w", "h.2.w", "h.10.w", "h.w", "wte"]


@laws
@given(st.lists(st.text(max_size=6)))
def test_natural_order_takes_any_text(several):
    assert sorted(sorted(several, key=natural_key)) == sorted(several)


def test_a_name_of_many_digits():
    """Numbers in names have no bound: 5,000 digits are a name like any other."""
    name = "h." + "9" * 5000
    assert fold([name]) == [name]
    assert sorted([name, "h.2"], key=natural_key) == ["h.2", name]


@laws
@given(st.text(max_size=300), st.integers(10, 250))
def test_clipped_text_is_short_and_printable(text, limit):
    shown = clip(text, limit)
    assert shown.isprintable()
    assert len(shown) <= limit
    if text.isprintable() and len(text) <= limit:
        assert shown == text


def test_closest():
    assert closest("n_layr", ["n_layer", "d", "vocab"]) == "n_layer"
    assert closest("zzz", ["n_layer", "d", "vocab"]) is None
