"""telens whatif against results for recipes that are worked out by hand."""

import json
import math

import pytest
from command_results import expect_one_line_error, rows_of


@pytest.fixture
def whatif(telens):
    def run(log_dir, *arguments):
        return rows_of(telens("whatif", log_dir, "--format", "csv", *arguments))

    return run


def test_current_scaling_underflows_below_amax_range(whatif, one_rank):
    (row,) = whatif(one_rank, "--tensor", "activation", "--iterations", "0")
    # 448 / 4 = 112. 2^-17 * 112 is less than half of E4M3's smallest value 2^-9: 5 of 25 vanish.
    assert (row["layer"], row["tensor"], row["format"]) == ("layers.0.fc1", "activation", "E4M3")
    assert float(row["underflows%"]) == 20
    assert float(row["overflows%"]) == 0
    # 4 and 1 become 448 and 112, which E4M3 represents exactly.
    assert float(row["mse/amax^2"]) == pytest.approx(5 * 2**-34 / 25 / 16, rel=1e-12)
    signal, noise = 16 + 9 + 5 * 2**-34, 5 * 2**-34
    assert float(row["SQNR dB"]) == pytest.approx(10 * math.log10(signal / noise), rel=1e-12)
    assert (row["amax"], row["nonfinite"], row["iterations"]) == ("4", "0", "1")


def test_e5m2_reaches_further_down(whatif, one_rank):
    (row,) = whatif(one_rank, "--fp8-format", "E5M2", "--tensor", "activation", "--iterations", "0")
    assert row["format"] == "E5M2"
    assert float(row["underflows%"]) == 0


def test_delayed_scaling_overflows_after_amax_growth(whatif, one_rank):
    first, second = whatif(
        one_rank, "--amax", "most_recent", "--each-iteration", "--tensor", "activation"
    )
    assert (first["iteration"], first["scale"]) == ("0", "1")  # nothing was seen before
    # The scale is for an amax of 4, but the amax is 16: one of 25 elements is too large.
    assert (second["iteration"], second["scale"]) == ("1", "112")
    assert float(second["overflows%"]) == 4


def test_a_margin_leaves_room_for_growth(whatif, one_rank):
    rows = whatif(
        one_rank,
        *("--amax", "max", "--history", 16, "--margin", 2),
        *("--each-iteration", "--tensor", "activation"),
    )
    assert [row["scale"] for row in rows] == ["1", "28"]
    assert float(rows[1]["overflows%"]) == 0  # 16 * 28 is the largest E4M3


def test_ranks_are_added_up_before_the_scale_is_found(whatif, two_ranks):
    arguments = ["--tensor", "activation", "--iterations", "0", "--each-iteration"]
    (row,) = whatif(two_ranks, *arguments)
    assert (row["amax"], row["scale"]) == ("8", "56")
    assert float(row["underflows%"]) == 10  # 5 of 50
    (row,) = whatif(two_ranks, *arguments, "--rank", 0)
    assert (row["amax"], row["scale"]) == ("4", "112")


def test_exponents_give_bounds_and_say_so(telens, one_rank):
    result = telens("whatif", one_rank, "--tensor", "gradient", "--format", "csv")
    (row,) = rows_of(result)
    assert row["format"] == "E5M2"
    # The amax is somewhere in [1, 2). 2^-40 vanishes in any case, values in [2^-33, 2^-32) only for
    # some.
    assert (float(row["underflows%"]), float(row["underflows% <="])) == (10, 25)
    assert (float(row["overflows%"]), float(row["overflows% <="])) == (0, 75)
    assert row["mse/amax^2"] == row["SQNR dB"] == ""
    assert "exponent histograms give bounds" in result.stderr
    assert "bins: codes" in result.stderr


def test_the_worst_tensor_comes_first(whatif, one_rank):
    # 4 % of the activation overflow. 25 % of the gradient vanish with the first scale, 1; it was
    # recorded only in that iteration, which is warm-up.
    rows = whatif(one_rank, "--amax", "most_recent")
    assert [row["tensor"] for row in rows] == ["activation", "output", "gradient"]
    assert [row["warm-up"] for row in rows] == ["1", "1", "1"]
    assert rows[0]["iterations"] == "2"
    assert len(whatif(one_rank, "--top", 1)) == 1


def test_json_and_table_hold_the_same(telens, one_rank):
    arguments = ("whatif", one_rank, "--tensor", "activation")
    (row,) = json.loads(telens(*arguments, "--format", "json").stdout)
    assert row["underflows%"] == 20
    table = telens(*arguments).stdout
    assert table.splitlines()[0].split() == [
        *("layer", "tensor", "format", "nonfinite", "overflows%", "underflows%"),
        *("mse/amax^2", "SQNR", "dB", "amax", "iterations"),
    ]


def test_a_run_without_histograms_says_how_to_get_them(telens, log_dir):
    expect_one_line_error(
        telens("whatif", log_dir),
        "no histograms",
        "telens.ValueHistogram",
        "configs/value_histograms.yaml",
    )


def test_filters_that_fit_nothing_are_named(telens, one_rank):
    expect_one_line_error(telens("whatif", one_rank, "--iterations", "7:"), "no histogram fits")
    expect_one_line_error(telens("whatif", one_rank, "--tensor", "activatoin"), "activation")
    expect_one_line_error(telens("whatif", one_rank, "--fp8-format", "E3M4"), "E3M4")
    expect_one_line_error(telens("whatif", one_rank, "--history", "0"), "--history")


def test_delayed_scaling_notes_iteration_gaps(telens, two_ranks):
    delayed = ("whatif", two_ranks, "--amax", "max", "--tensor")
    assert telens(*delayed, "activation").stderr == ""
    assert "record with freq: 1" in telens(*delayed, "output").stderr
    assert telens("whatif", two_ranks, "--tensor", "output").stderr == ""  # current scaling
