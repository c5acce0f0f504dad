#!/usr/bin/env python3
"""Times the CUDA kernels and modules side by side with their peers, and writes rows as JSON.

  benchmarks/gpu.py [--library build/lib/libtelens.so] [--out FILE] [--group NAME] [--only WORDS]
                    [--missing] [--quick]
  benchmarks/gpu.py --rehearse    every row once with tiny shapes on the CPU, timing nothing

Every row is the median of CUDA-event times (of the host's where a row is about the host) over fresh
normal random data, contenders in turn. Bytes are those that the operation must move: each input
read once, each output written once. docs/internals/performance.md lists the rows with their
targets. An existing file keeps its rows, except those that are measured again. Exits with 1 if a
row failed and with 2 if there is no GPU; a missed target is not a failure.
"""

import argparse
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, os.environ.get("TELENS_PACKAGES", str(ROOT / "build/python")))

from gpu_machine import faults_of_gpu, read_machine  # noqa: E402
from gpu_rows.groups import GROUPS, rows_of  # noqa: E402

REHEARSAL = "none: a rehearsal"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--library", type=Path, default=ROOT / "build/lib/libtelens.so")
    parser.add_argument("--out", type=Path, help="write the rows here, as JSON")
    parser.add_argument("--group", choices=GROUPS, help="this group alone")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--missing", action="store_true", help="rows that --out has not measured")
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--rehearse", action="store_true", help="run everything, measure nothing")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    machine = read_machine()
    if not arguments.rehearse and (faults := faults_of_gpu(machine)):
        print("\n".join(faults), file=sys.stderr)
        return 2

    from gpu_rows.bench import Bench
    from gpu_rows.results import Results, measure

    bench = Bench(str(arguments.library), arguments.quick, arguments.rehearse)
    card = REHEARSAL if arguments.rehearse else machine.card
    results = Results(arguments.out)
    failed = False
    for group in [arguments.group] if arguments.group else GROUPS:
        for row in rows_of(group):
            if arguments.only not in row.name or (arguments.missing and results.has(row.name)):
                continue
            measured = measure(row, bench, card) | {"group": group}
            failed |= measured["outcome"] == "failed"
            results.add(measured)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
