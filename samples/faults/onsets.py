#!/usr/bin/env python3
"""Plants each fault at several iterations, to see how early `telens diagnose` finds it.

python samples/faults/onsets.py OUT [--jobs 2] [--json FILE]

OUT keeps finished trainings, so that a second call only runs the missing ones.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import multiprocessing
import pathlib
import random
from collections.abc import Iterator

import torch
from campaign import ALL_FAULTS, CONFIG, Case
from faults import Fault
from judge import diagnose, place_of_truth
from training import Options, Training, every_iteration

ONSETS = (0, 1, 3, 8, 20, 40)
STEPS = 60
SEED = 1


def options_of(fault: Fault) -> Options:
    return Options(recipe=fault.recipes[0], seed=SEED, steps=STEPS, model=fault.model)


def begins_when_planted(fault: Fault) -> bool:
    """Returns whether the expected first iteration depends on the iteration of the fault.

    Some faults are a property of the whole run, such as a learning rate.
    """
    firsts = [
        fault.plant(Training(options_of(fault)), fault.layers[0], at).first for at in (10, 11)
    ]
    return firsts[1] == firsts[0] + 1


def cases(names: list[str]) -> Iterator[Case]:
    for fault in ALL_FAULTS:
        if (names and fault.name not in names) or not begins_when_planted(fault):
            continue
        layer = random.Random(f"{fault.name} {SEED}").choice(fault.layers)
        for at in ONSETS:
            yield Case(f"{fault.name}-at-{at}", options_of(fault), fault, layer, at)


def train(name: str, out: pathlib.Path) -> str:
    """Trains one case. Returns the error that ended it, or "" if the run was recorded."""
    torch.set_num_threads(1)
    fault = name.rpartition("-at-")[0]
    case = next(each for each in cases([fault]) if each.name == name)
    try:
        case.run(out, every_iteration(CONFIG))
    except Exception as error:  # the fault ended the training before it was recorded
        return f"{type(error).__name__}: {error}"
    return ""


def judge(run: pathlib.Path) -> str:
    """Returns "first", "in three", "cause" (elsewhere or at another time) or "missed"."""
    truth = json.loads((run / "truth.json").read_text())["truth"]
    findings = diagnose(run)["findings"]
    place = place_of_truth(findings, truth)
    if place is not None:
        return "first" if place == 1 else "in three"
    causes = {finding["cause"] for finding in findings}
    return "cause" if causes & set(truth["causes"]) else "missed"


def table(results: dict[str, dict[int, str]]) -> Iterator[str]:
    yield f"| fault | {' | '.join(map(str, ONSETS))} |"
    yield "|---" * (1 + len(ONSETS)) + "|"
    for fault, row in sorted(results.items()):
        yield f"| {fault} | {' | '.join(row.get(at, '') for at in ONSETS)} |"
    found = [sum(row.get(at) in ("first", "in three") for row in results.values()) for at in ONSETS]
    yield f"| found, of {len(results)} | {' | '.join(map(str, found))} |"


@dataclasses.dataclass
class Progress:
    total: int
    done: int = 0

    def show(self, name: str, error: str) -> None:
        self.done += 1
        print(f"{self.done}/{self.total} {name}{': ' * bool(error)}{error}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time")
    parser.add_argument("--json", type=pathlib.Path, help="write the results to this file")
    parser.add_argument("--faults", nargs="*", default=[])
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    planned = [case.name for case in cases(options.faults)]
    missing = [name for name in planned if not (options.out / name / "truth.json").exists()]
    progress = Progress(len(missing))
    with concurrent.futures.ProcessPoolExecutor(
        options.jobs, mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        running = {pool.submit(train, name, options.out): name for name in missing}
        for future in concurrent.futures.as_completed(running):
            progress.show(running[future], future.result())
    results: dict[str, dict[int, str]] = {}
    for name in planned:
        fault, _, at = name.rpartition("-at-")
        run = options.out / name
        if (run / "truth.json").exists():
            results.setdefault(fault, {})[int(at)] = judge(run)
    print(*table(results), sep="\n")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
