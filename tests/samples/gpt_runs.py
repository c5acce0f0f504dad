"""Runs of the C++ sample with a model that trains within seconds; its losses are compared as
bits.
"""

import os
import struct
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("TELENS_GPT", ROOT / "build/bin/gpt"))
COMMAND = Path(os.environ.get("TELENS_COMMAND", ROOT / "build/bin/telens"))
# A model small enough for seconds: two layers have nine linear layers with the head.
SIZES = {"layers": 2, "hidden": 64, "heads": 2, "sequence": 32, "batch": 8, "text-bytes": 200000}
SMALL = [word for name, size in SIZES.items() for word in (f"--{name}", str(size))]
LINEAR_LAYERS = 2 * 4 + 1


def train(
    folder: Path, *arguments: str, name: str = "run", device: str = "cpu"
) -> tuple[list[str], str]:
    """Runs the sample; returns the hexadecimal losses and what it printed."""
    losses = folder / f"{name}.losses"
    command = [str(PROGRAM), "--device", device, *SMALL]
    command += ["--loss-file", str(losses), "--log-dir", str(folder / name)]
    result = subprocess.run(
        [*command, *arguments],
        # More threads would only wait in a model this small.
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    return losses.read_text().split(), result.stdout


def number(bits: str) -> float:
    return struct.unpack(">f", bytes.fromhex(bits))[0]


# Enables every observing feature for all tensors of all layers.
EVERYTHING = """
everything:
  enabled: True
  layers: {layer_types: [all]}
  transformer_engine:
    LogTensorStats:
      enabled: True
      tensors: [activation, weight, gradient, output, wgrad, dgrad]
      stats: [min, max, mean, std, l1_norm, l2_norm, cur_amax, dynamic_range]
    LogFp8TensorStats:
      enabled: True
      tensors: [activation, weight, gradient]
      stats: [underflows%, overflows%, mse, scale_inv_min, scale_inv_max]
"""
