#!/usr/bin/env python3
"""Trains two data-parallel replicas, one of which gets a fault in the middle of the training.

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
from faults import Truth, in_step, module_of, watched_name, weight_of
from training import RECIPES, Options, Training, every_iteration, record

import telens.debug as debug

RANKS = 2
VICTIM = "layers.0.layernorm_mlp"
AT = 14


def recorded_name(training: Training, layer: str) -> str:
    """Returns the layer's name in the run: debug.infer_and_assign_layer_names counts layers from
    1."""
    return watched_name(module_of(training, layer).name)


def average_gradients(training: Training) -> None:
    for parameter in training.model.parameters():
        if parameter.grad is not None:
            torch.distributed.all_reduce(parameter.grad)
            parameter.grad /= RANKS


def rank_parts(training: Training) -> Truth:
    """Changes one element of a weight on the second rank, as a faulty device could."""

    @torch.no_grad()
    def change() -> None:
        if training.options.rank == 1:
            weight_of(training, VICTIM)[2, 3] += 0.01

    in_step(training, AT, change)
    return Truth(("rank_mismatch",), recorded_name(training, VICTIM), "weight", AT)


def other_scale(training: Training) -> Truth:
    """Overwrites the scale of a weight on the second rank."""
    layer = "layers.1.self_attention.proj"

    @torch.no_grad()
    def change(t: Training) -> None:
        if t.step == AT and t.options.rank == 1:
            t.model.get_submodule(layer).fp8_meta["scaling_fwd"].scale[1] *= 4

    training.before_step.append(change)
    return Truth(("rank_scales",), recorded_name(training, layer), "weight", AT)


def lost_nan(training: Training) -> Truth:
    """Reduces the largest gradient by a maximum over ranks, in which gloo drops a NaN."""
    name = "largest_gradient"

    def largest(t: Training) -> None:
        values = torch.stack([each.grad.abs().max() for each in t.model.parameters()]).max()
        if t.step == AT and t.options.rank == 1:
            values.fill_(float("nan"))
        sent = values.clone()
        torch.distributed.all_reduce(values, torch.distributed.ReduceOp.MAX)
        debug.check_collective(name, sent, values, "max")

    training.before_update.append(largest)
    return Truth(("wrong_collective",), name, "output", AT)


def unreduced(training: Training) -> Truth:
    """Stops averaging the gradient of a parameter."""
    averages = training.before_update

    def keep(t: Training) -> None:
        if t.step < AT:
            average_gradients(t)
            return
        own = weight_of(t, VICTIM).grad.clone()
        average_gradients(t)
        weight_of(t, VICTIM).grad.copy_(own)

    averages[:] = [keep]
    return Truth(("unreduced_gradient",), recorded_name(training, VICTIM), "wgrad", AT)


def other_recipe(training: Training) -> Truth:
    """Uses a different recipe on the second rank."""
    if training.options.rank == 1:
        training.recipe = RECIPES["current"]
    return Truth(("unlike_recipes",), None, None, 0)


FAULTS = {
    "none": None,
    "rank_parts": rank_parts,
    "other_scale": other_scale,
    "lost_nan": lost_nan,
    "unreduced": unreduced,
    "other_recipe": other_recipe,
}
COMPARISONS = {
    "RankAgreement": {"enabled": True, "tensors": ["activation", "weight", "gradient"]},
    "CollectiveCheck": {"enabled": True},
}


def configuration() -> dict:
    config = every_iteration(CONFIG)
    config["ranks"] = {
        "enabled": True,
        "layers": {"layer_types": "all"},
        "telens": COMPARISONS,
    }
    return config


def train(rank: int, fault: str, seed: int, folder: pathlib.Path) -> None:
    training = Training(Options(seed=seed, rank=rank, steps=24, layers=2, batch=4))
    training.before_update.append(average_gradients)
    debug.infer_and_assign_layer_names(training.model)
    plant = FAULTS[fault]
    truth = plant(training) if plant else None
    record(training, configuration(), folder)
    if rank == 0:
        truth_record = {
            "fault": fault if truth else "healthy",
            "recipe": "delayed",
            "truth": dataclasses.asdict(truth) if truth else None,
        }
        (folder / "truth.json").write_text(json.dumps(truth_record))


def run_rank(rank: int, port: int, out: pathlib.Path, faults: list[str], seed: int) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS
    )
    for fault in faults:
        train(rank, fault, seed, out / f"{fault}-delayed-{seed}")
    torch.distributed.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--fault", choices=FAULTS, nargs="+", default=["rank_parts"])
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for fault in options.fault:
        (options.out / f"{fault}-delayed-{options.seed}").mkdir(parents=True, exist_ok=True)
    arguments = (port, options.out, options.fault, options.seed)
    torch.multiprocessing.spawn(run_rank, arguments, nprocs=RANKS)


if __name__ == "__main__":
    main()
