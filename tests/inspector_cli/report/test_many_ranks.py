"""Runs of many ranks, of which some have not started yet or differ from the others."""

import json
import shutil

import pytest
from conftest import Lines

# The standard deviation of a normal distribution, in mean and in median absolute deviations.
MEAN_DEVIATION = 1.253314
MEDIAN_DEVIATION = 1.482602


@pytest.fixture(scope="module")
def unlike(write_run):
    """Rank 5 runs longer than the others, and has non-finite values from iteration 30 on."""
    log_dir = write_run(iterations=30)
    for rank in range(1, 5):
        write_run(iterations=30, log_dir=log_dir, rank=rank)
    return write_run(iterations=40, log_dir=log_dir, rank=5)


def rows_by_rank(telens, run, *options):
    done = telens("stats", run, "--by", "rank", "--format", "json", *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_only_nonfinite_rank_comes_first(telens, unlike):
    first, second = rows_by_rank(telens, unlike, "--stat", "cur_amax")[:2]
    assert (first["rank"], first["layer"], first["tensor"]) == (5, "layers.2.fc1", "activation")
    assert (first["not finite"], first["records"]) == (10, 40)
    assert (first["mean"], first["median of ranks"], first["deviations"]) == (3, 3, 0)
    assert (second["rank"], second["layer"]) == (5, "layers.3.fc1")


def test_ranks_sort_by_distance_from_median(telens, unlike):
    rows = rows_by_rank(
        telens, unlike, "--stat", "nonfinite", "--tensor", "activation", "--layer", "layers.2"
    )
    assert [row["rank"] for row in rows] == [5, 0, 1, 2, 3, 4]
    mean = 3 * 10 / 40
    assert rows[0]["mean"] == pytest.approx(mean)
    assert rows[0]["median of ranks"] == 0
    assert rows[0]["deviations"] == pytest.approx(mean / (MEAN_DEVIATION * mean / 6), rel=1e-6)
    assert (rows[0]["min"], rows[0]["max"]) == (0, 3)
    assert {row["deviations"] for row in rows[1:]} == {0}


def test_rank_distances_are_in_median_deviations(telens, tmp_path):
    values = [1.0, 2.0, 3.0, 4.0, 100.0]
    for rank, value in enumerate(values):
        lines = Lines()
        for iteration in range(3):
            lines.record(iteration, "fc1", "activation", "max", value + iteration - 1)
        lines.write(tmp_path, rank)
    rows = rows_by_rank(telens, tmp_path)
    assert [row["rank"] for row in rows] == [4, 0, 1, 3, 2]
    for row in rows:
        assert row["mean"] == pytest.approx(values[row["rank"]])
        assert row["median of ranks"] == pytest.approx(3)
        # The median of the distances 2, 1, 0, 1 and 97 is 1.
        expected = (values[row["rank"]] - 3) / MEDIAN_DEVIATION
        assert row["deviations"] == pytest.approx(expected, rel=1e-6)


def test_value_of_most_ranks_is_not_an_outlier(telens, tmp_path):
    for rank in range(3):
        lines = Lines()
        lines.record(0, "broken", "activation", "max", "nan" if rank < 2 else 1)
        lines.record(0, "odd", "activation", "max", 1 + rank * rank)
        lines.write(tmp_path, rank)
    rows = rows_by_rank(telens, tmp_path)
    assert (rows[0]["layer"], rows[0]["rank"]) == ("odd", 2)
    assert {row["deviations"] for row in rows if row["layer"] == "broken"} == {None, 0}


def test_two_ranks_have_no_outlier(telens, tmp_path):
    means = {"near": (4.0, 4.1), "far": (1.0, -3.0), "alike": (2.0, 2.0), "huge": (-1e308, 1e308)}
    for rank in range(2):
        lines = Lines()
        for layer, values in means.items():
            lines.record(0, layer, "activation", "max", values[rank])
        lines.write(tmp_path, rank)
    rows = rows_by_rank(telens, tmp_path)
    assert {row["deviations"] for row in rows} == {None}
    # Sorted by the difference of the two ranks relative to the larger value.
    order = list(dict.fromkeys(row["layer"] for row in rows))
    assert order == ["huge", "far", "near", "alike"]
    for row in rows:
        own, other = (means[row["layer"]][rank] for rank in (row["rank"], 1 - row["rank"]))
        if row["layer"] != "huge":
            assert row["difference"] == pytest.approx(own - other)
    told = "two ranks cannot show an outlier"
    assert told in telens("stats", tmp_path, "--by", "rank").stdout
    assert told not in telens("stats", tmp_path, "--by", "rank", "--format", "csv").stdout


def test_rows_of_two_ranks_sort_after_rows_of_more(telens, tmp_path):
    values = {
        "pair": (1.0, -3.0),
        "lone": (1.0, "nan"),
        "three": (1.0, 1.1, 1.2),
        "hole": (1.0, 2.0, "nan"),
    }
    for rank in range(3):
        lines = Lines()
        for layer, of_ranks in values.items():
            if rank < len(of_ranks):
                lines.record(0, layer, "activation", "max", of_ranks[rank])
        lines.write(tmp_path, rank)
    rows = rows_by_rank(telens, tmp_path)
    assert (rows[0]["layer"], rows[0]["rank"]) == ("hole", 2)
    assert {row["layer"] for row in rows[1:-4]} == {"hole", "three"}
    assert [row["layer"] for row in rows[-4:]] == ["pair", "pair", "lone", "lone"]
    for row in rows:
        of_two = len(values[row["layer"]]) == 2
        finite = row["mean"] is not None
        assert (row["deviations"] is not None) == (finite and not of_two)
        assert (row["difference"] is not None) == (row["layer"] == "pair")


def test_more_than_two_ranks_have_no_difference(telens, unlike):
    assert "difference" not in rows_by_rank(telens, unlike)[0]


def test_other_columns_than_rank_are_refused(telens, unlike):
    done = telens("stats", unlike, "--by", "layer")
    assert done.returncode == 2
    assert "--by" in done.stderr


def test_unreadable_ranks_are_skipped(telens, unlike, tmp_path):
    shutil.copytree(unlike, tmp_path, dirs_exist_ok=True)
    folder = tmp_path / "telens" / "run"
    (folder / "rank00006.h5").write_bytes(b"")
    whole = (folder / "rank00000.h5").read_bytes()
    (folder / "rank00007.h5").write_bytes(whole[: len(whole) // 2])
    (folder / ".rank00008.123.tmp").write_bytes(whole)
    done = telens("info", tmp_path)
    assert done.returncode == 0
    told = [line for line in done.stdout.splitlines() if "the run is read without it" in line]
    assert ["rank00006.h5" in told[0], "rank00007.h5" in told[1], len(told)] == [True, True, 2]
    assert "6 files of 1 rank" in done.stdout
    assert {row["rank"] for row in rows_by_rank(telens, tmp_path)} == set(range(6))
