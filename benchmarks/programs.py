"""Runs the C++ benchmark programs and reads what they print."""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
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

    def run_paddle(self, name):
        """The same beside Paddle, in the environment of `make test-paddle`."""
        interpreter = Path(__file__).parents[1] / "build-paddle/venv/bin/python"
        if not interpreter.exists():
            raise CannotRun("PaddlePaddle is not set up; make test-paddle does it")
        return self.run_python(name, interpreter)

    def run_python(self, name, interpreter=sys.executable):
        """What benchmarks/<name>.py prints, given the rounds, with the telens of this build."""
        package = self.build / "python"
        if not (package / "telens").exists():
            raise CannotRun(f"the telens package is not built in {package}")
        done = subprocess.run(
            [interpreter, Path(__file__).with_name(f"{name}.py"), str(self.rounds)],
            env=os.environ | {"PYTHONPATH": str(package)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{name}.py failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def instructions(self, name):
        """{mark: {object: instructions}} that callgrind counts in bench_<name> --count."""
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
                counts[mark[1]] = instructions_by_object(dump)
        if done.returncode != 0 or not counts:
            raise RuntimeError(f"bench_{name} under callgrind failed:\n{done.stderr}")
        return counts


def instructions_by_object(dump):
    """{path of an executable or library: instructions in its own functions} of a callgrind file.

    https://valgrind.org/docs/manual/cl-format.html: `ob=(1) path` names an object, `ob=(1)` names
    it again, and a cost line after `calls=` is the callee's.
    """
    paths, counts, current, callee = {}, Counter(), None, False
    for line in dump.splitlines():
        if named := re.match(r"ob=\((\d+)\)(?: (.*))?", line):
            current = paths.setdefault(named[1], named[2])
        elif named := re.match(r"cob=\((\d+)\) (.*)", line):
            paths[named[1]] = named[2]
        elif line.startswith("calls="):
            callee = True
        elif cost := re.match(r"[+\-*\d]\S* (\d+)$", line):
            if not callee:
                counts[current] += int(cost[1])
            callee = False
    return counts


def ratio(samples, ours, theirs):
    """Median over the rounds of ours to theirs: what slows a machine for a while strikes both."""
    rounds = zip(samples[ours], samples[theirs], strict=True)
    return statistics.median(ours / theirs for ours, theirs in rounds)
