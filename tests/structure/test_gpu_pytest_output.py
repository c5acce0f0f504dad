"""What `make gpu-check` reads in what pytest prints."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from gpu_checks.pytest_output import counts, failed_tests, skip_reasons  # noqa: E402


def test_pytest_is_understood():
    output = (
        "SKIPPED [2] tests/python/a.py:5: needs ml_dtypes\n"
        "SKIPPED [1] tests/python/b.py:9: needs ml_dtypes\n"
        "SKIPPED [1] tests/python/b.py:12: could not import 'gfloat': no\n"
        "FAILED tests/python/b.py::test_x - 3 failed attempts\n"
        "== 1 failed, 98 passed, 4 skipped, 2 errors in 12.31s (0:00:12) ==\n"
    )
    assert counts(output) == {"failed": 1, "passed": 98, "skipped": 4, "errors": 2}
    assert skip_reasons(output) == {"needs ml_dtypes": 3, "could not import 'gfloat': no": 1}
    assert failed_tests(output) == ["test_x"]
    assert counts("nothing of the kind") == {}


def test_the_tests_that_count_are_those_of_pytest_whatever_it_runs_under():
    printed = (
        "===== 2 failed, 115 passed, 1 skipped in 6.81s =====\n========= ERROR SUMMARY: 0 errors\n"
    )
    assert counts(printed) == {"failed": 2, "passed": 115, "skipped": 1}
    assert counts("1 failed, 3 passed\n") == {}


def test_a_test_that_failed_in_several_cases_or_before_it_began_is_named_once():
    output = (
        "tests/a.py::test_b[1] FAILED [ 3%]\nFAILED\n"
        "FAILED tests/a.py::test_b[1-x y] - assert 1 == 2\nFAILED tests/a.py::test_b[2]\n"
        "ERROR tests/c.py::Class::test_d - no fixture\n"
    )
    assert failed_tests(output) == ["test_b", "test_d"]
