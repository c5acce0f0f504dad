"""samples/llama.py: trains in FP8 and is watched."""

import os
import subprocess
import sys
from pathlib import Path

import telens

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = Path(os.environ.get("TELENS_LIBRARY", ROOT / "build/lib/libtelens.so")).parents[1]
SMALL = ["--layers", "1", "--hidden", "64", "--heads", "4", "--sequence", "32", "--batch", "4"]
SMALL += ["--text-bytes", "100000", "--device", "cpu"]
CONFIG = """\
section:
  enabled: True
  layers: {layer_types: all}
  transformer_engine:
    LogTensorStats: {enabled: True, stats: [max], tensors: [activation]}
"""


def run(folder: Path, *options: str) -> str:
    path = os.pathsep.join([str(PACKAGES / "python"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(ROOT / "samples/llama.py"), *SMALL, *options],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def mean_loss(printed: str) -> float:
    (line,) = [line for line in printed.splitlines() if line.startswith("mean loss")]
    return float(line.split(":")[1].split()[0])


def test_it_learns_in_fp8_and_is_recorded(tmp_path):
    (tmp_path / "debug.yaml").write_text(CONFIG)
    steps = ("--steps", "40", "--recipe", "delayed", "--sample", "8")
    printed = run(tmp_path, *steps, "--config", "debug.yaml")
    assert mean_loss(printed) < 4.5  # all bytes alike: 5.55
    rows = telens.open_run(tmp_path).records(tensor="activation")
    assert sorted(set(rows["iteration"])) == [*range(40)]
    assert "layers.0.layernorm_mlp.fc1" in set(rows["layer"])
