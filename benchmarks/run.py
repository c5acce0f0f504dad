#!/usr/bin/env python3
"""Runs every benchmark, prints the table and writes benchmarks/results/<machine>.json.

  benchmarks/run.py            every row against its target; minutes, on a machine that is idle
  benchmarks/run.py --quick    every row, briefly; judges nothing and writes nothing
  benchmarks/run.py --only linear    the rows whose name contains the word; writes nothing
  benchmarks/run.py --only linear --update    the same, kept in that file with their commit

Exits with 1 if a benchmark failed to run. A target that is missed is no failure: it stands in the
table.
"""

import argparse
import sys
import traceback
from pathlib import Path

from programs import CannotRun, Programs
from report import ROOT, Report
from rows import GROUPS

ROUNDS, QUICK_ROUNDS = 20, 1


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="measure briefly and judge nothing")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument(
        "--update", action="store_true", help="put the rows of --only into the machine's file"
    )
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="build folder")
    parser.add_argument("--rounds", type=int, help="rounds of each comparison")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    rounds = arguments.rounds or (QUICK_ROUNDS if arguments.quick else ROUNDS)
    programs = Programs(arguments.build.resolve(), rounds, arguments.quick)
    report = Report(arguments.quick)
    failed = False
    for group in GROUPS:
        if not any(arguments.only in name for name in group.names):
            continue
        print(f"... {group.names[0]}", file=sys.stderr, flush=True)
        try:
            report.rows += [row for row in group.rows(programs) if arguments.only in row.name]
        except CannotRun as reason:
            report.not_run |= dict.fromkeys(group.names, str(reason))
        except Exception:
            failed = True
            traceback.print_exc()
    print(report.table())
    if not arguments.quick and not failed and (arguments.update or not arguments.only):
        write = report.update if arguments.only else report.write
        print(f"written to {write(ROOT / 'benchmarks/results').relative_to(ROOT)}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
