"""Short trainings of the Python samples that train Transformer models."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("TELENS_LIBRARY", ROOT / "build/lib/libtelens.so")).parents[1]
SMALL = ["--layers", "1", "--hidden", "64", "--heads", "4", "--sequence", "32", "--batch", "4"]
SMALL += ["--text-bytes", "100000", "--device", "cpu"]
CONFIG = """\
section:
  enabled: True
  layers: {layer_types: all}
  transformer_engine:
    LogTensorStats: {enabled: True, stats: [max], tensors: [activation]}
"""


def run_sample(name: str, folder: Path, *options: str) -> subprocess.CompletedProcess:
    path = os.pathsep.join([str(BUILD / "python"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, str(ROOT / "samples" / name), *options],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


def mean_loss(printed: str) -> float:
    (line,) = [line for line in printed.splitlines() if line.startswith("mean loss")]
    return float(line.split(":")[1].split()[0])
