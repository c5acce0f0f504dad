"""samples/moe.py trains in FP8, and each expert is watched as a layer."""

import subprocess
from pathlib import Path

from small_models import BUILD, CONFIG, mean_loss, run_sample
from small_models import SMALL as SMALL_MODEL

import telens

SMALL = [*SMALL_MODEL, "--experts", "4", "--expert-size", "32"]


def run(folder: Path, *options: str) -> subprocess.CompletedProcess:
    return run_sample("moe.py", folder, *SMALL, *options)


def test_it_learns_in_fp8_and_each_expert_is_recorded(tmp_path):
    (tmp_path / "debug.yaml").write_text(CONFIG)
    steps = ("--steps", "40", "--recipe", "delayed")
    done = run(tmp_path, *steps, "--config", "debug.yaml")
    assert done.returncode == 0, done.stderr
    assert mean_loss(done.stdout) < 4.5  # all bytes alike: 5.55
    experts = {f"layers.0.experts.{fc}.gemm_{i}" for fc in ("fc1", "fc2") for i in range(4)}
    rows = telens.open_run(tmp_path / "telens_runs").records(tensor="activation")
    assert experts <= set(rows["layer"])
    shown = subprocess.run(
        [BUILD / "bin/telens", "stats", tmp_path / "telens_runs", "--layer", "gemm_3"],
        capture_output=True,
        text=True,
    )
    assert "layers.0.experts.fc1.gemm_3" in shown.stdout + shown.stderr


def test_more_choices_than_experts_are_refused(tmp_path):
    done = run(tmp_path, "--top-k", "5")
    assert done.returncode == 2
    assert done.stderr == "moe: --top-k is 5; expected 1 to 4, the number of experts\n"
