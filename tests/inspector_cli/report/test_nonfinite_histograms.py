"""Non-finite values in runs that recorded histograms and no other statistic."""

import json

import pytest
from conftest import Lines

# Bins of an exponent histogram (docs/run_file.md), and BF16 codes.
NAN, MINUS_INF, ZEROS, PLUS_INF = 0, 1, 257, 513
CODE_OF_NAN, CODE_OF_INF, CODE_OF_1 = 0x7FC0, 0xFF80, 0x3F80
STEPS = 20
BAD_FROM = 12
KINDS = {
    "exponent_histogram_fp32": ({ZEROS: 60}, {NAN: 2, MINUS_INF: 1, PLUS_INF: 1, ZEROS: 56}),
    "code_histogram_bf16": ({CODE_OF_1: 60}, {CODE_OF_NAN: 1, CODE_OF_INF: 3, CODE_OF_1: 56}),
}


def training(log_dir, kind, bad_from=BAD_FROM):
    lines = Lines()
    healthy, bad = KINDS[kind]
    for step in range(STEPS):
        for layer in ("layers.0.fc1", "layers.1.fc1"):
            is_bad = step >= bad_from + (layer == "layers.0.fc1")
            lines.histogram(step, layer, "activation", kind, bad if is_bad else healthy)
    return lines.write(log_dir)


@pytest.mark.parametrize("kind", KINDS)
def test_info_names_the_first_tensor(telens, tmp_path, kind):
    text = telens("info", training(tmp_path, kind)).stdout
    assert "first non-finite: iteration 12, layers.1.fc1 activation: 4 elements\n" in text


@pytest.mark.parametrize("kind", KINDS)
def test_diagnose_finds_the_first_tensor(telens, tmp_path, kind):
    result = telens("diagnose", training(tmp_path, kind), "--format", "json")
    assert result.returncode == 1, result.stderr
    (finding,) = json.loads(result.stdout)["findings"]
    assert (finding["cause"], finding["layer"], finding["first_iteration"]) == (
        "nonfinite", "layers.1.fc1", BAD_FROM,
    )  # fmt: skip
    assert finding["summary"].startswith("4 elements are not finite")


@pytest.mark.parametrize("kind", KINDS)
def test_a_healthy_run_was_looked_at(telens, tmp_path, kind):
    run = training(tmp_path, kind, bad_from=STEPS + 1)
    assert "no NaN or Inf recorded" in telens("info", run).stdout
    result = telens("diagnose", run)
    assert result.returncode == 0
    assert "no problems found" in result.stdout


def test_histogram_and_count_agree(telens, tmp_path):
    lines = Lines()
    for step in range(STEPS):
        count = 4 if step >= BAD_FROM else 0
        lines.record(step, "fc1", "activation", "nonfinite", count)
        lines.histogram(
            step, "fc1", "activation", "exponent_histogram_fp32", {NAN: count, ZEROS: 60 - count}
        )
    run = lines.write(tmp_path)
    assert "iteration 12, fc1 activation: 4 elements\n" in telens("info", run).stdout
    (finding,) = json.loads(telens("diagnose", run, "--format", "json").stdout)["findings"]
    assert finding["summary"] == "4 elements are not finite"
