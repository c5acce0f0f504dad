"""The axis of `telens plot` if the value of one iteration is a thousand times the others."""

import itertools
import math
import re

import pytest
from page_data import Page, charts_of, tick_labels
from rewritten_run import rewritten

HIGHEST = 10000  # the largest height that page.html has


@pytest.fixture
def plot(telens, run_file, tmp_path):
    """Plots cur_amax of one layer, value_of(iteration), and returns the text."""

    def draw(value_of, suffix=".html"):
        run = rewritten(run_file, tmp_path, lambda iteration, *_: value_of(iteration))
        out = tmp_path / f"run{suffix}"
        arguments = ["plot", run, "--layer", "layers.1", "--tensor", "activation"]
        arguments += ["--stat", "cur_amax"]
        result = telens(*arguments, *(["--out", out] if suffix else []))
        assert result.returncode == 0, result.stderr
        return out.read_text() if suffix else result.stdout

    return draw


def line_of(page):
    """Returns the heights of the line of cur_amax, 0 to HIGHEST, and the labels of the axis."""
    chart = charts_of(page)["cur_amax: the worst tensors"]
    return [place for place in chart["rows"][0]["places"] if place is not None], tick_labels(chart)


def first_dwarfs(others):
    return lambda iteration: 1000.0 if iteration == 0 else others(iteration)


def test_values_of_like_size_have_a_linear_axis(plot):
    page = plot(lambda iteration: 1.0 + iteration)
    assert charts_of(page)["cur_amax: the worst tensors"]["note"] == ""
    heights, labels = line_of(page)
    steps = [b - a for a, b in itertools.pairwise(heights)]
    assert min(steps) == pytest.approx(max(steps), abs=1)  # heights are rounded
    assert {"10", "20", "30", "40"} <= labels


def test_dwarfed_positive_values_use_log_axis(plot):
    page = plot(first_dwarfs(lambda iteration: 1.0 + iteration % 2))
    assert charts_of(page)["cur_amax: the worst tensors"]["note"] == "logarithmic"
    heights, labels = line_of(page)
    # On a linear axis, the step from 1 to 2 would be a thousandth of the height.
    decade = (heights[0] - heights[2]) / 3
    assert heights[1] - heights[2] == pytest.approx(decade * math.log10(2), abs=1)
    assert labels >= {"1", "10", "100", "1000"}


def test_dwarfed_values_with_zeros_use_symlog_axis(plot):
    page = plot(first_dwarfs(lambda iteration: [0.0, 0.02, 0.5][iteration % 3]))
    charts = charts_of(page)
    note = charts["cur_amax: the worst tensors"]["note"]
    assert note == "linear up to 0.01, logarithmic above"
    heat_map = charts["cur_amax of each layer's worst tensor"]
    assert (heat_map["lowest"], heat_map["highest"]) == ("0", "1000, log above 0.01")
    heights, labels = line_of(page)
    zero, small, larger = heights[3], heights[1], heights[2]
    assert small - zero > HIGHEST / 6
    assert larger - small > HIGHEST / 6
    assert labels >= {"0", "0.01", "1", "1000"} or labels >= {"0", "0.01", "0.1", "1"}


def test_negative_values_have_it_on_both_sides_of_zero(plot):
    page = plot(first_dwarfs(lambda iteration: (-1.0) ** iteration * 0.05))
    note = charts_of(page)["cur_amax: the worst tensors"]["note"]
    assert note == "linear within ±0.01, logarithmic beyond"
    heights, labels = line_of(page)
    middle = (heights[1] + heights[2]) / 2
    # -0.05 is within the linear part, and there is one more decade
    assert middle - heights[1] > HIGHEST / 15
    assert "0" in labels


def test_terminal_and_page_use_the_same_axis(plot):
    values = first_dwarfs(lambda iteration: [0.0, 0.02, 0.5][iteration % 3])
    text = plot(values, "")
    assert "cur_amax of layers.1.fc1 activation (linear up to 0.01, logarithmic above)\n" in text
    assert "@ = 1000 (linear up to 0.01, logarithmic above)" in text
    chart = charts_of(plot(values))["cur_amax: the worst tensors"]
    assert chart["note"] == "linear up to 0.01, logarithmic above"
    (zero, zero_label), (place, label) = chart["ticks"][:2]
    assert (zero, zero_label, label) == (0, "0", "0.01")
    assert 0 < place < HIGHEST / 2


def test_one_value_among_zeros_needs_no_other_axis(plot):
    page = plot(lambda iteration: 5.0 if iteration == 7 else 0.0)
    notes = {chart["kind"]: chart["note"] for chart in charts_of(page).values()}
    assert notes == {"lines": "", "map": "colors span this run's values"}


@pytest.mark.parametrize("value", [4.0, -4.0, 0.0])
def test_a_constant_is_drawn_against_zero(plot, value):
    page = plot(lambda _: value)
    heights, labels = line_of(page)
    assert len(set(heights)) == 1
    assert "0" in labels
    expected = {4.0: "4", -4.0: "-4", 0.0: "0"}[value]
    assert expected in labels


def test_the_axis_of_iterations_has_round_numbers(telens, write_run, tmp_path):
    out = tmp_path / "run.html"
    assert telens("plot", write_run(iterations=299), "--out", out).returncode == 0
    ticks = Page(out.read_text()).data["iterationTicks"]
    assert [iteration for _, iteration in ticks] == [0, 50, 100, 150, 200, 250]


def test_rounding_noise_is_drawn_as_a_constant(plot):
    below_one = math.nextafter(1.0, 0.0)
    page = plot(lambda iteration: 1.0 if iteration % 2 else below_one)
    heights, labels = line_of(page)
    assert max(heights) - min(heights) <= 1
    assert labels


@pytest.mark.parametrize("suffix", [".html", ""])
def test_axis_of_largest_doubles_is_finite(plot, suffix):
    text = plot(lambda iteration: 1.7e308 if iteration % 2 else -1.7e308, suffix)
    if not suffix:
        assert not re.search(r"\b-?nan\b", text)
        assert "@ = 1.7e+308" in text
        return
    heights, labels = line_of(text)
    assert set(heights) == {0, HIGHEST}
    assert {"1e+308", "-1e+308"} <= labels
