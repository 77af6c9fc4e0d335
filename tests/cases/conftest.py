"""A laboratory for each case; the messages of its refusals are in golden/, by the name of the test.

`UPDATE_GOLDEN=1 python -m pytest tests/cases` writes them anew; read the difference before it is committed.
"""

import os
from pathlib import Path

import pytest

from .field import Case, kept_golden

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def case(tmp_path, request):
    name = request.node.originalname.removeprefix("test_")
    with kept_golden(Case(tmp_path), GOLDEN / f"{name}.txt", os.environ.get("UPDATE_GOLDEN") == "1") as case:
        yield case
