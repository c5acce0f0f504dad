"""Layers with GEMMs equal those of telens.pytorch bit for bit, and are near Paddle's own
operators.
"""

import functools

import numpy as np
import paddle
import paddle_helpers as helpers
import pytest

import telens.paddle as te
import telens.pytorch as torch_te
from telens.common.recipe import DelayedScaling, Float8CurrentScaling

LAYERS = {
    "Linear": (lambda **more: te.Linear(32, 48, **more), lambda: torch_te.Linear(32, 48)),
    "Linear without bias": (
        lambda **more: te.Linear(32, 48, bias_attr=False, **more),
        lambda: torch_te.Linear(32, 48, bias=False),
    ),
    "LayerNorm": (lambda **more: te.LayerNorm(32, **more), lambda: torch_te.LayerNorm(32)),
    "LayerNormLinear": (
        lambda **more: te.LayerNormLinear(32, 48, **more),
        lambda: torch_te.LayerNormLinear(32, 48),
    ),
    "LayerNormLinear with RMSNorm that returns the norm": (
        lambda **more: te.LayerNormLinear(
            32, 48, normalization="RMSNorm", return_layernorm_output=True, **more
        ),
        lambda: torch_te.LayerNormLinear(
            32, 48, normalization="RMSNorm", return_layernorm_output=True
        ),
    ),
    **{
        f"LayerNormMLP with {name}": (
            functools.partial(te.LayerNormMLP, 32, 64, activation=name),
            functools.partial(torch_te.LayerNormMLP, 32, 64, activation=torch_name),
        )
        for name, torch_name in [
            ("gelu", "gelu"),
            ("geglu", "geglu"),
            ("relu", "relu"),
            ("reglu", "reglu"),
            ("squared_relu", "srelu"),
            ("swiglu", "swiglu"),
        ]
    },
    "LayerNormMLP that returns the norm": (
        lambda **more: te.LayerNormMLP(32, 64, return_layernorm_output=True, **more),
        lambda: torch_te.LayerNormMLP(32, 64, return_layernorm_output=True),
    ),
}
RECIPES = {
    "high precision": None,
    "delayed scaling": DelayedScaling,
    "current scaling": Float8CurrentScaling,
}


def in_fp8(recipe):
    if recipe is None:
        return None
    return (
        lambda: te.fp8_autocast(enabled=True, fp8_recipe=recipe()),
        lambda: torch_te.autocast(enabled=True, recipe=recipe()),
    )


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_has_the_bits_of_telens_pytorch(name, recipe):
    make, make_in_torch = LAYERS[name]
    layer, module = make(), make_in_torch()
    helpers.copy_weights(layer, module)
    for seed in range(3):  # delayed scaling takes its scales from the steps before
        layer.clear_gradients(set_to_zero=False)
        module.zero_grad()
        inputs = [helpers.randoms(4, 16, 32, seed=seed)]
        helpers.assert_same_bits(*helpers.run_both(layer, module, inputs, in_fp8(RECIPES[recipe])))


def test_a_layer_of_bf16_has_the_bits_of_telens_pytorch():
    layer, module = te.Linear(32, 48), torch_te.Linear(32, 48)
    helpers.copy_weights(layer, module)
    layer.to(dtype="bfloat16")
    module.bfloat16()
    inputs = [helpers.randoms(16, 32, dtype="bfloat16")]
    ours, theirs = helpers.run_both(layer, module, inputs, in_fp8(Float8CurrentScaling))
    assert ours[0][0].dtype == paddle.bfloat16
    helpers.assert_same_bits(ours, theirs)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_near_paddles_own_operators(name):
    make, _ = LAYERS[name]
    layer, plain = make(), make(backend="paddle")
    for key, parameter in layer.named_parameters():
        other = dict(plain.named_parameters())[key]
        other.set_value(parameter.t() if parameter.ndim == 2 else parameter)
    results = []
    for each in (layer, plain):
        x = helpers.randoms(4, 16, 32)
        found = each(x)
        outputs = found if isinstance(found, tuple) else (found,)
        sum((out * out).mean() for out in outputs).backward()
        grads = {
            key: (p.grad.t() if each is plain and p.ndim == 2 else p.grad).numpy()
            for key, p in each.named_parameters()
        }
        results.append(([out.numpy() for out in outputs], x.grad.numpy(), grads))
    # FP32 sums of at most 64 products in another order: 64 roundings of 2^-24, twice.
    near = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5)
    for mine, other in zip(results[0][0], results[1][0], strict=True):
        near(mine, other)
    near(results[0][1], results[1][1])
    for key, gradient in results[0][2].items():
        near(gradient, results[1][2][key], err_msg=key)


@pytest.mark.parametrize("name", ["Linear", "LayerNormLinear", "LayerNormMLP with swiglu"])
def test_gradients_are_finite_differences(name):
    layer = LAYERS[name][0]()
    layer.to(dtype="float64")
    x = helpers.randoms(3, 32, dtype="float64")
    weights = helpers.randoms(*layer(x).shape, seed=5, dtype="float64").detach()

    def loss(tensor):
        return float((layer(tensor) * weights).sum())

    (layer(x) * weights).sum().backward()
    direction = helpers.randoms(3, 32, seed=6, dtype="float64").detach()
    step = 1e-6
    with paddle.no_grad():
        difference = (loss(x + step * direction) - loss(x - step * direction)) / (2 * step)
    # The error of central differences is step^2, plus rounding / step: 1e-12 and 1e-10 of values
    # near 100.
    assert difference == pytest.approx(float((x.grad * direction).sum()), rel=1e-6, abs=1e-6)


def test_zero_centered_gamma_starts_at_zero_and_means_one():
    plain, centered = te.LayerNorm(32), te.LayerNorm(32, zero_centered_gamma=True)
    assert not centered.weight.any()
    x = helpers.randoms(4, 32)
    assert helpers.bits(plain(x)) == helpers.bits(centered(x))


def test_an_fp8_layer_wants_features_that_16_divides():
    layer = te.Linear(24, 32)
    x = helpers.randoms(16, 24)
    assert layer(x).shape == [16, 32]
    with pytest.raises(ValueError, match="multiples of 16"), te.fp8_autocast(enabled=True):
        layer(x)


def test_tokens_may_be_any_number_in_fp8():
    layer = te.Linear(32, 32)
    with te.fp8_autocast(enabled=True):
        assert layer(helpers.randoms(5, 32)).shape == [5, 32]
        assert layer(helpers.randoms(0, 32)).shape == [0, 32]


def test_nan_and_inf_come_through():
    layer = te.Linear(16, 16)
    x = helpers.randoms(2, 16).detach()
    x[0, 0] = float("nan")
    x[1, 0] = float("inf")
    out = layer(x).numpy()
    assert np.isnan(out[0]).all()
    assert not np.isfinite(out[1]).any()
