"""A log_dir in which a training was started several times."""

import shlex

import h5py
import pytest
from command_results import expect_one_line_error, rows_of

# The newest run is neither the first nor the last by name.
STARTS = {"alpha": 1000.0, "beta": 3000.0, "gamma": 2000.0}


def set_start(path, seconds):
    with h5py.File(path, "r+", libver="latest") as file:
        file.attrs["start_time"] = seconds


@pytest.fixture
def log_dir(write_run, tmp_path):
    for number, (run, start) in enumerate(STARTS.items()):
        write_run(run, 5 + number, tmp_path)
        set_start(tmp_path / f"telens/{run}/rank00000.h5", start)
    return tmp_path


@pytest.mark.parametrize("command", ["info", "stats", "plot"])
@pytest.mark.parametrize("where", ["", "telens"])
def test_newest_run_is_read_with_a_note(telens, log_dir, command, where):
    result = telens(command, log_dir / where)
    alone = telens(command, log_dir / "telens/beta")
    assert result.returncode == 0
    assert result.stdout.startswith(alone.stdout)
    assert alone.stderr == ""
    (note,) = result.stderr.splitlines()
    assert "using the newest of 3 runs in " in note
    assert str(log_dir / "telens/gamma") in note


def test_note_goes_to_stderr(telens, log_dir):
    result = telens("stats", log_dir, "--format", "csv")
    assert {row["iterations"] for row in rows_of(result)} == {"6", "7"}
    assert result.stdout == telens("stats", log_dir / "telens/beta", "--format", "csv").stdout


def test_info_lists_the_others_newest_first(telens, log_dir):
    *_, gamma, alpha = telens("info", log_dir).stdout.splitlines()
    assert gamma.startswith("other runs ")
    assert f"{log_dir}/telens/gamma  started 1970-01-01 00:33:20 UTC, ended cleanly" in gamma
    assert f"{log_dir}/telens/alpha  started 1970-01-01 00:16:40 UTC, ended cleanly" in alpha
    assert "other runs" not in telens("info", log_dir / "telens/alpha").stdout


def test_a_run_that_was_resumed_is_as_new_as_its_last_start(telens, write_run, log_dir):
    write_run("alpha", 9, log_dir)
    set_start(log_dir / "telens/alpha/rank00000.s001.h5", 4000.0)
    assert ": alpha. To choose another" in telens("info", log_dir).stderr


def test_unreadable_newest_run_is_an_error(telens, log_dir):
    damaged = log_dir / "telens/gamma/rank00000.h5"
    damaged.write_bytes(b"not HDF5 at all")  # now, and the others began in 1970
    result = telens("stats", log_dir)
    assert result.returncode == 2
    assert ": gamma. To choose another" in result.stderr
    assert f"{damaged}: not an HDF5 file" in result.stderr
    assert "cannot be read" not in telens("info", log_dir / "telens/beta").stdout


def test_unreadable_older_run_is_listed(telens, write_run, log_dir):
    (log_dir / "telens/alpha/rank00000.h5").write_bytes(b"")
    write_run("later", 3, log_dir)
    set_start(log_dir / "telens/later/rank00000.h5", 1e11)
    listed = telens("info", log_dir).stdout
    assert "run          later" in listed
    assert f"{log_dir}/telens/alpha  cannot be read: " in listed


def test_many_older_runs_are_counted(telens, write_run, tmp_path):
    for number in range(23):
        write_run(f"run{number:02}", 1, tmp_path)
    listed = telens("info", tmp_path).stdout
    assert listed.count("  started ") == 20
    assert listed.endswith("... and 2 older runs\n")


def test_repair_requires_one_run(telens, log_dir):
    expect_one_line_error(telens("repair", log_dir), "3 runs", "telens/alpha", "telens/gamma")


def test_files_of_two_runs_in_one_folder_are_reported(telens, log_dir):
    alpha, beta = (log_dir / f"telens/{run}/rank00000.h5" for run in ("alpha", "beta"))
    beta.rename(alpha.with_name("rank00001.h5"))
    result = telens("info", alpha.parent)
    assert result.returncode == 0
    assert result.stdout.startswith("warning ")
    assert "rank00001.h5: belongs to run beta, other files to run alpha" in result.stdout
    assert "belongs to run beta, other files to run alpha" in telens("stats", alpha.parent).stderr


def test_suggested_command_quotes_the_run(telens, write_run, tmp_path):
    folder = tmp_path / "it's $(a) run"
    write_run("run", 5, folder)
    result = telens("info", folder / "telens/run")
    command = result.stdout.splitlines()[-1].split(": ", 1)[1]
    assert command.startswith("telens diagnose ")
    assert shlex.split(command)[2:] == [str(folder / "telens/run")]
