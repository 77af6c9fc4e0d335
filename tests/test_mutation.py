"""The mutants that `make mutants` makes are sound changes, each of one place, and the list of survivors is of such."""

import ast
import textwrap
from collections import defaultdict
from pathlib import Path

import pytest
from mutation.__main__ import files, known, name, sample, survivors
from mutation.mutants import mutants, replaced
from mutation.runner import ROOT, belongs, functions_of, put_in

SOURCE = textwrap.dedent('''
    """Text, 1."""
    from typing import Any
    LIMIT: int = 3

    class Ä:
        """Text."""
        at: int = 0

        @property
        def big(self) -> bool:
            if not self.at and LIMIT in (
                1,
                2,
            ):
                raise ValueError(f"{self.at + 1} is not {2}")
            return self.at < LIMIT
''')


def changes(source):
    return {(m.kind, *m.change) for m in mutants("/x/m.py", source)}


def test_what_is_changed_and_what_is_left():
    found = changes(SOURCE)
    assert {k for k, _, _ in found} == {"constant", "unary", "boolean", "negated", "compare", "dropped", "returned"}
    assert ("compare", "return self.at < LIMIT", "return (self.at <= LIMIT)") in found
    assert ("returned", "return self.at < LIMIT", "return None") in found
    assert ("constant", "LIMIT: int = 3", "LIMIT: int = 4") in found
    assert ("constant", "LIMIT: int = 3", "LIMIT: int = 2") in found
    assert ("dropped", 'raise ValueError(f"{self.at + 1} is not {2}")', "pass") in found
    texts = [new for _, _, new in found]
    assert not [t for t in texts if "Textx" in t or "boolx" in t or "is not {3}" in t]


def test_every_mutant_is_another_program_of_as_many_lines():
    whole = ast.dump(ast.parse(SOURCE))
    for m in mutants("/x/m.py", SOURCE):
        assert ast.dump(ast.parse(m.text)) != whole
        assert m.text.count("\n") == SOURCE.count("\n")
        assert m.lines[0] <= m.line <= m.lines[1]


def test_the_function_around_a_change_begins_with_its_decorators():
    by_line = {m.line: m.function for m in mutants("/x/m.py", SOURCE)}
    assert by_line == {4: 0, 8: 0, 12: 10, 13: 10, 14: 10, 16: 10, 17: 10}
    m = replaced("/x/m.py", SOURCE, "self.at < LIMIT", "True")
    assert (m.function, m.line) == (10, 17)
    with pytest.raises(AssertionError, match="stands 3 times"):
        replaced("/x/m.py", SOURCE, "self.at", "0")


def test_a_sample_is_the_same_for_the_same_seed_and_takes_of_each_file():
    groups = {f: list(mutants(f, SOURCE)) * 4 for f in ("/x/a.py", "/x/b.py")}
    one, two = (sample(groups, 10, seed) for seed in (1, 2))
    assert one == sample(groups, 10, 1) != two
    assert [sum(m.file == f for m in one) for f in groups] == [5, 5]


def test_the_output_of_a_run_is_read_back():
    text = "3 tests\nconverter/dims.py:15: constant, survived (9 tests run it)\n  - a = 1\n  + a = 2\nall 9 mutants\n"
    assert survivors(text) == {("converter/dims.py", "a = 1", "a = 2")}


def test_every_listed_survivor_is_a_mutant_with_a_reason():
    listed, lines = known(), defaultdict(set)
    for f in files():
        for m in mutants(f, Path(f).read_text()):
            lines[name(m)].add(m.line)
    assert not [entry for entry in listed if entry not in lines], "the code has changed: look at it again"
    assert not [entry for entry in listed if len(lines[entry]) > 1], "a text that stands in one line"
    assert all(listed.values())


def test_which_tests_are_about_a_file():
    def about(file, tests):
        return belongs(str(ROOT / "converter" / file), Path(f"/x/{tests}.py"))

    assert about("dims.py", "test_dims")
    assert about("ops/pad.py", "test_ops")
    assert about("formats/torch_pickle.py", "test_pickles")
    assert about("formats/swap.py", "test_formats_output")
    assert not about("dims.py", "test_names")


def test_a_change_goes_into_the_function_that_is_there(tmp_path):
    source = "def f(a, b=lambda: 1):\n    return a < b()\n\nclass C:\n    @property\n    def g(self):\n        return [x + 1 for x in (1, 2)]\n"
    names, file = {}, str(tmp_path / "m.py")
    exec(compile(source, file, "exec"), names)
    functions, f, c = functions_of([file]), names["f"], names["C"]()
    for old, new, call, was, now in (
        ("a < b()", "a <= b()", lambda: f(1), False, True),
        ("x + 1", "x - 1", lambda: c.g, [2, 3], [0, 1]),
    ):
        assert call() == was
        assert put_in(replaced(file, source, old, new), functions)
        assert call() == now
    assert not put_in(replaced(file, source, "a < b()", "True"), {})
