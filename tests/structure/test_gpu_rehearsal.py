"""What `make gpu-rehearsal` says of each call, and of what is to be carried."""

import sys
from pathlib import Path

import pytest
from gpu_check_fakes import MACHINE, make_context
from test_status import gpu_results

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import gpu_check  # noqa: E402
from gpu_checks import rehearsal, steps  # noqa: E402
from gpu_checks.report import ESSENTIAL  # noqa: E402
from gpu_checks.runner import Step  # noqa: E402
from gpu_rows.groups import GROUPS  # noqa: E402


@pytest.fixture
def context(tmp_path):
    return make_context(tmp_path)


def test_a_rehearsal_says_what_each_call_does_and_what_it_keeps(capsys):
    wanted = [
        Step("configure", 60, None, expected=50, prepares=True),
        Step(ESSENTIAL, 60, None, ("configure",), expected=40),
        Step("rows", 60, None, ("configure",), expected=50, keeps_parts=True),
        Step("sanitizer", 60, None, expected=8),
    ]
    assert rehearsal.rehearse(wanted, MACHINE, ROOT, limit=100) == 2
    first, second = capsys.readouterr().out.split("call 2, ")
    assert "passed      40.0 s  " + ESSENTIAL in first
    assert "skipped     10.0 s  rows" in first
    assert "1 steps kept" in second
    # Measurements of the rows before the cut are kept.
    assert "passed      40.0 s  rows" in second
    assert ESSENTIAL not in second


def test_a_rehearsal_of_a_step_that_fits_into_no_call_says_so():
    endless = [Step("compile", 900, None, expected=900)]
    with pytest.raises(ValueError, match="not done in 12 calls of 100 s"):
        rehearsal.rehearse(endless, MACHINE, ROOT, limit=100)


@pytest.mark.parametrize("prebuilt", [True, False])
def test_with_a_library_built_elsewhere_the_check_needs_two_calls_of_ten_minutes(
    context, tmp_path, prebuilt
):
    context.capability = (9, 0)
    context.prebuilt = tmp_path if prebuilt else None
    calls = rehearsal.rehearse(steps.steps(context), MACHINE, ROOT, gpu_check.LIMIT)
    assert calls <= (2 if prebuilt else 4)


def test_what_steps_are_expected_to_take_is_what_they_took_where_they_passed(context):
    expected = {step.name: step.expected for step in steps.steps(context)}
    for result in gpu_results().values():
        for name, step in result["steps"].items():
            if step["outcome"] == "passed":
                assert step["seconds"] <= expected[name] + 0.5, name
    assert set(steps.EXPECTED) == set(GROUPS)


def test_what_is_too_large_to_be_carried_is_told(capsys):
    rehearsal.print_sizes({"sources": 6 << 20, "dist/portable": 22 << 20})
    assert "28.0 MiB  in all, of at most 64" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"70.0 MiB are more than 64: carry less"):
        rehearsal.print_sizes({"sources": 70 << 20})


def test_a_copy_without_a_repository_has_the_same_sources(tmp_path):
    for name in ("core/a.cpp", "build-gpu/b.o", "dist/portable/c.a", ".venv/d", "Makefile"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = {str(path.relative_to(tmp_path)) for path in gpu_check.sources_of(tmp_path)}
    assert found == {"core", "core/a.cpp", "Makefile"}
