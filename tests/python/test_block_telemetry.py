"""BlockTelemetry in real layers against NumPy and ml_dtypes, which share no code with the library,
and its values in `telens blocks`, `telens.open_run` and h5py.
"""

import csv
import io
import subprocess

import h5py
import numpy as np
import pytest
import torch
from block_by_block import (
    STATISTICS,
    difference,
    of_blocks_of_128,
    of_mxfp8,
    of_nvfp4,
    special,
    values_of,
    without_hadamard,
    worst,
)
from block_references import hadamard
from debug_helpers import logging_of, message_log, section, train

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import (
    Float8BlockScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
)

RECIPES = {
    "mxfp8": (MXFP8BlockScaling(), of_mxfp8),
    "fp8_block_scaling": (Float8BlockScaling(), of_blocks_of_128),
    # Without stochastic rounding, which a reference cannot repeat.
    "nvfp4": (NVFP4BlockScaling(disable_stochastic_rounding=True), of_nvfp4),
}
TENSORS = ["activation", "weight", "gradient"]


def watching(tensors=TENSORS, **keys) -> dict:
    return section(
        {"BlockTelemetry": {"enabled": True, "tensors": tensors, **keys}}, namespace="telens"
    )


def a_layer(dtype=torch.float32):
    torch.manual_seed(1)
    layer = te.Linear(160, 96, bias=False, params_dtype=dtype, device="cpu", name="fc")
    with torch.no_grad():
        layer.weight[:4] = 0
        layer.weight[7] *= 1e-6
    return layer


def an_input(dtype=torch.float32, rows=64):
    x = special(rows, 160)
    return torch.nan_to_num(x, nan=2.0, posinf=3.0, neginf=-3.0).to(dtype)


def watched_step(log_dir, config, recipe, dtype=torch.float32):
    """Returns the tensors of one training step, as FP32 arrays, and what was recorded of them."""
    layer, x = a_layer(dtype), an_input(dtype).requires_grad_()
    seen = {"activation": x.detach(), "weight": layer.weight.detach().clone()}
    handle = layer.register_full_backward_hook(
        lambda module, grad_input, grad_output: seen.update(gradient=grad_output[0].clone())
    )
    with debug.session(config, log_dir=log_dir):
        train(layer, x, fp8=True, recipe=recipe)
    handle.remove()
    return {name: each.float().numpy() for name, each in seen.items()}, telens.open_run(log_dir)


def copies_of(kind, tensor, array, dtype):
    """The rowwise and the columnwise copy."""
    square = tensor == "weight" and kind != "mxfp8"
    make = RECIPES[kind][1]
    across, seen = array, array
    if kind == "nvfp4" and not square:
        across, seen = hadamard(array, dtype)
    columnwise = make(np.ascontiguousarray(seen.T), square)
    columnwise.x = np.ascontiguousarray(across.T)
    return make(array, square), columnwise


def scale_histogram(run, tensor, name):
    table = run.histograms(tensor=tensor)
    table = table[table["statistic"] == name]
    return dict(zip(table["bin"].astype(int), table["count"].astype(int), strict=True))


def block_rows(run, tensor, statistic):
    table = run.blocks(tensor=tensor, statistic=statistic)
    return list(zip(table["value"], table["block_row"], table["block_column"], strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("kind", RECIPES)
def test_step_is_recorded_by_block(tmp_path, kind, dtype):
    arrays, run = watched_step(tmp_path, watching(k=5), RECIPES[kind][0], dtype)
    records = {(row.tensor, row.statistic): row.value for row in run.records().itertuples()}
    for tensor, array in arrays.items():
        copies = copies_of(kind, tensor, array, dtype)
        for copy, end in zip(copies, ("", "_columnwise"), strict=True):
            values, bins = values_of([copy])
            for name in STATISTICS:
                found = records[tensor, name + end]
                assert found == pytest.approx(values[name], rel=1e-9, abs=0), (tensor, name + end)
            assert scale_histogram(run, tensor, copy.histogram + end) == bins
            for measure in ("block_underflows%", "block_mse"):
                expected = worst(copy, bool(end), measure, 5)
                found = block_rows(run, tensor, measure + end)
                assert [row[1:] for row in found] == [row[1:] for row in expected], (
                    tensor,
                    measure,
                )
                assert [row[0] for row in found] == pytest.approx(
                    [row[0] for row in expected], rel=1e-5
                )
        second = copies[1].decoded.T
        if kind == "nvfp4" and tensor != "weight":
            second = without_hadamard(np.ascontiguousarray(second))
        different, relative = difference(copies[0].decoded, second)
        assert records[tensor, "copies_differ%"] == pytest.approx(100 * different / array.size)
        assert records[tensor, "copies_relative_difference"] == pytest.approx(relative)
    assert records["activation", "zero_blocks%"] > 0
    assert records["activation", "block_underflows%_max"] > 0
    assert records["activation", "copies_differ%"] > 0
    assert len(block_rows(run, "activation", "block_mse")) == 5


def test_micro_batches_count_together_and_of_a_weight_the_first(tmp_path):
    layer, parts = a_layer(), [an_input(), an_input(rows=32) * 1e-3]
    weights = []
    with debug.session(watching(["activation", "weight"], k=3), log_dir=tmp_path):
        for part in parts:
            weights.append(layer.weight.detach().numpy().copy())
            with te.autocast(recipe=MXFP8BlockScaling()):
                layer(part)
            with torch.no_grad():
                layer.weight *= 0
        debug.step()
    run = telens.open_run(tmp_path)
    records = {(row.tensor, row.statistic): row.value for row in run.records().itertuples()}
    copies = [of_mxfp8(part.numpy()) for part in parts]
    for tensor, of_tensor in (("activation", copies), ("weight", [of_mxfp8(weights[0])])):
        values, bins = values_of(of_tensor)
        for name in STATISTICS:
            assert records[tensor, name] == pytest.approx(values[name], rel=1e-9, abs=0), name
        assert scale_histogram(run, tensor, "scale_histogram_e8m0") == bins
    found = [row[0] for row in block_rows(run, "activation", "block_mse")]
    every = sorted(
        (v for c in copies for v, _, _ in worst(c, False, "block_mse", 99)), reverse=True
    )
    assert found == pytest.approx(every[:3], rel=1e-9)


def test_nan_comes_first_among_the_worst_and_zeros_are_not_bad(tmp_path):
    x = torch.zeros(32, 160)
    x[:, 64:] = 1  # exact
    x[5, 70] = float("nan")
    with debug.session(watching(["activation"], k=4), log_dir=tmp_path):
        with te.autocast(recipe=MXFP8BlockScaling()):
            a_layer()(x)
        debug.step()
    run = telens.open_run(tmp_path)
    ((value, row, column),) = block_rows(run, "activation", "block_mse")
    assert np.isnan(value)
    assert (row, column) == (5, 2)
    assert block_rows(run, "activation", "block_underflows%") == []
    # Down the columns: 32 x 1 elements.
    ((value, row, column),) = block_rows(run, "activation", "block_mse_columnwise")
    assert np.isnan(value)
    assert (row, column) == (0, 70)
    zero = run.records(statistic="zero_blocks%")["value"]
    assert list(zero) == [40.0]
    # Blocks of zeros are not counted as blocks whose scale is too large for them.
    assert list(run.records(statistic="smallest_scale_blocks%")["value"]) == [0.0]


def test_blocks_at_the_ends_of_the_scales_are_seen(tmp_path):
    x = torch.ones(32, 160)
    x[:4] = 2.0**-130  # below 448 * 2^-127
    x[4:6] = 3e38
    with debug.session(watching(["activation"]), log_dir=tmp_path):
        with te.autocast(recipe=MXFP8BlockScaling()):
            a_layer()(x)
        debug.step()
    run = telens.open_run(tmp_path)
    assert list(run.records(statistic="smallest_scale_blocks%")["value"]) == [12.5]
    bins = scale_histogram(run, "activation", "scale_histogram_e8m0")
    # 3e38 = 1.763 * 2^127 is above 448 * 2^119, so its scale is 2^120 (247 in E8M0); that of 1,
    # which is below 448 * 2^-8, is 2^-8 (119).
    assert bins == {0: 20, 119: 130, 247: 10}
    table = run.histograms()
    table = table[table["statistic"] == "scale_histogram_e8m0"].set_index("bin")
    assert table.loc[119, "low"] == table.loc[119, "high"] == 2.0**-8


def test_k_of_zero_keeps_no_blocks(tmp_path):
    _, run = watched_step(tmp_path, watching(["activation"], k=0), MXFP8BlockScaling())
    assert len(run.blocks()) == 0
    assert len(run.records(statistic="block_underflows%_max")) == 1


@pytest.mark.parametrize("k", [-1, 2000])
def test_a_number_of_blocks_without_sense_is_an_error_at_load(tmp_path, k):
    with pytest.raises(telens.ConfigError, match="'k' must be from 0 to 1024"):
        debug.initialize(watching(k=k), log_dir=tmp_path)


def test_tensors_without_blocks_warn_once(tmp_path, capfd):
    layers = [te.Linear(32, 32, params_dtype=torch.float32, name=name) for name in ("a", "b")]
    with debug.session(watching(["activation"]), log_dir=tmp_path):
        for layer in layers:
            train(layer, torch.randn(32, 32), fp8=True, recipe=Float8CurrentScaling())
        with te.autocast(recipe=MXFP8BlockScaling()):
            layers[0](torch.randn(0, 32))
        debug.step()
    assert len(telens.open_run(tmp_path).records()) == 0
    assert "activation is left out: no copy with a scale a block runs here" in message_log(tmp_path)
    assert capfd.readouterr().err.count("BlockTelemetry") == 1


def test_disabled_gemm_records_the_other_copy(tmp_path):
    config = {
        **watching(["activation"]),
        **{"off": section({"DisableFP8GEMM": {"enabled": True, "gemms": ["fprop"]}})["section"]},
    }
    arrays, run = watched_step(tmp_path, config, MXFP8BlockScaling())
    values, _ = values_of([of_mxfp8(np.ascontiguousarray(arrays["activation"].T))])
    records = {row.statistic: row.value for row in run.records().itertuples()}
    expected = {f"{name}_columnwise": pytest.approx(v) for name, v in values.items()}
    assert records == {"scale_histogram_e8m0_columnwise": 320, **expected}


# ---- reading it


@pytest.fixture
def command(build_folder):
    def run(*arguments):
        return subprocess.run(
            [build_folder / "bin/telens", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


def test_the_command_shows_each_of_the_worst_blocks_once(tmp_path, command):
    x = an_input()
    layer = a_layer()
    with debug.session(watching(["activation", "weight"], k=2), log_dir=tmp_path):
        for factor in (1.0, 4.0, 2.0):
            with te.autocast(recipe=MXFP8BlockScaling()):
                layer(x * factor)
            debug.step()
    result = command("blocks", tmp_path, "--format", "csv", "--tensor", "activation")
    assert result.returncode == 0, result.stderr
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    rows = [row for row in rows if row["statistic"] == "block_mse"]
    expected = worst(of_mxfp8(4 * x.numpy()), False, "block_mse", 2)
    places = [(int(row["block row"]), int(row["block column"])) for row in rows]
    assert places == [(row, column) for _, row, column in expected]
    assert [float(row["value"]) for row in rows] == pytest.approx([e[0] for e in expected])
    for row in rows:
        assert (row["layer"], row["iteration"], row["iterations"]) == ("fc", "1", "3")
    text = command("blocks", tmp_path, "--stat", "block_mse", "--top", 1).stdout
    assert len(text.splitlines()) == 2
    assert "block column" in text


def test_command_names_missing_data(tmp_path, command):
    with debug.session(logging_of(["activation"], ["max"]), log_dir=tmp_path):
        train(a_layer(), an_input())
    result = command("blocks", tmp_path)
    assert result.returncode == 2
    assert "this run contains no blocks; record them with the feature telens.BlockTelemetry" in (
        result.stderr
    )


def test_h5py_reads_the_same_blocks(tmp_path):
    _, run = watched_step(tmp_path, watching(k=3), MXFP8BlockScaling())
    (path,) = tmp_path.glob("telens/*/rank00000.h5")
    with h5py.File(path, "r") as file:
        names = {
            kind: [name.decode() for name in file[f"names/{kind}"][:]]
            for kind in ("layer", "tensor", "statistic")
        }
        rows = file["blocks"][:]
        found = [
            (
                *(names[kind][row[kind]] for kind in ("layer", "tensor", "statistic")),
                row["block_row"],
                row["block_column"],
                row["value"],
                row["gemm"],
            )
            for row in rows
        ]
    table = run.blocks()
    assert found == [
        (row.layer, row.tensor, row.statistic, row.block_row, row.block_column, row.value, -1)
        for row in table.itertuples()
    ]
    assert {row[1] for row in found} == set(TENSORS)
