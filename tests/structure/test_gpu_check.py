"""`make gpu-check` where there is no GPU: its steps, its limits, and what it leaves behind."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_text import MACHINE_PATH

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from gpu_checks import build, steps  # noqa: E402
from gpu_checks.context import Context  # noqa: E402
from gpu_checks.pytest_output import counts, skip_reasons  # noqa: E402
from gpu_checks.report import ESSENTIAL, Report  # noqa: E402
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
    report_in(tmp_path)
    assert not report.rows_path.exists(), "rows of an earlier check are not this one's"


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
        self.answers = answers | self.answers | answers  # what a test says comes first
        self.seen = []

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
    return Context(
        tmp_path / "out", tmp_path / "build", tmp_path / "portable", 16, str(nvcc), FakeCommands()
    )


def run_all(context) -> dict:
    report = report_in(context.out)
    Runner(report, context.commands, limit=60).run(steps.steps(context))
    return written(report)


def test_every_step_runs_and_the_report_says_so(context):
    report = run_all(context)
    assert {step["outcome"] for step in report["steps"].values()} == {"passed"}, report
    assert report["passed"] is True
    for of_file in report["steps"][ESSENTIAL]["details"].values():
        assert of_file["tests"] == {"passed": 3, "skipped": 1}


def test_every_file_of_cuda_tests_is_run_in_a_process_of_its_own(context):
    report = run_all(context)
    files = {f"tests/python/{path.name}" for path in (ROOT / "tests/python").glob("test_cuda*.py")}
    assert "tests/python/test_cuda_blocks.py" in files
    runs = [words for words in context.commands.words if words.split()[-1] in files]
    assert {words.split()[-1] for words in runs} == files
    assert len(runs) == len(files)
    assert set(report["steps"][ESSENTIAL]["details"]) == files


def test_a_file_that_fails_stops_no_other_and_fails_the_step(context):
    context.commands = FakeCommands(**{"test_cuda.py": Failed("python exited 1:\nillegal access")})
    step = run_all(context)["steps"][ESSENTIAL]
    assert step["outcome"] == "failed"
    assert "tests/python/test_cuda.py: python exited 1:\nillegal access" in step["reason"]
    assert any(words.endswith("test_cuda_statistics.py") for words in context.commands.words)


def test_sanitizers_run_tests_that_exist_and_capture_no_graph(context):
    run_all(context)
    sanitized = [words for words in context.commands.words if "--tool" in words and "-m" in words]
    assert len(sanitized) == len(steps.SANITIZERS)
    for test in steps.SANITIZED_TESTS:
        file, name = test.split("::")
        source = (ROOT / "tests/python" / file).read_text()
        assert f"def {name}(" in source
        assert all(f"tests/python/{test}" in words for words in sanitized)
        body = source.split(f"def {name}(")[1].split("\n\n\n")[0]
        assert "graph" not in body


def test_a_sanitizer_that_runs_out_of_time_found_nothing_so_far(context):
    cut = OutOfTime("compute-sanitizer ran out of time", "a PASSED\nb PASSED\nc ")
    context.commands = FakeCommands(**{"kernel_substring": cut, "initcheck": cut})
    context.commands.answers = {"torch.ones": ""} | context.commands.answers
    report = run_all(context)
    step = report["steps"]["compute-sanitizer memcheck"]
    assert step["outcome"] == "skipped"
    assert step["reason"] == "out of time after 2 tests, in which memcheck found nothing"
    assert report["passed"] is True


def test_without_a_build_nothing_of_it_is_tried(context):
    context.commands = FakeCommands(**{"--build": Failed("cmake exited 1:\nptxas fatal")})
    report = run_all(context)
    assert report["steps"][steps.COMPILE]["outcome"] == "failed"
    assert report["steps"][ESSENTIAL]["outcome"] == "skipped"
    assert "ptxas fatal" in report["steps"][steps.COMPILE]["reason"]
    assert not any("-m pytest" in words for words in context.commands.words)


def test_a_run_in_which_every_test_skipped_itself_is_a_failure(context):
    context.commands = FakeCommands(**{"-m pytest": "==== 40 skipped in 2.10s ====\n"})
    report = run_all(context)
    assert "no test ran" in report["steps"][ESSENTIAL]["reason"]
    assert report["passed"] is False


def test_a_sanitizer_that_does_not_work_here_is_skipped_with_its_words(context):
    probe = {"torch.ones": Failed("compute-sanitizer exited 1:\nDevice not supported")}
    context.commands = FakeCommands(**probe)
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


def test_what_must_run_fits_into_ten_minutes(context):
    """Everything up to the comparison with the CPU, if every step takes all of its time."""
    seconds = 0
    for step in steps.steps(context):
        seconds += step.seconds
        if step.name == ESSENTIAL:
            break
    assert seconds <= 600


def test_a_row_has_a_name_of_its_own():
    names = [row.name for group in GROUPS for row in rows_of(group)]
    assert len(names) == len(set(names))
