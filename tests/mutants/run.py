#!/usr/bin/env python3
"""Breaks, one at a time, the line that each promise hangs on, and shows that its test notices.

    tests/mutants/run.py [--only WORDS] [--workers N]

The mutants are those of mutants.py and those of the contract (tests/contract). Works in copies of
the tree (build-mutants/<n>), one a worker, never in the tree itself. Ends with 1 if a mutant
survives, does not compile, or does not apply any more.
"""

import argparse
import fnmatch
import itertools
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

from mutants import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build-mutants"
sys.path.insert(0, str(ROOT / "tests" / "contract"))

from contract import all_statements  # noqa: E402
from find_tests import PADDLE_PYTEST, PYTEST, find_test  # noqa: E402

# Targets that the Python tests run against, the samples and the command included.
PYTHON_TARGETS = (
    "telens_python",
    "resolve_config",
    "excess_kurtosis",
    "log_outliers",
    "gpt",
    "telens_command",
    "all_commands",
    "write_histograms",
    "write_lines",
    "write_run",
)
INTERPRETERS = {PYTEST: sys.executable, PADDLE_PYTEST: ROOT / "build-paddle/venv/bin/python"}
PYTEST_NOTICED = (1, 2)  # a test failed; the tests could not even be imported
TEST_SECONDS = 600


def contract_mutants() -> list[Mutant]:
    mutants = []
    for statement in all_statements():
        test = find_test(statement.test)
        mutants.append(
            Mutant(
                statement.text,
                statement.file,
                statement.before,
                statement.after,
                test.program,
                test.selection,
            )
        )
    return mutants


def targets_of(mutants: Iterable[Mutant]) -> list[str]:
    targets = set()
    for mutant in mutants:
        targets.update(PYTHON_TARGETS if mutant.program in INTERPRETERS else [mutant.program])
    return sorted(targets)


class Failure(Exception):
    """What makes a run of all mutants impossible."""


class Worker:
    """A copy of the tree with its own build, in which one mutant at a time is tried."""

    def __init__(self, number: int) -> None:
        self.tree = WORK / str(number)
        # Where it lies in the real tree, so that both find each other's objects in the cache.
        self.build = self.tree / "build"
        # Without CCACHE_BASEDIR of this very tree the cache would not be shared.
        self._environment = os.environ | {
            "CCACHE_BASEDIR": str(self.tree),
            "TELENS_BUILD_DIR": str(self.build),
            "TELENS_LIBRARY": str(self.build / "lib" / "libtelens.so"),
            "TELENS_PACKAGES": str(self.build / "python"),
            "PYTHONDONTWRITEBYTECODE": "1",  # a mutant may be as long, and as old, as the original
        }

    def run(self, command: list[str], **options) -> subprocess.CompletedProcess:
        return subprocess.run(
            command,
            cwd=self.tree,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            **options,
        )

    def prepare(self, targets: list[str]) -> None:
        """Copies the tree and builds what the tests need."""
        copy_tree(self.tree)
        options = ["-G", "Ninja", "-DTELENS_BENCHMARKS=OFF"]
        for command in (
            ["cmake", "-S", str(self.tree), "-B", str(self.build), *options],
            ["cmake", "--build", str(self.build), "--parallel", "1", "--target", *targets],
        ):
            result = self.run(command)
            if result.returncode != 0:
                output = result.stdout[-4000:] + result.stderr[-4000:]
                raise Failure(f"{' '.join(command)} failed:\n{output}")

    def check_intact(self, mutants: list[Mutant]) -> None:
        """Every test exists and passes without any mutant."""
        key = lambda mutant: (mutant.program, folder_of(mutant))  # noqa: E731
        for (program, _), group in itertools.groupby(sorted(mutants, key=key), key=key):
            selections = sorted({mutant.tests for mutant in group})
            result = self.test(program, selections)
            if result.returncode != 0:
                raise Failure(f"{program} fails without any mutant:\n{result.stdout[-4000:]}")
            if program in INTERPRETERS:
                continue
            ran = re.findall(r"^\[ RUN +\] (\S+)", result.stdout, re.MULTILINE)
            for patterns in selections:
                if not any(fnmatch.filter(ran, pattern) for pattern in patterns.split(":")):
                    raise Failure(f"{program}: no test is named {patterns}")

    def test(self, program: str, selections: list[str]) -> subprocess.CompletedProcess:
        if program in INTERPRETERS:
            options = ["-q", "-x", "-p", "no:cacheprovider"]
            command = [str(INTERPRETERS[program]), "-m", "pytest", *options, *selections]
        else:
            path = self.build / "tests" / program
            command = [str(path), f"--gtest_filter={':'.join(selections)}"]
        return self.run(command, timeout=TEST_SECONDS)

    def notices(self, mutant: Mutant) -> bool:
        try:
            result = self.test(mutant.program, [mutant.tests])
        except subprocess.TimeoutExpired:
            return True  # a test that hangs has noticed
        crashed = result.returncode < 0
        if mutant.program in INTERPRETERS:
            return crashed or result.returncode in PYTEST_NOTICED
        return crashed or (result.returncode != 0 and "[ RUN " in result.stdout)

    def verdict(self, mutant: Mutant) -> str:
        """Empty if the test notices the mutant, else what is wrong."""
        path = self.tree / mutant.file
        original = path.read_text()
        if original.count(mutant.before) != 1:
            return (
                f"'{mutant.before}' stands {original.count(mutant.before)} times in {mutant.file}"
            )
        try:
            path.write_text(original.replace(mutant.before, mutant.after))
            # Also for a mutant that is not compiled: the one before may have been.
            targets = ["--target", *targets_of([mutant])]
            built = self.run(["cmake", "--build", str(self.build), "--parallel", "1", *targets])
            if built.returncode != 0:
                return "does not compile:\n" + built.stdout[-2000:]
            return "" if self.notices(mutant) else "SURVIVED"
        finally:
            path.write_text(original)


def folder_of(mutant: Mutant) -> str:
    """The folder under tests/ of a Python test; pytest imports one conftest.py a call."""
    return Path(mutant.tests).parts[1] if mutant.program in INTERPRETERS else ""


def copy_tree(tree: Path) -> None:
    """Copies what git knows or would add, keeping times, so that only what changed is rebuilt."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    names = {name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()}
    for name in names:
        target = tree / name
        if target.exists() and target.read_bytes() == (ROOT / name).read_bytes():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    for folder, folders, files in os.walk(tree):
        if Path(folder) == tree and "build" in folders:
            folders.remove("build")
        for file in files:
            path = Path(folder, file)
            if not path.is_symlink() and path.relative_to(tree).as_posix() not in names:
                path.unlink()
    if not (tree / ".venv").exists():
        (tree / ".venv").symlink_to(ROOT / ".venv")


def try_all(mutants: list[Mutant], workers: list[Worker]) -> int:
    """Tries every mutant; returns how many failures there were."""
    # Mutants of one file stay together: each change of another file costs its compilation anew.
    ordered = sorted(mutants, key=lambda mutant: mutant.file)
    groups: queue.SimpleQueue[list[Mutant]] = queue.SimpleQueue()
    for _, group in itertools.groupby(ordered, key=lambda mutant: mutant.file):
        groups.put(list(group))
    counter, failures, lock = itertools.count(1), [], threading.Lock()

    def work(worker: Worker) -> None:
        while True:
            try:
                group = groups.get_nowait()
            except queue.Empty:
                return
            for mutant in group:
                wrong = worker.verdict(mutant)
                with lock:
                    if wrong:
                        failures.append(mutant)
                    place = f"[{next(counter)}/{len(mutants)}]"
                    print(f"{place} {wrong or 'noticed'}  {mutant.promise}", flush=True)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(failures)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="mutants whose promise holds these words")
    parser.add_argument("--workers", type=int, default=min(4, os.cpu_count() or 1))
    arguments = parser.parse_args()
    mutants = [
        mutant for mutant in (*MUTANTS, *contract_mutants()) if arguments.only in mutant.promise
    ]
    if not mutants:
        sys.exit(f"no promise holds the words '{arguments.only}'")
    workers = [Worker(number) for number in range(min(arguments.workers, len(mutants)))]
    targets = targets_of(mutants)
    print(f"building {', '.join(targets)}", flush=True)
    try:
        for worker in workers:  # one after the other: the later ones find all in the cache
            worker.prepare(targets)
        workers[0].check_intact(mutants)
    except Failure as failure:
        sys.exit(str(failure))
    failures = try_all(mutants, workers)
    print(f"{len(mutants) - failures} passed, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
