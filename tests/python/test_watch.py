"""telens watch: a live view of a run of this process, on a terminal and as text."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time

import pytest
import torch
from debug_helpers import logging_of

import telens.debug as debug
import telens.pytorch as te

ALTERNATE, USUAL = "\x1b[?1049h", "\x1b[?1049l"
PATIENCE = 60  # seconds, on a busy machine


class Terminal:
    """Runs a command on its own terminal and keeps all of its output."""

    def __init__(self, command, rows=30, columns=100):
        self.master, slave = pty.openpty()
        self.resize(rows, columns)
        environment = os.environ | {"TERM": "xterm"}
        environment.pop("NO_COLOR", None)
        self.process = subprocess.Popen(
            list(map(str, command)), stdin=slave, stdout=slave, stderr=slave, env=environment,
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(slave)
        self.text = ""
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        while True:
            try:
                got = os.read(self.master, 65536)
            except OSError:
                return  # no program has the terminal any more
            if not got:
                return
            self.text += got.decode(errors="replace")

    def resize(self, rows, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys):
        os.write(self.master, keys)

    def frames(self):
        """The frames so far, as lists of lines without colors."""
        drawn = self.text.partition(USUAL)[0].split("\x1b[H")[1:]
        plain = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", each) for each in drawn if "\x1b[J" in each]
        return [each.split("\r\n") for each in plain]

    def wait_for(self, condition):
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            frames = self.frames()
            if frames and condition(frames[-1]):
                return frames[-1]
            time.sleep(0.02)
        raise AssertionError(self.text)

    def wait_for_end(self):
        code = self.process.wait(timeout=PATIENCE)
        self.reader.join(timeout=5)
        return code


@pytest.fixture
def terminals():
    opened = []

    def start(*command, **size):
        opened.append(Terminal(command, **size))
        return opened[-1]

    yield start
    for each in opened:
        each.process.kill()
        each.process.wait()


class Training:
    """Runs iterations of a layer in a session; from `plant` on its input has a NaN."""

    def __init__(self, log_dir):
        config = logging_of(["activation", "weight", "gradient"], ["cur_amax", "std"])
        debug.initialize(config, log_dir=log_dir)
        self.layer = te.Linear(16, 16, name="layers.0.fc1", device="cpu")
        self.steps = 0

    def step(self, count=1, nan=False):
        for _ in range(count):
            x = torch.ones(16, 16)
            if nan:
                x[3, 3] = float("nan")
            self.layer(x).sum().backward()
            debug.step(10.0 - self.steps)
            self.steps += 1


@pytest.fixture
def training(tmp_path):
    return Training(tmp_path)


def shows(text):
    return lambda frame: any(text in line for line in frame)


@pytest.fixture
def watch(build_folder, tmp_path):
    return [build_folder / "bin/telens", "watch", tmp_path, "--interval", "0.1"]


def test_the_screen_follows_the_run_and_a_finding_appears(training, terminals, watch):
    training.step(3)
    terminal = terminals(*watch)
    frame = terminal.wait_for(shows("iteration 2, loss 8"))
    assert frame[1] == "being written"
    assert frame[2] == "loss █▅▁"
    assert any("no problems found (" in line for line in frame)
    head = next(line for line in frame if line.startswith("layer "))
    assert head.split() == ["layer", "tensor", "amax", "nonfinite"]
    assert any(line.startswith("layers.0.fc1") for line in frame)
    training.step(2, nan=True)
    frame = terminal.wait_for(shows("iteration 4, loss 6"))
    terminal.wait_for(shows("1. nonfinite: layers.0.fc1 activation, since iteration 3"))
    debug.end_debug()
    assert terminal.wait_for_end() == 0
    kept = terminal.text.partition(USUAL)[2]
    assert "ended cleanly" in kept
    assert "nonfinite: layers.0.fc1 activation" in kept


def is_later_and_fits(terminal, before, rows, columns):
    """A condition for a frame after the first `before` ones: no line is lost or cut in a terminal
    of this size.

    The table of the worst tensors may be wider.
    """

    def condition(frame):
        table = next((i for i, line in enumerate(frame) if line == "worst tensors"), len(frame))
        fits = len(frame) <= rows and max(map(len, frame[:table])) <= columns
        return fits and len(terminal.frames()) > before

    return condition


def test_a_terminal_that_changes_its_size_gets_a_frame_that_fits(training, terminals, watch):
    training.step(40)
    training.step(2, nan=True)
    terminal = terminals(*watch)
    terminal.wait_for(shows("iteration 41"))
    for rows, columns in ((12, 40), (5, 24), (40, 140)):
        before = len(terminal.frames())
        terminal.resize(rows, columns)
        # A frame of the old size may still be printed when the rest of a step is written.
        frame = terminal.wait_for(is_later_and_fits(terminal, before, rows, columns))
        assert frame[0].startswith("iteration 41")


def test_ctrl_c_gives_the_terminal_back(training, terminals, watch):
    training.step()
    terminal = terminals(*watch)
    terminal.wait_for(shows("iteration 0"))
    terminal.type(b"\x03")
    assert terminal.wait_for_end() == 0
    assert terminal.text.count(ALTERNATE) == terminal.text.count(USUAL) == 1
    assert terminal.text.rindex("\x1b[?25h") > terminal.text.rindex("\x1b[?25l")


def test_sigterm_gives_the_terminal_back_too(training, terminals, watch):
    training.step()
    terminal = terminals(*watch)
    terminal.wait_for(shows("iteration 0"))
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.wait_for_end() == 128 + signal.SIGTERM
    assert USUAL in terminal.text


def test_a_pipe_gets_lines_and_each_finding_once(training, watch):
    training.step(2)
    process = subprocess.Popen(
        list(map(str, watch)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() in ("iteration 1, loss 9\n", "nothing yet\n")
    for _ in range(3):
        training.step(nan=True)
        time.sleep(0.5)
    debug.end_debug()
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert err == ""
    assert out.count("nonfinite: layers.0.fc1 activation, since iteration 2") == 1
    assert "iteration 4, loss 6\n" in out
    assert "ended cleanly" in out.splitlines()[-1]
    assert "\x1b" not in out


def test_a_run_that_is_over_is_shown_once(training, watch):
    training.step(2)
    debug.end_debug()
    answer = subprocess.run(list(map(str, watch)), capture_output=True, text=True, timeout=PATIENCE)
    assert answer.returncode == 0
    assert answer.stdout.startswith("iteration 1, loss 9\nended cleanly")


def test_names_unwritable_run_folder(watch, tmp_path):
    answer = subprocess.run(
        [str(watch[0]), "watch", str(tmp_path / "none" / "run")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert answer.returncode == 2
    assert answer.stderr.count("\n") == 1
    assert "none" in answer.stderr


def test_end_reason_is_escaped(build_folder, tmp_path):
    script = (
        "import telens.debug as debug\n"
        f"debug.initialize({{}}, log_dir={str(tmp_path)!r})\n"
        "debug.step(1.0)\n"
        "raise ValueError('\\x1b]0;title\\x07\\x1b[2J\\x1b[31mred')\n"
    )
    environment = os.environ | {"TELENS_RUN_ID": "run"}
    subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True)
    result = subprocess.run([build_folder / "bin/telens", "watch", tmp_path], capture_output=True)
    assert b"\\x1b]0;title\\x07\\x1b[2J\\x1b[31mred" in result.stdout
    assert b"\x1b" not in result.stdout
