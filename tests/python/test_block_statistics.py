"""Statistics of block formats in real layers against NumPy and ml_dtypes, which share no code with
the library: MXFP8, FP8 in 128-blocks and NVFP4, for the running recipe and for others.
"""

import numpy as np
import pytest
import torch
from block_references import E4M3, E5M2, blocks_of_128, hadamard, mxfp8, nvfp4
from debug_helpers import Scalars, logging_of, message_log, section, train

import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import (
    Float8BlockScaling,
    Float8CurrentScaling,
    Format,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
)


def expected_of(x, decoded, scales=None):
    """The statistics as the contract defines them; x and decoded are FP32 arrays."""
    error = decoded.astype(np.float64) - x
    values = {
        "underflows%": 100 * np.count_nonzero((x != 0) & (decoded == 0)) / x.size,
        "mse": np.mean(error * error),
    }
    if scales is not None:
        values |= {"scale_inv_min": scales.min(), "scale_inv_max": scales.max()}
    return values


def reference(recipe, tensor, x, *, columnwise, fp8=E4M3, dtype=torch.float32):
    """Casts one copy of a tensor, an FP32 array, with the defaults of a recipe."""
    square = tensor == "weight"
    matrix = np.ascontiguousarray(x.T) if columnwise else x
    with np.errstate(all="ignore"):
        if recipe == "mxfp8":
            return expected_of(matrix, *mxfp8(matrix, fp8))
        if recipe == "fp8_block_scaling":
            return expected_of(matrix, *blocks_of_128(matrix, fp8, 128 if square else 1))
        if columnwise and not square:
            exact, seen = hadamard(x, dtype)
            decoded, _ = nvfp4(np.ascontiguousarray(seen.T))
            return expected_of(exact.T, decoded)
        return expected_of(matrix, nvfp4(matrix, 16 if square else 1)[0])


RECIPES = {
    "mxfp8": MXFP8BlockScaling(),
    "fp8_block_scaling": Float8BlockScaling(),
    # Without stochastic rounding, which a reference cannot repeat.
    "nvfp4": NVFP4BlockScaling(disable_stochastic_rounding=True),
}
FP8_STATS = ["underflows%", "mse", "scale_inv_min", "scale_inv_max"]
NVFP4_STATS = ["underflows%", "mse"]


def wide(rows, columns, dtype=torch.float32, seed=2):
    """Magnitudes from 1e-6 to 100 and blocks of zeros: casts have underflows."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, generator=generator) * torch.logspace(-6, 2, columns)
    x[:2, :128] = 0
    return x[:, torch.randperm(columns, generator=generator)].to(dtype)


def a_layer(dtype=torch.float32):
    torch.manual_seed(1)
    return te.Linear(160, 96, bias=False, params_dtype=dtype, device="cpu", name="fc")


def logged(config, tmp_path, layer, x, **region):
    """Returns the statistics of a training step, and the tensors to which they belong."""
    scalars = Scalars()
    seen = {"activation": x.detach(), "weight": layer.weight.detach().clone()}
    handle = layer.register_full_backward_hook(
        lambda module, grad_input, grad_output: seen.update(gradient=grad_output[0].clone())
    )
    with debug.session(config, statistics_logger=scalars, log_dir=tmp_path):
        train(layer, x, **region)
    handle.remove()
    arrays = {name: each.detach().float().numpy() for name, each in seen.items()}
    return {name: value for name, value, _ in scalars.rows}, arrays


def compare(found, expected, what):
    for stat, value in expected.items():
        tolerance = {"underflows%": 1e-9, "mse": 1e-4}.get(stat, 1e-7)
        assert found(stat) == pytest.approx(value, rel=tolerance, abs=0, nan_ok=True), (what, stat)


YAML = """\
all:
  enabled: True
  layers:
    layer_types: [fc]
  transformer_engine:
    LogFp8TensorStats:
      enabled: True
      tensors: [activation, weight, gradient]
      stats: [{fp8}]
    LogNvfp4TensorStats:
      enabled: True
      tensors: [activation, weight, gradient]
      stats: [underflows%, mse, underflows%_columnwise, mse_columnwise]
"""


def config_file(tmp_path, running):
    """Every statistic of both copies, for the running recipe and for all others."""
    names = []
    for recipe in ("mxfp8", "fp8_block_scaling", *([""] if running != "nvfp4" else [])):
        for stat in FP8_STATS:
            name = f"{recipe}_{stat}" if recipe else stat
            names += [name, f"{name}_columnwise"]
    path = tmp_path / "config.yaml"
    path.write_text(YAML.format(fp8=", ".join(names)))
    return path


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("running", RECIPES)
def test_step_records_running_and_whatif_statistics(tmp_path, running, dtype):
    x = wide(64, 160, dtype).requires_grad_()
    values, tensors = logged(
        config_file(tmp_path, running),
        tmp_path,
        a_layer(dtype),
        x,
        fp8=True,
        recipe=RECIPES[running],
    )
    for tensor, array in tensors.items():
        for columnwise in (False, True):
            suffix = "_columnwise" if columnwise else ""
            for recipe in ("mxfp8", "fp8_block_scaling", "nvfp4"):
                expected = reference(recipe, tensor, array, columnwise=columnwise, dtype=dtype)
                stats = NVFP4_STATS if recipe == "nvfp4" else FP8_STATS
                expected = {stat: expected[stat] for stat in stats}
                names = [f"fc_{tensor}_{recipe}_"]
                if recipe == running != "nvfp4":
                    names.append(f"fc_{tensor}_")
                for name in names:
                    compare(
                        lambda stat, n=name, end=suffix: values[f"{n}{stat}{end}"], expected, name
                    )
    assert values["fc_activation_mxfp8_underflows%"] > 1
    assert values["fc_activation_mxfp8_mse"] != values["fc_activation_mxfp8_mse_columnwise"]


def test_block_whatif_uses_the_running_fp8_format(tmp_path):
    config = logging_of(["activation", "gradient"], ["mxfp8_mse"], "LogFp8TensorStats")
    x = wide(64, 160).requires_grad_()
    for name, region, of_gradients in (
        ("hybrid", {"fp8": True, "recipe": Float8CurrentScaling(fp8_format=Format.HYBRID)}, E5M2),
        ("unquantized", {}, E4M3),
    ):
        values, tensors = logged(config, tmp_path / name, a_layer(), x, **region)
        for tensor, fp8 in (("activation", E4M3), ("gradient", of_gradients)):
            expected = reference("mxfp8", tensor, tensors[tensor], columnwise=False, fp8=fp8)
            assert values[f"fc_{tensor}_mxfp8_mse"] == pytest.approx(
                expected["mse"], rel=1e-4, abs=0
            )


def test_nvfp4_running_is_asked_about_fp8_in_e4m3(tmp_path):
    config = logging_of(["gradient"], ["mxfp8_mse", "mse"], "LogFp8TensorStats")
    x = wide(64, 160).requires_grad_()
    values, tensors = logged(config, tmp_path, a_layer(), x, fp8=True, recipe=RECIPES["nvfp4"])
    gradient = tensors["gradient"]
    what_if = reference("mxfp8", "gradient", gradient, columnwise=False)
    running = reference("nvfp4", "gradient", gradient, columnwise=False)
    assert values["fc_gradient_mxfp8_mse"] == pytest.approx(what_if["mse"], rel=1e-4, abs=0)
    assert values["fc_gradient_mse"] == pytest.approx(running["mse"], rel=1e-4, abs=0)


@pytest.mark.parametrize("recipe", ["mxfp8", "fp8_block_scaling", "nvfp4"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_special_values_have_the_statistics_of_the_reference(tmp_path, recipe, dtype):
    feature = "LogNvfp4TensorStats" if recipe == "nvfp4" else "LogFp8TensorStats"
    tiny = torch.finfo(dtype).smallest_normal
    # NVFP4's tensor scale comes from the amax: with one infinity all small values become zero.
    for name, special in {
        "zeros": [0.0, -0.0],
        "subnormals": [tiny / 4, -tiny / 2],
        "large": [torch.finfo(dtype).max, -torch.finfo(dtype).max],
        "nan": [float("nan")],
        "infinity": [float("inf"), -float("inf")],
    }.items():
        x = wide(64, 160, dtype)
        x[::7, ::5] = torch.tensor(special, dtype=dtype).repeat(320)[:320].view(10, 32)
        x[3] = 0
        config = logging_of(["activation"], [f"{recipe}_underflows%", f"{recipe}_mse"], feature)
        values, tensors = logged(config, tmp_path / name, a_layer(dtype), x)
        expected = reference(recipe, "activation", tensors["activation"], columnwise=False)
        compare(
            lambda stat, v=values: v[f"fc_activation_{recipe}_{stat}"],
            {stat: expected[stat] for stat in NVFP4_STATS},
            name,
        )


def test_empty_batch_records_nothing(tmp_path):
    config = logging_of(["activation", "weight"], ["mxfp8_mse"], "LogFp8TensorStats")
    values, _ = logged(config, tmp_path, a_layer(), torch.zeros(0, 160).requires_grad_())
    assert set(values) == set()
    values, _ = logged(config, tmp_path, a_layer(), torch.zeros(32, 160).requires_grad_())
    assert set(values) == {"fc_weight_mxfp8_mse", "fc_activation_mxfp8_mse"}


def test_micro_batches_of_any_mean_add_up_to_the_whole(tmp_path):
    config = logging_of(
        ["activation"], ["mse", "underflows%", "scale_inv_max"], "LogFp8TensorStats"
    )
    parts = [wide(32, 160, seed=3), wide(64, 160, seed=4) + 1000]
    scalars = Scalars()
    layer = a_layer()
    with debug.session(config, statistics_logger=scalars, log_dir=tmp_path):
        for step in range(2):
            if step == 1:
                parts[0][0, 0] = float("nan")
            for part in parts:
                with te.autocast(recipe=MXFP8BlockScaling()):
                    layer(part)
            debug.step()
    for step, first in ((0, wide(32, 160, seed=3)), (1, parts[0])):
        whole = torch.cat([first, parts[1]]).numpy()
        expected = reference("mxfp8", "activation", whole, columnwise=False)
        expected.pop("scale_inv_min")
        compare(lambda stat, s=step: scalars.values(f"fc_activation_{stat}")[s], expected, step)
    assert np.isnan(scalars.values("fc_activation_mse")[1])


@pytest.mark.parametrize("running", ["mxfp8", "nvfp4"])
def test_disabled_gemm_measures_the_other_copy(tmp_path, running):
    for disabled, columnwise in (("fprop", True), ("wgrad", False)):
        config = section(
            {
                "DisableFP8GEMM": {"enabled": True, "gemms": [disabled]},
                "LogFp8TensorStats": {
                    "enabled": True,
                    "tensors": ["activation"],
                    "stats": ["mse", "mse_columnwise"],
                },
            }
        )
        x = wide(64, 160).requires_grad_()
        values, tensors = logged(
            config, tmp_path / disabled, a_layer(), x, fp8=True, recipe=RECIPES[running]
        )
        expected = reference(running, "activation", tensors["activation"], columnwise=columnwise)
        assert values["fc_activation_mse"] == pytest.approx(expected["mse"], rel=1e-4, abs=0)
        assert ("fc_activation_mse_columnwise" in values) == columnwise


def test_meaningless_statistics_are_skipped_with_a_reason(tmp_path):
    config = section(
        {
            "LogFp8TensorStats": {
                "enabled": True,
                "tensors": ["activation"],
                "stats": ["mse", "mse_columnwise"],
            },
            "LogNvfp4TensorStats": {
                "enabled": True,
                "tensors": ["activation"],
                "stats": ["mse", "mse_columnwise"],
            },
        }
    )
    x = wide(24, 160)  # no multiple of 16
    values, _ = logged(config, tmp_path / "plain", a_layer(), x)
    assert set(values) == {"fc_activation_nvfp4_mse"}
    log = message_log(tmp_path / "plain")
    assert "mse, mse_columnwise: it runs unquantized here" in log
    assert "nvfp4_mse_columnwise: its rows are not divisible by 16" in log
    values, _ = logged(
        config,
        tmp_path / "current",
        a_layer(),
        wide(32, 160),
        fp8=True,
        recipe=Float8CurrentScaling(),
    )
    assert "fc_activation_mse_columnwise" not in values
    assert "no columnwise copy with separate scales" in message_log(tmp_path / "current")


def test_block_stored_weights_reject_original_statistics(tmp_path, capfd):
    config = logging_of(
        ["weight"], ["scale_inv_max", "scale_inv_min_columnwise", "mse"], "LogFp8TensorStats"
    )
    torch.manual_seed(1)
    with te.fp8_model_init(recipe=MXFP8BlockScaling()):
        layer = te.Linear(160, 96, bias=False, device="cpu", name="fc")
    storage = layer.weight._storage
    scalars = Scalars()
    with debug.session(config, statistics_logger=scalars, log_dir=tmp_path):
        train(layer, wide(64, 160), fp8=True, recipe=MXFP8BlockScaling())
    decoded = {
        side: np.exp2(getattr(storage, f"{side}_scale_inv").numpy().astype(np.float64) - 127)
        for side in ("rowwise", "columnwise")
    }
    assert {name: value for name, value, _ in scalars.rows} == {
        "fc_weight_scale_inv_max": decoded["rowwise"].max(),
        "fc_weight_scale_inv_min_columnwise": decoded["columnwise"].min(),
    }
    assert "mse: the high-precision tensor does not exist" in capfd.readouterr().err
