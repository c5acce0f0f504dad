#!/usr/bin/env python3
"""Trains samples/llama.py in each recipe with three seeds; prints a table, draws the losses.

    PYTHONPATH=build/python .venv/bin/python samples/llama_losses.py --out losses.svg

The picture needs matplotlib. Its first half shows the loss in BF16; the second half shows the
difference of each recipe from BF16 with the same seed, that is, with the same initial weights and
the same batches.
"""

from __future__ import annotations

import argparse
import os
import statistics
import struct
import subprocess
import sys
from pathlib import Path

SAMPLE = Path(__file__).with_name("llama.py")
SIZES = ["--layers", "2", "--hidden", "64", "--heads", "4", "--sequence", "64", "--batch", "8"]
TEXT = ["--text-bytes", "1000000"]
RECIPES = ("delayed", "current", "mxfp8", "block", "nvfp4")
SEEDS = (1, 2, 3)
WINDOW = 50  # steps of a mean: neighbors differ by their batches more than by anything else

Losses = dict[tuple[str, int], list[float]]


def train(recipe: str, seed: int, steps: int, folder: Path) -> list[float]:
    """Returns the loss per step; for a run that ended in an earlier call, the stored losses."""
    file = folder / f"{recipe}-{seed}-{steps}"
    if not file.exists():
        running = file.with_suffix(".running")
        options = ["--recipe", recipe, "--seed", seed, "--steps", steps, "--loss-file", running]
        command = [sys.executable, SAMPLE, *SIZES, *TEXT, *options, "--device", "cpu"]
        subprocess.run(
            [str(each) for each in command],
            # GEMMs of this size are not faster with a second thread.
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        running.rename(file)
    return [struct.unpack(">f", bytes.fromhex(line))[0] for line in file.read_text().split()]


def train_all(steps: int, folder: Path) -> Losses:
    wanted = [(recipe, seed) for recipe in ("bf16", *RECIPES) for seed in SEEDS]
    losses = {}
    for done, (recipe, seed) in enumerate(wanted):
        print(f"{done + 1}/{len(wanted)}: {recipe}, seed {seed}", file=sys.stderr)
        losses[recipe, seed] = train(recipe, seed, steps, folder)
    return losses


def print_table(losses: Losses) -> None:
    """Returns the table of docs/transformer_engine.md as Markdown."""
    ends = {run: statistics.mean(values[-WINDOW:]) for run, values in losses.items()}
    seeds = " | ".join(f"seed {seed}" for seed in SEEDS)
    print(f"| mean loss of the last {WINDOW} steps, nats a byte | {seeds} | against BF16 |")
    print("|---" * (len(SEEDS) + 2) + "|")
    for recipe in ("bf16", *RECIPES):
        means = " | ".join(f"{ends[recipe, seed]:.3f}" for seed in SEEDS)
        shares = [f"{100 * (ends[recipe, seed] / ends['bf16', seed] - 1):+.1f}" for seed in SEEDS]
        against = "" if recipe == "bf16" else f" {', '.join(shares)} %"
        print(f"| {recipe} | {means} |{against} |")


def running_mean(values: list[float]) -> list[float]:
    """Returns the running mean of the last WINDOW values (of fewer at the beginning)."""
    return [statistics.mean(values[max(0, i + 1 - WINDOW) : i + 1]) for i in range(len(values))]


def draw(losses: Losses, path: str) -> None:
    from matplotlib import pyplot

    pyplot.rcParams["svg.fonttype"] = "none"  # text, not outlines of letters
    figure, axes = pyplot.subplots(
        1,
        1 + len(RECIPES),
        figsize=(13, 3.4),
        width_ratios=[2, *[1] * len(RECIPES)],
        layout="tight",
    )
    colors = pyplot.get_cmap("viridis")([0.0, 0.45, 0.8])
    for seed, color in zip(SEEDS, colors, strict=True):
        axes[0].plot(losses["bf16", seed], color=color, linewidth=0.8, label=f"seed {seed}")
    axes[0].set(title="bf16", ylabel="loss, nats a byte", xlabel="step")
    axes[0].legend(frameon=False)
    for axis, recipe in zip(axes[1:], RECIPES, strict=True):
        axis.axhline(0, color="gray", linewidth=0.8)
        for seed, color in zip(SEEDS, colors, strict=True):
            pairs = zip(losses[recipe, seed], losses["bf16", seed], strict=True)
            axis.plot(running_mean([a - b for a, b in pairs]), color=color, linewidth=1)
        axis.set(title=recipe, xlabel="step")
        axis.sharey(axes[1])
        axis.tick_params(labelleft=axis is axes[1])
    axes[1].set_ylabel(f"loss - bf16's, mean of {WINDOW} steps")
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Trains samples/llama.py in each recipe with three seeds.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--steps", type=int, default=300, help="training steps per run")
    parser.add_argument("--out", default="", help="draws the losses into this picture")
    parser.add_argument(
        "--folder",
        type=Path,
        default="build/llama_losses",
        help="keeps losses; a run in it is not repeated",
    )
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    losses = train_all(options.steps, options.folder.resolve())
    print_table(losses)
    if options.out:
        draw(losses, options.out)


if __name__ == "__main__":
    main()
