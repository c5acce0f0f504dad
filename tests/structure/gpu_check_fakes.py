"""Machines, steps and programs that tests of `make gpu-check` make up."""

import json
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from gpu_checks.context import Context  # noqa: E402
from gpu_checks.report import Report  # noqa: E402
from gpu_checks.runner import Commands, Runner, Step  # noqa: E402

MACHINE = {"card": "NVIDIA H200", "driver": "580.159.04"}
PASSED = "tests/a.py::test_b PASSED\n==== 3 passed, 1 skipped in 2.10s ====\n"


def report_in(folder: Path) -> Report:
    return Report(folder, MACHINE, ROOT)


def written(report: Report) -> dict:
    return json.loads(report.path.read_text())


def outcomes(report: dict) -> dict[str, str]:
    return {name: step["outcome"] for name, step in report["steps"].items()}


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


def make_context(tmp_path: Path) -> Context:
    """Of a machine with an H100's tools, where all is built."""
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
