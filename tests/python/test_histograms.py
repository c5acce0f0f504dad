"""Histograms of a training, read in Python and used for what-if questions by the command."""

import json
import os
import subprocess
from pathlib import Path

import numpy
import pytest
import torch

import telens
import telens.debug as debug
import telens.pytorch as te

ROOT = Path(__file__).resolve().parents[2]
COMMAND = os.environ.get("TELENS_COMMAND", str(ROOT / "build/bin/telens"))
CONFIG = ROOT / "configs/value_histograms.yaml"
STATISTICS = {
    "all": {
        "enabled": True,
        "layers": {"layer_types": "all"},
        "telens": {
            "ValueHistogram": {
                "enabled": True,
                "tensors": ["activation", "weight", "gradient"],
                "bins": "codes",
            }
        },
        "transformer_engine": {
            "LogFp8TensorStats": {
                "enabled": True,
                "tensors": ["activation", "weight", "gradient"],
                "stats": [
                    *("fp8_current_scaling_underflows%", "fp8_current_scaling_overflows%"),
                    *("fp8_current_scaling_saturated", "fp8_current_scaling_mse"),
                ],
            }
        },
    }
}


def train(steps, dtype=torch.bfloat16):
    torch.manual_seed(3)
    layer = te.Linear(64, 32, params_dtype=dtype, name="fc")
    x = torch.randn(48, 64, dtype=dtype, requires_grad=True)
    for step in range(steps):
        # Values that grow, with such a wide range that some vanish in FP8.
        (layer(x * x.abs().float().exp().to(dtype) * 2**step).square().mean()).backward()
        debug.step()
    return layer


@pytest.fixture
def recorded(tmp_path):
    debug.initialize(STATISTICS, log_dir=tmp_path)
    train(3)
    debug.end_debug()
    return tmp_path


def whatif(log_dir, *arguments):
    result = subprocess.run(
        [COMMAND, "whatif", log_dir, "--format", "json", *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stderr == ""
    return json.loads(result.stdout)


def test_whatif_matches_measured_statistics(recorded):
    logged = telens.open_run(recorded).records()
    logged = logged.set_index(["tensor", "iteration", "statistic"])["value"]
    # A tensor that runs unquantized has the what-if statistics of E4M3.
    rows = whatif(recorded, "--fp8-format", "E4M3", "--each-iteration")
    assert len(rows) == 3 * 3
    for row in rows:

        def value(name, row=row):
            return logged[row["tensor"], row["iteration"], f"fp8_current_scaling_{name}"]

        assert row["underflows%"] == value("underflows%")
        assert row["overflows%"] == value("overflows%")
        assert row["mse/amax^2"] == pytest.approx(value("mse") / row["amax"] ** 2, rel=2**-16)
    assert any(row["underflows%"] > 0 for row in rows)


def test_histograms_are_a_table_of_bins_with_their_values(tmp_path):
    debug.initialize(STATISTICS, log_dir=tmp_path)
    layer = train(1)
    debug.end_debug()
    table = telens.open_run(tmp_path).histograms(layer="^fc$", tensor="weight")
    assert set(table["statistic"]) == {"code_histogram_bf16"}
    values, counts = numpy.unique(layer.weight.detach().float().numpy(), return_counts=True)
    table = table.sort_values("low")
    assert table["low"].tolist() == values.tolist()
    assert table["high"].tolist() == values.tolist()
    assert table["count"].tolist() == counts.tolist()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_every_value_is_within_its_bin(tmp_path, dtype):
    specials = [0.0, -0.0, 1.0, -1.5, 3.99, 2.0**-14, -(2.0**-15), torch.inf, -torch.inf]
    specials += [torch.finfo(dtype).max, torch.finfo(dtype).smallest_normal / 2]
    for value in specials:
        folder = tmp_path / str(value)
        config = {"all": dict(STATISTICS["all"])}
        config["all"]["transformer_engine"] = {}
        config["all"]["telens"] = {
            "ValueHistogram": {"enabled": True, "tensors": "activation", "bins": "exponent"}
        }
        debug.initialize(config, log_dir=folder)
        with torch.no_grad():
            te.Linear(16, 16, params_dtype=dtype, name="fc")(torch.full((16, 16), value).to(dtype))
        debug.step()
        debug.end_debug()
        (row,) = telens.open_run(folder).histograms().itertuples()
        assert row.count == 256
        exact = torch.tensor(value).to(dtype).item()
        assert row.low <= exact <= row.high
        assert row.high == row.low or abs(row.high) < 2 * abs(row.low) or row.bin in (256, 258)


def test_a_run_without_histograms_gives_an_empty_table(tmp_path):
    debug.initialize({}, log_dir=tmp_path)
    debug.end_debug()
    table = telens.open_run(tmp_path).histograms()
    assert len(table) == 0
    assert list(table.columns[-4:]) == ["bin", "count", "low", "high"]


def test_ready_configuration_answers_its_questions(tmp_path):
    debug.initialize(config_file=str(CONFIG), log_dir=tmp_path)
    train(11)
    debug.end_debug()
    assert set(telens.open_run(tmp_path).histograms()["iteration"]) == {0, 10}
    current = whatif(tmp_path)
    assert {(row["tensor"], row["format"], row["iterations"]) for row in current} == {
        ("activation", "E4M3", 2),
        ("weight", "E4M3", 2),
        ("gradient", "E5M2", 2),
    }
    margin = whatif(tmp_path, "--fp8-format", "E5M2", "--margin", "1")
    assert {row["format"] for row in margin} == {"E5M2"}
    delayed = subprocess.run(
        [COMMAND, "whatif", tmp_path, "--amax", "max", "--history", "16"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "record with freq: 1" in delayed.stderr
