"""The checks of tests/architectures find wrong rows and count killed processes as failures."""

import importlib.util
import os
import signal
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "architectures"


@pytest.fixture
def compare(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import compare

    return compare


@pytest.fixture
def campaign(compare):
    pytest.importorskip("transformers")
    # tests/fuzz has a module of the same name.
    spec = importlib.util.spec_from_file_location("architecture_campaign", FOLDER / "campaign.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def put_rows(monkeypatch, compare, wrong_at):
    """Lets two steps of four layers agree with the hooks except for one amax."""
    seen, rows = {}, {"numel": {}, "cur_amax": {}}
    for step in range(compare.STEPS):
        for number in range(4):
            layer = f"layers.{number}"
            module = compare.Seen("linear", calls=1, numel=8, amaxes={"output": 2.0})
            seen[layer, step] = module
            rows["numel"][layer, "output", step] = 8
            found = 3.0 if (number, step) == wrong_at else 2.0
            rows["cur_amax"][layer, "output", step] = found
    monkeypatch.setattr(compare, "recorded", lambda folder, statistic: rows[statistic])
    return seen


@pytest.mark.parametrize("step", [0, 1])
def test_wrong_amax_is_found_in_every_step(monkeypatch, compare, step):
    seen = put_rows(monkeypatch, compare, wrong_at=(compare.EXACT - 1, step))
    expected = f"layers.2, output, step {step}: amax 2.0, recorded 3.0"
    assert compare.missing_rows("run", seen) == expected


def test_amaxes_of_further_layers_are_not_compared(monkeypatch, compare):
    seen = put_rows(monkeypatch, compare, wrong_at=(compare.EXACT, 0))
    assert compare.missing_rows("run", seen) is None


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGXCPU])
def test_killed_process_counts_as_failed(monkeypatch, campaign, number):
    monkeypatch.setattr(campaign, "run_case", lambda case: os.kill(os.getpid(), number))
    found = campaign.in_child(None, seconds=60)
    assert found["result"] == "failed"
    assert f"killed by {number.name}" in found["reason"]


def test_process_without_a_result_counts_as_failed(monkeypatch, campaign):
    monkeypatch.setattr(campaign, "run_case", lambda case: os._exit(3))
    found = campaign.in_child(None, seconds=60)
    assert found == {"result": "failed", "reason": "exit code 3 without a result"}
