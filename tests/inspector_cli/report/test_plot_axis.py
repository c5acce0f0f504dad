"""The axis of `telens plot`: one iteration may be a thousand times as large as all others."""

import itertools
import math
import re
import xml.etree.ElementTree

import pytest
from rewritten_run import rewritten

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def plot(telens, run_file, tmp_path):
    """Draws one layer's cur_amax, value_of(iteration), and returns the text that was written."""

    def draw(value_of, suffix=".svg"):
        run = rewritten(run_file, tmp_path, lambda iteration, *_: value_of(iteration))
        out = tmp_path / f"run{suffix}"
        arguments = ["plot", run, "--layer", "layers.1", "--tensor", "activation"]
        arguments += ["--stat", "cur_amax"]
        result = telens(*arguments, *(["--out", out] if suffix else []))
        assert result.returncode == 0, result.stderr
        return out.read_text() if suffix else result.stdout

    return draw


def line_of(svg):
    """The heights of the line of cur_amax, in pixels from the top, and the labels of its axis."""
    charts = xml.etree.ElementTree.fromstring(svg).findall(SVG + "g")
    (chart,) = [
        chart
        for chart in charts
        if "".join(chart.find(SVG + "text").itertext()).startswith("cur_amax: ")
    ]
    points = chart.find(SVG + "polyline").get("points").split()
    labels = [text for text in chart.findall(SVG + "text") if text.get("text-anchor") == "end"]
    return [float(point.split(",")[1]) for point in points], {text.text for text in labels}


def first_dwarfs(others):
    return lambda iteration: 1000.0 if iteration == 0 else others(iteration)


def test_values_of_like_size_have_a_linear_axis(plot):
    svg = plot(lambda iteration: 1.0 + iteration)
    assert "logarithmic" not in svg
    heights, labels = line_of(svg)
    steps = [a - b for a, b in itertools.pairwise(heights)]
    assert min(steps) == pytest.approx(max(steps), abs=0.15)
    assert {"10", "20", "30", "40"} <= labels


def test_positive_values_under_one_that_dwarfs_them_have_a_logarithmic_axis(plot):
    svg = plot(first_dwarfs(lambda iteration: 1.0 + iteration % 2))
    assert re.search(r"cur_amax: the worst tensors<tspan[^>]*>logarithmic<", svg)
    heights, labels = line_of(svg)
    # A linear axis would give the step from 1 to 2 a thousandth of the height.
    decade = (heights[2] - heights[0]) / 3
    assert heights[2] - heights[1] == pytest.approx(decade * math.log10(2), abs=0.2)
    assert labels >= {"1", "10", "100", "1000"}


def test_zeros_among_them_have_an_axis_that_is_linear_near_zero(plot):
    svg = plot(first_dwarfs(lambda iteration: [0.0, 0.02, 0.5][iteration % 3]))
    assert ">linear up to 0.01, logarithmic above<" in svg  # the line's
    assert "1000, log above 0.01<" in svg  # the heat map's
    heights, labels = line_of(svg)
    zero, small, larger = heights[3], heights[1], heights[2]
    assert zero - small > 25
    assert small - larger > 25
    assert labels >= {"0", "0.01", "1", "1000"} or labels >= {"0", "0.01", "0.1", "1"}


def test_negative_values_have_it_on_both_sides_of_zero(plot):
    svg = plot(first_dwarfs(lambda iteration: (-1.0) ** iteration * 0.05))
    assert ">linear within ±0.01, logarithmic beyond<" in svg
    heights, labels = line_of(svg)
    middle = (heights[1] + heights[2]) / 2
    assert heights[1] - middle > 10  # -0.05, and one decade more than the linear part
    assert "0" in labels


def test_the_terminal_and_the_page_have_the_same_axis_and_say_so(plot):
    values = first_dwarfs(lambda iteration: [0.0, 0.02, 0.5][iteration % 3])
    text = plot(values, "")
    assert "cur_amax of layers.1.fc1 activation (linear up to 0.01, logarithmic above)\n" in text
    assert "@ = 1000 (linear up to 0.01, logarithmic above)" in text
    page = plot(values, ".html")
    assert "<small>linear up to 0.01, logarithmic above</small>" in page
    assert re.search(r"\[0\.0000, '0'\],\[0\.\d+, '0.01'\]", page)


def test_one_value_among_zeros_needs_no_other_axis(plot):
    svg = plot(lambda iteration: 5.0 if iteration == 7 else 0.0)
    assert "logarithmic" not in svg


@pytest.mark.parametrize("value", [4.0, -4.0, 0.0])
def test_a_constant_is_drawn_against_zero(plot, value):
    svg = plot(lambda _: value)
    heights, labels = line_of(svg)
    assert len(set(heights)) == 1
    assert "0" in labels
    expected = {4.0: "4", -4.0: "-4", 0.0: "0"}[value]
    assert expected in labels


def test_the_axis_of_iterations_has_round_numbers(telens, write_run, tmp_path):
    out = tmp_path / "run.svg"
    assert telens("plot", write_run(iterations=299), "--out", out).returncode == 0
    ticks = re.findall(r'text-anchor="middle"\s*>(\d+)<', out.read_text())
    assert ticks[:7] == ["0", "50", "100", "150", "200", "250", "0"]


def test_values_that_differ_by_rounding_alone_are_drawn_as_a_constant(plot):
    below_one = math.nextafter(1.0, 0.0)
    svg = plot(lambda iteration: 1.0 if iteration % 2 else below_one)
    heights, labels = line_of(svg)
    assert max(heights) - min(heights) < 0.1
    assert labels


@pytest.mark.parametrize("suffix", [".svg", ""])
def test_the_largest_doubles_of_both_signs_have_an_axis(plot, suffix):
    text = plot(lambda iteration: 1.7e308 if iteration % 2 else -1.7e308, suffix)
    assert not re.search(r"\b-?nan\b", text)
    assert ">1e+308<" in text if suffix else "@ = 1.7e+308" in text
