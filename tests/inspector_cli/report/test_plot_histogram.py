"""telens plot --histogram: the distribution of magnitudes in tensors."""

import re

import pytest
from command_results import expect_one_line_error
from page_data import Page, charts_of, tick_labels


@pytest.fixture
def plot(telens, tmp_path):
    def draw(log_dir, *arguments, suffix=""):
        out = tmp_path / f"run{suffix}"
        result = telens(
            *("plot", log_dir, "--histogram", *arguments), *(["--out", out] if suffix else [])
        )
        assert result.returncode == 0, result.stderr
        return out.read_text() if suffix else result.stdout

    return draw


def rows_of(text):
    """Returns the bars of one iteration as {label: percentage}."""
    rows = re.findall(r"^ *(NaN|Inf|zero|2\^-?\d+) +(\S+)( #*)?$", text, re.MULTILINE)
    return {label: float(percent) for label, percent, _ in rows}


def percentages_of(chart):
    """Returns the bars of a page as {label: percentage}."""
    return {row["label"]: row["values"][0] for row in chart["rows"]}


def test_one_iteration_is_drawn_as_bars(plot, one_rank):
    text = plot(one_rank, "--tensor", "activation", "--iterations", "0")
    assert "layers.0.fc1 activation, iteration 0, 25 elements\n" in text
    rows = rows_of(text)
    # Every exponent between the largest and the smallest has its row.
    assert list(rows) == [f"2^{e}" for e in range(2, -18, -1)] + ["zero"]
    assert {label: percent for label, percent in rows.items() if percent > 0} == {
        "2^2": 4, "2^0": 36, "2^-17": 20, "zero": 40
    }  # fmt: skip
    bars = {line.split()[0]: line.count("#") for line in text.splitlines() if "#" in line}
    assert bars["2^2"] < bars["2^-17"] < bars["2^0"] < bars["zero"]


def test_several_iterations_are_drawn_as_a_map(plot, one_rank):
    text = plot(one_rank, "--tensor", "activation")
    rows = dict(re.findall(r"^ *(\S+) (.{40})$", text, re.MULTILINE))
    assert rows["2^4"][0] == rows["2^4"][19] == "."  # none in iteration 0
    assert rows["2^4"][20] == rows["2^4"][39] == "#"  # 4 % in iteration 1
    assert rows["zero"] == "@" * 20 + "." * 20
    assert rows["2^-9"] == "." * 40
    assert re.search(r"iteration 0 +1\n", text)


def test_a_histogram_of_exponents_counts_negative_values_too(plot, one_rank):
    charts = charts_of(plot(one_rank, "--tensor", "gradient", suffix=".html"))
    percentages = percentages_of(charts["layers.0.fc1 gradient, iteration 1, 20 elements"])
    assert len([label for label in percentages if label.startswith("2^")]) == 41
    assert {label: percent for label, percent in percentages.items() if percent > 0} == {
        "2^0": 75, "2^-33": 15, "2^-40": 10
    }  # fmt: skip


def test_ranks_are_added_up(plot, two_ranks):
    arguments = ["--tensor", "activation", "--iterations", "0"]
    rows = rows_of(plot(two_ranks, *arguments))
    assert (rows["2^3"], rows["2^0"], rows["zero"]) == (50, 18, 20)
    assert "2^3" not in rows_of(plot(two_ranks, *arguments, "--rank", 0))


def test_very_many_exponents_share_rows_on_the_terminal(plot, one_rank):
    text = plot(one_rank, "--tensor", "gradient")
    labels = re.findall(r"^ *(2\^\S+ \.\. 2\^\S+|2\^\S+|zero) ", text, re.MULTILINE)
    assert len(labels) <= 40
    assert labels[0] == "2^-1 .. 2^0"


def test_a_page_has_a_map_for_each_tensor(plot, one_rank):
    page = plot(one_rank, suffix=".html")
    charts = charts_of(page)
    assert list(charts) == [
        "layers.0.fc1 activation", "layers.0.fc1 output", "layers.0.fc1 gradient"
    ]  # fmt: skip
    activation = charts["layers.0.fc1 activation"]
    assert (activation["kind"], activation["unit"]) == ("map", " %")
    assert {"2^4", "2^-17", "zero"} <= {row["label"] for row in activation["rows"]}
    assert activation["highest"] == "100, log above 0.0001"
    assert "percentage of the elements" in Page(page).data["subtitle"]


def test_single_iteration_page_has_labeled_bars(plot, one_rank):
    page = plot(one_rank, "--tensor", "activation", "--iterations", "0", suffix=".html")
    chart = charts_of(page)["layers.0.fc1 activation, iteration 0, 25 elements"]
    assert chart["kind"] == "bars"
    assert percentages_of(chart)["2^0"] == 36
    places = {row["label"]: row["places"][0] for row in chart["rows"]}
    assert places["2^1"] == 0 < places["2^2"] < places["zero"]
    assert {"0", "100"} <= tick_labels(chart)


def test_more_tensors_than_are_drawn_are_counted(telens, one_rank):
    result = telens("plot", one_rank, "--histogram")
    assert "layers.0.fc1 activation" in result.stdout
    assert "layers.0.fc1 output" not in result.stdout
    assert result.stderr.startswith("telens: 1 of 3 tensors with histograms; choose")


def test_missing_histograms_are_reported(telens, log_dir, one_rank):
    expect_one_line_error(telens("plot", log_dir, "--histogram", "--layer", "0"), "no histograms")
    expect_one_line_error(
        telens("plot", one_rank, "--histogram", "--iterations", "7"), "no histogram fits"
    )
    expect_one_line_error(
        telens("plot", one_rank, "--histogram", "--stat", "mse"), "--histogram", "--stat"
    )
