#!/usr/bin/env python3
"""Builds and checks TELens on a machine with a GPU, and leaves JSON and a log in one folder.

  benchmarks/gpu_check.py --out FOLDER [--dependencies FOLDER] [--build FOLDER] [--jobs N]
                          [--limit SECONDS]

Needs CUDA, CMake, Ninja and a Python with torch, pytest and numpy: the one that runs this. The
other libraries come from --dependencies (`make portable-dependencies`) or from the system. Steps
that a machine cannot run, or for which no time is left, are skipped with their reason. The report
is written after each step. Exits with 1 if a step failed, with 2 if nothing can run here.
"""

import argparse
import dataclasses
import os
import signal
import sys
from pathlib import Path

from gpu_checks.context import ROOT, Context
from gpu_checks.report import Report
from gpu_checks.runner import Commands, Runner
from gpu_checks.steps import steps
from gpu_machine import faults_of_build, read_machine

LIMIT = 570  # seconds: machines are often lent for ten minutes a command


def parse_arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the JSON and the log")
    parser.add_argument("--dependencies", type=Path, help="what make portable-dependencies built")
    parser.add_argument("--build", type=Path, default=ROOT / "build-gpu", help="build folder")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for all steps")
    return parser.parse_args(words)


def existing(folder: Path | None) -> Path | None:
    """Without the carried libraries the system's are tried."""
    return folder.resolve() if folder and folder.exists() else None


def interrupt(*_) -> None:
    raise KeyboardInterrupt


def main() -> int:
    arguments = parse_arguments()
    machine = read_machine()
    faults = faults_of_build(machine)
    if faults:
        print("\n".join(faults), file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, interrupt)
    out = arguments.out.resolve()
    report = Report(out, dataclasses.asdict(machine), ROOT)
    context = Context(
        out,
        arguments.build.resolve(),
        existing(arguments.dependencies),
        arguments.jobs,
        machine.nvcc,
    )
    context.commands = Commands(out / "gpu_check.log", context.environment, ROOT)
    try:
        Runner(report, context.commands, arguments.limit).run(steps(context))
    except KeyboardInterrupt:
        return 1
    print(f"written to {report.path}")
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
