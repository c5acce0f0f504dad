#!/usr/bin/env python3
"""Installs the wheels into environments, one at a time, and prints a Markdown table of results.

    packaging/smoke_matrix.py dist/wheels [--python PROGRAM ...] [--torch VERSION ...]
                              [--environment FOLDER ...] [--run RUN]

telens-cli is tested with every Python: an environment without other packages reads a stored run.
telens is tested by packaging/smoke.py with every torch and every Python that has a wheel, and
telens-core with the torch that it requires. An environment with torch takes up to 7 GB and is
removed before the next one is created. --environment installs the wheels into existing environments
with torch instead, and removes them afterwards.

On a machine without a build of TELens, this program needs only Python, smoke.py, smoke_values.json,
the wheels and a run with NaN or Inf (--run).
"""

import argparse
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
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


def torch_of_core(wheels):
    """Returns the minor version of torch that the wheel telens-core requires; None without one."""
    for wheel in wheels.glob("telens_core-*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
            return re.search(r"torch==([\d.]+)\.\*", archive.read(name).decode()).group(1)
    return None


def smoke(programs, core, folder):
    """Runs smoke.py and returns the cell of the table."""
    options = ["--core"] if core else []
    printed = run(programs / "python", HERE / "smoke.py", folder / "smoke", *options)
    facts = json.loads(printed.splitlines()[-1])
    digest = f", digest {facts['digest']}" if core else ""
    return f"works, {facts['statistics']} statistics equal{digest}"


def try_telens(wheels, package, python, torch, folder):
    programs = create_environment(python, folder)
    pip = (programs / "python", "-m", "pip", "install", "-q", "--find-links", wheels)
    run(*pip, f"torch=={torch}.*", package)
    return smoke(programs, package == "telens-core", folder)


def try_environment(wheels, environment, folder):
    """Tests telens in an environment that has torch and the other packages."""
    programs = environment / "bin"
    pip = (programs / "python", "-m", "pip")
    packages = ("telens", "telens-cli")
    install = ("install", "-q", "--no-index", "--no-deps", "--force-reinstall")
    run(*pip, *install, "--find-links", wheels, *packages)
    try:
        return smoke(programs, False, folder)
    finally:
        run(*pip, "uninstall", "-q", "-y", *packages)


def facts_of(python):
    """Returns the versions of a Python and of its torch ("none" without one)."""
    program = (
        "import importlib.metadata as m, platform; print(platform.python_version()); "
        "print(next((d.version for d in m.distributions(name='torch')), 'none'))"
    )
    return run(python, "-c", program).split()


def attempts(options, scratch):
    """Yields (package, Python, its version, torch, function of a folder) of each row."""
    (cli,) = options.wheels.glob(f"telens_cli-*{platform.machine()}.whl")
    stored = options.run
    if stored is None:
        stored = scratch / "stored"
        subprocess.run([ROOT / "build/tests/write_run", stored, "run", "40"], check=True)
    pythons = options.python or [name for name in PYTHONS if shutil.which(name)]
    core = torch_of_core(options.wheels)
    for python in pythons:
        version, _ = facts_of(python)
        yield (
            "telens-cli",
            version,
            "none",
            lambda folder, it=python: try_cli(cli, it, stored, folder),
        )
        tag = "cp" + "".join(version.split(".")[:2])
        if not [*options.wheels.glob(f"telens-*-{tag}-*.whl")]:
            continue  # no wheel for this Python
        for torch in options.torch:
            for package in ("telens", *(["telens-core"] if torch == core else [])):
                yield (
                    package,
                    version,
                    torch,
                    lambda folder, it=(package, python, torch): try_telens(
                        options.wheels, *it, folder
                    ),
                )
    for environment in options.environment:
        version, torch = facts_of(environment / "bin/python")
        yield (
            "telens",
            version,
            torch,
            lambda folder, it=environment: try_environment(options.wheels, it, folder),
        )


def rows(options, scratch):
    """Tests every combination and yields the rows of the table."""
    system = "glibc " + platform.libc_ver()[1]
    for package, version, torch, attempt in attempts(options, scratch):
        folder = Path(tempfile.mkdtemp(dir=scratch))
        try:
            result = attempt(folder) or "works"
        except Failure as failure:
            result = str(failure).replace("|", "/")
        finally:
            shutil.rmtree(folder)
        yield package, version, torch, system, result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheels", type=Path)
    parser.add_argument("--python", nargs="+", help="default: python3.10 to 3.14 in PATH")
    parser.add_argument("--torch", nargs="*", default=[], help="versions such as 2.11")
    parser.add_argument(
        "--environment", type=Path, nargs="*", default=[], help="folders of virtual environments"
    )
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
