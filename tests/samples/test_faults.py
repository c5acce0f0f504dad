"""The faults that samples/faults plants in real trainings are found, and healthy trainings have no
findings.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from gpt_runs import COMMAND, ROOT

BUILD = Path(os.environ.get("TELENS_LIBRARY", ROOT / "build/lib/libtelens.so")).parents[1]
PYTHON_BUILD = BUILD / "python"
FAULTS = ROOT / "samples" / "faults"
sys.path.insert(0, str(FAULTS))

# Runs in one process, because importing torch takes longer than a training.
PLANTED = (
    "nan_in_activation-delayed",
    "scale_inverted-delayed",
    "high_precision-current",
    "weight_scaled-mxfp8",
    "loss_scale-mxfp8",
    "rate_one-delayed",
    "step_missing-mxfp8",
    "operand_transposed-current",
    "detached_output-delayed",
    "gain_with_weight_decay-current",
    "loss_times_eight-delayed",
)
HEALTHY = ("healthy_twin-delayed", "healthy_micro-current", "healthy_twin-mxfp8")
SEED = 11


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("faults")
    packages = os.pathsep.join([str(PYTHON_BUILD), os.environ.get("PYTHONPATH", "")])
    names = [f"{name}-{SEED}" for name in (*PLANTED, *HEALTHY)]
    subprocess.run(
        [sys.executable, FAULTS / "campaign.py", out, "--seeds", str(SEED), "--only", *names],
        check=True,
        env=os.environ | {"PYTHONPATH": packages, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        timeout=300,
    )
    return out


def diagnose(run: Path) -> dict:
    result = subprocess.run(
        [COMMAND, "diagnose", run, "--format", "json"], capture_output=True, text=True
    )
    assert result.returncode in (0, 1), result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_the_first_finding(runs: Path, name: str):
    from judge import place_of_truth

    folder = runs / f"{name}-{SEED}"
    truth = json.loads((folder / "truth.json").read_text())["truth"]
    findings = diagnose(folder)["findings"]
    assert place_of_truth(findings, truth) == 1, (truth, findings[:3])


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_training_is_silent(runs: Path, name: str):
    diagnosis = diagnose(runs / f"{name}-{SEED}")
    assert diagnosis["findings"] == []
    assert diagnosis["last_iteration"] == 39


def test_the_flight_recorder_feeds_every_rule(runs: Path):
    lacking = diagnose(runs / f"{HEALTHY[0]}-{SEED}")["not_recorded"]
    assert [each["cause"] for each in lacking] == []
