"""A recipe's backward_override: dgrad and wgrad run in high precision, and with which values."""

import dataclasses
import pickle

import pytest
import torch
from debug_helpers import config_of
from recipe_helpers import forward

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import (
    CustomRecipe,
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
)

E4M3 = te.DType.kFloat8E4M3
RECIPES = [Float8CurrentScaling, MXFP8BlockScaling, Float8BlockScaling, NVFP4BlockScaling]


@pytest.mark.parametrize("recipe", [*RECIPES, CustomRecipe])
def test_high_precision_backward_equals_overriding_both_gemms(recipe):
    required = {}
    if recipe is CustomRecipe:
        required = {"qfactory": lambda role: te.Float8CurrentScalingQuantizer(E4M3, device="cpu")}
    plain, overridden = recipe(**required), recipe(**required, backward_override="high_precision")
    expected = recipe(**required, override_linear_precision=(False, True, True))
    assert torch.equal(forward(overridden), forward(expected))
    assert not torch.equal(forward(overridden), forward(plain))
    plain.backward_override = "high_precision"  # later on
    assert torch.equal(forward(plain), forward(expected))
    if recipe is CustomRecipe:
        overridden = dataclasses.replace(overridden, qfactory=int)  # int can be pickled
    assert pickle.loads(pickle.dumps(overridden)).backward_override == "high_precision"


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("first", ["high_precision", "dequantized"])
def test_a_kept_weight_serves_no_recipe_of_another_override(recipe, first):
    """With "high_precision" dgrad multiplies the weight's values, with "dequantized" those of its
    codes.
    """
    torch.manual_seed(1)
    layer = te.Linear(64, 64, bias=False)
    x = torch.randn(32, 64)

    def dgrad(override, is_first_microbatch):
        own = x.clone().requires_grad_()
        options = {"disable_stochastic_rounding": True} if recipe is NVFP4BlockScaling else {}
        with te.autocast(recipe=recipe(backward_override=override, **options)):
            out = layer(own, is_first_microbatch=is_first_microbatch)
        out.backward(torch.ones_like(out))
        return own.grad

    second = "dequantized" if first == "high_precision" else "high_precision"
    expected = dgrad(second, None)
    assert not torch.equal(dgrad(first, True), expected)
    assert torch.equal(dgrad(second, False), expected)


def codes_values(quantizer, tensor):
    return quantizer(tensor.detach()).dequantize()


@pytest.mark.parametrize(
    ("recipe", "quantizer"),
    [
        (Float8CurrentScaling, lambda: te.Float8CurrentScalingQuantizer(E4M3, device="cpu")),
        (MXFP8BlockScaling, lambda: te.MXFP8Quantizer(E4M3)),
    ],
)
@pytest.mark.parametrize("custom", [False, True])
@pytest.mark.parametrize("is_first_microbatch", [None, True])
def test_dequantized_backward_uses_fprops_operands(recipe, quantizer, custom, is_first_microbatch):
    torch.manual_seed(1)
    make = recipe if not custom else lambda **kw: CustomRecipe(lambda role: quantizer(), **kw)
    layer = te.Linear(64, 96, device="cpu")
    x = torch.randn(32, 64, requires_grad=True)
    with te.autocast(recipe=make(backward_override="dequantized")):
        y = layer(x, is_first_microbatch=is_first_microbatch)
    with te.autocast(recipe=make()):
        assert torch.equal(y, layer(x))
    grad = torch.randn_like(y)
    y.backward(grad)

    plain = te.Linear(64, 96, device="cpu")
    with torch.no_grad():
        plain.weight.copy_(codes_values(quantizer(), layer.weight))
    values = codes_values(quantizer(), x).requires_grad_()
    plain(values).backward(grad)
    assert torch.equal(x.grad, values.grad)
    assert torch.equal(layer.weight.grad, plain.weight.grad)


@pytest.mark.parametrize("recipe", [Float8BlockScaling, NVFP4BlockScaling])
def test_dequantized_backward_is_exact_for_representable_values(recipe):
    def gradients(override, x, weight):
        layer = te.Linear(128, 128, device="cpu", bias=False)
        with torch.no_grad():
            layer.weight.copy_(weight)
        x = x.clone().requires_grad_()
        with te.autocast(recipe=recipe(backward_override=override)):
            y = layer(x)
        torch.manual_seed(3)
        y.backward(torch.randn_like(y))
        return torch.cat([x.grad, layer.weight.grad])

    torch.manual_seed(2)
    signs = torch.randint(0, 2, (2, 128, 128)) * 2.0 - 1
    assert torch.equal(gradients("dequantized", *signs), gradients("high_precision", *signs))
    drawn = torch.randn(2, 128, 128)
    assert not torch.equal(gradients("dequantized", *drawn), gradients("high_precision", *drawn))


def of_linear(module, x, options):
    return module(x, **options)


def of_groups(module, x, options):
    return module(x, [32, 96], **options)


LAYERS = {
    "Linear": (lambda: te.Linear(128, 128), of_linear),
    "LayerNormLinear": (lambda: te.LayerNormLinear(128, 128), of_linear),
    "LayerNormMLP": (lambda: te.LayerNormMLP(128, 128), of_linear),
    "GroupedLinear": (lambda: te.GroupedLinear(2, 128, 128), of_groups),
}
WATCHING = config_of("LogTensorStats", "transformer_engine", tensors=["activation"], stats=["max"])


@pytest.mark.parametrize("recipe", [Float8CurrentScaling, MXFP8BlockScaling])
@pytest.mark.parametrize("name", LAYERS)
def test_dequantized_backward_is_equal_watched_or_cached(tmp_path, name, recipe):
    make, call = LAYERS[name]
    torch.manual_seed(4)
    module = make()
    drawn, grad = torch.randn(2, 128, 128)

    def gradients(override="dequantized", run=call, **options):
        module.zero_grad()
        x = drawn.clone().requires_grad_()
        with te.autocast(recipe=recipe(backward_override=override)):
            y = run(module, x, options)
            y.backward(grad)
        return [x.grad, *(each.grad.clone() for each in module.parameters())]

    plain = gradients()
    high = gradients("high_precision")
    assert not any(torch.equal(plain[0], each[0]) for each in (high, gradients(None)))
    made = {
        "recomputed": gradients(run=lambda *args: te.checkpoint(call, *args)),
        "first": gradients(is_first_microbatch=True),
        "cached": gradients(is_first_microbatch=False),
    }
    with debug.session(WATCHING, log_dir=tmp_path):
        made["watched"] = gradients()
        debug.step()
    for way, each in made.items():
        assert all(map(torch.equal, each, plain)), way


def test_dequantized_grouped_linear_matches_linear_layers():
    torch.manual_seed(5)
    grouped, single = te.GroupedLinear(2, 128, 128), te.Linear(128, 128)
    x, grad = torch.randn(2, 128, 128)
    with torch.no_grad():
        single.weight.copy_(grouped.weight1)
        single.bias.copy_(grouped.bias1)
    found = []
    for run, part in ((lambda t: grouped(t, [32, 96]), slice(None)), (single, slice(32, None))):
        leaf = x[part].clone().requires_grad_()
        with te.autocast(recipe=MXFP8BlockScaling(backward_override="dequantized")):
            run(leaf).backward(grad[part])
        found.append(leaf.grad[-96:])
    assert torch.equal(*found)
    assert torch.equal(grouped.weight1.grad, single.weight.grad)


def test_dequantized_backward_ignores_an_unsuitable_cache():
    torch.manual_seed(1)
    layer = te.Linear(64, 64, device="cpu")
    x = torch.randn(32, 64, requires_grad=True)
    grads = []
    for first in (True, None):
        with te.autocast(recipe=Float8CurrentScaling(backward_override="dequantized")):
            if first:
                with torch.no_grad():
                    layer(x, is_first_microbatch=True)
            y = layer(x, is_first_microbatch=False if first else None)
        y.backward(torch.ones_like(y))
        grads.append(x.grad)
        x.grad = None
    assert torch.equal(*grads)


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("high_precision", r"scales of gradients .*; use override_linear_precision=\(F"),
        ("dequantized", "codes .* clipped; use a recipe .* such as Float8CurrentScaling, or"),
    ],
)
def test_delayed_scaling_rejects_high_precision_backward(override, reason):
    message = f"backward_override='{override}' does not go with delayed scaling, whose {reason}"
    with pytest.raises(telens.UsageError, match=message):
        DelayedScaling(backward_override=override)
