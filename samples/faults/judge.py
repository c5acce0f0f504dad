#!/usr/bin/env python3
"""Runs `telens diagnose` on the runs of campaign.py and compares the result with the planted
faults.

A healthy training that failed by itself is counted on a separate line.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pathlib
import subprocess

from learned import did_learn, losses_of

COMMAND = os.environ.get(
    "TELENS_COMMAND", str(pathlib.Path(__file__).resolve().parents[2] / "build/bin/telens")
)
FIRST = 3  # findings that count
WITHIN = 2  # iterations
NOT_LEARNED = "did not learn"


def diagnose(run: pathlib.Path) -> dict:
    result = subprocess.run(
        [COMMAND, "diagnose", str(run), "--format", "json"], capture_output=True, text=True
    )
    if result.returncode not in (0, 1):
        raise RuntimeError(result.stderr)
    return json.loads(result.stdout)


def place_of_truth(findings: list[dict], truth: dict) -> int | None:
    """Returns the index of the first finding with the expected cause, layer, tensor and
    iteration."""
    tensors = truth["tensor"] or []
    if isinstance(tensors, str):
        tensors = [tensors]
    for number, finding in enumerate(findings[:FIRST], start=1):
        right = finding["cause"] in truth["causes"]
        right &= abs(finding["first_iteration"] - truth["first"]) <= WITHIN
        right &= truth["layer"] in (None, finding["layer"])
        right &= finding["tensor"] in tensors or not tensors
        if right:
            return number
    return None


def label(finding: dict) -> str:
    where = " ".join(filter(None, (finding["layer"], finding["tensor"], finding["gemm"])))
    return f"{finding['cause']} [{where}] @{finding['first_iteration']}"


class Judgement:
    """Counts the results of runs, per kind of run."""

    def __init__(self) -> None:
        self.table: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
        self.confusion: dict[str, collections.Counter] = collections.defaultdict(
            collections.Counter
        )

    def add(self, kind: str, findings: list[dict], truth: dict | None) -> bool:
        """Returns whether the run has the expected result: its fault first, or no finding."""
        place = place_of_truth(findings, truth) if truth else 1 if not findings else None
        row = self.table[kind]
        row["runs"] += 1
        row["first"] += place == 1
        row["three"] += place is not None
        self.confusion[kind][findings[0]["cause"] if findings else "(silent)"] += 1
        return place == 1

    def total(self, kinds: set[str]) -> tuple[int, int, int]:
        """First, in three, and runs."""
        rows = [self.table[kind] for kind in kinds]
        return tuple(sum(row[name] for row in rows) for name in ("first", "three", "runs"))

    def show(self) -> None:
        print(f"{'planted':22} {'runs':>4} {'first':>5} {'of 3':>5}  first finding")
        for kind, row in sorted(self.table.items()):
            causes = ", ".join(
                f"{name} {count}" for name, count in self.confusion[kind].most_common()
            )
            print(f"{kind:22} {row['runs']:4} {row['first']:5} {row['three']:5}  {causes}")
        faults = set(self.table) - {"healthy", NOT_LEARNED}
        lines = (
            ("faults: first, in three", faults),
            ("healthy, silent", {"healthy"}),
            ("no fault was planted and it did not learn, silent", {NOT_LEARNED}),
        )
        for what, kinds in lines:
            first, three, runs = self.total(kinds & set(self.table))
            if runs:
                print(f"{what}: {first} and {three} of {runs}")


def kind_of(case: dict, run: pathlib.Path) -> str:
    if case["truth"] is None and not did_learn(losses_of(run)):
        return NOT_LEARNED
    return case["fault"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    judgement = Judgement()
    for truth_file in sorted(options.out.glob("*/truth.json")):
        case = json.loads(truth_file.read_text())
        findings = diagnose(truth_file.parent)["findings"]
        truth = case["truth"]
        right = judgement.add(kind_of(case, truth_file.parent), findings, truth)
        if not right and options.verbose:
            print(
                truth_file.parent.name,
                truth and (truth["causes"], truth["layer"], truth["tensor"], truth["first"]),
            )
            for finding in findings[:FIRST]:
                print("    ", label(finding), finding["summary"][:110])
    judgement.show()


if __name__ == "__main__":
    main()
