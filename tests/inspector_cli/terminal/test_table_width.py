"""Tables fit the width of a terminal and keep every layer's number; in a pipe they are complete."""

import csv
import io
import json
import re

import pytest
from command_results import expect_one_line_error, rows_of
from example_config import CONFIG
from page_data import charts_of
from pseudo_terminal import on_terminal
from subcommands import command_lines, fill

NAMES = [
    f"model.model.layers.{number}.{part}.linear"
    for number in (0, 1, 9, 10, 11)
    for part in ("self_attention.query_key_value", "feed_forward.up_projection")
]


FELL_BACK = {
    "activation requested": "E4M3 under tensor scaling",
    "activation ran": "BF16",
    "activation fallback": "DisableFP8GEMM of section which_layers_stay_in_high_precision",
    "kernel": "a BF16 product of oneDNN",
    "kernel cause": "this processor has no FP8 product",
    "padding": "3 rows of zeros added",
}


@pytest.fixture
def run(lines, tmp_path):
    for i, name in enumerate(NAMES):
        for statistic in ("underflows%", "overflows%", "mse", "cur_amax"):
            lines.record(i, name, "activation", statistic, i * 1e-3, "fprop")
        lines.record(i, name, "activation", "nonfinite", 0, "fprop")
        lines.ledger(i, name, "fprop", i, FELL_BACK)
        lines.histogram(i, name, "activation", "code_histogram_bf16", {0x3F80: 8})
        lines.block(i, name, "activation", "block_dynamic_range", (1234, 56), 1.25e-3)
    return lines.write(tmp_path)


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "debug.yaml"
    path.write_text(CONFIG.replace("layer_types: [fc1, qkv]", "layer_types: [all]"))
    return path


@pytest.mark.parametrize("columns", [80, 120, 200])
@pytest.mark.parametrize("command", command_lines("width"))
def test_no_line_is_wider_than_the_terminal(run, config, command, columns):
    text = on_terminal(columns, *fill(command, run=run, config=config))
    wide = [line for line in text.splitlines() if len(line) > columns]
    if command.startswith("plan"):  # its summary is a sentence
        wide = [line for line in wide if "records" not in line]
    if command.startswith("diagnose"):  # a command to be copied
        wide = [line for line in wide if not re.match(r" *(next +)?telens ", line)]
    assert wide == []


@pytest.mark.parametrize(
    "line",
    ["stats {run}", "stats {run} --stat underflows%", "ledger {run}", "blocks {run}", "plot {run}"],
)
def test_layer_names_keep_numbers_and_lose_the_common_part(run, line):
    text = on_terminal(80, *fill(line, run=run))
    assert "layers are named model.model.layers.<...>.linear\n" in text
    table = text.split("<...>")[1]
    assert "model.model" not in table
    body = text.split(".linear\n")[-1]
    for number in (0, 1, 9, 10, 11):
        assert len(re.findall(rf"^(?:block_)? *{number}\.[a-z]", body, re.MULTILINE)) == 2


def test_constant_columns_are_printed_once(telens, lines, tmp_path):
    ran = "E4M3 under tensor scaling"
    for i, name in enumerate(NAMES):
        entries = {"kernel": "BF16 GEMM of decoded operands"}
        for tensor in ("activation", "weight"):
            entries |= {f"{tensor} requested": ran, f"{tensor} ran": ran}
            entries[f"{tensor} cause"] = "the recipe wants it so"
        lines.ledger(0, name, "fprop", i, entries)
    run = lines.write(tmp_path)
    text = on_terminal(80, "ledger", run)
    told, table = text.split("layer ", 1)
    assert " ".join(told.split("\n", 1)[1].split()) == (
        "same in all rows: ran: activation E4M3, weight E4M3, tensor scaling; "
        "kernel: FP8, emulated on this CPU"
    )
    heading, *rows = table.splitlines()
    assert heading.split() == ["gemm", "from", "why"]
    assert len(rows) == len(NAMES)
    assert re.fullmatch(r"0\.self_attention\S+ +fprop +0  as the recipe specifies", rows[0])
    assert "same in all rows" not in telens("ledger", run).stdout


def test_two_rows_keep_constant_columns(lines, tmp_path):
    for name in NAMES[:2]:
        lines.record(0, name, "activation", "l2_norm", 1)
    assert "same in all rows" not in on_terminal(
        40, "stats", lines.write(tmp_path), "--stat", "l2_norm"
    )


def test_long_names_are_cut_in_the_middle(telens, lines, tmp_path):
    names = ["x" * 200 + ".0", "y" * 70 + "end", ".".join(["part"] * 48) + ".7", "ü" * 100]
    for name in names:
        lines.record(0, name, "activation", "l2_norm", 1)
    run = lines.write(tmp_path)
    text = on_terminal(80, "stats", run, "--stat", "l2_norm")
    assert max(map(len, text.splitlines())) <= 80
    assert len(text.splitlines()) < 14
    assert re.search(r"^x{10,}~x{10,}", text, re.MULTILINE)
    assert re.search(r"^y{10,}~y{10,}end ", text, re.MULTILINE)
    assert re.search(r"^ü{10,}~ü{10,} ", text, re.MULTILINE)
    assert "part.7" in text
    assert "\n~ marks shortened names; --format csv prints them in full\n" in text
    for whole in (
        {
            row["layer"]
            for row in rows_of(telens("stats", run, "--stat", "l2_norm", "--format", "csv"))
        },
        {
            row["layer"]
            for row in json.loads(
                telens("stats", run, "--stat", "l2_norm", "--format", "json").stdout
            )
        },
    ):
        assert whole == set(names)
    one = lines.__class__()
    for tensor in ("activation", "weight", "gradient"):
        one.record(0, names[0], tensor, "l2_norm", 1)
    text = on_terminal(60, "stats", one.write(tmp_path / "one"), "--stat", "l2_norm")
    assert max(map(len, text.splitlines())) <= 80


def test_common_layer_number_is_kept(lines, tmp_path):
    for part in ("q", "k"):
        lines.record(0, f"a.very.long.prefix.of.model.layers.7.{part}", "weight", "l2_norm", 1)
    text = on_terminal(40, "stats", lines.write(tmp_path), "--stat", "l2_norm")
    assert "layers are named a.very.long.prefix.of.model.layers.<...>\n" in text
    assert re.search(r"^7\.q", text, re.MULTILINE)


def test_empty_columns_are_hidden(run):
    text = on_terminal(200, "stats", run, "--layer", "10")
    heading = next(line for line in text.splitlines() if line.startswith("layer "))
    assert "recipe" not in heading
    assert "gemm" in heading
    assert "hidden columns" not in text
    assert "gemm" not in on_terminal(200, "features")


def test_hidden_columns_are_reported(run):
    text = on_terminal(40, "stats", run)
    assert re.search(r"^hidden columns \(terminal too narrow\): amax, mse/amax", text, re.MULTILINE)
    assert "underflows%" in text
    assert "hidden columns" not in on_terminal(60, "stats", run)


def test_pipe_gets_the_whole_table(telens, run):
    text = telens("stats", run).stdout
    heading, *rows = text.splitlines()
    assert heading.split() == [
        *("layer", "tensor", "gemm", "nonfinite", "first", "overflows%", "underflows%"),
        *("mse/amax^2", "amax", "iterations"),
    ]
    assert {row.split()[0] for row in rows} == set(NAMES)


def test_rows_sort_by_any_column(telens, run):
    def column(name, *arguments):
        result = telens("stats", run, "--format", "csv", *arguments)
        return [row[name] for row in rows_of(result)]

    amaxes = column("amax", "--sort", "amax")
    assert amaxes == sorted(amaxes, key=float, reverse=True)
    assert column("amax", "--sort", "amax", "--reverse") == amaxes[::-1]
    assert column("amax", "--sort", "amax", "--top", 2) == amaxes[:2]
    layers = [name.split(".")[3] for name in column("layer", "--sort", "layer")]
    assert layers == ["0", "0", "1", "1", "9", "9", "10", "10", "11", "11"]
    result = telens("stats", run, "--sort", "underflow")
    expect_one_line_error(result, "no column 'underflow'", "did you mean 'underflows%'")


def test_empty_cells_sort_last(telens, log_dir):
    rows = rows_of(telens("stats", log_dir, "--sort", "overflows%", "--format", "csv"))
    cells = [row["overflows%"] for row in rows]
    assert cells == ["0.25", "0", "0", "0", "", "", "", ""]


@pytest.mark.parametrize("name", ["stats", "blocks", "whatif", "plan", "features"])
def test_every_table_can_be_sorted(telens, log_dir, one_rank, run, config, name):
    arguments = {
        "stats": [log_dir],
        "blocks": [log_dir],
        "whatif": [one_rank],
        "features": [],
        "plan": [config, "--layers", run],
    }[name]
    column = "feature" if name in ("plan", "features") else "layer"
    text = telens(name, *arguments, "--sort", column, "--format", "json").stdout
    rows = json.loads(text)
    rows = rows["plan"] if name == "plan" else rows
    cells = [row[column] for row in rows]
    assert cells == sorted(cells)
    csv_text = telens(name, *arguments, "--sort", column, "--format", "csv").stdout
    assert [row[column] for row in csv.DictReader(io.StringIO(csv_text))] == cells


@pytest.mark.parametrize("longest", [20, 46])
def test_legend_keeps_layer_numbers(telens, lines, tmp_path, longest):
    names = ["embedding.of.positions", *NAMES]  # nothing in common
    for name in names:
        lines.record(0, name, "activation", "l2_norm", 1.0)
        lines.record(1, name, "activation", "l2_norm", 2.0)
    run = lines.write(tmp_path)
    out = tmp_path / "plot.html"
    telens("plot", run, "--out", out)
    rows = [row for chart in charts_of(out.read_text()).values() for row in chart["rows"]]
    labels = [row[f"label{longest}"] for row in rows]
    assert any(re.search(r"l[a-z]*~?\.10\.", label) for label in labels)
    assert all(len(label) <= 50 for label in labels)
