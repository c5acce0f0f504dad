"""Names and texts in a run file are untrusted: text output, CSV and pages escape them."""

import csv
import io
import json
import re
import shutil
import subprocess
import unicodedata

import h5py
import numpy as np
import pytest
from conftest import COMMAND, Lines
from example_config import CONFIG
from page_data import Page
from rewritten_run import without_checksums
from subcommands import command_lines, fill

# Names with a terminal title, a forged line, reversed direction, invalid UTF-8, markup, and
# characters that XML 1.0 does not allow.
HOSTILE = [
    b"=HYPERLINK(1)",
    b"+cmd|' /C calc'!A0",
    b"-2+3\x1b]0;owned\x07",
    b"@SUM(1)\r\nwarning  all is fine",
    "\u202egnp.exe\u2066\u200b\u2028".encode(),
    b"\xff\xfe\xc3(",
    b"</script><b>&'\"",
    "\uffff\ufffe\x0b".encode(),
    b"\x1b[2J\x9b31m",
]


def hostile(number):
    return HOSTILE[number % len(HOSTILE)] + str(number).encode()


def rename(path, *kinds):
    """Renames the entries of these kinds in a run file to hostile names, and adds hostile
    attributes."""
    with h5py.File(path, "r+", libver="latest") as file:
        for kind in kinds:
            names = file["names/" + kind]
            kept = {b"loss", b"warning"} if kind == "word" else set()
            for i, name in enumerate(names[:]):
                if name not in kept:
                    names[i] = hostile(i)
        file["environment"][:1] = (b"torch\n\x1b[1m", b"2\n=1")
        for attribute in ("run_id", "telens_version"):
            file.attrs[attribute] = np.bytes_(b"\x1b[2Jrun\nrecords  none\xff")
        layers = len(file["names/layer"])
        file["names/layer"].resize((layers,))
        without_checksums(file)
    return path


@pytest.fixture(scope="module")
def run(run_file, tmp_path_factory):
    """The run of write_run with hostile names."""
    path = tmp_path_factory.mktemp("hostile") / "rank00000.h5"
    shutil.copy(run_file, path)
    return rename(path, "layer", "gemm", "word")


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory):
    """Runs that differ, with what the run of write_run does not have: a ledger and histograms."""

    def write(amax):
        lines = Lines()
        for i in range(len(HOSTILE)):
            lines.record(0, f"layer{i}", "activation", "cur_amax", amax)
            lines.histogram(0, f"layer{i}", "activation", "code_histogram_bf16", {0x3F80: 8})
            lines.ledger(0, f"layer{i}", "fprop", 0, {"activation requested": "MXFP8"})
        log_dir = lines.write(tmp_path_factory.mktemp("part"))
        return rename(next(log_dir.rglob("rank00000.h5")), "layer")

    return write(1), write(10)


@pytest.fixture(scope="module")
def result_of(run):
    def call(*arguments):
        result = subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, timeout=60)
        judged_badly = arguments[0] in ("diagnose", "diff") and result.returncode == 1
        assert result.returncode == 0 or judged_badly, result.stderr
        return result.stdout, result.stderr

    return call


def is_unseen(character):
    return unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp", "Cs", "Cn")


def expect_printable(output):
    text = output.decode()  # UTF-8
    unseen = {c for c in text if is_unseen(c)} - {"\n"}
    assert unseen == set()
    return text


LINES = command_lines("hostile")


@pytest.mark.parametrize("line", [line for line in LINES if "{run}" in line])
def test_output_is_printable_without_forged_lines(result_of, run, line):
    expect_no_forged_line(result_of(*fill(line, run=run)))


def expect_no_forged_line(outputs):
    for output in outputs:
        text = expect_printable(output)
        assert not re.search(r"^(warning  all is fine|records  none|=1)", text, re.MULTILINE)


@pytest.mark.parametrize("line", [line for line in LINES if "{first}" in line])
def test_hostile_layers_are_printable(result_of, two_runs, line):
    outputs = result_of(*fill(line, first=two_runs[0], second=two_runs[1]))
    assert b"HYPERLINK" in outputs[0]
    expect_no_forged_line(outputs)


@pytest.mark.parametrize("command", ["info", "stats", "plot"])
def test_error_with_hostile_name_is_printable(run, command):
    wrong = {"info": ["--nothing"], "stats": ["--gemm", "x"], "plot": ["--layer", "nothing"]}
    result = subprocess.run([COMMAND, command, run, *wrong[command]], capture_output=True)
    assert result.returncode == 2
    assert expect_printable(result.stderr).count("\n") == 1


@pytest.mark.parametrize("command", ["plan", "bisect"])
@pytest.mark.parametrize("holds", [None, b"", b"fc1\x1b[2J\n", b"fc1\xff\n"])
def test_hostile_layer_list_error_is_printable(tmp_path, command, holds):
    config, layers = tmp_path / "debug.yaml", tmp_path / "names\x1b[31m\nwarning: all is fine"
    config.write_text("s: {enabled: True, layers: {layer_types: all}}\n")
    if holds is not None:
        layers.write_bytes(holds)
    rest = {"plan": [config], "bisect": ["--dir", tmp_path / "search", "--", "false"]}[command]
    result = subprocess.run([COMMAND, command, "--layers", layers, *rest], capture_output=True)
    assert result.returncode == 2
    assert expect_printable(result.stderr).count("\n") == 1


@pytest.mark.parametrize("line", ["stats {run}", "stats {run} --stat cur_amax", "blocks {run}"])
def test_csv_cells_are_never_formulas(result_of, run, line):
    text = expect_printable(result_of(*fill(line, run=run), "--format", "csv")[0])
    rows = list(csv.DictReader(io.StringIO(text)))
    assert any(row["layer"].startswith("'=") for row in rows)
    for row in rows:
        for column, cell in row.items():
            if column in ("layer", "tensor", "gemm", "statistic"):
                assert not cell.startswith(("=", "+", "-", "@"))
            elif cell:
                float(cell)


def test_json_preserves_names(result_of, run):
    text = expect_printable(result_of("stats", run, "--format", "json")[0])
    layers = {row["layer"] for row in json.loads(text)}
    assert layers == {"=HYPERLINK(1)0", "+cmd|' /C calc'!A01", "-2+3\x1b]0;owned\x072",
                      "@SUM(1)\r\nwarning  all is fine3"}  # fmt: skip


def test_hostile_names_are_text_in_pages(run, tmp_path):
    tags, shown = set(), set()
    names = [b"harmless", *HOSTILE, b"<!--<script>", b"]]>&lt;{{data}}"]
    for name in names:
        path = tmp_path / "rank00000.h5"
        shutil.copy(run, path)
        with h5py.File(path, "r+", libver="latest") as file:
            for i in range(len(file["names/layer"])):
                file["names/layer"][i] = name + str(i).encode()
        out = tmp_path / "plot.html"
        subprocess.run([COMMAND, "plot", path, "--out", out], check=True, capture_output=True)
        page = Page(out.read_text(encoding="utf-8"))
        assert all(not is_unseen(c) for c in page.scripts[0])
        tags.add(tuple(page.tags))
        shown.add(page.data["charts"][-1]["rows"][0]["label"])
    assert len(tags) == 1  # the elements of a page with harmless names
    assert len(shown) == len(names)
    assert "</script><b>&'\"0" in shown  # text, as it is


def test_plan_of_hostile_layers_is_printable(run, tmp_path):
    config = tmp_path / "debug.yaml"
    config.write_text(CONFIG.replace("layer_types: [fc1, qkv]", "layer_types: [all]")
                      .replace("    layer_numbers: 0-1\n", ""))  # fmt: skip
    plan = [COMMAND, "plan", config, "--layers", run, "--each-layer"]
    result = subprocess.run(plan, capture_output=True, check=True)
    assert "HYPERLINK" in expect_printable(result.stdout)
    config.write_text(config.read_text() + config.read_text().replace("watch:", "again:"))
    result = subprocess.run(plan, capture_output=True)
    assert result.returncode == 2
    assert "warning  all is fine" not in expect_printable(result.stderr).splitlines()
