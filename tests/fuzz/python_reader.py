"""Reads each run file named on stdin with Python's reader, in a process of its own, and answers
with a line of JSON: python_reader.py SECONDS MEGABYTES. Seconds are those of a processor; one that
waits for much longer is killed, too."""

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

MOST_WAITING = 30  # times the seconds, where the machine does other things as well


def read(path):
    """Everything that the reader gives."""
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
    """Of user and system time; the fields behind the name, which may hold anything."""
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
