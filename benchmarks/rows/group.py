"""What a file of this package has to give, and what several of them use."""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from programs import CannotRun, Programs
from report import Row, cpu_flags


@dataclass
class Group:
    """`names`: the rows that go under not_run where the group cannot run."""

    names: list[str]
    rows: Callable[[Programs], Iterator[Row]]


def require_cpu(*flags):
    missing = [flag for flag in flags if flag not in cpu_flags()]
    if missing:
        raise CannotRun(f"this processor has no {', '.join(missing)}")


def timed(command):
    """Seconds, and megabytes at the most, of a program."""
    start = time.perf_counter()
    child = os.posix_spawn(
        command[0],
        list(map(str, command)),
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
    )
    _, status, used = os.wait4(child, 0)
    seconds = time.perf_counter() - start
    if status != 0:
        raise RuntimeError(f"{' '.join(map(str, command))} ended with status {status}")
    return seconds, used.ru_maxrss / 1000
