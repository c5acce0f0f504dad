"""Runs DebugBench.

  python -m benchmarks.debugbench                   run the tuned half
  python -m benchmarks.debugbench --half blind      run the blind half
  python -m benchmarks.debugbench --only NAME       run the incidents whose source contains NAME
  python -m benchmarks.debugbench --train-only      train without a diagnosis

Finished trainings are kept in --out. An interrupted call continues when it is repeated, and a
second call only runs the diagnosis. --write stores the result in benchmarks/debugbench/results.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pathlib
import subprocess

from .catalog import Incident, read_incidents
from .runner import diagnose, judge, summarize, train

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = pathlib.Path(__file__).with_name("results")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.debugbench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--half", choices=("tuned", "blind", "both"), default="tuned")
    parser.add_argument("--only", default="", metavar="NAME")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/debugbench")
    parser.add_argument(
        "--command", default=os.environ.get("TELENS_COMMAND", str(ROOT / "build/bin/telens"))
    )
    parser.add_argument("--train-only", action="store_true")
    parser.add_argument("--write", action="store_true")
    return parser.parse_args()


def chosen(arguments: argparse.Namespace) -> list[Incident]:
    halves = {"tuned": (False,), "blind": (True,), "both": (False, True)}[arguments.half]
    return [
        each
        for each in read_incidents()
        if each.is_blind in halves and arguments.only in each.source
    ]


def run(incident: Incident, arguments: argparse.Namespace) -> dict:
    folders = {name: arguments.out / incident.folder / name for name in ("broken", "twin")}
    trained = {name: train(incident, name == "broken", folder) for name, folder in folders.items()}
    if arguments.train_only:
        return {"source": incident.source, "trained": trained}
    alarms = diagnose(folders["twin"], arguments.command)
    return {
        "source": incident.source,
        "kind": incident.kind,
        "half": "blind" if incident.is_blind else "tuned",
        "trained": trained,
        **judge(incident, diagnose(folders["broken"], arguments.command)),
        "alarms": [summarize(each) for each in alarms],
    }


def line(result: dict) -> str:
    rank = {None: "-", 1: "first"}.get(result["place"], "in three")
    parts = " ".join("yes" if right else " no" for right in result["parts"].values())
    alarm = result["alarms"][0]["cause"] if result["alarms"] else ""
    found = result["findings"][0] if result["findings"] else None
    label = "(none)"
    if found:
        place = f"{found['layer'] or ''} {found['tensor'] or ''}"
        label = f"{found['cause']} [{place}] @{found['first_iteration']}"
    return f"{result['source']:42} {rank:8} {parts}  {label:70} {alarm}"


def show(results: list[dict]) -> None:
    print(f"{'incident':42} {'place':8} correct: cause, layer, tensor, iteration; first finding")
    for result in results:
        print(line(result))
    for half in ("tuned", "blind"):
        of_half = [each for each in results if each["half"] == half]
        if not of_half:
            continue
        places = collections.Counter(each["place"] for each in of_half)
        three = sum(count for place, count in places.items() if place is not None)
        causes = sum(each["parts"]["cause"] for each in of_half)
        alarms = sum(bool(each["alarms"]) for each in of_half)
        print(
            f"{half}: of {len(of_half)} incidents, the first finding of {places[1]} and one of the "
            f"first three of {three} are correct; {causes} have the correct cause; "
            f"{alarms} of {len(of_half)} healthy twins have a finding"
        )


def commit() -> str:
    found = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True
    )
    return found.stdout.strip()


def main() -> None:
    arguments = parse_arguments()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    results = []
    for incident in chosen(arguments):
        print(f"... {incident.source}", flush=True)
        results.append(run(incident, arguments))
        if arguments.train_only:
            print(f"    {results[-1]['trained']}", flush=True)
    if arguments.train_only:
        return
    show(results)
    if arguments.write:
        RESULTS.mkdir(exist_ok=True)
        for half in ("tuned", "blind"):
            of_half = [each for each in results if each["half"] == half]
            if of_half:
                written = {"commit": commit(), "results": of_half}
                (RESULTS / f"{half}.json").write_text(json.dumps(written, indent=1) + "\n")


main()
