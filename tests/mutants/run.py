#!/usr/bin/env python3
"""Breaks, one at a time, the line that each promise hangs on, and shows that its test notices.

    tests/mutants/run.py [--only WORDS]

Works in a copy of the tree (build-mutants/tree), never in the tree itself. Ends with 1 if a mutant
survives, does not compile, or does not apply any more.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from mutants import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build-mutants"
TREE = WORK / "tree"
BUILD = WORK / "build"


def run(command: list[str], **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, **options
    )


def checked(command: list[str]) -> None:
    result = run(command)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{result.stdout[-4000:]}{result.stderr[-4000:]}")


def copy_tree() -> None:
    """Copies what git knows or would add, keeping times, so that only what changed is rebuilt."""
    listed = run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
    )
    names = {name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()}
    for name in names:
        target = TREE / name
        if target.exists() and target.read_bytes() == (ROOT / name).read_bytes():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    for path in TREE.rglob("*"):
        if path.is_file() and not path.is_symlink() and str(path.relative_to(TREE)) not in names:
            path.unlink()
    if not (TREE / ".venv").exists():
        (TREE / ".venv").symlink_to(ROOT / ".venv")


def build(target: str) -> subprocess.CompletedProcess:
    return run(["cmake", "--build", str(BUILD), "--target", target])


def passes(mutant: Mutant) -> tuple[bool, int]:
    """Whether the mutant's tests pass, and how many ran."""
    program = BUILD / "tests" / mutant.program
    try:
        result = run([str(program), f"--gtest_filter={mutant.tests}"], timeout=600)
    except subprocess.TimeoutExpired:
        return False, 1  # a test that hangs has noticed
    ran = sum(line.startswith("[ RUN ") for line in result.stdout.splitlines())
    return result.returncode == 0, ran


def verdict(mutant: Mutant) -> str:
    """Empty if the test notices the mutant, else what is wrong."""
    path = TREE / mutant.file
    original = path.read_text()
    if original.count(mutant.before) != 1:
        return f"'{mutant.before}' stands {original.count(mutant.before)} times in {mutant.file}"
    try:
        path.write_text(original.replace(mutant.before, mutant.after))
        built = build(mutant.program)
        if built.returncode != 0:
            return "does not compile:\n" + built.stdout[-2000:]
        survived, ran = passes(mutant)
    finally:
        path.write_text(original)
    if ran == 0:
        return f"no test is named {mutant.tests}"
    return "SURVIVED" if survived else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="mutants whose promise holds these words")
    words = parser.parse_args().only
    mutants = [mutant for mutant in MUTANTS if words in mutant.promise]
    copy_tree()
    # Without CCACHE_BASEDIR of this very tree the cache would not be shared with the real build.
    os.environ.setdefault("CCACHE_BASEDIR", str(TREE))
    programs = sorted({mutant.program for mutant in mutants})
    print(f"building {', '.join(programs)}", flush=True)
    checked(["cmake", "-S", str(TREE), "-B", str(BUILD), "-G", "Ninja", "-DTELENS_PYTHON=OFF"])
    checked(["cmake", "--build", str(BUILD), "--target", *programs])
    for mutant in mutants:
        intact, ran = passes(mutant)
        if not intact or ran == 0:
            sys.exit(f"{mutant.program} {mutant.tests}: fails or is missing without any mutant")
    failures = 0
    for number, mutant in enumerate(mutants, 1):
        wrong = verdict(mutant)
        failures += bool(wrong)
        print(f"[{number}/{len(mutants)}] {wrong or 'noticed'}  {mutant.promise}", flush=True)
    print(f"{len(mutants) - failures} passed, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
