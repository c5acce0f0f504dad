#!/usr/bin/env python3
"""Asks `telens diagnose` about the runs of campaign.py and compares it with what was planted."""

from __future__ import annotations

import argparse
import collections
import json
import os
import pathlib
import subprocess

COMMAND = os.environ.get(
    "TELENS_COMMAND", str(pathlib.Path(__file__).resolve().parents[2] / "build/bin/telens")
)
FIRST = 3  # findings that count
WITHIN = 2  # iterations


def diagnose(run: pathlib.Path) -> dict:
    result = subprocess.run(
        [COMMAND, "diagnose", str(run), "--format", "json"], capture_output=True, text=True
    )
    if result.returncode not in (0, 1):
        raise RuntimeError(result.stderr)
    return json.loads(result.stdout)


def place_of_truth(findings: list[dict], truth: dict) -> int | None:
    """The number of the first finding that names cause, layer, tensor and iteration."""
    for number, finding in enumerate(findings[:FIRST], start=1):
        right = finding["cause"] in truth["causes"]
        right &= abs(finding["first_iteration"] - truth["first"]) <= WITHIN
        right &= truth["layer"] in (None, finding["layer"])
        right &= truth["tensor"] in (None, finding["tensor"])
        if right:
            return number
    return None


def label(finding: dict) -> str:
    where = " ".join(filter(None, (finding["layer"], finding["tensor"], finding["gemm"])))
    return f"{finding['cause']} [{where}] @{finding['first_iteration']}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    table: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    confusion: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    for told in sorted(options.out.glob("*/truth.json")):
        case = json.loads(told.read_text())
        findings = diagnose(told.parent)["findings"]
        truth = case["truth"]
        row = table[case["fault"]]
        row["runs"] += 1
        first = findings[0]["cause"] if findings else "(silent)"
        confusion[case["fault"]][first] += 1
        if truth is None:
            row["first"] += not findings
            row["three"] += not findings
            wrong = bool(findings)
        else:
            place = place_of_truth(findings, truth)
            row["first"] += place == 1
            row["three"] += place is not None
            wrong = place != 1
        if wrong and options.verbose:
            print(
                told.parent.name,
                truth and (truth["causes"], truth["layer"], truth["tensor"], truth["first"]),
            )
            for finding in findings[:FIRST]:
                print("    ", label(finding), finding["summary"][:110])
    print(f"{'planted':22} {'runs':>4} {'first':>5} {'of 3':>5}  first finding")
    for fault, row in sorted(table.items()):
        causes = ", ".join(f"{name} {count}" for name, count in confusion[fault].most_common())
        print(f"{fault:22} {row['runs']:4} {row['first']:5} {row['three']:5}  {causes}")
    for healthy in (False, True):
        rows = [row for fault, row in table.items() if (fault == "healthy") == healthy]
        runs = sum(row["runs"] for row in rows)
        first, three = (sum(row[name] for row in rows) for name in ("first", "three"))
        if runs:
            what = "healthy, silent" if healthy else "faults: first, in three"
            print(f"{what}: {first} and {three} of {runs}")


if __name__ == "__main__":
    main()
