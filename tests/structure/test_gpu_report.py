"""The report of `make gpu-check`, and how a second call goes on from it."""

import json
import sys
from pathlib import Path

import pytest
from gpu_check_fakes import MACHINE, outcomes, raising, report_in, run, written
from test_text import MACHINE_PATH

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from gpu_checks.report import ESSENTIAL, Report, digest_of_sources  # noqa: E402
from gpu_checks.runner import Failed, Skipped, Step  # noqa: E402


def test_a_check_has_passed_only_if_cuda_was_compared_with_the_cpu(tmp_path):
    assert run(tmp_path, Step("other", 9, lambda: None))["passed"] is False
    skipped = Step(ESSENTIAL, 9, raising(Skipped("no")))
    assert run(tmp_path, skipped)["passed"] is False
    extra = Step("extra", 9, raising(Skipped("no sanitizer")))
    assert run(tmp_path, Step(ESSENTIAL, 9, lambda: None), extra)["passed"] is True


def test_a_report_is_named_after_the_card_and_names_no_folder_of_the_machine(tmp_path):
    report = report_in(tmp_path)
    assert report.path.name == "gpu-nvidia-h200.json"
    # Put together here: no file of the repository may have such paths.
    folders = ["/".join(["", *parts]) for parts in (("root", "a.py"), ("opt", "b"), ("home", "c"))]
    lines = f"{ROOT}/core/x.cu:3 {folders[0]} {folders[1]}(7) ({folders[2]})"
    assert MACHINE_PATH.search(lines)
    report.steps["one"] = {"outcome": "failed", "reason": lines}
    report.write()
    text = report.path.read_text()
    assert "./core/x.cu:3 ~/a.py" in text
    assert not MACHINE_PATH.search(text)


def test_rows_of_the_benchmarks_are_part_of_the_report(tmp_path):
    report = report_in(tmp_path)
    report.rows_path.write_text('[{"name": "a row"}]')
    report.write()
    assert written(report)["benchmarks"] == [{"name": "a row"}]


def test_a_second_call_goes_on_where_the_first_stopped(tmp_path):
    runs = []

    def step(name, outcome=None, **about):
        def action():
            runs.append(name)
            if outcome and runs.count(name) == 1:
                raise outcome

        return Step(name, 9, action, **about)

    wanted = (
        step("configure", prepares=True),
        step("fails", Failed("exited 1")),
        step(ESSENTIAL),
        step("skips", Skipped("no sanitizer")),
    )
    first = run(tmp_path, *wanted)
    assert outcomes(first)["fails"] == "failed"
    assert first["calls"] == 1
    runs_of_first = len(runs)
    second = run(tmp_path, *wanted)
    # Failed steps come last, so that they take no time from those that have not been tried.
    assert runs[runs_of_first:] == ["configure", "skips", "fails"]
    assert set(outcomes(second).values()) == {"passed"}
    assert (second["calls"], second["passed"]) == (2, True)


def test_a_call_that_was_killed_is_gone_on_with(tmp_path):
    report = report_in(tmp_path)
    report.steps = {"one": {"outcome": "passed"}, "two": {"outcome": "running"}}
    report.rows_path.write_text('[{"name": "a row"}]')
    report.write()
    later = report_in(tmp_path)
    assert later.has_passed("one")
    assert later.steps["two"] == {"outcome": "skipped", "reason": "the check ended while it ran"}
    assert json.loads(later.rows_path.read_text()) == [{"name": "a row"}]


NOT_REPEATED = {
    "no time": "no time left of 1 s (--limit)",
    "without what it needs": "needs 'build', which did not pass",
    "cannot run": "out of time after 2 tests",
    "killed": "the check ended while it ran",
}


def call_that_does_not_repeat(folder: Path, how: str) -> None:
    """A later check in which the step "fails" comes to no end."""
    if how == "no time":
        run(folder, Step("fails", 9, lambda: pytest.fail("it ran")), limit=1)
    elif how == "without what it needs":
        run(folder, Step("fails", 9, lambda: pytest.fail("it ran"), needs=("build",)))
    elif how == "cannot run":
        run(folder, Step("fails", 9, raising(Skipped(NOT_REPEATED[how]))))
    else:
        kept = []

        def action():  # a SIGKILL leaves the report that was written before the step began
            kept.append(report_in(folder).path.read_text())

        report = run(folder, Step("fails", 9, action))
        assert report["passed"] is True
        (folder / "gpu-nvidia-h200.json").write_text(kept[0])


@pytest.mark.parametrize("how", NOT_REPEATED)
def test_what_failed_has_failed_until_it_has_run_to_its_end_again(tmp_path, how):
    failure = Failed("pytest exited 1")
    first = run(tmp_path, Step(ESSENTIAL, 9, lambda: None), Step("fails", 9, raising(failure)))
    failed = first["steps"]["fails"]
    for _ in range(2):
        call_that_does_not_repeat(tmp_path, how)
        report = report_in(tmp_path)
        report.write()
        assert report.steps["fails"] == failed | {"not repeated": NOT_REPEATED[how]}
        assert written(report)["passed"] is False
    mended = run(tmp_path, Step("fails", 9, lambda: {"tests": 3}))
    assert mended["steps"]["fails"]["details"] == {"tests": 3}
    assert set(mended["steps"]["fails"]) == {"outcome", "details", "seconds"}
    assert mended["passed"] is True


@pytest.mark.parametrize("difference", ["sources", "card", "torch", "library", "afresh", "damage"])
def test_results_of_anything_else_are_not_gone_on_with(tmp_path, monkeypatch, difference):
    report = Report(tmp_path, MACHINE | {"torch": "2.11.0"}, ROOT, prebuilt="a library")
    report.steps = {"one": {"outcome": "passed"}}
    report.rows_path.write_text('[{"name": "a row"}]')
    report.write()
    machine = MACHINE | {"torch": "2.11.0"}
    if difference == "sources":
        monkeypatch.setattr("gpu_checks.report.digest_of_sources", lambda root: "another")
    elif difference == "card":
        # The name of the file would be another too; a file may be renamed.
        text = report.path.read_text().replace("NVIDIA H200", "NVIDIA H100")
        report.path.write_text(text)
    elif difference == "torch":
        machine["torch"] = "2.12.0"
    elif difference == "damage":
        report.path.write_text("{")
    library = "another" if difference == "library" else "a library"
    later = Report(tmp_path, machine, ROOT, afresh=difference == "afresh", prebuilt=library)
    assert later.steps == {}
    assert not later.rows_path.exists()


def test_sources_are_known_by_their_contents_with_or_without_a_repository(tmp_path):
    for name in ("core/a.cpp", "tests/b.py", "benchmarks/results/c.json", "docs/d.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    first = digest_of_sources(tmp_path)
    (tmp_path / "benchmarks/results/c.json").write_text("2")
    (tmp_path / "docs/d.md").write_text("2")
    assert digest_of_sources(tmp_path) == first
    (tmp_path / "tests/b.py").write_text("2")
    changed = digest_of_sources(tmp_path)
    assert changed != first
    (tmp_path / "tests/b.py").rename(tmp_path / "tests/e.py")
    assert digest_of_sources(tmp_path) not in (first, changed)


def test_a_copy_of_the_report_is_written_wherever_it_is_asked_for(tmp_path):
    report = Report(tmp_path / "out", MACHINE, ROOT, copies=tmp_path / "copies")
    report.write()
    copy = tmp_path / "copies" / report.path.name
    assert copy.read_text() == report.path.read_text()
