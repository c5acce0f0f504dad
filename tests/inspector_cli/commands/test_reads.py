"""How often the command reads a run: a long one takes as long as the disk takes."""

import contextlib
import os
import pathlib
import pty

import pytest
from conftest import COMMAND, Lines


def bytes_read(on_terminal, *arguments):
    """The bytes that a command asked the system for, with its stdout a terminal or no terminal."""
    leader, follower = pty.openpty()
    process = os.fork()
    if process == 0:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(follower if on_terminal else null, 1)
        os.dup2(null, 2)
        environment = {**os.environ, "TERM": "xterm", "NO_COLOR": ""}
        os.execve(COMMAND, [COMMAND, *map(str, arguments)], environment)
    os.set_blocking(leader, False)
    while os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        with contextlib.suppress(BlockingIOError):
            os.read(leader, 1 << 16)
    counters = pathlib.Path(f"/proc/{process}/io").read_text()
    _, status = os.waitpid(process, 0)
    os.close(leader)
    os.close(follower)
    assert os.waitstatus_to_exitcode(status) == 0
    return int(counters.split("rchar:")[1].split()[0])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A short and a long run: what is read once a file, as its dictionaries, cancels out."""

    def write(iterations):
        lines = Lines()
        for iteration in range(iterations):
            for statistic in ("nonfinite", "saturated", "overflows%", "cur_amax"):
                value = iteration * 0.37 % 7
                lines.record(iteration, "fc1", "activation", statistic, value, "fprop")
        return lines.write(tmp_path_factory.mktemp("run"))

    return write(2000), write(20000)


def bytes_of_records(runs, on_terminal, *command):
    short, long = (bytes_read(on_terminal, *command, run) for run in runs)
    return long - short


@pytest.mark.parametrize("command", [("stats",), ("stats", "--stat", "cur_amax")])
def test_the_first_trouble_is_found_in_the_same_read_as_the_table(runs, command):
    once = bytes_of_records(runs, False, *command)
    assert bytes_of_records(runs, True, *command) < 1.5 * once


def test_a_chart_and_its_headlines_take_one_read(runs):
    assert bytes_of_records(runs, False, "plot") < 1.5 * bytes_of_records(runs, False, "stats")
