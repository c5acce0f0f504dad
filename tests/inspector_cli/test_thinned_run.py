"""A run in several consecutive files, of which the first was thinned."""

import h5py
import pytest


@pytest.fixture
def thinned(write_run, tmp_path):
    for iterations in (30, 40):
        write_run("run", iterations, tmp_path)
    folder = tmp_path / "telens/run"
    with h5py.File(folder / "rank00000.h5", "r+", libver="latest") as file:
        file.attrs.update(iterations_left=30, iterations_seen=60, records_seen=1000)
    with h5py.File(folder / "rank00000.s001.h5", "r+", libver="latest") as file:
        file.attrs["continues"] = 1
    return tmp_path


def test_info_joins_files_and_reports_thinning(telens, thinned):
    output = telens("info", thinned).stdout
    assert output.count("rank00000.h5 and 1 more file") == 1
    assert "s001" not in output
    assert "thinned to fit max_size: 30 of the first 60 iterations are kept" in output
    assert "after a restart" not in output


def test_info_of_plain_run_is_unchanged(telens, write_run, tmp_path):
    for iterations in (30, 40):
        write_run("run", iterations, tmp_path)
    output = telens("info", tmp_path).stdout
    assert "rank00000.s001.h5" in output
    assert "more file" not in output
    assert "thinned for" not in output
    assert "after a restart" in output
