#!/usr/bin/env python3
"""Records small trainings with a planted fault, and healthy trainings with the same seeds.

python samples/faults/campaign.py OUT --seeds 1 2 --recipes delayed mxfp8
python samples/faults/judge.py OUT
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import random

import torch
from attention_faults import ATTENTION_FAULTS
from faults import FAULTS, Fault, Truth
from program_faults import PROGRAM_FAULTS
from quiet_faults import QUIET_FAULTS
from rare_faults import RARE_FAULTS
from training import Options, Training, every_iteration, record

CONFIG = pathlib.Path(__file__).resolve().parents[2] / "configs/flight_recorder.yaml"
ALL_FAULTS = (*FAULTS, *RARE_FAULTS, *PROGRAM_FAULTS, *ATTENTION_FAULTS, *QUIET_FAULTS)


@dataclasses.dataclass
class Case:
    """A run of the campaign: a training with a fault, or without one."""

    name: str
    options: Options
    fault: Fault | None = None
    layer: str = ""
    at: int = 0

    def run(self, folder: pathlib.Path, config: dict) -> None:
        training = Training(self.options)
        truth: Truth | None = None
        if self.fault:
            truth = self.fault.plant(training, self.layer, self.at)
        record(training, config, folder / self.name)
        truth_record = {
            "fault": self.fault.name if self.fault else "healthy",
            "recipe": self.options.recipe,
            "truth": dataclasses.asdict(truth) if truth else None,
        }
        (folder / self.name / "truth.json").write_text(json.dumps(truth_record))


def faulty_cases(seeds: list[int], recipes: list[str], names: list[str], model: str) -> list[Case]:
    """Yields one run per fault, seed and recipe. The seed selects the layer and the iteration.

    `model` replaces the GPT.
    """
    cases = []
    for fault in ALL_FAULTS:
        if names and fault.name not in names:
            continue
        trained = model if fault.model == "gpt" else fault.model
        for seed in seeds:
            for recipe in (each for each in fault.recipes if each in recipes):
                draw = random.Random(f"{fault.name} {seed} {recipe}")
                at = draw.randrange(10, 24)
                cases.append(
                    Case(
                        f"{fault.name}-{recipe}-{seed}",
                        Options(recipe=recipe, seed=seed, model=trained),
                        fault,
                        draw.choice(fault.layers),
                        at,
                    )
                )
    return cases


def healthy_cases(seeds: list[int], recipes: list[str]) -> list[Case]:
    """Yields healthy runs, some of which have harmless peculiarities that must not be reported."""
    variations = {
        "twin": {},
        "fast": {"learning_rate": 1e-2},
        "wide": {"hidden": 96, "layers": 2},
        "micro": {"micro_batches": 2, "batch": 4},
        "resumed": {"resume_at": 20},
        "frozen": {"frozen": ("layers.0", "embedding")},
        "small_batch": {"batch": 2},
        "evaluated": {"evaluate_every": 4, "dropout": 0.1},
        "clipped": {"clip": 0.5, "short_batches": True},
        "slow": {"learning_rate": 1e-4},
        "llama": {"model": "llama", "layers": 2},
        "llama_fast": {"model": "llama", "layers": 2, "learning_rate": 8e-3, "clip": 1.0},
        "regression": {"model": "regression", "steps": 60},
        "regression_deep": {"model": "regression", "layers": 8, "dropout": 0.1, "batch": 2},
        "regression_sgd": {"model": "regression", "optimizer": "sgd", "learning_rate": 2e-2},
        "images": {"model": "images"},
        "images_fast": {"model": "images", "learning_rate": 1e-2, "resume_at": 15},
        "half": {"model": "regression", "dtype": torch.float16, "loss_scaler": True},
        "padded": {"padding": 0.5},
        "ramp": {"batch": 4, "larger_batch_at": 20},
        "accumulated": {"micro_batches": 4, "batch": 2, "clip": 1.0},
        "gpt_sgd": {"optimizer": "sgd", "learning_rate": 5e-2},
        "frozen_later": {"frozen": ("layers.0",), "frozen_from": 18},
        "long": {"steps": 90, "layers": 1, "learning_rate": 5e-3},
        "half_gpt": {"dtype": torch.float16, "loss_scaler": True, "layers": 2},
    }
    cases = []
    for name, changes in variations.items():
        for seed in seeds:
            for recipe in recipes:
                options = Options(recipe=recipe, seed=seed, **changes)
                cases.append(Case(f"healthy_{name}-{recipe}-{seed}", options))
    return cases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument(
        "--recipes", nargs="+", default=["delayed", "delayed_recent", "current", "mxfp8"]
    )
    parser.add_argument("--model", choices=("gpt", "llama"), default="gpt", help="of the faults")
    parser.add_argument("--faults", nargs="*", default=[])
    parser.add_argument("--config", type=pathlib.Path, default=CONFIG, help="recorder of the run")
    parser.add_argument("--only", nargs="*", default=[], help="names of cases")
    parser.add_argument("--healthy", choices=("with", "without", "only"), default="with")
    options = parser.parse_args()
    torch.set_num_threads(1)
    config = every_iteration(options.config)
    cases = []
    if options.healthy != "only":
        cases += faulty_cases(options.seeds, options.recipes, options.faults, options.model)
    if options.healthy != "without":
        cases += healthy_cases(options.seeds, options.recipes)
    if options.only:
        cases = [case for case in cases if case.name in options.only]
    for case in cases:
        if (options.out / case.name / "truth.json").exists():
            continue
        print(case.name, flush=True)
        try:
            case.run(options.out, config)
        except Exception as error:
            print(f"  ended by {error}")
            (options.out / case.name / "truth.json").unlink(missing_ok=True)  # nothing to judge


if __name__ == "__main__":
    main()
