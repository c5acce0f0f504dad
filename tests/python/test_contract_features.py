"""Promises of the built-in features in real layers, against references in plain torch."""

import math

import pytest
import torch
from debug_helpers import Scalars, logging_of, message_log, section, train

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import DelayedScaling, Float8CurrentScaling

LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}


@pytest.fixture
def layer() -> te.Linear:
    torch.manual_seed(1)
    return te.Linear(32, 32, name="fc")


@pytest.fixture
def x() -> torch.Tensor:
    """With a wide range: a cast has underflows."""
    torch.manual_seed(2)
    return (torch.randn(16, 32) * torch.logspace(-6, 2, 32)).requires_grad_()


def cast(x: torch.Tensor, dtype: torch.dtype, scale: float | None = None) -> torch.Tensor:
    """Quantizes and dequantizes with the scale of the tensor's own amax, unless a scale is
    given.
    """
    x = x.detach()
    scale = LARGEST[dtype] / x.abs().max().item() if scale is None else scale
    return (x * scale).clamp(-LARGEST[dtype], LARGEST[dtype]).to(dtype).float() / scale


def mse(x: torch.Tensor, decoded: torch.Tensor) -> float:
    return (decoded.double() - x.detach().double()).square().mean().item()


def underflows(x: torch.Tensor, decoded: torch.Tensor) -> float:
    return 100 * (x.count_nonzero() - decoded.count_nonzero()).item() / x.numel()


def logged(config, tmp_path, layer, x, **region) -> Scalars:
    scalars = Scalars()
    with debug.session(config, statistics_logger=scalars, log_dir=tmp_path):
        train(layer, x, **region)
    return scalars


def test_running_recipe_statistics_match_the_cast(tmp_path, layer, x):
    stats = ["mse", "underflows%", "overflows%", "scale_inv_min", "scale_inv_max"]
    config = logging_of(["activation"], stats, "LogFp8TensorStats")
    values = logged(config, tmp_path, layer, x, fp8=True, recipe=Float8CurrentScaling())
    decoded = cast(x, torch.float8_e4m3fn)
    expected = {
        "mse": mse(x, decoded),
        "underflows%": underflows(x, decoded),
        "overflows%": 0.0,
        "scale_inv_min": x.abs().max().item() / 448,
        "scale_inv_max": x.abs().max().item() / 448,
    }
    assert expected["underflows%"] > 1
    for stat, value in expected.items():
        name = f"fc_activation_{stat}"
        assert values.values(name)[0] == pytest.approx(value, rel=1e-4), name


def test_overflows_count_values_above_a_stale_scale(tmp_path, layer, x):
    config = logging_of(["activation"], ["overflows%", "saturated"], "LogFp8TensorStats")
    scalars = Scalars()
    with debug.session(config, statistics_logger=scalars, log_dir=tmp_path):
        recipe = DelayedScaling(amax_history_len=1, amax_compute_algo="most_recent")
        for factor in (1, 4):  # the scale of the second step is that of the first amax
            train(layer, x * factor, fp8=True, recipe=recipe)
    beyond = (4 * x.abs() > x.abs().max()).sum().item()
    assert beyond > 0
    overflows = scalars.values("fc_activation_overflows%")
    assert overflows[1] == pytest.approx(100 * beyond / x.numel())
    assert 0 < scalars.values("fc_activation_saturated")[1] <= beyond


def test_recipe_prefix_selects_whatif_statistics(tmp_path, layer, x):
    stats = ["fp8_current_scaling_mse", "fp8_current_scaling_underflows%"]
    config = logging_of(["activation", "gradient"], stats, "LogFp8TensorStats")
    gradient = torch.zeros_like(x)

    def keep(module, grad_input, grad_output):
        gradient.copy_(grad_output[0])

    layer.register_full_backward_hook(keep)
    for name, region in {
        "bf16": {},
        "delayed": {"fp8": True, "recipe": DelayedScaling(amax_history_len=2)},
    }.items():
        values = logged(config, tmp_path / name, layer, x, **region)
        # The running recipe's format for the tensor (HYBRID: E5M2 for gradients), else E4M3.
        of_gradients = torch.float8_e5m2 if region else torch.float8_e4m3fn
        for tensor, given, dtype in (
            ("activation", x, torch.float8_e4m3fn),
            ("gradient", gradient, of_gradients),
        ):
            decoded = cast(given, dtype)
            found = values.values(f"fc_{tensor}_fp8_current_scaling_mse")[0]
            assert found == pytest.approx(mse(given, decoded), rel=1e-3), (name, tensor)
            found = values.values(f"fc_{tensor}_fp8_current_scaling_underflows%")[0]
            assert found == pytest.approx(underflows(given, decoded), abs=1e-9), (name, tensor)


def test_delayed_scaling_can_be_asked_about_only_while_it_runs(tmp_path, layer, x, capfd):
    config = logging_of(["activation"], ["fp8_delayed_scaling_mse"], "LogFp8TensorStats")
    current = logged(
        config, tmp_path / "current", layer, x, fp8=True, recipe=Float8CurrentScaling()
    )
    assert current.rows == []
    assert "does not run here" in capfd.readouterr().err
    delayed = logged(config, tmp_path / "delayed", layer, x, fp8=True, recipe=DelayedScaling())
    assert delayed.names() == {"fc_activation_fp8_delayed_scaling_mse"}


def test_an_unquantized_layer_is_left_out_with_one_warning(tmp_path, x, capfd):
    layers = torch.nn.Sequential(te.Linear(32, 32, name="a"), te.Linear(32, 32, name="b"))
    config = logging_of(["activation", "weight"], ["mse"], "LogFp8TensorStats")
    with debug.session(config, log_dir=tmp_path):
        train(layers, x, steps=3)
    assert capfd.readouterr().err.count("runs unquantized") == 1
    for layer in ("a", "b"):
        for tensor in ("activation", "weight"):
            assert f"LAYER={layer}: LogFp8TensorStats: {tensor}" in message_log(tmp_path)
    assert telens.open_run(tmp_path).records(statistic="mse").empty


@pytest.mark.parametrize("disabled", ["fprop", "wgrad"])
def test_disabled_gemm_measures_the_other_copy(tmp_path, layer, x, disabled):
    config = section(
        {
            "DisableFP8GEMM": {"enabled": True, "gemms": [disabled]},
            "LogFp8TensorStats": {"enabled": True, "tensors": ["activation"], "stats": ["mse"]},
        }
    )
    values = logged(config, tmp_path, layer, x, fp8=True, recipe=Float8CurrentScaling())
    expected = mse(x, cast(x, torch.float8_e4m3fn))
    assert values.values("fc_activation_mse")[0] == pytest.approx(expected, rel=1e-4)


def stored_in_fp8() -> te.Linear:
    torch.manual_seed(1)
    with te.fp8_model_init():
        return te.Linear(32, 32, name="fc")


def test_fp8_stored_weights_reject_original_statistics(tmp_path, x, capfd):
    config = logging_of(["weight"], ["scale_inv_max", "mse"], "LogFp8TensorStats")
    layer = stored_in_fp8()
    scale_inv = layer.weight._storage.rowwise_scale_inv.item()
    values = logged(config, tmp_path, layer, x, fp8=True, recipe=Float8CurrentScaling())
    assert values.rows == [("fc_weight_scale_inv_max", scale_inv, 0)]
    error = capfd.readouterr().err
    assert "mse" in error
    assert "does not exist" in error


def test_fake_quant_takes_a_schedule(tmp_path, layer, x):
    config = section(
        {
            "FakeQuant": {
                "enabled": True,
                "gemms": ["fprop"],
                "tensors": ["activation", "weight"],
                "quant_format": "FP8E4M3",
                "start_step": 1,
                "end_step": 2,
            }
        }
    )
    plain = layer(x)
    outputs = []
    with debug.session(config, log_dir=tmp_path):
        for _ in range(4):
            outputs.append(train(layer, x))
    assert [torch.equal(out, plain) for out in outputs] == [True, False, False, True]


def test_counters_of_a_cast_come_with_any_of_its_statistics(tmp_path, layer, x):
    config = logging_of(["activation"], ["mse"], "LogFp8TensorStats")
    logged(config, tmp_path, layer, x, fp8=True, recipe=Float8CurrentScaling())
    run = telens.open_run(tmp_path)
    counters = {"nan", "posinf", "neginf", "nonfinite", "zeros", "subnormals", "saturated"}
    assert set(run.records()["statistic"]) == counters | {"mse"}


def test_a_blockwise_range_is_logged_for_its_blocks_and_orientations(tmp_path, layer):
    x = torch.ones(16, 32)
    x[0, 0] = 8.0  # against 1 in its block of the row
    x[:, 1] = 0.25  # against 1 in every row; 8 stands beside it in the first one
    x[1, 0] = 2**-6  # against 8 above it: the largest range is that of a column
    stats = [
        {"max_blockwise_dynamic_range": {"block_size": 2, "dims": 1}},
        {"max_blockwise_dynamic_range": {}},
    ]
    values = logged(logging_of(["activation", "output"], stats), tmp_path, layer, x)
    name = "fc_activation_max_blockwise_dynamic_range_block_size_{}_dims_1_max_over_orientations"
    assert values.values(name.format(2))[0] == math.log2(8 / 2**-6)
    assert values.values(name.format(32))[0] == math.log2(8 / 2**-6)
    assert "fc_output_max_blockwise_dynamic_range_block_size_32_dims_1" in values.names()
