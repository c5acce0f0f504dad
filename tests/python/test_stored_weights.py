"""Weights that fp8_model_init makes: which they are, how they are quantized, what is logged."""

import copy
import math

import torch

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import DelayedScaling, Float8CurrentScaling, QParams


def test_model_init_makes_the_weights_of_gemms_alone():
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


def test_the_scale_of_a_stored_weight_is_logged_although_there_is_no_original(tmp_path):
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
