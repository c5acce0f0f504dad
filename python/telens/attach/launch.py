"""Starts the program of ``telens run``. Imports no telens module, which would load torch."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import sys

__all__ = ["VARIABLE", "main"]

# JSON: {"config": path or null, "log_dir": path, "feature_dirs": paths, "modules": list of regular
# expressions, "process": PID of the command}
VARIABLE = "TELENS_ATTACH"

_RUN_ID = "TELENS_RUN_ID"


def _run_id_of_job(log_dir: str) -> str | None:
    """Returns the run id of a Slurm job, which is the same after a requeue, None outside of Slurm.

    Only the first program of a job, or of a step started by ``srun``, uses this id, and also the
    later ones after a requeue. An interactive shell is one step with many programs.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if not job:
        return None
    step = os.environ.get("SLURM_STEP_ID", "")
    run_id = f"{job}.{step}" if step.isdecimal() else job
    requeued = os.environ.get("SLURM_RESTART_COUNT", "0") != "0"
    exists = pathlib.Path(log_dir, "telens", run_id).exists()
    return run_id if requeued or not exists else None


def main(arguments: list[str]) -> int:
    """Replaces this process by the command. Returns the exit code if it cannot be started."""
    parser = argparse.ArgumentParser(
        prog="telens run", description="Run a training program and record its torch models."
    )
    parser.add_argument("--config", help="debug config; default: statistics of every tensor")
    parser.add_argument("--log-dir", default="telens_run", help="folder of the run file")
    parser.add_argument(
        "--feature-dir", action="append", default=[], help="folder of features that the config uses"
    )
    parser.add_argument(
        "--modules", action="append", default=[], help="name or class of more modules (regex)"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="after --: the program to run")
    options = parser.parse_args(arguments)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("no program to run; expected: telens run -- python train.py")
    for pattern in options.modules:
        try:
            re.compile(pattern)
        except re.error as error:
            parser.error(f"--modules: {pattern!r} is not a regular expression: {error}")
    if options.config is not None and not pathlib.Path(options.config).is_file():
        parser.error(f"--config: no such file: {options.config}")
    for folder in options.feature_dir:
        if not pathlib.Path(folder).is_dir():
            parser.error(f"--feature-dir: no such folder: {folder}")
    startup = str(pathlib.Path(__file__).with_name("startup"))
    paths = [startup, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        VARIABLE: json.dumps(
            {
                "config": options.config and os.path.abspath(options.config),
                "log_dir": os.path.abspath(options.log_dir),
                "feature_dirs": [os.path.abspath(each) for each in options.feature_dir],
                "modules": options.modules,
                "process": os.getpid(),
            }
        ),
    }
    run_id = _run_id_of_job(options.log_dir)
    if run_id is not None:
        environment.setdefault(_RUN_ID, run_id)
    # exec discards what this process has printed but not written.
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        print(f"telens run: cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
