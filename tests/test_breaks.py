"""Breaks on purpose: the anchor of a pattern, ties, padding, offsets and the order of layers never break in silence."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from mutation.breaks import BREAKS


@pytest.fixture(scope="module")
def failed():
    """For each break, and for the code as it is, the test that fails, or None."""
    r = subprocess.run(
        [sys.executable, "-m", "mutation.breaks"],
        cwd=Path(__file__).parent, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert r.returncode == 0, r.stdout + r.stderr
    return json.loads(r.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", BREAKS)
def test_a_break_is_seen(failed, name):
    assert (failed[name] or "").startswith(BREAKS[name].seen_by)


def test_without_a_break_the_same_tests_pass(failed):
    assert failed[""] is None
    assert set(failed) == {"", *BREAKS}
