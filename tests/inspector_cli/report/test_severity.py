"""All subcommands rank problems alike: by persistence times size, without warm-up."""

import json
import re

import pytest
from command_results import rows_of
from conftest import Lines
from page_data import charts_of


def order_of(telens, run, *arguments):
    rows = rows_of(telens("stats", run, "--format", "csv", *arguments))
    return [(row["layer"], row["tensor"]) for row in rows]


def cast(lines, iteration, layer, tensor, underflows=0.0, overflows=0.0, saturated=None):
    lines.record(iteration, layer, tensor, "underflows%", underflows)
    lines.record(iteration, layer, tensor, "overflows%", overflows)
    if saturated is not None:
        lines.record(iteration, layer, tensor, "saturated", saturated)


@pytest.fixture
def healthy(lines, tmp_path):
    """Delayed scaling. In iteration 0, with the scale 1, nearly all elements of every gradient
    underflow: least in the layer with the most underflows later on.
    """
    for i in range(0, 100, 10):
        for number in range(4):
            layer = f"layers.{number}.fc1"
            first = 99 - number
            cast(lines, i, layer, "gradient", first if i == 0 else 0.1 * (number + 1))
            error = 1.0 - 0.1 * number if i == 0 else 0.01 * (number + 1)
            lines.record(i, layer, "wgrad", "gemm_relative_error", error, "wgrad")
            lines.record(i, layer, "gradient", "nonfinite", 0)
        lines.scalar(i, "loss", 5 - 0.01 * i)
    lines.warm_up(0, *(f"layers.{number}.fc1" for number in range(4)))
    return lines.write(tmp_path)


LAYERS_WORST_FIRST = [f"layers.{number}.fc1" for number in (3, 2, 1, 0)]


@pytest.mark.parametrize("statistic", ["gemm_relative_error", "underflows%", None])
def test_a_ranking_is_the_same_with_and_without_warm_up(telens, healthy, statistic):
    chosen = ["--stat", statistic] if statistic else ["--tensor", "gradient"]
    with_it = order_of(telens, healthy, *chosen)
    assert [layer for layer, _ in with_it] == LAYERS_WORST_FIRST
    assert with_it == order_of(telens, healthy, *chosen, "--iterations", "10:")


def test_values_of_warm_up_are_marked_and_no_extremes(telens, healthy):
    arguments = ("stats", healthy, "--stat", "underflows%", "--format", "csv")
    for row in rows_of(telens(*arguments)):
        assert float(row["max"]) < 1
        assert (row["records"], row["warm-up"]) == ("10", "1")
    assert all("warm-up" not in row for row in rows_of(telens(*arguments, "--iterations", "10:")))
    for row in rows_of(telens("stats", healthy, "--tensor", "gradient", "--format", "csv")):
        assert float(row["underflows%"]) < 1
        assert (row["iterations"], row["warm-up"]) == ("10", "1")


def test_only_warm_up_is_shown_and_comes_last(telens, lines, tmp_path):
    cast(lines, 0, "a", "gradient", 99)
    for i in range(3):
        cast(lines, i, "b", "gradient", 99 if i == 0 else 0)
    lines.warm_up(0, "a", "b")
    run = lines.write(tmp_path)
    rows = rows_of(telens("stats", run, "--format", "csv"))
    assert [(row["layer"], row["underflows%"], row["warm-up"]) for row in rows] == [
        ("b", "0", "1"), ("a", "99", "1")
    ]  # fmt: skip
    rows = rows_of(telens("stats", run, "--stat", "underflows%", "--format", "csv"))
    assert [(row["layer"], row["max"]) for row in rows] == [("b", "0"), ("a", "99")]


def test_only_warm_up_is_ranked_without_alarm(telens, lines, tmp_path):
    for layer, underflows in (("a", 1), ("b", 99), ("c", 50)):
        cast(lines, 0, layer, "gradient", underflows)
        lines.record(0, layer, "gradient", "gemm_cosine", 1 - underflows / 100)
    lines.warm_up(0, "a", "b", "c")
    run = lines.write(tmp_path)
    expected = [(layer, "gradient") for layer in "bca"]
    assert order_of(telens, run) == expected
    assert order_of(telens, run, "--stat", "gemm_cosine") == expected
    assert "largest loss" not in telens("info", run).stdout


def test_run_without_warm_up_is_ranked_whole(telens, lines, tmp_path):
    cast(lines, 0, "a", "gradient", 99)
    cast(lines, 0, "b", "gradient", 1)
    assert order_of(telens, lines.write(tmp_path)) == [("a", "gradient"), ("b", "gradient")]


def test_persistent_problems_precede_single_ones(telens, lines, tmp_path):
    for i in range(50):
        cast(lines, i, "a", "gradient", underflows=96 if i >= 5 else 0)
        cast(lines, i, "b", "activation", overflows=0.3 if i == 7 else 0, saturated=int(i == 7))
        cast(lines, i, "c", "activation", overflows=0.3, saturated=9)
        cast(lines, i, "d", "gradient", underflows=30 if i == 7 else 0)
    run = lines.write(tmp_path)
    assert order_of(telens, run) == [
        ("a", "gradient"),  # 0.864 of its elements on average
        ("c", "activation"),  # 0.3 % clipped for good: 16 times 0.003
        ("d", "gradient"),  # 30 % once in 50
        ("b", "activation"),
    ]
    text = telens("plot", run).stdout
    assert "underflows% of a gradient" in text  # and not overflows%


def test_overflow_by_rounding_is_ignored(telens, lines, tmp_path):
    for i in range(10):
        cast(lines, i, "a", "activation", overflows=0.05, saturated=0)
        cast(lines, i, "b", "activation", underflows=0.1, saturated=0)
    assert order_of(telens, lines.write(tmp_path))[0] == ("b", "activation")


def test_the_first_that_was_not_finite_comes_first(telens, lines, tmp_path):
    for i in range(10):
        for layer, tensor, first, count in (
            ("a", "gradient", 6, 1000),
            ("a", "output", 5, 1),
            ("b", "activation", 5, 1000),
            ("c", "weight", 7, 1000),
        ):
            lines.record(i, layer, tensor, "nonfinite", count if i >= first else 0)
            lines.record(i, layer, tensor, "cur_amax", "nan" if i >= first else 1)
    run = lines.write(tmp_path)
    expected = [("a", "output"), ("b", "activation"), ("a", "gradient"), ("c", "weight")]
    assert order_of(telens, run, "--stat", "nonfinite") == expected
    assert order_of(telens, run, "--stat", "cur_amax") == expected
    assert order_of(telens, run) == expected
    assert "first non-finite: iteration 5, a output" in telens("info", run).stdout


def test_whatif_ranks_by_error(telens, one_rank):
    # 20 % of the activation vanish with current scaling without a large error: 2^-17 beside 4. The
    # output has no such error.
    rows = rows_of(telens("whatif", one_rank, "--format", "csv"))
    known = [float(row["SQNR dB"]) for row in rows if row["SQNR dB"]]
    assert known == sorted(known)


# ---------------------------------------------------------------------- info


def sentences(telens, run):
    return telens("info", run).stdout


def test_healthy_run_raises_no_alarm(telens, lines, tmp_path, healthy):
    text = sentences(telens, healthy)
    assert "no NaN, Inf or overflow recorded" in text
    assert "warm-up ignored: iteration 0 of 4 layers (no amax history yet)" in text
    assert "largest loss" not in text


def test_info_agrees_with_stats(telens, lines, tmp_path):
    for i in range(45):
        cast(lines, i, "a", "gradient", overflows=0.09 if i in (3, 4, 5) else 0)
        lines.record(i, "a", "gradient", "nonfinite", 0)
    text = sentences(telens, lines.write(tmp_path))
    assert "no overflow" not in text
    assert "overflows: most in a gradient: up to 0.09 %, in 3 of 45 iterations" in text


def test_rounded_overflows_are_reported_without_alarm(telens, lines, tmp_path):
    # Current scaling: a rounded scale can put the amax slightly above the range without clipping
    # it.
    for i in range(10):
        cast(lines, i, "a", "weight", overflows=0.02, saturated=0)
        cast(lines, i, "a", "gradient", overflows=0.3 if i == 4 else 0, saturated=0)
        lines.record(i, "a", "gradient", "nonfinite", 0)
    text = sentences(telens, lines.write(tmp_path))
    assert "no overflow" not in text
    assert (
        "no NaN, Inf or clipping recorded (up to 0.3 % of a gradient rounded to the largest value)"
    ) in text


@pytest.mark.parametrize("odd", [0, 1])
def test_overflow_on_one_rank_ignores_order(telens, tmp_path, odd):
    for rank in range(2):
        lines = Lines()
        cast(lines, 7, "a", "gradient", overflows=0.2 if rank == odd else 0)
        lines.record(7, "a", "gradient", "nonfinite", 0)
        lines.write(tmp_path, rank)
    assert "most in a gradient: up to 0.2 %, in 1 of 1 iterations" in sentences(telens, tmp_path)


def test_unmeasured_is_not_called_fine(telens, lines, tmp_path):
    lines.record(0, "a", "weight", "l2_norm", 1)
    run = lines.write(tmp_path / "neither")
    assert "NaN, Inf and overflows not measured" in sentences(telens, run)
    lines.record(0, "a", "weight", "nonfinite", 0)
    run = lines.write(tmp_path / "one")
    assert "no NaN or Inf recorded; overflows not measured" in sentences(telens, run)


def test_nan_loss_is_shown_without_sign(telens, lines, tmp_path):
    lines.record(0, "a", "weight", "l2_norm", 1)
    lines.scalar(0, "loss", "-nan")
    text = sentences(telens, lines.write(tmp_path))
    assert "nan at iteration 0" in text
    assert "-nan" not in text


def test_a_warning_names_its_layer(telens, lines, tmp_path):
    lines.record(0, "layers.7.fc1", "weight", "l2_norm", 1)
    lines.event(0, "warning", "it runs unquantized here", "layers.7.fc1")
    text = sentences(telens, lines.write(tmp_path))
    assert re.search(r"^warning +iteration 0: layers.7.fc1: it runs unquantized", text, re.M)


def test_persistent_loss_is_reported(telens, lines, tmp_path):
    for i in range(50):
        cast(lines, i, "a", "gradient", underflows=96 if i >= 5 else 0)
    text = sentences(telens, lines.write(tmp_path))
    assert (
        "largest loss: a gradient: 86.4 % of its elements underflow on average, in 45 of 50" in text
    )


# ---------------------------------------------------------------------- plot


def test_warm_up_sets_no_axis_and_is_marked(telens, healthy, tmp_path):
    chosen = ("plot", healthy, "--stat", "underflows%")
    text = telens(*chosen).stdout
    assert "@ = 100" in text  # the map's; the line's highest value is that of its axis
    assert re.search(r"^ +0\.4 ", text, re.MULTILINE)
    assert "w = warm-up" in text
    assert re.search(r"^ +warm-up +w", text, re.MULTILINE)
    rows = [line for line in text.splitlines() if line.startswith("layers.")]
    assert all(row.split()[1].startswith("w") for row in rows)
    out = tmp_path / "plot.html"
    assert telens(*chosen, "--out", out).returncode == 0
    charts = charts_of(out.read_text())
    for title in ("underflows%: the worst tensors", "underflows% of each layer's worst tensor"):
        chart = charts[title]
        assert chart["highest"].split(",")[0] == ("100" if chart["kind"] == "map" else "0.4")
        first = [(row["values"][0], row["places"][0]) for row in chart["rows"]]
        assert (96, None) in first  # a value without a place: marked, and on no axis


def test_rounded_overflows_are_not_drawn(telens, lines, tmp_path):
    for i in range(10):
        cast(lines, i, "a", "weight", overflows=1.3, saturated=0)
        cast(lines, i, "b", "weight", underflows=0.02, overflows=2 if i == 4 else 0,
             saturated=5 if i == 4 else 0)  # fmt: skip
        lines.record(i, "a", "weight", "nonfinite", 0)
    out = tmp_path / "page.html"
    assert telens("report", lines.write(tmp_path / "run"), "--out", out).returncode == 0
    charts = charts_of(out.read_text())
    rounded, clipped = charts["overflows% of each layer's worst tensor"]["rows"]
    assert (rounded["label"], set(rounded["values"])) == ("a", {0})
    assert clipped["values"] == [2 if i == 4 else 0 for i in range(10)]
    # The colors have the same scale in all runs: 0.02 % is pale, though nothing underflows more
    # here.
    underflows = charts["underflows% of each layer's worst tensor"]
    assert (underflows["lowest"], underflows["highest"]) == ("0", "100, log above 0.1")
    assert max(place for row in underflows["rows"] for place in row["places"]) < 1000


def test_loss_is_drawn_without_records(telens, lines, tmp_path):
    lines.record(10, "a", "weight", "l2_norm", 1)
    for i in range(40):
        lines.scalar(i, "loss", 40 - i)
    text = telens("plot", lines.write(tmp_path)).stdout
    loss = text.split("\nl2_norm")[0]
    assert re.search(r"iteration 0 +39$", loss, re.MULTILINE)
    assert re.search(r"^ +40 ", loss, re.MULTILINE)


def test_loss_as_statistic_is_explained(telens, lines, tmp_path):
    lines.record(3, "a", "weight", "l2_norm", 1)
    lines.scalar(3, "loss", 2.5)
    run = lines.write(tmp_path)
    told = telens("plot", run, "--stat", "loss").stderr
    assert "'loss' is a scalar that the program logged, not a statistic of a tensor" in told
    assert "this run has no statistic 'los'" in telens("plot", run, "--stat", "los").stderr


def test_single_iteration_chart_is_not_empty(telens, lines, tmp_path):
    for layer in "ab":
        lines.record(3, layer, "weight", "l2_norm", 1 + ord(layer))
    lines.scalar(3, "loss", 2.5)
    run = lines.write(tmp_path)
    text = telens("plot", run).stdout
    drawn = [line for line in text.splitlines() if any("⠁" <= c <= "⣿" for c in line)]
    assert len(drawn) == 2
    assert all(sum("⠁" <= c <= "⣿" for c in line) >= 20 for line in drawn)
    out = tmp_path / "plot.html"
    telens("plot", run, "--out", out)
    charts = charts_of(out.read_text())
    assert [len(chart["rows"]) for chart in charts.values()] == [1, 2, 2]
    for chart in charts.values():
        assert all(
            len(row["places"]) == 1 and row["places"][0] is not None for row in chart["rows"]
        )


def test_json_of_stats_is_ranked_alike(telens, healthy):
    rows = json.loads(telens("stats", healthy, "--tensor", "gradient", "--format", "json").stdout)
    assert [row["layer"] for row in rows] == LAYERS_WORST_FIRST


@pytest.mark.parametrize("warm_up", [False, True])
@pytest.mark.parametrize("skipped", [True, False])
def test_loss_scaler_search_is_ignored(telens, lines, tmp_path, skipped, warm_up):
    if warm_up:
        lines.warm_up(0, "fc1")
    for step in range(8):
        bad = step < 2
        steps_taken = max(0, step - 2) if skipped else step
        lines.record(step, "fc1", "weight", "l2_norm", 3 + 0.1 * steps_taken)
        lines.record(step, "fc1", "activation", "nonfinite", 0)
        lines.record(step, "fc1", "wgrad", "nonfinite", 5 if bad else 0)
    told = telens("info", lines.write(tmp_path)).stdout
    steps = "1 step, which was" if warm_up else "2 steps, which were"
    assert (f"loss scaling: infinite gradients in {steps} skipped" in told) == skipped
    assert ("first non-finite: iteration 0, fc1 wgrad" in told) != skipped
