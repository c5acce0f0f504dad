#!/usr/bin/env python3
"""Two replicas that average their gradients, of which one parts in the middle of the training.

python samples/faults/two_ranks.py OUT --fault rank_parts
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import socket

import torch
from campaign import CONFIG
from faults import Truth, in_step, weight_of
from training import Options, Training, every_iteration, record

RANKS = 2
VICTIM = "layers.0.layernorm_mlp"
AT = 14


def average_gradients(training: Training) -> None:
    for parameter in training.model.parameters():
        if parameter.grad is not None:
            torch.distributed.all_reduce(parameter.grad)
            parameter.grad /= RANKS


def rank_parts(training: Training) -> Truth:
    """One element of a weight of the second rank changes, as by a faulty device."""

    @torch.no_grad()
    def change() -> None:
        if training.options.rank == 1:
            weight_of(training, VICTIM)[2, 3] += 0.01

    in_step(training, AT, change)
    return Truth(("rank_mismatch",), f"{VICTIM}.fc1", "weight", AT)


def unreduced(training: Training) -> Truth:
    """The gradients of one parameter are not averaged any more."""
    averages = training.before_update

    def keep(t: Training) -> None:
        if t.step < AT:
            average_gradients(t)
            return
        own = weight_of(t, VICTIM).grad.clone()
        average_gradients(t)
        weight_of(t, VICTIM).grad.copy_(own)

    averages[:] = [keep]
    return Truth(("rank_mismatch",), f"{VICTIM}.fc1", "weight", AT + 1)


FAULTS = {"none": None, "rank_parts": rank_parts, "unreduced": unreduced}


def train(rank: int, port: int, folder: pathlib.Path, fault: str, seed: int) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS
    )
    training = Training(Options(seed=seed, rank=rank, steps=24, layers=2, batch=4))
    training.before_update.append(average_gradients)
    plant = FAULTS[fault]
    truth = plant(training) if plant else None
    record(training, every_iteration(CONFIG), folder)
    if rank == 0:
        told = {
            "fault": fault if truth else "healthy",
            "recipe": "delayed",
            "truth": dataclasses.asdict(truth) if truth else None,
        }
        (folder / "truth.json").write_text(json.dumps(told))
    torch.distributed.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--fault", choices=FAULTS, default="rank_parts")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = options.out / f"{options.fault}-delayed-{options.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    torch.multiprocessing.spawn(train, (port, folder, options.fault, options.seed), nprocs=RANKS)


if __name__ == "__main__":
    main()
