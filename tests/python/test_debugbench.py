"""benchmarks.debugbench: a healthy training that fails is not counted as a run without findings."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = "project/failing#1"


class FailingTraining:
    def __init__(self, broken, log_dir):
        self.log_dir = log_dir

    def run(self):
        raise ArithmeticError("failed on purpose")


@pytest.fixture
def runner(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.debugbench import runner, training

    monkeypatch.setattr(runner, "prepare", lambda: None)
    monkeypatch.setitem(training.PROGRAMS, SOURCE, FailingTraining)
    return runner


def test_failed_healthy_training_raises_and_is_not_kept(runner, tmp_path):
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"failing#1 failed with exit codes \[1\]"):
            runner.run_in_process(SOURCE, False, tmp_path / "twin")
    assert not (tmp_path / "twin/trained.json").exists()


def test_stored_failure_of_a_healthy_training_is_trained_again(runner, tmp_path):
    (tmp_path / "trained.json").write_text(json.dumps({"seconds": 1.0, "exit_codes": [1]}))
    with pytest.raises(RuntimeError, match="failed with exit codes"):
        runner.run_in_process(SOURCE, False, tmp_path)


def test_failed_broken_training_is_kept_with_its_exit_code(runner, tmp_path):
    found = runner.run_in_process(SOURCE, True, tmp_path / "broken")
    assert found["exit_codes"] == [1]
    assert json.loads((tmp_path / "broken/trained.json").read_text()) == found
