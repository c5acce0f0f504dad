#!/usr/bin/env python3
"""Builds and checks TELens on a machine with a GPU, and leaves JSON and a log in one folder.

  benchmarks/gpu_check.py --out FOLDER [--dependencies FOLDER] [--prebuilt FOLDER] [--build FOLDER]
                          [--jobs N] [--limit SECONDS] [--copies FOLDER] [--afresh]
  benchmarks/gpu_check.py --out FOLDER ... --rehearse    what each call would do; needs no GPU

Needs CUDA, CMake, Ninja and a Python with torch, pytest and numpy: the one that runs this. The
other libraries come from --dependencies (`make portable-dependencies`) or from the system; with
--prebuilt (`make gpu-prebuilt`) libtelens.so and its programs come from there, if they are of these
sources and for this torch and card, and only the Python module is compiled. Steps that a machine
cannot run, or for which no time is left, are skipped with their reason; the next call with the same
--out, sources and card goes on with them, and with the rows that were not measured. The report is
written after each step. Exits with 1 if a step failed or was not reached, with 2 if nothing can run
here.
"""

import argparse
import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

from gpu_checks import rehearsal
from gpu_checks.context import ROOT, Context
from gpu_checks.prebuilt import LIBRARY, digest_of_library, faults_of_prebuilt
from gpu_checks.report import Report
from gpu_checks.runner import Commands, Runner
from gpu_checks.steps import steps
from gpu_machine import faults_of_build, faults_of_gpu, read_machine, tool_faults

LIMIT = 570  # seconds: a little less than ten minutes
# The card that a rehearsal pretends to have.
REHEARSED = {"card": "NVIDIA H100", "torch": "any"}
HOPPER = (9, 0)
NOT_CARRIED = (".git", ".venv", "dist", "__pycache__")


def parse_arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the JSON and the log")
    parser.add_argument("--copies", type=Path, help="another folder for the JSON")
    parser.add_argument("--dependencies", type=Path, help="what make portable-dependencies built")
    parser.add_argument("--prebuilt", type=Path, help="make gpu-prebuilt's, if it is there")
    parser.add_argument("--build", type=Path, default=ROOT / "build-gpu", help="build folder")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for all steps")
    parser.add_argument("--afresh", action="store_true", help="forget what an earlier call found")
    parser.add_argument("--rehearse", action="store_true", help="print what each call would do")
    return parser.parse_args(words)


def existing(folder: Path | None) -> Path | None:
    """Without the carried libraries the system's are tried."""
    return folder.resolve() if folder and folder.exists() else None


def prebuilt_of(arguments) -> Path | None:
    """Where there is a library; a build that was stopped may have left a folder without one."""
    folder = existing(arguments.prebuilt)
    if arguments.prebuilt and not (folder and (folder / LIBRARY).exists()):
        print(f"no {LIBRARY} in {arguments.prebuilt}: everything is compiled here", flush=True)
        return None
    return folder


def interrupt(*_) -> None:
    raise KeyboardInterrupt


def context_of(arguments, prebuilt, nvcc: str, capability: tuple[int, int]) -> Context:
    return Context(
        arguments.out.resolve(),
        arguments.build.resolve(),
        existing(arguments.dependencies),
        arguments.jobs,
        nvcc,
        capability=capability,
        prebuilt=prebuilt,
    )


def sources_of(root: Path) -> list[Path]:
    """What Git tracks; of a copy without a repository, all but what is built and carried."""
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z"], capture_output=True, text=True
    )
    if listed.returncode == 0:
        return [root / name for name in listed.stdout.split("\0") if name]
    return [
        path
        for path in root.rglob("*")
        if not any(
            part in NOT_CARRIED or part.startswith("build") for part in path.relative_to(root).parts
        )
    ]


def rehearse(arguments) -> int:
    prebuilt = prebuilt_of(arguments)
    context = context_of(arguments, prebuilt, "nvcc", HOPPER)
    if faults := faults_of_prebuilt(prebuilt, ROOT) if prebuilt else []:
        print("\n".join(faults), file=sys.stderr)
        return 1
    tree = {"sources": sum(map(rehearsal.size_of, filter(Path.is_file, sources_of(ROOT))))}
    for folder in (context.dependencies, context.prebuilt, existing(arguments.out)):
        if folder:
            tree[os.path.relpath(folder, ROOT)] = rehearsal.size_of(folder)
    try:
        rehearsal.print_sizes(tree)
        rehearsal.rehearse(steps(context), REHEARSED, ROOT, arguments.limit)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def main() -> int:
    arguments = parse_arguments()
    if arguments.rehearse:
        return rehearse(arguments)
    machine = read_machine()
    prebuilt = prebuilt_of(arguments)
    if prebuilt is None:
        faults = faults_of_build(machine)
    else:
        faults = [*faults_of_gpu(machine), *tool_faults(machine)]
        # A machine without torch or a card has nothing to compare with.
        faults += faults_of_prebuilt(prebuilt, ROOT, None if faults_of_gpu(machine) else machine)
    if faults:
        print("\n".join(faults), file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, interrupt)
    out = arguments.out.resolve()
    report = Report(
        out,
        dataclasses.asdict(machine),
        ROOT,
        copies=arguments.copies,
        afresh=arguments.afresh,
        prebuilt=digest_of_library(prebuilt / LIBRARY) if prebuilt else None,
    )
    context = context_of(arguments, prebuilt, machine.nvcc, machine.capability)
    context.commands = Commands(out / "gpu_check.log", context.environment, ROOT)
    context.is_new = report.is_new
    runner = Runner(report, context.commands, arguments.limit)
    try:
        runner.run(steps(context))
    except KeyboardInterrupt:
        return 1
    finally:
        context.commands.stop()
    print(f"written to {report.path}")
    for name in runner.left:
        print(f"left for another call: {name}")
    return 0 if report.passed and not runner.left else 1


if __name__ == "__main__":
    sys.exit(main())
