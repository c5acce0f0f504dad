"""The command reads the records of a run only once, because long runs are limited by the disk."""

import os
import pty
import subprocess
import time

import pytest
from conftest import COUNT_READS, Lines, bytes_counted


def bytes_read(folder, on_terminal, *arguments):
    """Returns the bytes of run files that a command reads, with a terminal or /dev/null as
    stdout.
    """
    leader, follower = pty.openpty()
    counted = folder / "bytes"
    process = subprocess.Popen(
        [COUNT_READS, str(counted), *map(str, arguments)],
        stdout=follower if on_terminal else subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TERM": "xterm", "NO_COLOR": ""},
    )
    os.close(follower)
    try:
        while on_terminal and os.read(leader, 1 << 16):
            pass
    except OSError:  # the command has closed its end
        pass
    os.close(leader)
    assert process.wait(timeout=60) == 0
    return bytes_counted(counted)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A short and a long run. Their difference leaves out what is read once per file."""

    def write(iterations):
        lines = Lines()
        for iteration in range(iterations):
            for statistic in ("nonfinite", "saturated", "overflows%", "cur_amax"):
                value = iteration * 0.37 % 7
                lines.record(iteration, "fc1", "activation", statistic, value, "fprop")
        return lines.write(tmp_path_factory.mktemp("run"))

    both = write(2000), write(20000)
    # A file that changed within the last 3 s is checked again each time it is opened.
    time.sleep(4)
    return both


@pytest.fixture
def bytes_of_records(runs, tmp_path):
    def measure(on_terminal, *command):
        short, long = (bytes_read(tmp_path, on_terminal, *command, run) for run in runs)
        return long - short

    return measure


@pytest.mark.parametrize("command", [("stats",), ("stats", "--stat", "cur_amax")])
def test_first_trouble_and_table_share_one_read(bytes_of_records, command):
    once = bytes_of_records(False, *command)
    assert 0 < bytes_of_records(True, *command) < 1.5 * once


def test_chart_and_its_headlines_share_one_read(bytes_of_records):
    assert 0 < bytes_of_records(False, "plot") < 1.5 * bytes_of_records(False, "stats")
