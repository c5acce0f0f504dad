"""How telens diagnose reports the end of a program."""

import json
import math
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time

import pytest
from conftest import ROOT, WRITE_LINES, Lines, age
from recorded_training import STEPS, Training, where

SHAPE_ERROR = "ShapeError: weight has shape [65, 64]"


def answers(telens, run):
    """Returns the first line of the text, the JSON object, and the exit code, which is the same."""
    text, told = telens("diagnose", run), telens("diagnose", run, "--format", "json")
    assert text.returncode == told.returncode, text.stderr + told.stderr
    return text.stdout.splitlines()[0], json.loads(told.stdout), text.returncode


@pytest.mark.parametrize(
    ("reason", "state", "words"),
    [
        (None, "finished", "The run finished, "),
        (SHAPE_ERROR, "exception", f"with an exception, in iteration {STEPS - 1}, "),
        ("OutOfMemoryError: CUDA out of memory.", "out_of_memory", "out of memory (OOM)"),
        ("MemoryError", "out_of_memory", "out of memory (OOM)"),
        ("OSError: [Errno 12] Cannot allocate memory", "out_of_memory", "out of memory (OOM)"),
        ("KeyboardInterrupt", "terminated", "was terminated"),
        ("kill", "killed", "was killed"),
    ],
)
def test_first_line_and_exit_code_report_the_ending(telens, lines, tmp_path, reason, state, words):
    if reason == "kill":
        Training().write(lines, tmp_path / "unused")
        lines.kill()
        run = lines.write(tmp_path / "run")
        age(run)
    elif reason:
        Training().write(lines, tmp_path / "unused")
        lines.end(reason)
        run = lines.write(tmp_path / "run")
    else:
        run = Training().write(lines, tmp_path / "run")
    line, told, code = answers(telens, run)
    assert words in line
    assert told["ending"]["state"] == state
    assert told["ending"]["reason"] == (None if reason in (None, "kill") else reason)
    assert [each["cause"] for each in told["findings"]] == ([] if state == "finished" else [state])
    assert code == (state != "finished")


def test_failure_before_recording_is_a_finding(telens, lines, tmp_path):
    lines.end(SHAPE_ERROR)
    line, told, code = answers(telens, lines.write(tmp_path))
    assert SHAPE_ERROR in line
    assert where(told["findings"][0])[0] == "exception"
    assert code == 1


def nan_from(step):
    training = Training()
    for each in range(step, STEPS):
        training.values[each, "layers.0.fc1", "activation", "nonfinite"] = 3
    return training


@pytest.mark.parametrize("reason", [
    "AssertionError: loss is NaN",
    "SystemExit: 1",
    "FloatingPointError: Minimum loss scale reached",
    "ValueError: the loss is too high: 1e+12",
    "RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.",
])  # fmt: skip
def test_a_cause_explains_the_exception_that_follows(telens, lines, tmp_path, reason):
    nan_from(20).write(lines, tmp_path / "unused")
    lines.end(reason)
    _, told, _ = answers(telens, lines.write(tmp_path / "run"))
    (finding,) = told["findings"]
    assert finding["cause"] == "nonfinite"
    assert finding["consequences"][-1]["cause"] == "exception"


def test_nan_between_records_explains_the_exception(telens, lines, tmp_path):
    for step in range(106):
        if step % 10 == 0:
            lines.record(step, "fc", "output", "nonfinite", 0)
        lines.scalar(step, "loss", math.nan if step == 105 else 1)
    lines.end("ValueError: loss is NaN")
    _, told, _ = answers(telens, lines.write(tmp_path))
    (finding,) = told["findings"]
    assert (finding["cause"], finding["first_iteration"]) == ("nonfinite", 105)
    assert finding["consequences"][-1]["cause"] == "exception"
    assert told["ending"]["iteration"] == 105


@pytest.mark.parametrize("reason", [
    "AssertionError",
    "AssertionError: loss mask has shape [4, 8]",
    "KeyError: 'loss'",
    "AttributeError: 'Output' object has no attribute 'loss'",
    "RecursionError: stack overflow",
    "RuntimeError: heap-buffer-overflow",
    "ValueError: the matrix is not positive-definite",
    "RuntimeError: CUDA error: device-side assert triggered",
])  # fmt: skip
def test_exception_is_a_separate_finding(telens, lines, tmp_path, reason):
    nan_from(20).write(lines, tmp_path / "unused")
    lines.end(reason)
    _, told, _ = answers(telens, lines.write(tmp_path / "run"))
    assert [each["cause"] for each in told["findings"]] == ["nonfinite", "exception"]


def test_setup_finding_does_not_explain_exception(telens, lines, tmp_path):
    training = Training()
    for step in range(STEPS):
        training.put(step, "layers.0.fc1", "weight", 0.1 * 64)
    training.write(lines, tmp_path / "unused")
    lines.end("ValueError: loss is NaN")
    _, told, _ = answers(telens, lines.write(tmp_path / "run"))
    assert told["findings"][0]["cause"] == "weight_initialization"
    assert told["findings"][-1]["cause"] == "exception"


@pytest.mark.parametrize("reason", [SHAPE_ERROR, "kill", "RuntimeError: CUDA out of memory"])
def test_an_unexplained_ending_comes_after_a_cause(telens, lines, tmp_path, reason):
    nan_from(20).write(lines, tmp_path / "unused")
    lines.kill() if reason == "kill" else lines.end(reason)
    run = lines.write(tmp_path / "run")
    if reason == "kill":
        age(run)
    _, told, _ = answers(telens, run)
    causes = [each["cause"] for each in told["findings"]]
    assert causes[0] == "nonfinite"
    assert causes[1:]
    assert causes[1] in ("exception", "killed", "out_of_memory")


def test_a_run_that_is_still_written_has_not_ended(telens, lines, tmp_path):
    """The program that writes the run waits for more lines while its file is read."""
    Training().write(lines, tmp_path / "unused")
    command = [WRITE_LINES, tmp_path / "run"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as writer:
        writer.stdin.write("\n".join(lines.lines) + "\n")
        writer.stdin.flush()
        while "iteration" not in telens("info", tmp_path / "run").stdout:
            assert writer.poll() is None
        line, told, code = answers(telens, tmp_path / "run")
        writer.stdin.close()
    assert line == "The run is still being written"
    assert told["ending"] == {
        "state": "still_being_written", "rank": None, "iteration": None, "time": None,
        "reason": None,
    }  # fmt: skip
    assert (told["findings"], code) == ([], 0)


ANOTHER_BOOT = "00000000-1111-2222-3333-444444444444"


@pytest.mark.parametrize("boot", [ANOTHER_BOOT, "-"])
def test_unlocked_file_that_changed_lately_is_still_written(telens, lines, tmp_path, boot):
    """A file without a lock, as of a run that another machine writes on NFS."""
    Training().write(lines, tmp_path / "unused")
    lines.boot(boot)
    lines.kill()
    run = lines.write(tmp_path / "run")
    age(run, seconds=60)
    line, told, code = answers(telens, run)
    assert line == "The run is still being written"
    assert (told["ending"]["state"], told["findings"], code) == ("still_being_written", [], 0)
    assert "may still write it" in told["recording"][0]
    assert "telens repair" not in told["recording"][0]


@pytest.fixture
def local_folder(tmp_path):
    """A folder on a file system on which locks are visible to all processes."""
    kind = subprocess.run(["stat", "-f", "-c", "%T", tmp_path], capture_output=True, text=True)
    known = ("ext2/ext3", "xfs", "btrfs", "tmpfs", "overlayfs", "f2fs", "zfs")
    if kind.stdout.strip() in known:
        yield tmp_path
    else:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            yield pathlib.Path(folder)


def test_kill_under_the_same_kernel_is_reported_at_once(telens, lines, local_folder):
    """As for a run in a container, which has another host name: write_lines records none."""
    lines.record(3, "fc", "activation", "nonfinite", 0)
    lines.kill()
    run = lines.write(local_folder / "run")
    _, told, code = answers(telens, run)
    assert (told["ending"]["state"], told["ending"]["iteration"], code) == ("killed", 3, 1)
    assert "may still write it" not in telens("info", run).stdout


def test_copy_of_a_recent_file_may_still_be_written(telens, lines, local_folder):
    """The process that writes the original may hold a lock, which a copy does not have."""
    lines.record(3, "fc", "activation", "nonfinite", 0)
    lines.kill()
    run = lines.write(local_folder / "run")
    time.sleep(5.5)  # a copy is recognized by its creation, 5 s and more after the start
    copied = shutil.copytree(run, local_folder / "copy")
    assert answers(telens, run)[1]["ending"]["state"] == "killed"
    assert answers(telens, copied)[1]["ending"]["state"] == "still_being_written"


@pytest.mark.parametrize(
    ("boot", "state"), [("-", "killed"), (ANOTHER_BOOT, "still_being_written")]
)
def test_kill_on_this_host_is_reported_unless_it_rebooted(telens, lines, tmp_path, boot, state):
    lines.record(3, "fc", "activation", "nonfinite", 0)
    lines.boot(boot)
    lines.host(socket.gethostname())
    lines.kill()
    run = lines.write(tmp_path / "run")
    assert answers(telens, run)[1]["ending"]["state"] == state


def test_copy_on_the_same_host_may_still_be_written(telens, lines, local_folder):
    lines.record(3, "fc", "activation", "nonfinite", 0)
    lines.host(socket.gethostname())
    lines.kill()
    run = lines.write(local_folder / "run")
    time.sleep(5.5)  # a copy is recognized by its creation, 5 s and more after the start
    copied = shutil.copytree(run, local_folder / "copy")
    assert answers(telens, run)[1]["ending"]["state"] == "killed"
    assert answers(telens, copied)[1]["ending"]["state"] == "still_being_written"


def test_unlocked_file_that_is_old_was_probably_killed(telens, lines, tmp_path):
    lines.record(3, "fc", "activation", "nonfinite", 0)
    lines.kill()
    run = lines.write(tmp_path)
    (path,) = run.glob("telens/*/rank00000.h5")
    os.utime(path, (1_750_000_000, 1_750_000_000))
    _, told, code = answers(telens, run)
    (finding,) = told["findings"]
    assert (finding["cause"], finding["confidence"], code) == ("killed", 0.7, 1)
    assert "the file last changed 2025-06-15 15:06:40 UTC" in finding["summary"]


def test_recent_kill_that_another_rank_reports_has_ended(telens, tmp_path):
    for rank in (0, 1):
        lines = Lines()
        lines.record(3, "fc", "activation", "nonfinite", 0)
        lines.end("RuntimeError: Connection closed by peer") if rank else lines.kill()
        lines.write(tmp_path, rank, 2)
    age(tmp_path, rank=0, seconds=60)
    _, told, code = answers(telens, tmp_path)
    assert (told["ending"]["state"], code) == ("killed", 1)


def test_the_rank_that_failed_first_is_named(telens, tmp_path):
    for rank, reason in ((0, "DistBackendError: NCCL timeout"), (1, SHAPE_ERROR)):
        lines = Lines()
        lines.record(3, "fc", "activation", "nonfinite", 0)
        lines.end(reason)
        lines.write(tmp_path, rank, 2)
    line, told, _ = answers(telens, tmp_path)
    assert "first on rank 1" in line
    assert told["ending"]["reason"] == SHAPE_ERROR
    assert (told["ending"]["rank"], told["ending"]["iteration"]) == (1, 3)


def test_watch_and_report_show_the_same_ending(telens, lines, tmp_path):
    Training().write(lines, tmp_path / "unused")
    lines.end(SHAPE_ERROR)
    run = lines.write(tmp_path / "run")
    watched = telens("watch", run)
    assert "exception: the whole run, since iteration" in watched.stdout
    assert watched.returncode == 0
    assert telens("report", run, "-o", tmp_path / "page.html").returncode == 0
    assert "program ended by an exception" in (tmp_path / "page.html").read_text()


def test_the_documentation_has_the_states(telens):
    documentation = (ROOT / "docs/diagnosis.md").read_text()
    for state in ("finished", "still_being_written", "recording_stopped", "exception",
                  "out_of_memory", "killed", "terminated"):  # fmt: skip
        assert f"`{state}`" in documentation
