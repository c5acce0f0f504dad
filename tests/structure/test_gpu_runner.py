"""How `make gpu-check` runs its steps and programs: failures, limits, kills, the log."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from gpu_check_fakes import commands_in, ends_soon, raising, report_in, run, run_with, written

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from gpu_checks.report import ESSENTIAL  # noqa: E402
from gpu_checks.runner import Failed, Runner, Skipped, Step  # noqa: E402


def test_a_step_that_fails_or_cannot_run_is_reported_and_the_others_go_on(tmp_path):
    report = run(
        tmp_path,
        Step("throws", 9, raising(ValueError("no such thing"))),
        Step("skips", 9, raising(Skipped("no sanitizer"))),
        Step("fails", 9, raising(Failed("ninja exited 1"))),
        Step(ESSENTIAL, 9, lambda: {"tests": 3}),
    )
    outcomes = {name: step["outcome"] for name, step in report["steps"].items()}
    assert outcomes == {
        "throws": "failed",
        "skips": "skipped",
        "fails": "failed",
        ESSENTIAL: "passed",
    }
    assert report["steps"]["throws"]["reason"] == "ValueError: no such thing"
    assert report["steps"]["skips"]["reason"] == "no sanitizer"
    assert report["steps"]["fails"]["reason"] == "ninja exited 1"
    assert report["steps"][ESSENTIAL]["details"] == {"tests": 3}
    assert report["passed"] is False


def test_a_step_without_what_it_needs_is_skipped(tmp_path):
    report = run(
        tmp_path,
        Step("build", 9, raising(Failed("no"))),
        Step("test", 9, lambda: pytest.fail("it ran"), needs=("build",)),
    )
    assert report["steps"]["test"]["outcome"] == "skipped"
    assert report["steps"]["test"]["reason"] == "needs 'build', which did not pass"


def test_a_command_that_outlasts_its_step_is_killed_with_all_that_it_started(tmp_path):
    commands = commands_in(tmp_path)
    started = tmp_path / "children"
    script = f"(sleep 60 & echo $! > {started}; echo begun; wait)"
    report = report_in(tmp_path)
    runner = Runner(report, commands, limit=60)
    begin = time.monotonic()
    runner.run([Step("hangs", 1, lambda: commands.run("sh", "-c", script))])
    assert time.monotonic() - begin < 10
    step = written(report)["steps"]["hangs"]
    assert step["outcome"] == "failed"
    assert "sh ran out of time" in step["reason"]
    assert "begun" in step["reason"]
    assert ends_soon(int(started.read_text()))


def test_no_step_begins_when_the_time_of_all_is_up(tmp_path):
    report = run(tmp_path, Step("late", 9, lambda: pytest.fail("it ran")), limit=1)
    assert report["steps"]["late"]["outcome"] == "skipped"
    assert "no time left of 1 s (--limit)" in report["steps"]["late"]["reason"]


def test_a_step_may_not_outlast_what_is_left_of_the_limit(tmp_path):
    commands = commands_in(tmp_path)
    seen = []
    step = Step("long", 500, lambda: seen.append(commands.time_left()))
    Runner(report_in(tmp_path), commands, limit=20).run([step])
    assert 0 < seen[0] <= 20


def test_a_step_that_the_limit_of_all_cuts_short_has_not_failed(tmp_path):
    commands = commands_in(tmp_path)
    # The step's own time is longer than what is left.
    step = Step("cut", 500, lambda: commands.run("sleep", "60"))
    report = run_with(commands, tmp_path, step, limit=6)
    assert report["steps"]["cut"]["outcome"] == "skipped"
    assert "cut short after 6 s by the limit of 6 s (--limit)" in report["steps"]["cut"]["reason"]


def test_output_goes_to_the_log_and_the_end_of_a_failure_into_the_report(tmp_path):
    commands = commands_in(tmp_path)
    assert commands.run("sh", "-c", "echo out; echo err >&2").split() == ["out", "err"]
    with pytest.raises(Failed, match=r"sh exited 3:\n(.|\n)*line 40") as failure:
        commands.run("sh", "-c", "seq -f 'line %g' 40; exit 3")
    assert "line 20" not in str(failure.value)
    log = (tmp_path / "gpu_check.log").read_text()
    assert all(part in log for part in ("$ sh -c", "out\n", "err\n", "line 20\n"))


def test_commands_that_are_begun_run_beside_each_other_and_fill_the_log_in_turn(tmp_path):
    commands = commands_in(tmp_path)
    # Each waits for the file that the other makes.
    first = ("sh", "-c", "touch a; while [ ! -e b ]; do sleep 0.01; done; echo first")
    second = ("sh", "-c", "touch b; while [ ! -e a ]; do sleep 0.01; done; echo second; exit 3")
    commands.root = tmp_path
    commands.deadline = time.monotonic() + 30
    commands.begin(*second)
    commands.begin(*second)  # runs already
    commands.begin(*first)
    assert commands.run(*first) == "first\n"
    with pytest.raises(Failed, match="exited 3:\nsecond"):
        commands.run(*second)
    printed = [line for line in commands.log.read_text().splitlines() if line[0] != "$"]
    assert printed == ["first", "second"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "gpu_check.log"]


def test_what_was_begun_and_is_not_waited_for_is_killed(tmp_path):
    (tmp_path / "gpu_check.log.0").write_text("$ what a check that was killed left\nFAILED\n")
    commands = commands_in(tmp_path)
    commands.begin("sh", "-c", "echo $$; exec sleep 600")
    log = tmp_path / "gpu_check.log.0"
    deadline = time.monotonic() + 30
    while len(log.read_text().splitlines()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    pid = int(log.read_text().splitlines()[1])
    commands.stop()
    assert ends_soon(pid)
    assert str(pid) in commands.log.read_text()
    assert "FAILED" not in commands.log.read_text()


def test_a_check_that_is_killed_leaves_what_it_knew(tmp_path):
    program = f"""
import sys, time
sys.path[:0] = [{str(ROOT / "benchmarks")!r}, {str(ROOT / "tests/structure")!r}]
from gpu_check_fakes import Path, run
from gpu_checks.runner import Step
run(Path({str(tmp_path)!r}), Step("first", 9, lambda: "done"), Step("second", 99, lambda: (
    print("ready", flush=True), time.sleep(60))))
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    while "ready" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    report = json.loads((tmp_path / "gpu-nvidia-h200.json").read_text())
    assert report["steps"]["first"]["details"] == "done"
    assert report["steps"]["second"] == {"outcome": "running"}
    assert report["passed"] is False
