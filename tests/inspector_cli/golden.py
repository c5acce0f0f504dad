"""Golden tests of the command: golden/<case>/ has a command line and its expected output.

A case is a folder with

- command: the command line, such as `telens stats run`. It runs in a copy of the folder.
- NAME.run: a run, one row per line, with columns separated by tabs or by two or more blanks.
  write_lines.cpp lists the rows. The run is written to the folder NAME.
- expected.txt: stdout, then stderr and the exit code if there are any.
- any other input, such as a debug config.

`diverged` and `histograms` in the command line are runs of write_run.cpp and write_histograms.cpp.

    .venv/bin/python tests/inspector_cli/golden.py [CASE...]            compares
    .venv/bin/python tests/inspector_cli/golden.py --update [CASE...]   writes expected.txt

Review the changed files with `git diff` before you commit them.
"""

import argparse
import difflib
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

from conftest import COMMAND, WRITE_HISTOGRAMS, WRITE_LINES, WRITE_RUN

FOLDER = pathlib.Path(__file__).resolve().parent / "golden"
# Parts of the output that depend on the machine, the clock or the version.
VARIABLE = [
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME"),
    (r"telens \d+\.\d+\.\d+[\w.+-]*", "telens VERSION"),
    (r"\b[\d.]+ (KiB|MiB|B|bytes)\b", "SIZE"),
    (r"\([\d.e-]+ s\)", "(SECONDS s)"),
]


def cases() -> list[str]:
    return sorted(path.name for path in FOLDER.iterdir() if path.is_dir())


def write_runs(folder: pathlib.Path, words: list[str]) -> None:
    """Write the runs of the case and the generated runs that its command line names."""
    for path in folder.glob("*.run"):
        rows = [re.sub(r" {2,}", "\t", line) for line in path.read_text().splitlines()]
        target = folder / path.stem
        subprocess.run([WRITE_LINES, target], input="\n".join(rows), text=True, check=True)
    if "diverged" in words:
        subprocess.run([WRITE_RUN, folder / "diverged", "run", "40"], check=True)
    if "histograms" in words:
        subprocess.run([WRITE_HISTOGRAMS, folder / "histograms", "0"], check=True)


def run(case: str) -> str:
    """Run the command of a case. Return its stdout, stderr and exit code in one text."""
    with tempfile.TemporaryDirectory() as parent:
        folder = pathlib.Path(parent) / "case"
        shutil.copytree(FOLDER / case, folder)
        program, *arguments = shlex.split((folder / "command").read_text())
        assert program == "telens", f"{case}/command does not begin with telens"
        write_runs(folder, arguments)
        result = subprocess.run(
            [COMMAND, *arguments],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "TZ": "UTC"},
        )
        text = result.stdout
        if result.stderr:
            text += f"[stderr]\n{result.stderr}"
        if result.returncode != 0:
            text += f"[exit code {result.returncode}]\n"
        text = text.replace(str(folder), "FOLDER")
    for pattern, name in VARIABLE:
        text = re.sub(pattern, name, text)
    return "\n".join(line.rstrip() for line in text.split("\n"))


def difference(case: str) -> str:
    """Return the difference of the output from expected.txt as a diff, "" if there is none."""
    path = FOLDER / case / "expected.txt"
    expected = path.read_text() if path.exists() else ""
    lines = (text.splitlines(keepends=True) for text in (expected, run(case)))
    return "".join(difflib.unified_diff(*lines, f"{case}/expected.txt", "output"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare or update golden files of the command.")
    parser.add_argument("--update", action="store_true", help="write expected.txt")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="default: all cases")
    options = parser.parse_args()
    differences = []
    for case in options.cases or cases():
        if options.update:
            (FOLDER / case / "expected.txt").write_text(run(case))
        else:
            differences.append(difference(case))
    sys.stdout.write("".join(differences))
    sys.exit(1 if any(differences) else 0)


if __name__ == "__main__":
    main()
