#!/usr/bin/env python3
"""Plants faults in small trainings, and healthy twins of the same seeds; records each as a run.

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
from faults import FAULTS, Fault, Truth
from training import TEXT_BYTES, Options, Text, Training, every_iteration, record

CONFIG = pathlib.Path(__file__).resolve().parents[2] / "configs/flight_recorder.yaml"


@dataclasses.dataclass
class Case:
    """One run: a fault, or none, in a training."""

    name: str
    options: Options
    fault: Fault | None = None
    layer: str = ""
    at: int = 0

    def run(self, folder: pathlib.Path, text: Text, config: dict) -> None:
        training = Training(self.options, text)
        truth: Truth | None = None
        if self.fault:
            truth = self.fault.plant(training, self.layer, self.at)
        record(training, config, folder / self.name)
        told = {
            "fault": self.fault.name if self.fault else "healthy",
            "recipe": self.options.recipe,
            "truth": dataclasses.asdict(truth) if truth else None,
        }
        (folder / self.name / "truth.json").write_text(json.dumps(told))


def faulty_cases(seeds: list[int], recipes: list[str], names: list[str]) -> list[Case]:
    """Of each fault, seed and recipe one, with a victim and a moment that the seed draws."""
    cases = []
    for fault in FAULTS:
        if names and fault.name not in names:
            continue
        for seed in seeds:
            for recipe in (each for each in fault.recipes if each in recipes):
                draw = random.Random(f"{fault.name} {seed} {recipe}")
                at = draw.randrange(10, 24)
                cases.append(
                    Case(
                        f"{fault.name}-{recipe}-{seed}",
                        Options(recipe=recipe, seed=seed),
                        fault,
                        draw.choice(fault.layers),
                        at,
                    )
                )
    return cases


def healthy_cases(seeds: list[int], recipes: list[str]) -> list[Case]:
    """Twins, and trainings that differ in what must not look like a fault."""
    variations = {
        "twin": {},
        "fast": {"learning_rate": 1e-2},
        "wide": {"hidden": 96, "layers": 2},
        "micro": {"micro_batches": 2, "batch": 4},
        "resumed": {"resume_at": 20},
        "frozen": {"frozen": ("layers.0", "embedding")},
        "small_batch": {"batch": 2},
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
    parser.add_argument("--faults", nargs="*", default=[])
    parser.add_argument("--only", nargs="*", default=[], help="names of cases")
    parser.add_argument("--healthy", choices=("with", "without", "only"), default="with")
    options = parser.parse_args()
    torch.set_num_threads(1)
    text = Text("", TEXT_BYTES)
    config = every_iteration(CONFIG)
    cases = []
    if options.healthy != "only":
        cases += faulty_cases(options.seeds, options.recipes, options.faults)
    if options.healthy != "without":
        cases += healthy_cases(options.seeds, options.recipes)
    if options.only:
        cases = [case for case in cases if case.name in options.only]
    for case in cases:
        if (options.out / case.name / "truth.json").exists():
            continue
        print(case.name, flush=True)
        try:
            case.run(options.out, text, config)
        except Exception as error:
            print(f"  ended by {error}")


if __name__ == "__main__":
    main()
