"""Fixtures with runs of known content and with the command as a function."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from recorded_training import Training

# A shell that runs the tests in the background makes them, and the programs that they start, ignore
# Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMAND = os.environ.get("TELENS_COMMAND", str(ROOT / "build/bin/telens"))
# Runs the command and counts the bytes that it reads of run files: count_reads.cpp.
COUNT_READS = os.environ.get("TELENS_COUNT_READS", str(ROOT / "build/tests/count_reads"))
WRITE_HISTOGRAMS = os.environ.get(
    "TELENS_WRITE_HISTOGRAMS", str(ROOT / "build/tests/write_histograms")
)
WRITE_LINES = os.environ.get("TELENS_WRITE_LINES", str(ROOT / "build/tests/write_lines"))
WRITE_RUN = os.environ.get("TELENS_WRITE_RUN", str(ROOT / "build/tests/write_run"))


@pytest.fixture(scope="session", autouse=True)
def built_programs():
    """Ends the tests if a program that they call is not built, with the command that builds all."""
    programs = [COMMAND, COUNT_READS, WRITE_HISTOGRAMS, WRITE_LINES, WRITE_RUN]
    missing = [path for path in programs if not pathlib.Path(path).is_file()]
    if missing:
        pytest.exit(
            f"not built: {', '.join(missing)}; run cmake --build build --target telens_command "
            "count_reads write_histograms write_lines write_run",
            returncode=2,
        )


def bytes_counted(file):
    """Returns the count that COUNT_READS has written to its file; 0 before it has started."""
    content = file.read_bytes() if file.exists() else b""
    return int.from_bytes(content, sys.byteorder)


@pytest.fixture(scope="session")
def write_run(tmp_path_factory):
    """Writes a run in a new log_dir and returns the log_dir."""

    def write(run_id="run", iterations=40, log_dir=None, rank=0):
        log_dir = log_dir or tmp_path_factory.mktemp("log_dir")
        command = [WRITE_RUN, str(log_dir), run_id, str(iterations), str(rank)]
        subprocess.run(command, check=True)
        return log_dir

    return write


@pytest.fixture(scope="session")
def log_dir(write_run):
    return write_run()


@pytest.fixture(scope="session")
def run_file(log_dir):
    return log_dir / "telens/run/rank00000.h5"


@pytest.fixture(scope="session")
def one_rank(tmp_path_factory):
    """A run with the histograms of write_histograms.cpp."""
    log_dir = tmp_path_factory.mktemp("one_rank")
    subprocess.run([WRITE_HISTOGRAMS, str(log_dir), "0"], check=True)
    return log_dir


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory):
    log_dir = tmp_path_factory.mktemp("two_ranks")
    for rank in "01":
        subprocess.run([WRITE_HISTOGRAMS, str(log_dir), rank], check=True)
    return log_dir


def age(log_dir, rank=0, seconds=3600):
    """Moves the time of the last change of a rank's file into the past."""
    (path,) = log_dir.glob(f"telens/*/rank{rank:05}.h5")
    changed = time.time() - seconds
    os.utime(path, (changed, changed))


class Lines:
    """The content of a run in the format of write_lines.cpp."""

    def __init__(self):
        self.lines = []

    def record(self, iteration, layer, tensor, statistic, value, gemm="-"):
        self.lines.append(f"record\t{iteration}\t{layer}\t{tensor}\t{gemm}\t{statistic}\t{value}")

    def histogram(self, iteration, layer, tensor, name, bins):
        cells = [cell for bin_and_count in bins.items() for cell in bin_and_count]
        parts = ["histogram", iteration, layer, tensor, name, *cells]
        self.lines.append("\t".join(map(str, parts)))

    def ledger(self, iteration, layer, gemm, state, entries):
        for entry, detail in entries.items():
            self.lines.append(f"ledger\t{iteration}\t{layer}\t{gemm}\t{state}\t{entry}\t{detail}")

    def block(self, iteration, layer, tensor, statistic, place, value):
        row, column = place
        parts = ["block", iteration, layer, tensor, statistic, row, column, value]
        self.lines.append("\t".join(map(str, parts)))

    def scalar(self, iteration, name, value):
        self.lines.append(f"scalar\t{iteration}\t{name}\t{value}")

    def config(self, config):
        self.lines.insert(0, f"config\t{json.dumps(config)}")

    def boot(self, boot_id):
        """Sets the boot ID, as on another machine; "-": none, as in older files."""
        self.lines.insert(0, f"boot\t{boot_id}")

    def host(self, name):
        self.lines.insert(0, f"host\t{name}")

    def event(self, iteration, kind, text, layer):
        self.lines.append(f"event\t{iteration}\t{kind}\t{text}\t{layer}")

    def warm_up(self, iteration, *layers):
        for layer in layers:
            self.event(iteration, "warm_up", "no amax history yet: the scale is 1", layer)

    def end(self, reason):
        """Ends the run as an exception with these words does."""
        self.lines.append(f"end\t{reason}")

    def kill(self):
        """Leaves the file open. On a network disk, the kill is reported after 5 minutes: age()."""
        self.lines.append("kill")

    def write(self, log_dir, rank=0, ranks=1):
        text = "\n".join(self.lines)
        command = [WRITE_LINES, str(log_dir), str(rank), str(ranks)]
        subprocess.run(command, input=text, text=True, check=True)
        return log_dir


@pytest.fixture
def lines():
    return Lines()


@pytest.fixture(scope="session")
def telens():
    def run(*arguments):
        return subprocess.run(
            [COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=60
        )

    return run


@pytest.fixture
def training():
    return Training()


@pytest.fixture
def findings(telens, lines, tmp_path):
    def diagnose(training):
        result = telens("diagnose", training.write(lines, tmp_path), "--format", "json")
        assert result.returncode in (0, 1), result.stderr
        found = json.loads(result.stdout)["findings"]
        assert result.returncode == bool(found)
        return found

    return diagnose


@pytest.fixture
def diff(telens):
    """Runs `telens diff` with two runs and returns its JSON."""

    def diff(*arguments):
        result = telens("diff", *arguments, "--format", "json")
        assert result.returncode in (0, 1), result.stderr
        printed = json.loads(result.stdout)
        assert result.returncode == bool(printed["divergences"])
        return printed

    return diff
