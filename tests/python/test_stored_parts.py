"""Weights in named parts (parameters_split) that fp8_model_init stores, each with its own
scales.
"""

import pytest
import torch
from debug_helpers import section

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import (
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
)

PARTS = {"query": 128, "key": 256}


def make(kind=te.Linear, recipe=None, **options) -> torch.nn.Module:
    torch.manual_seed(1)
    with te.fp8_model_init(recipe=recipe):
        layer = kind(128, 384, parameters_split=PARTS, **options)
    with torch.no_grad():
        layer.key_weight.quantize_(layer.key_weight.dequantize() * 8)  # a scale of its own
        layer.query_bias.normal_()
        layer.key_bias.normal_()
    return layer


def part_of(layer: te.Linear, name: str) -> te.Linear:
    """A layer that has only one of the parts."""
    with te.fp8_model_init():
        alone = te.Linear(128, PARTS[name])
    alone.weight = torch.nn.Parameter(getattr(layer, f"{name}_weight").detach())
    alone.bias = torch.nn.Parameter(getattr(layer, f"{name}_bias").detach())
    return alone


def make_input() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(2)
    return torch.randn(64, 128).requires_grad_(), torch.randn(64, 384)


# Recipes with which the scales of gradients do not depend on the other parts.
RECIPES = [None, DelayedScaling, MXFP8BlockScaling, Float8BlockScaling]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe and recipe.__name__)
def test_stored_split_weight_matches_separate_layers(recipe):
    layer = make(recipe=recipe and recipe())
    assert layer.query_weight._storage.mode == layer.key_weight._storage.mode
    (x, gradient), column = make_input(), 0
    with te.autocast(enabled=recipe is not None, recipe=recipe and recipe()):
        out = layer(x)
    out.backward(gradient)
    dgrad = torch.zeros_like(x)
    for name, rows in PARTS.items():
        alone, y = part_of(layer, name), x.detach().clone().requires_grad_()
        with te.autocast(enabled=recipe is not None, recipe=recipe and recipe()):
            part = alone(y)
        part.backward(gradient[:, column : column + rows])
        assert torch.equal(out[:, column : column + rows], part)
        assert torch.equal(getattr(layer, f"{name}_weight").grad, alone.weight.grad)
        assert torch.equal(getattr(layer, f"{name}_bias").grad, alone.bias.grad)
        dgrad, column = dgrad + y.grad, column + rows
    assert torch.equal(x.grad, dgrad)


def test_in_16_bits_the_sum_over_parts_is_rounded_once():
    layer = make(params_dtype=torch.bfloat16)
    x, gradient = (each.detach().bfloat16() for each in make_input())
    x.requires_grad_()
    with te.autocast(recipe=DelayedScaling()):
        out = layer(x)
    out.backward(gradient)
    codes = te.Float8Quantizer(torch.ones(1), torch.zeros(1), te.DType.kFloat8E5M2)(gradient)
    weight = torch.cat([getattr(layer, f"{n}_weight").dequantize(torch.float32) for n in PARTS])
    exact = codes.dequantize().double() @ weight.double()
    magnitude = codes.dequantize().double().abs() @ weight.double().abs()
    bound = 2.0**-8 * exact.abs() + 2.0**-15 * magnitude
    assert ((x.grad.double() - exact).abs() <= bound).all()


def test_a_part_takes_other_values_by_itself():
    layer, (x, _) = make(), make_input()
    with torch.no_grad(), te.autocast(recipe=Float8CurrentScaling()):
        before = layer(x)
        layer.query_weight.quantize_(torch.zeros(128, 128))
        after = layer(x)
    assert torch.equal(after[:, :128], layer.query_bias.bfloat16().float().expand(64, 128))
    assert torch.equal(after[:, 128:], before[:, 128:])


@pytest.mark.parametrize("recipe", [DelayedScaling, MXFP8BlockScaling])
def test_transformer_layer_with_separate_projections_trains(recipe):
    torch.manual_seed(1)
    with te.fp8_model_init(recipe=recipe()):
        layer = te.TransformerLayer(64, 128, 2, hidden_dropout=0, attention_dropout=0)
    x = torch.randn(16, 2, 64, requires_grad=True)
    with te.autocast(recipe=recipe()):
        out = layer(x)
    out.square().mean().backward()
    stored = [p for p in layer.parameters() if isinstance(p, te.QuantizedTensor)]
    assert len(stored) == 6  # query, key, value, proj, fc1, fc2
    assert all(each.grad.isfinite().all() and each.grad.any() for each in stored)
    assert out.isfinite().all()


def test_features_see_stored_parts_as_one_weight_of_their_values(tmp_path):
    layer, (x, _) = make(name="fc"), make_input()
    feature = {"enabled": True, "tensors": ["weight"], "stats": ["max", "l1_norm", "mean"]}
    with debug.session(section({"LogTensorStats": feature}), log_dir=tmp_path):
        with te.autocast(recipe=Float8CurrentScaling()):
            watched = layer(x)
        debug.step()
    with te.autocast(recipe=Float8CurrentScaling()):
        assert torch.equal(layer(x), watched)
    records = telens.open_run(tmp_path).records()
    logged = dict(zip(records["statistic"], records["value"], strict=True))
    values = torch.cat([getattr(layer, f"{name}_weight").dequantize() for name in PARTS]).double()
    assert logged["max"] == values.max().item()
    assert logged["l1_norm"] == pytest.approx(values.abs().sum().item(), rel=1e-6)
    assert logged["mean"] == pytest.approx(values.mean().item(), rel=1e-4)


def test_parts_that_no_gemm_takes_are_refused():
    with te.fp8_model_init(recipe=Float8BlockScaling()):
        layer = te.Linear(128, 192, parameters_split={"a": 128, "b": 64}, bias=False)
    message = r"a part of its weight has 64 rows.*fuse_qkv"
    with te.autocast(recipe=Float8BlockScaling()), pytest.raises(telens.ShapeError, match=message):
        layer(torch.zeros(16, 128))
    layer.b_weight = torch.nn.Parameter(torch.zeros(64, 128))
    with pytest.raises(telens.UsageError, match="1 of the 2 parts of a weight are stored"):
        layer(torch.zeros(16, 128))
