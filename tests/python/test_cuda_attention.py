"""Attention on a GPU against its formulas in FP64, by the cases that the CPU's tests draw: masks,
windows, biases, sinks, packed and padded sequences, functions of scores, and FP8. Skipped where
there is no GPU; `make gpu-check` runs them. TELENS_TEST_DEVICE=cpu runs them on the CPU."""

from types import SimpleNamespace

import pytest
import test_attention
import test_attention_statistics
import test_block_attention
import test_fp8_attention
import test_score_mod
import torch
from attention_cases import Case
from attention_on_device import moved, on_device  # noqa: F401
from cuda_beside import needs_gpu

import telens.pytorch as te
from telens.common.recipe import DelayedScaling, Float8CurrentScaling, Format, MXFP8BlockScaling

pytestmark = [needs_gpu, pytest.mark.usefixtures("on_device")]

CASES, PAGE = 150, 25


@pytest.mark.parametrize("first", range(0, CASES, PAGE))
def test_random_cases_match_fp64(first):
    for number in range(first, first + PAGE):
        case = Case(number)
        test_attention.check(case, case.expected())


@pytest.mark.parametrize("first", range(CASES, CASES + 50, 25))
def test_random_bf16_cases_match_fp64_within_rounding(first):
    """Kernels of BF16 round weights and the gradients of scores, by 2^-9 each."""
    for number in range(first, first + 25):
        case = Case(number)
        case.leaves = [each.bfloat16().double() for each in case.leaves]
        case.bias = case.bias.bfloat16().double()
        out, _, gradients = case.expected()
        actual, _, actual_gradients = case.actual(torch.bfloat16)
        names = ["out", "query", "key", "value"]
        pairs = zip(names, [actual, *actual_gradients[:3]], [out, *gradients[:3]], strict=True)
        size = max(each.norm().item() for each in (out, *gradients[:3]) if each is not None)
        for name, ours, theirs in pairs:
            apart = (ours.double() - theirs).norm().item()
            allowed = 2**-5 * theirs.norm().item() + 2**-7 * size
            assert apart <= allowed, f"{name} of {case.of}: {apart} > {allowed}"


@pytest.mark.parametrize("name", test_score_mod.CASES)
def test_functions_of_scores_are_the_formulas(name):
    test_score_mod.test_it_is_the_formula_in_blocks_of_any_size(name=name, of_block=1 << 19)


def test_gradients_of_functions_of_scores_are_those_that_are_given():
    test_score_mod.test_a_gradient_that_is_given_is_used()
    test_score_mod.test_errors_of_the_function_reach_the_caller_forward_and_backward()


def test_score_statistics_match_fp64(ops):
    there = SimpleNamespace(
        attention_statistics=lambda *a: ops.attention_statistics(*moved(a)).cpu()
    )
    for number in range(80):
        test_attention_statistics.check(number, there)
    test_attention_statistics.test_blocks_of_queries_and_of_samples_add_up(there)
    test_attention_statistics.test_distinguishes_one_key_from_attention_sink(there)


@pytest.mark.parametrize("fp8_format", [Format.HYBRID, Format.E4M3], ids=lambda f: f.name)
@pytest.mark.parametrize("mask", ["no_mask", "causal"])
@pytest.mark.parametrize("groups", [4, 1])
@pytest.mark.parametrize("dtype", test_fp8_attention.HALF_ULP, ids=str)
def test_fp8_under_one_scale_is_the_formulas(dtype, groups, mask, fp8_format):
    test_fp8_attention.test_current_scaling_is_the_formulas_forward_and_backward(
        dtype, groups, mask, fp8_format
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_fp8_under_delayed_scales_is_the_formulas(dtype):
    test_fp8_attention.test_delayed_scaling_takes_each_scale_from_the_amaxes_before(dtype)


@pytest.mark.parametrize(
    ("groups", "mask", "fp8_format"),
    [(4, "no_mask", Format.E4M3), (2, "causal", Format.HYBRID), (1, "causal", Format.E4M3)],
)
@pytest.mark.parametrize("dtype", test_fp8_attention.HALF_ULP, ids=str)
def test_fp8_in_blocks_is_the_formulas(dtype, groups, mask, fp8_format):
    test_block_attention.test_products_use_blocks_along_the_summed_dimension(
        dtype, groups, mask, fp8_format
    )


@pytest.mark.parametrize("of", [test_fp8_attention, test_block_attention], ids=["scale", "blocks"])
def test_fp8_takes_biases_sinks_paddings_and_packed_sequences(of):
    of.test_bias_sink_and_padding_are_those_of_the_scores()
    of.test_packed_sequences_have_the_values_of_padded_ones()


def test_dropout_of_fp8_leaves_out_weights_and_their_gradients():
    test_block_attention.test_dropout_drops_softmax_weights_and_their_gradients()


RECIPES = {
    "FP32": lambda: None,
    "delayed": lambda: DelayedScaling(fp8_dpa=True),
    "current": lambda: Float8CurrentScaling(fp8_dpa=True),
    "MXFP8": lambda: MXFP8BlockScaling(fp8_dpa=True),
}
KEYS, HEADS, SAMPLES = 32, 4, 8


@pytest.mark.parametrize("recipe", RECIPES)
def test_dropout_keeps_its_share_and_draws_again_in_each_call(recipe):
    """Queries of zero weight all keys equally, and values of one key each show every weight."""
    zeros = torch.zeros(SAMPLES, KEYS, HEADS, KEYS)
    values = torch.eye(KEYS).expand(SAMPLES, HEADS, KEYS, KEYS).transpose(1, 2).contiguous()

    def weights(seed):
        attention = te.DotProductAttention(
            HEADS, KEYS, qkv_format="bshd", attn_mask_type="no_mask", attention_dropout=0.25
        )
        torch.manual_seed(seed)
        value = values.clone().requires_grad_()
        with te.autocast(enabled=recipe != "FP32", recipe=RECIPES[recipe]()):
            out = attention(zeros, zeros, value)
        out.backward(torch.ones_like(out))
        shown = out.detach().unflatten(-1, (HEADS, KEYS)).transpose(1, 2)
        # A key gets the sum of its weights from all queries, forward and backward.
        gradient = value.grad.transpose(1, 2)[..., 0]
        torch.testing.assert_close(gradient, shown.sum(-2), rtol=2**-3, atol=2**-6)
        return shown

    first = weights(1)
    dropped = (first == 0).double().mean().item()
    deviation = (0.25 * 0.75 / first.numel()) ** 0.5
    assert abs(dropped - 0.25) < 6 * deviation
    kept = first[first != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / 0.75 / KEYS), rtol=2**-3, atol=0)
    assert torch.equal(weights(1), first)
    assert not torch.equal(weights(2), first)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recomputed_attention_draws_the_same_dropout(recipe):
    torch.manual_seed(3)
    drawn = [torch.randn(SAMPLES, KEYS, HEADS, KEYS) for _ in range(3)]
    results = []
    for checkpoint in (False, True):
        attention = te.DotProductAttention(HEADS, KEYS, qkv_format="bshd", attention_dropout=0.25)
        leaves = [each.clone().requires_grad_() for each in drawn]
        torch.manual_seed(4)
        with te.autocast(enabled=recipe != "FP32", recipe=RECIPES[recipe]()):
            out = attention(*leaves, checkpoint_core_attention=checkpoint)
        out.square().sum().backward()
        results.append([out, *(leaf.grad for leaf in leaves)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
