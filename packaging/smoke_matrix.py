#!/usr/bin/env python3
"""Installs the wheels into environments, one at a time, and prints a Markdown table of results.

    packaging/smoke_matrix.py dist/wheels [--python PROGRAM ...] [--torch VERSION ...] [--run RUN]

telens-cli is tested with every Python: an environment without other packages reads a stored run.
telens is tested with every Python and torch by packaging/smoke.py. An environment with torch takes
up to 6 GB and is removed before the next one is created.

On a machine without a build of TELens, this program needs only Python, smoke.py, the wheels and a
run with NaN or Inf (--run).
"""

import argparse
import json
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PYTHONS = [f"python3.{minor}" for minor in range(10, 15)]


class Failure(Exception):
    """Raised if a command fails. The message is a cell of the table."""


def run(*command, codes=(0,)):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode not in codes:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise Failure(f"{Path(command[0]).name}: {lines[-1] if lines else done.returncode}")
    return done.stdout


def create_environment(python, folder):
    """Creates an environment and returns the folder with its programs."""
    try:
        run(python, "-m", "venv", folder)
    except Failure:  # ensurepip is missing, as in Debian's python3-minimal
        raise Failure(f"{python} cannot create environments; install its venv package") from None
    return folder / "bin"


def try_cli(wheel, python, stored, folder):
    programs = create_environment(python, folder)
    run(programs / "python", "-m", "pip", "install", "-q", "--no-index", wheel)
    run(programs / "telens", "info", stored)
    run(programs / "telens", "stats", stored)
    run(programs / "telens", "report", stored, "--out", folder / "report.html")
    if "nonfinite" not in run(programs / "telens", "diagnose", stored, codes=(0, 1)):
        raise Failure("telens diagnose: the stored run's finding is missing")


def try_telens(wheels, python, torch, folder):
    programs = create_environment(python, folder)
    pip = (programs / "python", "-m", "pip", "install", "-q", "--find-links", wheels)
    run(*pip, f"torch=={torch}.*", "telens")
    work = folder / "smoke"
    work.mkdir()
    return json.loads(run(programs / "python", HERE / "smoke.py", work).splitlines()[-1])


def rows(options, scratch):
    """Tests every combination and yields the rows of the table."""
    system = "glibc " + platform.libc_ver()[1]
    (cli,) = options.wheels.glob(f"telens_cli-*{platform.machine()}.whl")
    stored = options.run
    if stored is None:
        stored = scratch / "stored"
        subprocess.run([ROOT / "build/tests/write_run", stored, "run", "40"], check=True)
    pythons = options.python or [name for name in PYTHONS if shutil.which(name)]
    versions = {}
    for python in pythons:
        versions[python] = run(python, "-c", "import platform; print(platform.python_version())")
    for package, torch in [("telens-cli", ""), *(("telens", torch) for torch in options.torch)]:
        for python in pythons:
            version = versions[python].strip()
            folder = Path(tempfile.mkdtemp(dir=scratch))
            result = "works"
            try:
                if package == "telens-cli":
                    try_cli(cli, python, stored, folder)
                else:
                    result += (
                        f", digest {try_telens(options.wheels, python, torch, folder)['digest']}"
                    )
            except Failure as failure:
                result = str(failure).replace("|", "/")
            finally:
                shutil.rmtree(folder)
            yield package, version, torch or "none", system, result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheels", type=Path)
    parser.add_argument("--python", nargs="+", help="default: python3.10 to 3.14 in PATH")
    parser.add_argument("--torch", nargs="*", default=[], help="versions such as 2.11")
    parser.add_argument("--run", type=Path, help="default: a run by build/tests/write_run")
    options = parser.parse_args()
    failed = False
    print("| package | Python | torch | system | result |\n|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        for row in rows(options, Path(scratch)):
            failed |= not row[-1].startswith("works")
            print(f"| {' | '.join(row)} |", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
