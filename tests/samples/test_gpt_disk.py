"""A training whose disk is full, or whose process is killed: it learns the same, and its records
can be read.
"""

import os
import resource
import signal
import subprocess
import time
from pathlib import Path

import h5py
import pytest
from gpt_runs import COMMAND, EVERYTHING, LINEAR_LAYERS, PROGRAM, SMALL

import telens

STEPS = 120


def start(folder: Path, name: str, *arguments: object, **options) -> subprocess.Popen:
    """A training that writes its losses to folder/name."""
    command = [PROGRAM, *SMALL, "--loss-file", folder / name, *arguments]
    return subprocess.Popen(
        [str(word) for word in command],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.fixture
def config(tmp_path) -> Path:
    path = tmp_path / "everything.yaml"
    path.write_text(EVERYTHING)
    return path


@pytest.fixture(scope="module")
def plain_losses(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("plain")
    _, said = (process := start(folder, "losses", "--steps", STEPS)).communicate(timeout=200)
    assert process.returncode == 0, said
    return (folder / "losses").read_text()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of two megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small tmpfs: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def expect_an_undisturbed_training(process, losses: Path, plain: str, log_dir: Path, cause: str):
    printed, said = process.communicate(timeout=200)
    assert process.returncode == 0, said
    assert losses.read_text() == plain
    assert "mean loss of the last 50 steps" in printed
    # One line about the run file, with the number of lost rows, and one about each log.
    lines = said.splitlines()
    (on_run_file,) = [line for line in lines if "recording stopped, training continues" in line]
    for part in (cause, str(log_dir), "rows from iteration", "free space"):
        assert part in on_run_file
    on_logs = {line for line in lines if "cannot write the log" in line}
    assert len(on_logs) == len(lines) - 1 <= 2, said
    run = telens.open_run(log_dir)
    last = run.records()["iteration"].max()
    assert 0 <= last < STEPS - 1
    info = subprocess.run([COMMAND, "info", log_dir], capture_output=True, text=True, check=True)
    assert cause in info.stdout


def test_a_full_disk_ends_the_recording_and_not_the_training(
    tmp_path, config, small_disk, plain_losses
):
    arguments = ("--steps", STEPS, "--config", config, "--log-dir", small_disk)
    process = start(tmp_path, "losses", *arguments)
    expect_an_undisturbed_training(
        process, tmp_path / "losses", plain_losses, small_disk, "No space left on device"
    )


def test_file_size_limit_ends_only_the_recording(tmp_path, config, plain_losses):
    log_dir = tmp_path / "log"
    arguments = ("--steps", STEPS, "--config", config, "--log-dir", log_dir)
    limit = (800 << 10, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    process = start(
        tmp_path,
        "losses",
        *arguments,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
    )
    expect_an_undisturbed_training(
        process, tmp_path / "losses", plain_losses, log_dir, "limit on file sizes"
    )


def steps_done(losses: Path) -> int:
    """Written after each step(), so these steps have been handed to the recorder."""
    return losses.read_text().count("\n") if losses.exists() else 0


def recorded_steps(log_dir: Path) -> int:
    """Returns the number of first iterations in the run file, each of which is complete."""
    records = telens.open_run(log_dir).records(tensor="activation", statistic="max")
    sizes = records.groupby("iteration").size()
    assert sizes.index.tolist() == list(range(len(sizes)))
    assert set(sizes.iloc[:-1]) <= {LINEAR_LAYERS}
    return int((sizes == LINEAR_LAYERS).sum())


def rows_read_by_h5py(log_dir: Path) -> int:
    (path,) = log_dir.rglob("rank00000.h5")
    with h5py.File(path, "r", swmr=True) as file:
        return max(int(file["records_count"][()]), len(file["records"]))


def test_a_killed_training_leaves_every_record_older_than_two_seconds(tmp_path, config):
    losses, log_dir = tmp_path / "losses", tmp_path / "log"
    arguments = ("--steps", 1_000_000, "--config", config, "--log-dir", log_dir)
    process = start(tmp_path, losses.name, *arguments)
    try:
        done_at = []  # (time, steps done)
        read_while_alive = []
        latest, longest_break = time.monotonic(), 0.0  # the longest pause of this loop
        begin = latest
        while not (read_while_alive and done_at[0][1] and time.monotonic() > done_at[0][0] + 4):
            assert process.poll() is None
            assert time.monotonic() < begin + 120
            if done := steps_done(losses):
                done_at.append((time.monotonic(), done))
            if (
                done_at
                and time.monotonic() > done_at[0][0] + 2.5 + longest_break
                and len(read_while_alive) < 2
            ):
                before = done_at[0][1]
                read_while_alive.append((recorded_steps(log_dir), rows_read_by_h5py(log_dir)))
                assert read_while_alive[-1][0] >= before
                assert read_while_alive[-1][1] > before * LINEAR_LAYERS
            time.sleep(0.05)
            longest_break = max(longest_break, time.monotonic() - latest)
            latest = time.monotonic()
        killed = time.monotonic()
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.communicate()
    promised = max(steps for when, steps in done_at if when < killed - 2 - longest_break)
    assert promised > 1
    assert recorded_steps(log_dir) >= promised
    assert len(telens.open_run(log_dir).losses) >= promised
    rows = rows_read_by_h5py(log_dir)
    assert rows >= read_while_alive[-1][1]

    (path,) = log_dir.rglob("rank00000.h5")
    with pytest.raises(OSError, match=r"consistency|already open|write"):
        h5py.File(path, "r")
    subprocess.run([COMMAND, "repair", log_dir], check=True, capture_output=True)
    with h5py.File(path, "r") as file:
        assert len(file["records"]) == rows
    assert recorded_steps(log_dir) >= promised
