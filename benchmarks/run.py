#!/usr/bin/env python3
"""Runs every benchmark, prints the table and writes benchmarks/results/<machine>.json.

  benchmarks/run.py            every row against its target; minutes, on an idle machine.
                               Continues an interrupted run of the same commit.
  benchmarks/run.py --restart  the same from the first row on
  benchmarks/run.py --quick    every row, briefly; judges nothing and writes nothing
  benchmarks/run.py --only linear    the rows whose name contains the word; writes nothing
  benchmarks/run.py --only linear --update    the same, kept in that file with their commit

Prints each row when it is measured. Exits with 1 if a benchmark failed to run. A missed target is
not a failure; the table shows it.
"""

import argparse
import sys
import traceback
from pathlib import Path

from programs import CannotRun, Programs
from report import ROOT, Journal, Report
from rows import GROUPS

ROUNDS, QUICK_ROUNDS = 20, 1


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="measure briefly and judge nothing")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument(
        "--update", action="store_true", help="put the rows of --only into the machine's file"
    )
    parser.add_argument(
        "--restart", action="store_true", help="discard the rows of an interrupted run"
    )
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="build folder")
    parser.add_argument("--rounds", type=int, help="rounds of each comparison")
    return parser.parse_args()


def measure(group, programs, only):
    """The rows of a group, each printed when it is measured."""
    rows = []
    for row in group.rows(programs):
        if only in row.name:
            print(row.line(programs.quick), flush=True)
            rows.append(row)
    return rows


def main():
    arguments = parse_arguments()
    rounds = arguments.rounds or (QUICK_ROUNDS if arguments.quick else ROUNDS)
    programs = Programs(arguments.build.resolve(), rounds, arguments.quick)
    report = Report(arguments.quick)
    is_whole = not arguments.quick and not arguments.only
    journal = Journal(arguments.build / "benchmarks.jsonl", rounds) if is_whole else None
    if journal and not arguments.restart:
        journal.resume()
    failed = False
    for group in GROUPS:
        name = group.names[0]
        if not any(arguments.only in each for each in group.names):
            continue
        if journal and name in journal.groups:
            rows, not_run = journal.groups[name]
            print(f"... {name}: measured before", file=sys.stderr, flush=True)
        else:
            print(f"... {name}", file=sys.stderr, flush=True)
            rows, not_run = [], {}
            try:
                rows = measure(group, programs, arguments.only)
            except CannotRun as reason:
                not_run = dict.fromkeys(group.names, str(reason))
            except Exception:
                failed = True
                traceback.print_exc()
                continue
            if journal:
                journal.add(name, rows, not_run)
        report.rows += rows
        report.not_run |= not_run
    print(report.table())
    if not arguments.quick and not failed and (arguments.update or not arguments.only):
        write = report.update if arguments.only else report.write
        print(f"written to {write(ROOT / 'benchmarks/results').relative_to(ROOT)}")
        if journal:
            journal.remove()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
