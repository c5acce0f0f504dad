"""The run file as docs/run_file.md describes it, read with h5py and pandas only."""

import subprocess
import sys

import h5py
import numpy as np
import pandas as pd
import pytest
from conftest import ROOT, WRITE_RUN

sys.path.insert(0, str(ROOT / "samples"))
import read_run


def table(file, name):
    """Reads a packed table with its tail as docs/run_file.md says."""
    count, tail = int(file[name + "_count"][()]), file[name + "_tail"][:]
    rows = file[name][:]
    return np.concatenate([rows, tail[: max(0, count - len(rows))]])


def names(file, dictionary):
    return [name.decode() for name in file["names/" + dictionary][:]]


@pytest.fixture
def file(run_file):
    with h5py.File(run_file, "r", swmr=True) as opened:
        yield opened


def test_pandas_gets_named_records(file):
    frame = pd.DataFrame(table(file, "records"))
    assert len(frame) == 40 * 4 * 9 + 1
    frame["layer"] = frame["layer"].map(dict(enumerate(names(file, "layer"))))
    frame["statistic"] = frame["statistic"].map(dict(enumerate(names(file, "statistic"))))
    bad = frame[(frame.statistic == "nonfinite") & (frame.value > 0)]
    assert (bad.iteration.min(), bad.iloc[0].layer) == (30, "layers.2.fc1")
    assert (frame[frame.statistic == "cur_amax"].value.isna().sum()) == 10 + 8


def test_losses_and_context(file):
    scalars = file["scalars"][:]
    assert names(file, "word")[scalars[0]["name"]] == "loss"
    assert scalars["value"][0] == 4.0
    assert file["config"][()].decode() == "everything:\n  enabled: True\n"
    assert [tuple(row) for row in file["environment"][:]] == [(b"torch", b"2.11.0")]
    assert file.attrs["schema_version"] == 3
    assert file.attrs["run_id"] == b"run"
    assert (file.attrs["rank"], file.attrs["world_size"]) == (0, 1)
    assert file["end"][0]["state"] == 0
    assert file["end"][0]["time"] >= file.attrs["start_time"]


def test_a_histogram_points_at_its_record(file):
    bins = table(file, "histograms")
    record = table(file, "records")[bins[0]["record"]]
    assert names(file, "statistic")[record["statistic"]] == "codes"
    assert record["value"] == bins["count"].sum() == 12
    assert list(bins["bin"]) == [3, 200]


def test_ledger_blocks_and_events(file):
    words = names(file, "word")
    assert words[table(file, "ledger")[0]["entry"]] == "kernel"
    block = table(file, "blocks")[0]
    assert (block["block_row"], block["block_column"], block["value"]) == (4, 5, 0.125)
    event = file["events"][0]
    assert words[event["kind"]] == "warning"
    assert names(file, "layer")[event["layer"]] == "layers.2.fc1"


def test_a_run_costs_at_most_eight_bytes_a_record(tmp_path):
    subprocess.run([WRITE_RUN, str(tmp_path), "long", "20000"], check=True)
    path = tmp_path / "telens/long/rank00000.h5"
    with h5py.File(path, "r", swmr=True) as file:
        records = len(file["records"])
    assert records == 20000 * 36 + 1
    assert path.stat().st_size / records <= 8


def test_sample_reader_returns_all_records_with_names(run_file, file):
    frame = read_run.read_run(run_file.parent)
    expected = table(file, "records")
    assert frame["iteration"].tolist() == expected["iteration"].tolist()
    np.testing.assert_array_equal(frame["value"], expected["value"])
    layers = names(file, "layer")
    assert frame["layer"].tolist() == [layers[each] for each in expected["layer"]]
    assert set(frame["rank"]) == {0}


def test_sample_reader_counts_repeated_iterations_once(tmp_path):
    for _ in range(2):  # the second process resumes the run and records every iteration again
        subprocess.run([WRITE_RUN, str(tmp_path), "run"], check=True)
    folder = tmp_path / "telens/run"
    assert len(list(folder.glob("rank*.h5"))) == 2
    frame = read_run.read_run(folder)
    assert len(frame) == 40 * 4 * 9 + 1
    assert not frame.duplicated(["iteration", "layer", "tensor", "gemm", "statistic"]).any()


def test_page_shows_the_sample_reader():
    assert (
        f"```python\n{(ROOT / 'samples/read_run.py').read_text()}```"
        in (ROOT / "docs/run_file.md").read_text()
    )
