"""Weights that fp8_model_init makes: which ones, how they are quantized, and what is logged."""

import copy
import math

import pytest
import torch
from stored_tensors import stored_tensors

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import (
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
    QParams,
)
from telens.pytorch.tensor.data import copy_storage


def test_model_init_stores_only_gemm_weights():
    with te.fp8_model_init():
        norm, layer = te.LayerNorm((4, 8)), te.LayerNormMLP(32, 64)
    assert not isinstance(norm.weight, te.QuantizedTensor)
    quantized = {n for n, p in layer.named_parameters() if isinstance(p, te.QuantizedTensor)}
    assert quantized == {"fc1_weight", "fc2_weight"}


def test_model_init_makes_weights_with_the_scaling_of_its_recipe():
    power_of_two = QParams(power_2_scale=True)
    with te.fp8_model_init(recipe=Float8CurrentScaling(fp8_quant_fwd_weight=power_of_two)):
        weight = te.Linear(32, 16).weight
    for _ in range(2):
        scale = weight._storage.rowwise_scale_inv.item()
        assert math.frexp(scale)[0] == 0.5
        weight.quantize_(torch.randn(16, 32) * 3)
    assert math.frexp(copy.deepcopy(weight).detach()._storage.rowwise_scale_inv.item())[0] == 0.5


def test_scale_of_a_stored_weight_is_logged(tmp_path):
    with te.fp8_model_init():
        layer = te.Linear(32, 16, name="fc")
    feature = {"enabled": True, "stats": ["scale_inv_min", "scale_inv_max", "mse"]}
    config = {
        "section": {
            "enabled": True,
            "layers": {"layer_types": ["fc"]},
            "transformer_engine": {"LogFp8TensorStats": feature | {"tensors": ["weight"]}},
        }
    }
    for recipe in (DelayedScaling(), Float8CurrentScaling()):
        run = tmp_path / type(recipe).__name__
        with debug.session(config, log_dir=run):
            with te.autocast(recipe=recipe):
                layer(torch.randn(16, 32))
            debug.step()
        records = telens.open_run(run).records()
        values = dict(zip(records["statistic"], records["value"], strict=True))
        expected = layer.weight._storage.rowwise_scale_inv.item()
        assert values["scale_inv_min"] == values["scale_inv_max"] == expected
        assert "mse" not in values


RECIPES = (Float8CurrentScaling, MXFP8BlockScaling, Float8BlockScaling, NVFP4BlockScaling)


def stored_linear(recipe) -> torch.nn.Module:
    with te.fp8_model_init(recipe=recipe()):
        return te.Linear(64, 32, bias=False, params_dtype=torch.bfloat16)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_copy_on_another_device_has_the_codes(recipe):
    weight = stored_linear(recipe).weight
    copied = weight.to("cpu", copy=True)
    assert type(copied) is type(weight)
    ours, theirs = stored_tensors(copied._storage), stored_tensors(weight._storage)
    assert ours.keys() == theirs.keys()
    for name, each in ours.items():
        assert torch.equal(each, theirs[name]), name
        assert each.data_ptr() != theirs[name].data_ptr(), name
    elsewhere = stored_tensors(copy_storage(weight._storage, "meta"))
    assert {each.device.type for each in elsewhere.values()} == {"meta"}
    assert type(weight.to(torch.float32)) is torch.Tensor  # values, as of any operation


@pytest.mark.parametrize("recipe", RECIPES)
def test_converted_layer_computes_with_its_weights_codes(recipe):
    """An update of the weight after the conversion changes the output."""
    layer = stored_linear(recipe)
    weight, values = layer.weight, layer.weight.dequantize()
    layer.float()
    assert layer.weight is weight
    assert weight.dtype == weight._storage.dtype == weight.dequantize().dtype == torch.float32
    torch.testing.assert_close(weight.dequantize(), values.float(), rtol=2**-6, atol=2**-6)
    x = torch.eye(64)
    for factor in (1, 3):
        weight.detach().quantize_(values.float() * factor)
        assert torch.equal(layer(x), weight.dequantize().t())


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_parameter_takes_over_the_codes_that_its_data_is_set_to(recipe):
    layer, other = stored_linear(recipe), stored_linear(recipe)
    layer.weight.data = other.weight.data
    assert torch.equal(layer.weight.dequantize(), other.weight.dequantize())
    other.weight.detach().quantize_(torch.ones(32, 64, dtype=torch.bfloat16))
    assert torch.equal(layer.weight.dequantize(), torch.ones(32, 64, dtype=torch.bfloat16))
    assert torch.equal(layer(torch.eye(64).bfloat16()), torch.ones(64, 32, dtype=torch.bfloat16))


@pytest.mark.parametrize("recipe", RECIPES)
def test_data_that_a_stored_weight_cannot_have_is_an_error(recipe):
    """After the error the weight is as before."""
    layer, small = stored_linear(recipe), torch.zeros(3, 5)
    with te.fp8_model_init(recipe=recipe()):
        shorter = te.Linear(64, 16, bias=False, params_dtype=torch.bfloat16).weight
    other = RECIPES[RECIPES.index(recipe) - 1]
    before = layer.weight.dequantize()
    for data, message in (
        (3, "data: 3 is not a tensor; expected a .*Tensor or values of shape .32, 64.: set it to"),
        (None, "data: None is not a tensor"),
        (small, r"data: a tensor of shape \(3, 5\); expected \(32, 64\), the weight's own: make"),
        (shorter, r"data: a tensor of shape \(16, 64\); expected \(32, 64\)"),
        (stored_linear(other).weight, "data: a .*Tensor; expected a .*Tensor or values: set it to"),
        (torch.zeros(32, 64, dtype=torch.int32), r"data: values in torch\.int32 for a weight that"),
    ):
        with pytest.raises(telens.UsageError, match=message):
            layer.weight.data = data
    with pytest.raises(telens.UsageError, match=r"values in torch\.float64 .*without fp8_model"):
        layer.double()
    assert layer.weight.dtype == torch.bfloat16
    assert torch.equal(layer.weight.dequantize(), before)
