"""Layers under every recipe train on a GPU as on the CPU: outputs, gradients of inputs and of all
parameters. Skipped where there is no GPU; `make gpu-check` runs them. TELENS_TEST_DEVICE=cpu runs
the code of these tests on the CPU, against itself."""

import pytest
import torch
from cuda_beside import (
    MODULES,
    RECIPES,
    assert_beside,
    build,
    drawn,
    forward,
    needs_gpu,
    part_of_casts,
    train,
    without_casts,
)
from cuda_helpers import DEVICE, assert_same_bits

import telens.pytorch as te
from telens.common import recipe as recipes

pytestmark = [needs_gpu, pytest.mark.usefixtures("ops")]


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_devices_differ_by_rounding_without_a_recipe(module, dtype):
    expected = train(build(module, "cpu", dtype), "cpu", None, dtype)
    actual = train(build(module, DEVICE, dtype), DEVICE, None, dtype)
    assert_beside(actual, expected, dtype=dtype)


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("recipe", RECIPES)
def test_devices_differ_by_few_codes_under_every_recipe(recipe, module):
    make = RECIPES[recipe]
    expected = train(build(module, "cpu"), "cpu", make())
    actual = train(build(module, DEVICE), DEVICE, make())
    assert_beside(actual, expected, without_casts(module), part=part_of_casts(module))


def test_histories_and_scales_of_layer_inputs_match_cpu_bits():
    """The layer's input, its weight and its output's gradient are equal on both devices."""

    def states(device):
        layer = build("Linear", device)
        recipe = recipes.DelayedScaling(amax_history_len=3)
        train(layer, device, recipe, steps=4)
        return [
            getattr(layer.fp8_meta[key], what)[..., :count]
            for key, count in (("scaling_fwd", 2), ("scaling_bwd", 1))
            for what in ("amax_history", "scale")
        ]

    for actual, expected in zip(states(DEVICE), states("cpu"), strict=True):
        assert (expected != 1).any()
        assert_same_bits(actual, expected)


def give_main_grads(module):
    for parameter in module.parameters():
        if parameter.dim() == 2:
            parameter.main_grad = torch.full(parameter.shape, 0.25, device=parameter.device)
    return module


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("recipe", [None, "delayed", "MXFP8", "128-blocks", "NVFP4"])
def test_gradients_are_added_to_main_grad_as_on_the_cpu(recipe, module):
    make = RECIPES.get(recipe, lambda: None)

    def trained(device):
        layer = give_main_grads(build(module, device, fuse_wgrad_accumulation=True))
        results = train(layer, device, make())
        assert all(p.grad is None for p in layer.parameters() if p.dim() == 2)
        return results

    actual, expected = trained(DEVICE), trained("cpu")
    exact = train(
        give_main_grads(build(module, "cpu", torch.float32, fuse_wgrad_accumulation=True)),
        *("cpu", None, torch.float32),
    )
    assert_beside(actual, expected, None if recipe is None else exact, part=part_of_casts(module))


# Their kernels always add in the same order; those of attention may not.
SAME_BITS = ("Linear", "LayerNormLinear", "LayerNormMLP", "GroupedLinear")


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("recipe", [None, "delayed", "MXFP8"])
def test_delayed_gradients_match_the_backward(recipe, module):
    make = RECIPES.get(recipe, lambda: None)
    whole = train(build(module, DEVICE), DEVICE, make())
    delayed = build(module, DEVICE, delay_wgrad_compute=True)

    def later(layer):
        assert all(p.grad is None for n, p in layer.named_parameters() if p.dim() == 2)
        layer.backward_dw()

    actual = train(delayed, DEVICE, make(), after_backward=later)
    if module in SAME_BITS:
        assert actual.keys() == whole.keys()
        for name, expected in whole.items():
            assert torch.equal(actual[name], expected), name
    else:
        exact = None if recipe is None else without_casts(module)
        assert_beside(actual, whole, exact, part=part_of_casts(module))


@pytest.mark.parametrize("module", SAME_BITS)
@pytest.mark.parametrize("recipe", [None, "delayed", "current", "NVFP4"])
def test_a_checkpoint_has_the_bits_of_a_plain_layer(recipe, module):
    make = RECIPES.get(recipe, lambda: None)

    def trained(checkpointed):
        layer, form = build(module, DEVICE), make()
        for step in range(2):
            layer.zero_grad()
            x, grad = drawn(DEVICE, torch.bfloat16, step)
            run = (
                (lambda x: te.checkpoint(forward, layer, x, form))
                if checkpointed
                else (lambda x: forward(layer, x, form))
            )
            y = run(x)
            y.backward(grad.view(-1)[: y.numel()].view(y.shape))
        return [y, x.grad, *(p.grad for p in layer.parameters())]

    for actual, expected in zip(trained(True), trained(False), strict=True):
        assert torch.equal(actual, expected)
