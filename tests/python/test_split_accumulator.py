"""The accuracy with which a GPU adds products of FP8 is that of the recipe of the forward, for each
GEMM.

Seen at the operators' own arguments, so that it is tested without a GPU."""

import itertools

import pytest
import torch
from gemm_calls import GemmCalls

import telens
import telens.pytorch as te
from telens.common.recipe import (
    CustomRecipe,
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    MMParams,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
)

# Transformer Engine's defaults for fprop, dgrad and wgrad.
FAST_FPROP = [False, True, True]
ALL_SPLIT = [True, True, True]


def gemm_calls() -> GemmCalls:
    return GemmCalls("split_accumulator")


def linear(**options):
    torch.manual_seed(3)
    return te.Linear(64, 32, params_dtype=torch.bfloat16, device="cpu", **options)


def train(module, recipe, forward=None) -> list[bool]:
    """For a forward with the recipe and a backward without an autocast."""
    x = torch.randn(32, 64, dtype=torch.bfloat16, requires_grad=True)
    with gemm_calls() as calls:
        with te.autocast(recipe=recipe):
            out = (forward or (lambda f, x: f(x)))(module, x)
        out.float().sum().backward()
    return calls.values


def parameters_of(split) -> dict[str, MMParams]:
    names = ("fp8_gemm_fprop", "fp8_gemm_dgrad", "fp8_gemm_wgrad")
    return {name: MMParams(use_split_accumulator=s) for name, s in zip(names, split, strict=True)}


def quantizer(role):
    return te.Float8CurrentScalingQuantizer(te.DType.kFloat8E4M3)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (DelayedScaling, FAST_FPROP),
        (Float8CurrentScaling, FAST_FPROP),
        (MXFP8BlockScaling, FAST_FPROP),
        (NVFP4BlockScaling, FAST_FPROP),
        (Float8BlockScaling, ALL_SPLIT),
        (lambda: CustomRecipe(qfactory=quantizer), FAST_FPROP),
    ],
)
def test_default_is_transformer_engines_choice(make, expected):
    assert train(linear(), make()) == expected


@pytest.mark.parametrize("recipe", [DelayedScaling, Float8CurrentScaling])
def test_each_gemm_uses_its_setting_from_the_recipe(recipe):
    for split in itertools.product((False, True), repeat=3):
        assert train(linear(), recipe(**parameters_of(split))) == list(split)


@pytest.mark.parametrize("recipe", [DelayedScaling, Float8CurrentScaling])
def test_a_recipe_that_is_changed_counts_from_the_next_forward_on(recipe):
    layer, changing = linear(), recipe()
    assert train(layer, changing) == FAST_FPROP
    changing.fp8_gemm_fprop = MMParams(use_split_accumulator=True)
    assert train(layer, changing) == ALL_SPLIT


def test_the_default_recipe_has_it_too():
    assert train(linear(), None) == FAST_FPROP


def test_backward_uses_the_setting_of_its_forward():
    layer = linear()
    x = torch.randn(32, 64, dtype=torch.bfloat16, requires_grad=True)
    fast = Float8CurrentScaling(**parameters_of((True, False, False)))
    with te.autocast(recipe=fast):
        first = layer(x)
    with te.autocast(recipe=Float8CurrentScaling()):
        second = layer(x)
        with gemm_calls() as calls:
            first.float().sum().backward()
        assert calls.values == [False, False]
    with gemm_calls() as calls:
        second.float().sum().backward()
    assert calls.values == [True, True]


def checkpointed(module, x):
    return te.checkpoint(module, x)


def checkpointed_by_torch(module, x):
    return torch.utils.checkpoint.checkpoint(
        module, x, use_reentrant=False, context_fn=te.checkpoint_context_fn
    )


@pytest.mark.parametrize("forward", [checkpointed, checkpointed_by_torch])
def test_a_recomputation_repeats_its_forward(forward):
    split = (True, False, True)
    recipe = Float8CurrentScaling(**parameters_of(split))
    fprop, dgrad, wgrad = split
    assert train(linear(), recipe, forward) == [fprop, fprop, dgrad, wgrad]


def test_a_recomputation_under_another_recipe_repeats_its_forward():
    recipe = Float8CurrentScaling(**parameters_of((True, False, False)))
    x = torch.randn(32, 64, dtype=torch.bfloat16, requires_grad=True)
    with te.autocast(recipe=recipe):
        out = te.checkpoint(linear(), x)
    with te.autocast(recipe=Float8CurrentScaling()), gemm_calls() as calls:
        out.float().sum().backward()
    assert calls.values == [True, False, False]


def test_a_wgrad_that_is_added_to_main_grad_has_it_too():
    layer = linear(fuse_wgrad_accumulation=True)
    for split in ((False, False, False), (True, True, True), (True, True, False)):
        layer.weight.main_grad = torch.zeros(32, 64)
        assert train(layer, Float8CurrentScaling(**parameters_of(split))) == list(split)


def test_every_gemm_of_larger_modules_has_it(tmp_path):
    recipe = DelayedScaling(**parameters_of((True, False, True)))
    mlp = te.LayerNormMLP(64, 128, params_dtype=torch.bfloat16, device="cpu")
    assert train(mlp, recipe) == [True, True, *[False, True] * 2]
    experts = te.GroupedLinear(2, 64, 32, params_dtype=torch.bfloat16, device="cpu")
    calls = train(experts, recipe, lambda module, x: module(x, [16, 16]))
    assert sorted(calls) == sorted([True, True, *[False, True] * 2])


def test_on_the_cpu_no_bit_depends_on_it():
    def results(split):
        layer = linear()
        torch.manual_seed(1)
        x = torch.randn(32, 64, dtype=torch.bfloat16, requires_grad=True)
        with te.autocast(recipe=Float8CurrentScaling(**parameters_of(split))):
            out = layer(x)
        out.float().sum().backward()
        return out, x.grad, layer.weight.grad

    for one, other in zip(results((False,) * 3), results((True,) * 3), strict=True):
        assert torch.equal(one, other)


def test_non_mmparams_argument_is_rejected():
    with pytest.raises(telens.UsageError, match="DelayedScaling: fp8_gemm_fprop must be an MMPar"):
        DelayedScaling(fp8_gemm_fprop=True)
