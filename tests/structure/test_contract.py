"""The contract's pages match the lists in tests/contract, and every test they name exists."""

import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "contract"))

import contract  # noqa: E402
from find_tests import find_test, google_tests, python_tests  # noqa: E402

STATEMENTS = contract.all_statements()


def test_the_pages_are_up_to_date():
    made = "run `python tests/contract/contract.py`"
    assert contract.PROMISES_PAGE.read_text() == contract.render_promises(), made
    assert contract.ARGUMENTS_PAGE.read_text() == contract.render_arguments(), made


def test_every_test_that_is_named_exists():
    missing = []
    for statement in STATEMENTS:
        try:
            find_test(statement.test)
        except LookupError as error:
            missing.append(str(error))
    assert missing == []


def test_statements_are_unique():
    assert len(STATEMENTS) > 200
    assert max(Counter(statement.text for statement in STATEMENTS).values()) == 1


def test_tests_are_found_by_their_names():
    assert len(google_tests()) > 300
    assert len(python_tests()) > 200
    with pytest.raises(LookupError, match="0 tests"):
        find_test("Nothing.of_the_kind")
