"""Python's reader on damaged or malicious run files: it returns an answer or raises RecordError."""

import os
import pathlib
import shutil
import subprocess
import sys

import h5py
import numpy as np
import pytest
from stored_rows import store, store_zeros

import telens

WRITE_RUN = pathlib.Path(__file__).parents[2] / "build/tests/write_run"


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    folder = tmp_path_factory.mktemp("intact")
    subprocess.run([WRITE_RUN, folder, "run", "40"], check=True)
    return folder / "telens/run/rank00000.h5"


@pytest.fixture
def changed(intact, tmp_path):
    """A copy of the intact file, open for changes; closed when it is read."""

    def change(apply, folder=tmp_path):
        folder.mkdir(exist_ok=True)
        path = folder / "rank00000.h5"
        shutil.copy(intact, path)
        with h5py.File(path, "r+", libver=("v110", "v110")) as file:
            apply(file)
        return path

    return change


def no_utf8(table, column):
    def apply(file):
        rows = file[table][:]
        (rows if column is None else rows[column])[0] = b"\xff\xfebad"
        store(file, table, rows)

    return apply


def test_invalid_utf8_names_are_escaped(changed):
    run = telens.open_run(changed(no_utf8("names/layer", None)))
    assert run.names("layer")[0] == r"\xff\xfebad"
    assert set(run.records()["layer"]) >= {r"\xff\xfebad", "layers.2.fc1"}


def test_bins_of_a_histogram_without_a_name_have_no_edges(tmp_path):
    subprocess.run([WRITE_RUN.with_name("write_histograms"), tmp_path, "0"], check=True)
    path = next(tmp_path.rglob("rank00000.h5"))
    with h5py.File(path, "r+", libver=("v110", "v110")) as file:
        rows = file["records"][:]
        rows["statistic"][::2] = 2**31 - 1
        store(file, "records", rows)
    table = telens.open_run(path).histograms()
    unnamed = table[table["statistic"].isna()]
    assert 0 < len(unnamed) < len(table)
    assert unnamed[["low", "high"]].isna().all(axis=None)


@pytest.mark.parametrize("name", ["config", "environment"])
def test_invalid_utf8_texts_are_escaped(changed, name):
    def apply(file):
        if name == "config":
            width = file["config"].dtype.itemsize
            store(file, "config", np.bytes_(b"\xff" * width))
        else:
            no_utf8("environment", "value")(file)

    run = telens.open_run(changed(apply))
    assert r"\xff" in str(getattr(run, name))


def test_invalid_utf8_run_id_is_escaped(changed):
    run = telens.open_run(
        changed(lambda file: file.attrs.__setitem__("run_id", np.bytes_(b"\xffrun")))
    )
    assert run.segments["run_id"][0] == r"\xffrun"


def test_reads_folder_with_invalid_utf8_name(changed, tmp_path):
    folder = pathlib.Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    run = telens.open_run(changed(lambda _: None, folder))
    assert run.segments["path"][0] == str(folder / "rank00000.h5")


@pytest.mark.parametrize("folder", [b"plain", b"\xff"])
def test_rows_that_are_damaged_are_listed_with_their_file(intact, tmp_path, folder):
    path = pathlib.Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + folder), "rank00000.h5")
    path.parent.mkdir()
    content = bytearray(intact.read_bytes())
    content[content.index(b"everything:")] ^= 0x10
    path.write_bytes(content)
    with pytest.warns(UserWarning, match="damaged: 1 row of config"):
        damage = telens.open_run(path).damage
    assert damage.to_dict("records") == [
        {"path": str(path), "table": "config", "first_row": 0, "rows": 1}
    ]


def test_intact_run_lists_no_damage(intact):
    damage = telens.open_run(intact).damage
    assert list(damage.columns) == ["path", "table", "first_row", "rows"]
    assert len(damage) == 0


def test_invalid_utf8_folder_error_is_a_record_error(tmp_path):
    with pytest.raises(telens.RecordError, match="run not found"):
        telens.open_run(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))


@pytest.mark.parametrize("name", ["rank", "world_size", "schema_version", "run_id", "start_time"])
def test_an_attribute_that_is_an_array_is_a_record_error(changed, name):
    path = changed(lambda file: file.attrs.__setitem__(name, np.arange(4096)))
    with pytest.raises(telens.RecordError, match=name):
        telens.open_run(path)


def test_external_storage_is_a_record_error(changed, tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("secret" * 1000)

    def apply(file):
        del file["config"]
        storage = [(str(outside), 0, 1000)]
        file.create_dataset("config", shape=(1,), dtype="S1000", external=storage)

    with pytest.raises(telens.RecordError, match="config"):
        telens.open_run(changed(apply))


def test_events_of_unknown_words_are_left_out(changed):
    def apply(file):
        rows = file["events"][:]
        rows["kind"] = -2
        store(file, "events", rows)

    assert len(telens.open_run(changed(apply)).events) == 0


def test_an_unknown_kind_of_names_is_a_usage_error(intact):
    with pytest.raises(telens.UsageError, match="one of layer"):
        telens.open_run(intact).names("layers")


# Runs in its own process, so that the peak memory is that of the reading.
READ_BLOCKS = """
import resource, sys
import numpy, pandas, telens
run = telens.open_run(sys.argv[1])
run.blocks(iterations=(1, 1))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rows = run.blocks()
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
bytes_of_row = rows.memory_usage(index=False, deep=True).sum() / len(rows)
print(len(rows), (after - before) * 1024 / len(rows), bytes_of_row)
"""


def test_a_table_of_millions_of_rows_is_in_memory_once(changed):
    path = changed(lambda file: store_zeros(file["blocks"], 3_000_000))
    words = subprocess.run(
        [sys.executable, "-c", READ_BLOCKS, path],
        check=True, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ).stdout.split()  # fmt: skip
    rows, peak_bytes, bytes_of_row = int(words[0]), float(words[1]), float(words[2])
    assert rows > 2_900_000
    # Ids have four bytes, and a column grows by doubling until one of them has a name.
    assert peak_bytes < 2 * bytes_of_row
