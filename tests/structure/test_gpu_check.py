"""`make gpu-check` where there is no GPU: its steps, its limits, and what it leaves behind."""

import importlib.util
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_status import gpu_results
from test_text import MACHINE_PATH

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import gpu_check  # noqa: E402
from gpu_checks import build, rehearsal, steps  # noqa: E402
from gpu_checks.context import Context  # noqa: E402
from gpu_checks.prebuilt import digest_of_library  # noqa: E402
from gpu_checks.pytest_output import counts, failed_tests, skip_reasons  # noqa: E402
from gpu_checks.report import ESSENTIAL, Report, digest_of_sources  # noqa: E402
from gpu_checks.runner import Commands, Failed, OutOfTime, Runner, Skipped, Step  # noqa: E402
from gpu_rows.groups import GROUPS, rows_of  # noqa: E402

MACHINE = {"card": "NVIDIA H200", "driver": "580.159.04"}
PASSED = "tests/a.py::test_b PASSED\n==== 3 passed, 1 skipped in 2.10s ====\n"


def report_in(folder: Path) -> Report:
    return Report(folder, MACHINE, ROOT)


def written(report: Report) -> dict:
    return json.loads(report.path.read_text())


def commands_in(folder: Path) -> Commands:
    return Commands(folder / "gpu_check.log", lambda: {"PATH": "/bin:/usr/bin"}, ROOT)


def run(folder: Path, *wanted: Step, limit: float = 60) -> dict:
    report = report_in(folder)
    Runner(report, commands_in(folder), limit).run(list(wanted))
    return written(report)


def run_with(commands: Commands, folder: Path, *wanted: Step, limit: float) -> dict:
    report = report_in(folder)
    Runner(report, commands, limit).run(list(wanted))
    return written(report)


def raising(error: Exception):
    def action():
        raise error

    return action


def ends_soon(pid: int) -> bool:
    """A killed process takes a moment; nobody may collect it, so a zombie has ended too."""
    status = Path(f"/proc/{pid}/status")
    for _ in range(100):
        if not status.exists() or "zombie" in status.read_text():
            return True
        time.sleep(0.05)
    return False


# ---- the runner


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
from test_gpu_check import *
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


# ---- the report


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


# ---- a second call


def outcomes(report: dict) -> dict[str, str]:
    return {name: step["outcome"] for name, step in report["steps"].items()}


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


# ---- the steps


class FakeCommands:
    """Answers commands whose words contain a key; records them all."""

    def __init__(self, **answers):
        # The tests' temporary folders have pytest in their names.
        self.answers = {
            "-m pytest": PASSED,
            "ctest --test-dir": "100% tests passed, 0 failed",
        }
        self.answers = answers | self.answers | answers  # a test's own answers come first
        self.seen = []
        self.begun = []

    def begin(self, *command, extra=None):
        self.begun.append(command[-1])

    def run(self, *command, extra=None):
        words = " ".join(map(str, command))
        self.seen.append((words, extra or {}))
        for key, answer in self.answers.items():
            if key in words:
                if isinstance(answer, Exception):
                    raise answer
                return answer
        return ""

    @property
    def words(self):
        return [words for words, _ in self.seen]


@pytest.fixture
def context(tmp_path):
    nvcc = tmp_path / "cuda/bin/nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.with_name("compute-sanitizer").touch()
    (tmp_path / "portable/wheels").mkdir(parents=True)
    context = Context(
        tmp_path / "out", tmp_path / "build", tmp_path / "portable", 16, str(nvcc), FakeCommands()
    )
    place_library(context)
    return context


def place_library(context) -> None:
    """Where a build would leave it."""
    context.library.parent.mkdir(parents=True, exist_ok=True)
    context.library.write_text("code")


def run_all(context) -> dict:
    report = report_in(context.out)
    Runner(report, context.commands, limit=60).run(steps.steps(context))
    return written(report)


def test_every_step_runs_and_the_report_says_so(context):
    report = run_all(context)
    assert {step["outcome"] for step in report["steps"].values()} == {"passed"}, report
    assert report["passed"] is True
    digest = digest_of_library(context.library)
    assert report["steps"][steps.COMPILE]["details"] == {"library": digest}
    for name, step in report["steps"].items():
        if name.startswith(ESSENTIAL):
            assert step["details"]["tests"] == {"passed": 3, "skipped": 1}


def test_every_file_of_cuda_tests_is_run_in_a_process_of_its_own(context):
    report = run_all(context)
    files = {f"tests/python/{path.name}" for path in (ROOT / "tests/python").glob("test_cuda*.py")}
    files -= {steps.BUILD_TESTS}
    assert "tests/python/test_cuda_blocks.py" in files
    runs = [words for words in context.commands.words if words.split()[-1] in files]
    assert {words.split()[-1] for words in runs} == files
    assert len(runs) == len(files)
    assert {steps.name_of_tests(file) for file in files} <= set(report["steps"])


def test_files_of_cuda_tests_begin_before_their_turn_but_for_those_that_ran_before(
    context, tmp_path
):
    paths = steps.cuda_tests()
    rest = [path for path in paths if path != steps.FIRST_TESTS]
    report = report_in(tmp_path)
    report.steps = {
        steps.name_of_tests(rest[2]): {"outcome": "passed"},
        steps.name_of_tests(rest[4]): {"outcome": "failed"},
        steps.name_of_tests(rest[5]): {"outcome": "skipped"},
    }
    context.is_new = report.is_new
    steps.tests_beside_each_other(context, rest[0])
    expected = [rest[0], rest[1], rest[3], *rest[5:]][: steps.FILES_AT_A_TIME]
    assert context.commands.begun == expected


def test_the_machine_code_is_looked_at_where_it_was_built_and_shows_nothing_of_a_gpu(context):
    report = run_all(context)
    assert report["steps"]["machine code"]["outcome"] == "passed"
    assert any(steps.BUILD_TESTS in words for words in context.commands.words)
    assert not any(steps.BUILD_TESTS in name for name in report["steps"])


def test_a_file_that_fails_stops_no_other(context):
    failure = Failed("python exited 1:\nillegal access")
    context.commands = FakeCommands(**{"no:cacheprovider tests/python/test_cuda.py": failure})
    report = run_all(context)
    step = report["steps"][steps.name_of_tests("test_cuda.py")]
    assert (step["outcome"], step["reason"]) == ("failed", "python exited 1:\nillegal access")
    assert "details" not in step  # it came to no summary
    assert outcomes(report)[steps.name_of_tests("test_cuda_statistics.py")] == "passed"
    assert report["passed"] is False


def test_a_failure_says_how_many_tests_failed_and_which(context):
    output = (
        "FAILED tests/python/test_cuda.py::test_b[1] - no\n"
        "==== 1 failed, 3 passed, 1 skipped in 2.10s ====\n"
    )
    failure = Failed("python exited 1", output)
    context.commands = FakeCommands(**{"no:cacheprovider tests/python/test_cuda.py": failure})
    step = run_all(context)["steps"][steps.name_of_tests("test_cuda.py")]
    assert step["outcome"] == "failed"
    assert step["details"] == {
        "tests": {"failed": 1, "passed": 3, "skipped": 1},
        "failed": ["test_b"],
    }


def test_sanitizers_run_tests_that_exist_and_capture_no_graph(context):
    run_all(context)
    sanitized = [words for words in context.commands.words if "--tool" in words and "-m" in words]
    assert len(sanitized) == len(steps.SANITIZERS)
    for test in steps.SANITIZED_TESTS:
        file, name = test.split("[")[0].split("::")
        source = (ROOT / "tests/python" / file).read_text()
        assert f"def {name}(" in source
        products = test in steps.WITH_PRODUCTS
        for words in sanitized:
            followed = not products or f"--tool {steps.FOLLOWS_PRODUCTS}" in words
            assert (f"tests/python/{test}" in words) == followed
        body = source.split(f"def {name}(")[1].split("\n\n\n")[0]
        assert "graph" not in body


@pytest.mark.parametrize("has_xdist", [True, False])
def test_tests_of_processes_run_side_by_side_where_they_can(context, monkeypatch, has_xdist):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: has_xdist if name == "xdist" else find(name, *rest),
    )
    run_all(context)
    (words,) = (w for w in context.commands.words if "test_fsdp_of_codes.py" in w)
    assert (f"-k cuda -n {steps.TESTS_AT_A_TIME}" in words) == has_xdist


def test_a_sanitizer_that_runs_out_of_time_found_nothing_so_far(context):
    cut = OutOfTime("compute-sanitizer ran out of time", "a PASSED\nb PASSED\nc ")
    context.commands = FakeCommands(**{"--tool": cut})
    report = run_all(context)
    step = report["steps"]["compute-sanitizer memcheck"]
    assert step["outcome"] == "skipped"
    assert step["reason"] == "out of time after 2 tests, in which memcheck found nothing"
    assert report["passed"] is True


def test_without_a_build_nothing_of_it_is_tried(context):
    context.commands = FakeCommands(**{"--build": Failed("cmake exited 1:\nptxas fatal")})
    report = run_all(context)
    assert report["steps"][steps.COMPILE]["outcome"] == "failed"
    assert report["steps"][steps.name_of_tests("test_cuda.py")]["outcome"] == "skipped"
    assert "ptxas fatal" in report["steps"][steps.COMPILE]["reason"]
    assert not any("-m pytest" in words for words in context.commands.words)


def test_a_run_in_which_every_test_skipped_itself_is_a_failure(context):
    context.commands = FakeCommands(**{"-m pytest": "==== 40 skipped in 2.10s ====\n"})
    report = run_all(context)
    assert "no test ran" in report["steps"][steps.name_of_tests("test_cuda.py")]["reason"]
    assert report["passed"] is False


def test_a_sanitizer_that_does_not_work_here_is_skipped_with_its_words(context):
    refused = Failed("compute-sanitizer exited 1:\nDevice not supported")
    context.commands = FakeCommands(**{"--tool": refused})
    report = run_all(context)
    step = report["steps"]["compute-sanitizer racecheck"]
    assert step["outcome"] == "skipped"
    assert "Device not supported" in step["reason"]
    assert report["passed"] is True


def test_an_error_that_a_sanitizer_finds_is_a_failure(context):
    context.commands = FakeCommands(**{"kernel_substring": Failed("exited 9:\nInvalid read")})
    assert run_all(context)["steps"]["compute-sanitizer memcheck"]["outcome"] == "failed"


def test_a_machine_without_a_sanitizer_skips_it(context):
    Path(context.nvcc).with_name("compute-sanitizer").unlink()
    report = run_all(context)
    assert (
        "neither on the PATH nor beside nvcc"
        in (report["steps"]["compute-sanitizer initcheck"]["reason"])
    )


def test_a_machine_without_nvcc_looks_for_a_sanitizer_on_its_path(context, monkeypatch, tmp_path):
    context.nvcc = ""
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Skipped, match="neither on the PATH nor beside nvcc"):
        steps.find_sanitizer(context)
    program = tmp_path / "compute-sanitizer"
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert steps.find_sanitizer(context) == program


def test_carried_wheels_are_installed_and_missing_packages_named(context, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(build, "OPTIONAL_PACKAGES", ("json", "no_such_package"))
    (context.dependencies / "wheels/gfloat-0.5.2-py3-none-any.whl").touch()
    details = run_all(context)["steps"]["Python packages"]["details"]
    assert details["carried"] == ["gfloat-0.5.2-py3-none-any.whl"]
    assert details["missing"] == ["no_such_package"]
    assert "gfloat-0.5.2" in next(words for words in context.commands.words if " pip " in words)


def test_a_machine_without_pkg_config_gets_the_carried_one(context, monkeypatch):
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    carried = context.site / "pkgconf/.bin/pkgconf"
    carried.parent.mkdir(parents=True)
    carried.touch(mode=0o644)
    build.configure(context)
    words, extra = context.commands.seen[-1]
    assert extra["PKG_CONFIG"] == str(carried)
    assert carried.stat().st_mode & 0o111
    assert extra["PKG_CONFIG_PATH"].startswith(str(context.dependencies / "lib/pkgconfig"))
    assert f"-DCMAKE_PREFIX_PATH={context.dependencies}" in words


def test_each_group_of_benchmarks_is_a_step_of_its_own(context):
    """So that a kernel that breaks the CUDA context takes only its own group with it."""
    context.commands = FakeCommands(**{"--group gemm": Failed("illegal memory access")})
    report = run_all(context)
    assert report["steps"]["benchmarks: gemm"]["outcome"] == "failed"
    assert report["steps"]["benchmarks: layer"]["outcome"] == "passed"
    asked = [words for words in context.commands.words if "benchmarks/gpu.py" in words]
    assert len(asked) == len(GROUPS)


def test_what_is_most_worth_knowing_comes_first(context):
    names = [step.name for step in steps.steps(context) if not step.prepares]
    assert names[:3] == [
        steps.name_of_tests("test_cuda.py"),
        "benchmarks: memory_bound",
        "benchmarks: linear",
    ]


def test_a_known_card_is_built_for_alone(context):
    context.capability = (9, 0)
    build.configure(context)
    assert "-DTELENS_CUDA_TARGETS=90a" in context.commands.words[-1]
    assert context.environment()["TELENS_CUDA_TARGETS"] == "90a"
    context.capability = (12, 1)
    build.configure(context)
    assert "TELENS_CUDA_TARGETS" not in context.commands.words[-1]


def test_of_a_library_built_elsewhere_only_the_python_module_is_compiled(context, tmp_path):
    context.prebuilt = tmp_path / "prebuilt"
    place_library(context)
    report = run_all(context)
    assert report["passed"] is True
    assert not {"CPU tests", "machine code", "device code on the host"} & set(report["steps"])
    assert not any(steps.BUILD_TESTS in words for words in context.commands.words)
    (configured,) = [words for words in context.commands.words if "cmake -S" in words]
    assert f"-S {ROOT / 'cmake/prebuilt'}" in configured
    assert f"-DTELENS_PREBUILT={context.prebuilt}" in configured
    (built,) = [words for words in context.commands.words if "--build" in words]
    assert built.endswith("--target telens_python")
    environment = context.environment()
    assert environment["TELENS_LIBRARY"] == str(context.prebuilt / "lib/libtelens.so")
    assert str(context.prebuilt / "lib") in environment["LD_LIBRARY_PATH"]
    assert environment["TELENS_PACKAGES"] == str(context.build / "python")


# ---- the rehearsal


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


def test_a_row_has_a_name_of_its_own():
    names = [row.name for group in GROUPS for row in rows_of(group)]
    assert len(names) == len(set(names))


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
