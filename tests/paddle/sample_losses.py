#!/usr/bin/env python3
"""Trains samples/gpt_paddle.py and samples/gpt.py with equal settings and prints their losses as a
table.

    PYTHONPATH=build/python build-paddle/venv/bin/python tests/paddle/sample_losses.py

Same text, batches, sizes, schedule and FP8 recipe; weights are drawn by each framework, and around
the FP8 GEMMs Paddle's has FP32 where PyTorch's has BF16. docs/paddle.md has the table.
"""

import argparse
import os
import statistics
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

SAMPLES = Path(__file__).resolve().parents[2] / "samples"
SIZES = ["--layers", "2", "--hidden", "64", "--heads", "2", "--sequence", "64", "--batch", "8"]
WINDOWS = 4  # the columns are the mean losses of as many windows of steps


def train(sample: str, seed: int, steps: int, folder: str) -> list[float]:
    """Returns the loss of each step."""
    file = Path(folder, f"{sample}-{seed}")
    options = ["--seed", seed, "--steps", steps, "--device", "cpu", "--loss-file", file]
    command = [sys.executable, SAMPLES / sample, *SIZES, *options]
    subprocess.run(
        [str(each) for each in command],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return [struct.unpack(">f", bytes.fromhex(line))[0] for line in file.read_text().split()]


def window_means(losses: list[float]) -> list[float]:
    size = len(losses) // WINDOWS
    return [statistics.mean(losses[i * size : (i + 1) * size]) for i in range(WINDOWS)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=240)
    options = parser.parse_args()
    size = options.steps // WINDOWS
    heads = [f"steps {i * size}-{(i + 1) * size - 1}" for i in range(WINDOWS)]
    print(f"| seed | layers of | {' | '.join(heads)} |")
    print("|---" * (WINDOWS + 2) + "|")
    with tempfile.TemporaryDirectory() as folder:
        for seed in options.seeds:
            for name, sample in (("telens.paddle", "gpt_paddle.py"), ("telens.pytorch", "gpt.py")):
                means = window_means(train(sample, seed, options.steps, folder))
                print(
                    f"| {seed} | {name} | {' | '.join(f'{each:.3f}' for each in means)} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
