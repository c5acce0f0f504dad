"""fp8_autocast, paddle.amp and recompute."""

import copy

import numpy as np
import paddle
import paddle_helpers as helpers
import pytest
from paddle.base import core
from paddle.base.framework import _dygraph_tracer

import telens.paddle as te
import telens.pytorch as torch_te
from telens.common.recipe import DelayedScaling, Float8BlockScaling, MXFP8BlockScaling


@pytest.fixture
def amp():
    """Sets what paddle.amp.auto_cast sets on a GPU; on the CPU Paddle ignores it with a warning."""
    tracer = _dygraph_tracer()
    level, dtype = tracer._amp_level, tracer._amp_dtype

    def begin(new_level, new_dtype="bfloat16"):
        tracer._amp_level, tracer._amp_dtype = new_level, new_dtype

    yield begin
    tracer._amp_level, tracer._amp_dtype = level, dtype


# ---------------------------------------------------------------------- fp8_autocast


def test_the_region_is_off_by_default():
    layer = te.Linear(16, 16)
    x = helpers.randoms(16, 16)
    plain = helpers.bits(layer(x))
    with te.fp8_autocast():
        assert helpers.bits(layer(x)) == plain
    with te.fp8_autocast(enabled=True):
        assert helpers.bits(layer(x)) != plain


def test_calibrating_collects_amaxes_in_high_precision():
    layer = te.Linear(16, 16)
    x = helpers.randoms(16, 16)
    plain = helpers.bits(layer(x))
    with te.fp8_autocast(calibrating=True):
        assert helpers.bits(layer(x)) == plain
    assert layer.state_dict()["fp8_state"][0].shape[0] > 0


@pytest.mark.parametrize("recipe", [MXFP8BlockScaling, Float8BlockScaling])
def test_every_recipe_runs(recipe):
    layer, module = te.Linear(128, 128), torch_te.Linear(128, 128)
    helpers.copy_weights(layer, module)
    regions = (
        lambda: te.fp8_autocast(enabled=True, fp8_recipe=recipe()),
        lambda: torch_te.autocast(enabled=True, recipe=recipe()),
    )
    helpers.assert_same_bits(*helpers.run_both(layer, module, [helpers.randoms(128, 128)], regions))


def test_a_recipe_with_a_function_of_ones_own_is_refused():
    recipe = DelayedScaling(amax_compute_algo=lambda history: history[0])
    with (
        pytest.raises(ValueError, match="amax_compute_algo"),
        te.fp8_autocast(enabled=True, fp8_recipe=recipe),
    ):
        pass


def test_an_evaluation_leaves_no_trace_in_the_scales():
    layer = te.Linear(16, 16)
    x = helpers.randoms(16, 16)
    with te.fp8_autocast(enabled=True):
        layer(x).sum().backward()
    before = layer.state_dict()["fp8_state"][0].numpy().copy()
    with paddle.no_grad(), te.fp8_autocast(enabled=True):
        layer(100 * x)
    np.testing.assert_array_equal(before, layer.state_dict()["fp8_state"][0].numpy())


# ---------------------------------------------------------------------- paddle.amp


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_auto_cast_decides_the_dtype_of_the_gemms(amp, level):
    layer = te.LayerNormLinear(32, 48)
    x = helpers.randoms(4, 32)
    amp(getattr(core.AmpLevel, level))
    out = layer(x)
    assert out.dtype == paddle.bfloat16
    out.astype("float32").sum().backward()
    assert layer.weight.grad.dtype == paddle.float32
    amp(core.AmpLevel.O0, "float32")
    near = helpers.to_torch(layer(x)).bfloat16().float()
    # One rounding to BF16 of each operand and of the result, and sums of 32 products.
    np.testing.assert_allclose(
        helpers.to_torch(out).float().numpy(), near.detach().numpy(), rtol=0.05, atol=0.05
    )


def test_auto_cast_has_the_bits_of_torch_autocast(amp):
    import torch

    layer, module = te.LayerNormMLP(32, 64), torch_te.LayerNormMLP(32, 64)
    helpers.copy_weights(layer, module)
    x = helpers.randoms(16, 32)
    amp(core.AmpLevel.O1)
    ours = layer(x)
    amp(core.AmpLevel.O0, "float32")
    with torch.autocast("cpu", torch.bfloat16):
        theirs = module(helpers.to_torch(x))
    assert helpers.bits(ours) == helpers.bits(theirs)


def test_a_decorated_model_computes_in_bf16():
    layer = te.Linear(32, 32)
    paddle.amp.decorate(layer, level="O2", dtype="bfloat16")
    if layer.weight.dtype != paddle.bfloat16:
        pytest.skip("paddle.amp.decorate leaves layers on the CPU as they are")
    assert layer(helpers.randoms(4, 32, dtype="bfloat16")).dtype == paddle.bfloat16


def test_other_dtypes_than_the_weights_are_refused_outside_auto_cast():
    with pytest.raises(ValueError, match="dtype"):
        te.Linear(32, 32)(helpers.randoms(4, 32, dtype="bfloat16"))


# ---------------------------------------------------------------------- recompute


def step(model, again, dropout_seed=1, **arguments):
    paddle.seed(dropout_seed)
    model.clear_gradients(set_to_zero=False)
    x = helpers.randoms(2, 16, 32)
    with te.fp8_autocast(enabled=True, fp8_recipe=DelayedScaling(amax_history_len=4)):
        out = te.recompute(model, x, **arguments) if again else model(x, **arguments)
    (out * out).sum().backward()
    return [helpers.bits(each) for each in (out, x.grad, *(p.grad for p in model.parameters()))]


def test_recomputation_in_fp8_has_the_bits_of_a_step_without():
    paddle.seed(2)
    model = te.TransformerLayer(32, 64, 4)  # with dropout
    twin = copy.deepcopy(model)
    for number in range(4):  # scales follow the amaxes, which must be noted once
        assert step(model, True, number) == step(twin, False, number)


def test_recompute_without_gradients_updates_no_scale():
    layer = te.Linear(32, 32)
    step(layer, True)
    before = layer.state_dict()["fp8_state"][0].numpy().copy()
    recipe = DelayedScaling(amax_history_len=4)
    with paddle.no_grad(), te.fp8_autocast(enabled=True, fp8_recipe=recipe):
        te.recompute(layer, 100 * helpers.randoms(4, 32))
    assert (layer.state_dict()["fp8_state"][0].numpy() == before).all()


def test_recompute_takes_functions_and_keywords():
    model = te.TransformerLayer(32, 64, 4, self_attn_mask_type="padding")
    mask = paddle.zeros([2, 1, 16, 16], dtype="bool")
    twin = copy.deepcopy(model)
    assert step(model, True, attention_mask=mask) == step(twin, False, attention_mask=mask)


def test_recompute_rejects_unsupported_arguments():
    with pytest.raises(ValueError, match="use_reentrant"):
        te.recompute(te.Linear(16, 16), helpers.randoms(4, 16), use_reentrant=False)
    with pytest.raises(ValueError, match="function"):
        te.recompute(3, helpers.randoms(4, 16))
