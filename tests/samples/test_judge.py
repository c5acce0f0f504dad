"""What samples/faults/judge.py counts: faults, healthy trainings, and those that did not learn."""

import json
import math
import sys
from pathlib import Path

import pytest
from gpt_runs import ROOT

sys.path.insert(0, str(ROOT / "samples" / "faults"))
import judge
from learned import did_learn

FALLING = [5.5 - 0.05 * step for step in range(40)]


def changed(step: int, loss: float) -> list[float]:
    return [loss if number == step else each for number, each in enumerate(FALLING)]


@pytest.mark.parametrize(
    ("losses", "learned"),
    [
        (FALLING, True),
        (changed(20, 6.0), True),  # 9 % above the start
        (changed(20, 6.1), False),  # 11 % above it
        (changed(39, 6.1), False),
        (changed(35, 5.6), True),  # 1.47 of the loss before
        (changed(35, 5.8), False),  # 1.53 of it
        (changed(20, math.nan), False),
        (changed(0, math.inf), False),
        ([5.5] * 40, False),
        (FALLING[::-1], False),
        ([5.0] * 4 + [4.0] * 32 + [4.76] * 4, False),  # 4.8 % below the start
        ([5.0] * 4 + [4.0] * 32 + [4.74] * 4, True),
        ([5.0], False),
        ([], False),
    ],
)
def test_a_training_learns_if_it_ends_below_and_stays_below_its_start(losses, learned):
    assert did_learn(losses) is learned


@pytest.fixture
def campaign(tmp_path: Path, monkeypatch) -> Path:
    """Runs that exist as names only; what diagnose and the losses say of each is given here."""
    fault = {"causes": ["nonfinite"], "layer": None, "tensor": None, "first": 12}
    finding = {"cause": "loss_spike", "layer": None, "tensor": None, "gemm": None}
    right = finding | {"cause": "nonfinite", "first_iteration": 12, "summary": "s"}
    spike = finding | {"first_iteration": 14, "summary": "s"}
    runs = {
        "healthy-1": (None, FALLING, []),
        "healthy-2": (None, FALLING, [spike]),
        "healthy-3": (None, changed(14, 9.0), [spike]),
        "healthy-4": (None, [5.5] * 40, []),
        "nan_once-1": (fault, changed(14, math.nan), [right]),
        "nan_once-2": (fault, FALLING, [spike, right]),
    }
    for name, (truth, _, _) in runs.items():
        (tmp_path / name).mkdir()
        truth_record = {"fault": name.partition("-")[0], "recipe": "mxfp8", "truth": truth}
        (tmp_path / name / "truth.json").write_text(json.dumps(truth_record))
    monkeypatch.setattr(judge, "losses_of", lambda run: runs[run.name][1])
    monkeypatch.setattr(judge, "diagnose", lambda run: {"findings": runs[run.name][2]})
    return tmp_path


def test_a_training_that_did_not_learn_is_neither_healthy_nor_hidden(campaign, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["judge.py", str(campaign)])
    judge.main()
    table, lines = capsys.readouterr().out.split("faults: ")
    rows = {row[:22].strip(): row[22:].split()[:3] for row in table.splitlines()[1:]}
    assert rows == {
        "did not learn": ["2", "1", "1"],
        "healthy": ["2", "1", "1"],
        "nan_once": ["2", "1", "2"],
    }
    assert lines.splitlines() == [
        "first, in three: 1 and 2 of 2",
        "healthy, silent: 1 and 1 of 2",
        "no fault was planted and it did not learn, silent: 1 and 1 of 2",
    ]


def test_a_planted_fault_counts_as_a_fault_however_it_trains(campaign, monkeypatch, capsys):
    monkeypatch.setattr(judge, "did_learn", lambda losses: False)
    monkeypatch.setattr(sys, "argv", ["judge.py", str(campaign)])
    judge.main()
    out = capsys.readouterr().out
    assert "faults: first, in three: 1 and 2 of 2" in out
    assert "healthy, silent" not in out


@pytest.mark.parametrize(
    ("tensor", "reported", "right"),
    [
        (None, "output", True),
        ("weight", "weight", True),
        ("weight", "activation", False),
        (["activation", "weight"], "weight", True),
        (["activation", "weight"], "activation", True),
        (["activation", "weight"], "gradient", False),
        (["activation", "weight"], None, False),
    ],
)
def test_a_truth_names_one_tensor_or_several_or_none(tensor, reported, right):
    finding = {"cause": "stale_scale", "layer": "a", "tensor": reported, "first_iteration": 12}
    truth = {"causes": ["stale_scale"], "layer": "a", "tensor": tensor, "first": 12}
    assert judge.place_of_truth([finding], truth) == (1 if right else None)
