"""GroupedLinear: one parameter for all maps, one operation for all products, own buffers."""

import pytest
import torch
from debug_helpers import logging_of
from same_tensors import assert_same

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import (
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
)

SPLITS = [32, 0, 48]
ONE = {"single_grouped_weight": True, "single_grouped_bias": True}


def grouped(**options) -> te.GroupedLinear:
    torch.manual_seed(1)
    return te.GroupedLinear(3, 128, 128, **{"device": "cpu", **options})


def make_input(dtype=torch.float32) -> torch.Tensor:
    torch.manual_seed(2)
    return torch.randn(80, 128, dtype=dtype).requires_grad_()


def step(layer, x, recipe=None, **options) -> list[torch.Tensor]:
    """Returns the output, the input's gradient, and those of the weights and biases of all maps."""
    with te.autocast(enabled=recipe is not None, recipe=recipe):
        out = layer(x, SPLITS, **options)
    torch.manual_seed(3)
    parameters = dict(layer.named_parameters())
    gradients = torch.autograd.grad(out, [x, *parameters.values()], torch.randn(80, 128).to(x))
    by_kind = {"weight": [], "bias": []}
    for name, gradient in zip(parameters, gradients[1:], strict=True):
        whole = name in by_kind
        by_kind[name.rstrip("012")] += gradient.unbind(0) if whole else [gradient]
    return [out, gradients[0], *by_kind["weight"], *by_kind["bias"]]


@pytest.mark.parametrize("region", ["fp32", "bf16", "torch.autocast"])
def test_grouped_product_matches_bits_of_separate_products(region, tmp_path):
    dtype = torch.bfloat16 if region == "bf16" else torch.float32
    layer, x = grouped(params_dtype=dtype, name="moe"), make_input(dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=region == "torch.autocast"):
        one = step(layer, x)
        assert len(one[0].grad_fn.next_functions) == 7  # the input, weights and biases
        config = logging_of(["activation"], ["max"])
        with debug.session(config, log_dir=tmp_path):  # a watched map goes by itself
            watched = step(layer, x)
            debug.step()
        alone = te.Linear(128, 128, params_dtype=dtype, device="cpu")
        with torch.no_grad():
            alone.weight.copy_(layer.weight2)
            alone.bias.copy_(layer.bias2)
        assert torch.equal(alone(x[32:]), one[0][32:])
    assert_same(one, watched)
    assert not one[3].any()


CASTS = [
    DelayedScaling(),
    Float8CurrentScaling(),
    MXFP8BlockScaling(),
    NVFP4BlockScaling(disable_stochastic_rounding=True),
    Float8CurrentScaling(backward_override="dequantized"),
    Float8CurrentScaling(override_linear_precision=(False, True, False)),
]


@pytest.mark.parametrize("recipe", CASTS, ids=lambda recipe: type(recipe).__name__)
def test_grouped_cast_matches_bits_of_separate_casts(recipe, tmp_path):
    """Two steps, of which the second uses the amaxes of the first; a watched map runs by itself."""
    one, watched = grouped(name="moe"), grouped(name="moe")
    calls = [{"is_first_microbatch": first} for first in (None, True, False)]
    steps = [step(one, make_input(), recipe, **options) for options in calls]
    assert len(steps[0][0].grad_fn.next_functions) == 7  # the input, weights and biases
    with debug.session(logging_of(["activation"], ["max"]), log_dir=tmp_path):
        for results, options in zip(steps, calls, strict=True):
            assert_same(results, step(watched, make_input(), recipe, **options))
            debug.step()
    for name, value in one.state_dict().items():
        assert torch.equal(value, watched.state_dict()[name]), name


def test_frozen_parts_and_main_grads_work_under_a_recipe():
    layer, recipe = grouped(bias=False, fuse_wgrad_accumulation=True), DelayedScaling()
    expected = step(grouped(bias=False), make_input(), recipe)
    layer.weight0.requires_grad_(False)
    for i in (1, 2):
        getattr(layer, f"weight{i}").main_grad = torch.ones(128, 128)
    x = make_input()
    with te.autocast(recipe=recipe):
        out = layer(x, SPLITS)
    torch.manual_seed(3)
    out.backward(torch.randn(80, 128))
    assert layer.weight0.grad is None
    assert_same([x.grad, layer.weight2.main_grad - 1], [expected[1], (1 + expected[4]) - 1])
    assert torch.equal(layer.weight1.main_grad, torch.ones(128, 128))
    with te.autocast(recipe=recipe), pytest.raises(telens.UsageError, match="second derivative"):
        torch.autograd.grad(layer(x, SPLITS).sum(), x, create_graph=True)


def test_saved_high_precision_input_must_not_be_overwritten():
    layer, x = grouped(), make_input().detach()
    with te.autocast(recipe=Float8CurrentScaling(override_linear_precision=(False, False, True))):
        out = layer(x, SPLITS)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_a_frozen_part_gets_no_gradient_and_changes_no_other():
    layer, x = grouped(), make_input()
    expected = step(layer, x)
    layer.weight0.requires_grad_(False)
    layer.bias1.requires_grad_(False)
    out = layer(x.detach(), SPLITS)
    torch.manual_seed(3)
    out.backward(torch.randn(80, 128))
    assert layer.weight0.grad is None
    assert layer.bias1.grad is None
    assert torch.equal(layer.weight2.grad, expected[4])
    assert torch.equal(layer.bias0.grad, expected[5])
    with pytest.raises(telens.UsageError, match="second derivative"):
        torch.autograd.grad(layer(x, SPLITS).sum(), x, create_graph=True)


@pytest.mark.parametrize("recipe", [None, Float8CurrentScaling(), MXFP8BlockScaling()])
def test_joined_parameter_matches_separate_parameters(recipe):
    one, many = grouped(**ONE), grouped()
    assert {name: tuple(p.shape) for name, p in one.named_parameters()} == {
        "weight": (3, 128, 128), "bias": (3, 128),
    }  # fmt: skip
    assert_same(step(one, make_input(), recipe), step(many, make_input(), recipe))


def test_joined_and_separate_checkpoints_are_interchangeable():
    sources = grouped(**ONE), grouped()
    for source in sources:
        with torch.no_grad():
            for parameter in source.parameters():
                parameter.normal_()
        for options in (ONE, {}, {"single_grouped_weight": True}):
            target = grouped(**options)
            target.load_state_dict(source.state_dict())
            assert_same(step(target, make_input()), step(source, make_input()))


STORED = [MXFP8BlockScaling, Float8BlockScaling, NVFP4BlockScaling]


@pytest.mark.parametrize("recipe", STORED, ids=lambda recipe: recipe.__name__)
def test_one_parameter_may_be_stored_in_blocks(recipe):
    if recipe is NVFP4BlockScaling:  # no random number
        recipe = NVFP4BlockScaling(disable_rht=True, disable_stochastic_rounding=True)
    else:
        recipe = recipe()
    with te.fp8_model_init(recipe=recipe):
        one = grouped(params_dtype=torch.bfloat16, **ONE)
    assert isinstance(one.weight, te.QuantizedTensor)
    many = grouped(params_dtype=torch.bfloat16)
    with torch.no_grad():
        for i, weight in enumerate(one.weight.dequantize()):
            getattr(many, f"weight{i}").copy_(weight)
    x = make_input(torch.bfloat16)
    # Values that come from codes in blocks get the same codes again, but with the FP32 scale that
    # all maps share; in high precision the values themselves are equal.
    for each in (None, recipe) if not isinstance(recipe, NVFP4BlockScaling) else (None,):
        assert_same(step(one, x, each), step(many, x, each))
    if isinstance(recipe, NVFP4BlockScaling):
        assert step(one, x, recipe)[0].isfinite().all()


def test_a_map_whose_rows_would_cut_a_block_is_refused():
    with te.fp8_model_init(recipe=Float8BlockScaling()):
        layer = te.GroupedLinear(2, 128, 64, device="cpu", bias=False, single_grouped_weight=True)
    with pytest.raises(telens.ShapeError, match="would cut a block of 128"):
        layer(torch.zeros(32, 128), [16, 16])
    with pytest.raises(telens.UsageError, match="single_grouped_weight joins all weights"):
        grouped(single_grouped_weight=True, fuse_wgrad_accumulation=True)


@pytest.mark.parametrize("recipe", [None, Float8CurrentScaling()], ids=["plain", "fp8"])
def test_results_are_written_into_buffers_of_the_callers(recipe):
    layer, x = grouped(), make_input()
    expected = step(layer, x, recipe)
    out, dgrad = torch.full((80, 128), 7.0), torch.full((80, 128), 7.0)
    for _ in range(2):  # the memory may be used again
        results = step(layer, x, recipe, out=out, dgrad_out=dgrad)
        assert_same(results, expected)
        assert results[0].data_ptr() == out.data_ptr()
        assert results[1].data_ptr() == dgrad.data_ptr()
        assert not out.requires_grad
    with te.autocast(enabled=recipe is not None, recipe=recipe):
        square = layer(x, SPLITS, out=out).square().sum()
        layer(x, SPLITS, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        square.backward()


def test_a_buffer_that_does_not_fit_is_refused_by_name():
    layer, x = grouped(name="moe"), make_input()
    fits = torch.empty(80, 128)
    for name, buffer in (
        ("out", torch.empty(80, 64)),
        ("dgrad_out", torch.empty(80, 128, dtype=torch.bfloat16)),
        ("out", torch.empty(128, 80).t()),
    ):
        with pytest.raises(telens.ShapeError, match=f"moe: {name} is .* expected contiguous"):
            layer(x, SPLITS, **{name: buffer})
    with pytest.raises(telens.UsageError, match="moe: out requires a gradient"):
        layer(x, SPLITS, out=fits.clone().requires_grad_())
