"""Each case of the list is a test of its name, and each test is a case."""

import ast
from pathlib import Path

HERE = Path(__file__).parent


def functions():
    for path in sorted(HERE.glob("test_*.py")):
        if path != Path(__file__):
            yield from (n.name for n in ast.parse(path.read_text()).body if isinstance(n, ast.FunctionDef))


def test_every_case_is_tested_and_nothing_else():
    ids = (HERE / "ids.txt").read_text().split()
    assert len(ids) == len(set(ids)) == 106
    tests = [name for name in functions() if name.startswith("test_")]
    assert sorted(tests) == sorted("test_" + i.replace("-", "_") for i in ids)


def test_no_golden_file_is_left_over():
    ids = (HERE / "ids.txt").read_text().split()
    assert {p.stem for p in (HERE / "golden").glob("*")} <= {i.replace("-", "_") for i in ids}
