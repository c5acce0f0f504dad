"""`make gpu-check` without a GPU: its rehearsal, and a check that continues an earlier one."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from gpu_checks.report import ESSENTIAL, Report  # noqa: E402
from gpu_checks.runner import Commands, Failed, Runner, Step  # noqa: E402


def test_rehearsal_plans_every_call_without_a_gpu(tmp_path):
    command = [sys.executable, str(ROOT / "benchmarks/gpu_check.py"), "--rehearse"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "call 1, " in done.stdout
    assert ESSENTIAL in done.stdout
    assert done.stdout.endswith(" calls, passed\n")


def run_check(folder: Path, *steps: Step) -> dict:
    """The JSON that a check with these steps writes to the folder."""
    report = Report(folder, {"card": "NVIDIA H200"}, ROOT)
    commands = Commands(folder / "gpu_check.log", lambda: {"PATH": "/bin:/usr/bin"}, ROOT)
    Runner(report, commands, 60).run(list(steps))
    return json.loads((folder / "gpu-nvidia-h200.json").read_text())


def test_second_check_repeats_only_the_steps_that_failed(tmp_path):
    calls = []

    def fail_once():
        calls.append("benchmarks")
        if calls.count("benchmarks") == 1:
            raise Failed("exited 1")

    steps = (
        Step(ESSENTIAL, 9, lambda: calls.append("compare")),
        Step("benchmarks", 9, fail_once),
    )
    first = run_check(tmp_path, *steps)
    assert first["steps"]["benchmarks"]["reason"] == "exited 1"
    assert first["passed"] is False
    second = run_check(tmp_path, *steps)
    assert calls == ["compare", "benchmarks", "benchmarks"]
    assert (second["passed"], second["calls"]) == (True, 2)
