"""Runs the C++ benchmark programs and reads what they print."""

import json
import os
import re
import shutil
import statistics
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path


class CannotRun(Exception):
    """This machine, or this build, cannot run a benchmark; says why."""


@dataclass
class Programs:
    """The programs of one build folder, and how long they may measure."""

    build: Path
    rounds: int
    quick: bool

    def path(self, name):
        path = self.build / "bin" / f"bench_{name}"
        if not path.exists():
            raise CannotRun(f"{path} is not built")
        return path

    def run(self, name, *, rounds=None, threads=None, simd=None, environment=None):
        """{row: {contender: samples}} of the program bench_<name>."""
        command = [self.path(name), "--rounds", str(rounds or self.rounds)]
        if threads:
            command += ["--threads", str(threads)]
        if simd:
            command += ["--simd", simd]
        with tempfile.TemporaryDirectory(prefix="telens-bench-") as folder:
            done = subprocess.run(
                [*command, "--folder", folder],
                capture_output=True,
                text=True,
                env=os.environ | (environment or {}),
                check=False,
            )
        if done.returncode != 0:
            raise RuntimeError(
                f"bench_{name} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
            )
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return {row["row"]: row["samples"] for row in rows}

    def instructions(self, name):
        """{mark: instructions} that callgrind counts in the program bench_<name> --count."""
        if not shutil.which("valgrind"):
            raise CannotRun("valgrind is not installed")
        with tempfile.TemporaryDirectory(prefix="telens-bench-") as folder:
            command = [
                "valgrind",
                "--tool=callgrind",
                "--instr-atstart=no",
                "--collect-atstart=no",
                f"--callgrind-out-file={folder}/callgrind.out",
                self.path(name),
                "--count",
                folder,
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            dumps = [path.read_text() for path in Path(folder).glob("callgrind.out.*")]
        counts = {}
        for dump in dumps:
            mark = re.search(r"^desc: Trigger: Client Request: (.*)$", dump, re.M)
            if mark:
                counts[mark[1]] = int(re.search(r"^(?:totals|summary): (\d+)", dump, re.M)[1])
        if done.returncode != 0 or not counts:
            raise RuntimeError(f"bench_{name} under callgrind failed:\n{done.stderr}")
        return counts


def ratio(samples, ours, theirs):
    """Median of ours over median of theirs."""
    return statistics.median(samples[ours]) / statistics.median(samples[theirs])
