"""Reads each run file named on stdin with Python's reader, in a child process.

    python_reader.py SECONDS MEGABYTES

Prints one line of JSON for each file. SECONDS are processor time; a child that waits much longer is
killed too.
"""

import json
import os
import pathlib
import resource
import select
import signal
import sys
import time
import traceback
import warnings

import pandas  # noqa: F401  (loaded once, not in each child)

import telens

MOST_WAITING = 30  # times SECONDS, because a busy machine delays the child


def read(path):
    """Read everything that the reader returns."""
    run = telens.open_run(path)
    run.config, run.environment, run.segments  # noqa: B018
    run.records()
    run.histograms()
    run.blocks()
    run.scalars, run.losses, run.events  # noqa: B018
    for kind in ("layer", "tensor", "gemm", "statistic", "scope", "word"):
        run.names(kind)


def outcome(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            read(path)
        except telens.Error:
            pass
        except Exception:
            return {"kind": "raw exception", "traceback": traceback.format_exc()}
    return {"kind": "fine"}


def in_a_child(path, seconds, megabytes):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, json.dumps(outcome(path)).encode())
        os._exit(0)
    os.close(writing)
    kind, deadline = None, time.monotonic() + MOST_WAITING * seconds
    while kind is None and not select.select([reading], [], [], 0.05)[0]:
        if time.monotonic() > deadline or _processor_seconds(child) > seconds:
            kind = "too long"
        elif _resident_bytes(child) > megabytes << 20:
            kind = "too much memory"
    if kind is not None:
        os.kill(child, signal.SIGKILL)
    with os.fdopen(reading) as answers:
        answer = answers.read()
    _, status = os.waitpid(child, 0)
    if kind is None and (status != 0 or not answer):
        kind = "crash"
    return {"kind": kind, "status": status} if kind else json.loads(answer)


def _processor_seconds(process):
    """Return user and system time. The fields follow the name, which may contain anything."""
    try:
        fields = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError):
        return 0


def _resident_bytes(process):
    try:
        pages = int(pathlib.Path(f"/proc/{process}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * resource.getpagesize()


def main():
    seconds, megabytes = int(sys.argv[1]), int(sys.argv[2])
    for line in sys.stdin:
        print(json.dumps(in_a_child(line.rstrip("\n"), seconds, megabytes)), flush=True)


if __name__ == "__main__":
    main()
