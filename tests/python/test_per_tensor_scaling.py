"""PerTensorScaling in trainings: which tensors it rescales, and the statistics of the casts that
ran.
"""

import ml_dtypes
import numpy as np
import pytest
import torch
from debug_helpers import Scalars, message_log, section

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import DelayedScaling, Float8CurrentScaling, Format
from telens.debug.features.api import TEConfigAPIMapper
from telens.debug.registry import api_method

GEMMS = ["fprop", "dgrad", "wgrad"]
INPUTS = ["activation", "weight", "gradient"]
STATS = ["mse", "underflows%", "overflows%", "saturated", "scale_inv_min", "scale_inv_max"]
DTYPES = {
    te.DType.kFloat8E4M3: ml_dtypes.float8_e4m3fn,
    te.DType.kFloat8E5M2: ml_dtypes.float8_e5m2,
}
LARGEST = {te.DType.kFloat8E4M3: np.float32(448), te.DType.kFloat8E5M2: np.float32(57344)}


def recipe(**options):
    return DelayedScaling(amax_history_len=2, amax_compute_algo="most_recent", **options)


def scaling(gemms=GEMMS, tensors=INPUTS, **others):
    chosen = {"enabled": True, "gemms": gemms, "tensors": tensors}
    return section({"PerTensorScaling": chosen, **others})


def growing(step, rows=64, columns=160):
    """Batches whose amax quadruples from step to step: a delayed scale comes too late."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(rows, columns, generator=generator) * 4.0**step
    return x * 10 ** (-6 * torch.rand(rows, columns, generator=generator))


def a_layer():
    torch.manual_seed(1)
    return te.Linear(160, 96, bias=False, device="cpu", name="fc")


def train(layer, region, steps=3):
    """Returns the outputs and gradients of each step."""
    results = []
    for step in range(steps):
        x = growing(step).requires_grad_()
        layer.weight.grad = None
        with te.autocast(enabled=True, **region):
            out = layer(x)
        out.backward(growing(step, 64, 96) / 100)
        results.append([out.detach(), x.grad, layer.weight.grad.clone()])
        with torch.no_grad():
            layer.weight.sub_(layer.weight.grad.sign(), alpha=0.01)
        debug.step()
    return results


def equal(left, right):
    return [torch.equal(a, b) for a, b in zip(left, right, strict=True)]


def test_all_tensors_selected_equals_current_scaling(tmp_path):
    delayed = train(a_layer(), {"recipe": recipe()})
    current = train(a_layer(), {"recipe": Float8CurrentScaling()})
    with debug.session(scaling(), log_dir=tmp_path):
        altered = train(a_layer(), {"recipe": recipe()})
    for step in range(3):
        assert equal(altered[step], current[step]) == [True] * 3
        assert equal(altered[step], delayed[step]) == [False] * 3


@pytest.mark.parametrize("gemm", GEMMS)
def test_gemms_that_are_not_chosen_keep_delayed_scaling(tmp_path, gemm):
    delayed = train(a_layer(), {"recipe": recipe()}, steps=1)
    with debug.session(scaling(gemms=[gemm]), log_dir=tmp_path):
        altered = train(a_layer(), {"recipe": recipe()}, steps=1)
    assert equal(altered[0], delayed[0]) == [gemm != each for each in GEMMS]


class Operands(TEConfigAPIMapper):
    """Keeps every tensor with what its first GEMM read, and with the running quantizer."""

    @api_method
    def inspect_tensor_enabled(self, config, layer_name, tensor_name, iteration):
        return True

    @api_method
    def inspect_tensor(
        self,
        config,
        layer_name,
        *,
        tensor_name,
        tensor,
        iteration,
        rowwise_quantized_tensor,
        quantizer,
        **kwargs,
    ):
        first = rowwise_quantized_tensor
        self.seen[tensor_name, iteration] = {
            "x": tensor.clone().numpy(),
            "codes": first._storage.rowwise_data.clone().numpy(),
            "scale_inv": first._storage.rowwise_scale_inv.item(),
            "dtype": first._storage.fp8_dtype,
            "delayed_scale": quantizer.scale.item(),
        }


@pytest.fixture
def seen(register):
    Operands.seen = {}
    register(Operands)
    return Operands.seen


WATCHING = {"Operands": {"enabled": True, "tensors": INPUTS}}


def tolerance(stat, x):
    # With a scale from the amax, the rounding of the scale decides whether the amax overflows.
    return {"rel": 1e-4, "abs": 100 / x.size if stat == "overflows%" else 0}


def of_codes(x, codes, scale_inv, dtype, **_):
    """The statistics as the contract defines them, from the codes that ran."""
    values = codes.view(DTYPES[dtype]).astype(np.float32) * np.float32(scale_inv)
    error = values.astype(np.float64) - x
    lost = np.count_nonzero(x) - np.count_nonzero(values)
    beyond = np.abs(x.astype(np.float64)) > float(LARGEST[dtype]) * scale_inv
    return {
        "mse": np.mean(error * error),
        "underflows%": 100 * lost / x.size,
        "overflows%": 100 * np.count_nonzero(beyond) / x.size,
        "scale_inv_min": scale_inv,
        "scale_inv_max": scale_inv,
    }


@pytest.mark.parametrize("fp8_format", [Format.HYBRID, Format.E4M3])
@pytest.mark.parametrize("chosen", [INPUTS, ["weight"], []])
def test_statistics_match_the_codes_used(tmp_path, seen, fp8_format, chosen):
    logs = {"LogFp8TensorStats": {"enabled": True, "tensors": INPUTS, "stats": STATS}}
    config = scaling(tensors=chosen or ["weight"], **WATCHING, **logs)
    if not chosen:
        del config["section"]["transformer_engine"]["PerTensorScaling"]
    scalars = Scalars()
    with debug.session(config, statistics_logger=scalars, log_dir=tmp_path):
        train(a_layer(), {"recipe": recipe(fp8_format=fp8_format)})
    for (tensor, step), operand in seen.items():
        current = LARGEST[operand["dtype"]] / np.abs(operand["x"]).max()
        scale = current if tensor in chosen else np.float32(operand["delayed_scale"])
        assert operand["scale_inv"] == np.float32(1) / scale
        e5m2 = fp8_format == Format.HYBRID and tensor == "gradient"
        assert operand["dtype"] == list(DTYPES)[e5m2]
        for stat, value in of_codes(**operand).items():
            found = scalars.values(f"fc_{tensor}_{stat}")[step]
            close = pytest.approx(value, **tolerance(stat, operand["x"]))
            assert found == close, (tensor, step, stat)
        saturated = scalars.values(f"fc_{tensor}_saturated")[step]
        if tensor in chosen or step == 0:
            assert saturated == 0, (tensor, step)
        elif tensor != "weight":  # that one hardly grows
            assert saturated > 0, (tensor, step)
    assert len(seen) == 9
    assert scalars.values("fc_activation_underflows%")[0] > 1


def test_whatif_statistics_can_be_added(tmp_path, seen):
    stats = ["mse", "fp8_current_scaling_mse", "fp8_delayed_scaling_mse"]
    logs = {"LogFp8TensorStats": {"enabled": True, "tensors": ["activation"], "stats": stats}}
    scalars = Scalars()
    with debug.session(scaling(**WATCHING, **logs), statistics_logger=scalars, log_dir=tmp_path):
        train(a_layer(), {"recipe": recipe()})
    for step in range(1, 3):
        values = {stat: scalars.values(f"fc_activation_{stat}")[step] for stat in stats}
        assert values["mse"] == values["fp8_current_scaling_mse"]
        operand = seen["activation", step]
        scaled = operand["x"] * np.float32(operand["delayed_scale"])
        codes = np.clip(scaled, -448, 448).astype(ml_dtypes.float8_e4m3fn)
        late = codes.astype(np.float32) * (np.float32(1) / np.float32(operand["delayed_scale"]))
        error = late.astype(np.float64) - operand["x"]
        expected = np.mean(error * error)
        assert values["fp8_delayed_scaling_mse"] == pytest.approx(expected, rel=1e-4, abs=0)
        assert expected > 2 * values["mse"]


def test_custom_scaling_records_its_codes(tmp_path, register, seen):
    class Tripled(TEConfigAPIMapper):
        @api_method
        def modify_tensor_enabled(self, config, layer_name, gemm, tensor_name, iteration):
            return True

        @api_method
        def modify_tensor(self, config, layer_name, *, tensor, default_quantizer, **kwargs):
            scale = torch.tensor([3.0])
            quantizer = te.Float8Quantizer(scale, torch.zeros(1), default_quantizer.dtype)
            return quantizer(tensor)

    register(Tripled)
    logs = {"LogFp8TensorStats": {"enabled": True, "tensors": INPUTS, "stats": STATS}}
    own = {"Tripled": {"enabled": True, "gemms": ["fprop"], "tensors": ["activation"]}}
    scalars = Scalars()
    with debug.session(
        section({**own, **WATCHING, **logs}), statistics_logger=scalars, log_dir=tmp_path
    ):
        train(a_layer(), {"recipe": recipe()}, steps=2)
    operand = seen["activation", 1]
    assert operand["scale_inv"] == np.float32(1) / np.float32(3)
    for stat, value in of_codes(**operand).items():
        found = scalars.values(f"fc_activation_{stat}")[1]
        assert found == pytest.approx(value, **tolerance(stat, operand["x"])), stat


def test_the_log_says_that_the_tensor_is_modified(tmp_path):
    with debug.session(scaling(gemms=["fprop"], tensors=["activation"]), log_dir=tmp_path):
        train(a_layer(), {"recipe": recipe()}, steps=1)
    log = message_log(tmp_path)
    assert "LAYER=fc: Tensor: activation, gemm fprop - modify_tensor()" in log
    assert "LAYER=fc: Tensor: weight, gemm fprop - Quantize" in log


@pytest.mark.parametrize(
    ("region", "reason"),
    [
        ({"enabled": False}, "no fp8_autocast is on"),
        ({"recipe": Float8CurrentScaling()}, "the recipe that runs has current scaling"),
    ],
)
def test_outside_of_delayed_scaling_it_is_an_error(tmp_path, region, reason):
    layer = a_layer()
    with (
        debug.session(scaling(), log_dir=tmp_path),
        pytest.raises(telens.UsageError, match="DelayedScaling") as error,
        te.autocast(**region),
    ):
        layer(growing(0))
    assert reason in str(error.value)
    assert "'PerTensorScaling' of section 'section' in layer 'fc'" in str(error.value)


def test_warm_up_is_recorded_with_replaced_casts(tmp_path):
    watched = {"enabled": True, "tensors": ["gradient"], "stats": ["max"]}
    config = scaling(["dgrad", "wgrad"], ["gradient"], LogTensorStats=watched)
    with debug.session(config, log_dir=tmp_path):
        train(a_layer(), {"recipe": recipe()})
    events = telens.open_run(tmp_path).events
    warm_up = events[events["kind"] == "warm_up"]
    assert warm_up[["layer", "iteration"]].to_dict("records") == [{"layer": "fc", "iteration": 0}]
