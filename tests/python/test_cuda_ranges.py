"""The operators on a GPU against the CPU where numbers and shapes are unusual: over the whole range
of each format, under scales that are far apart, in strided histories, for odd numbers of tokens and
under paddings that differ. Skipped where there is no GPU; `make gpu-check` runs them.
TELENS_TEST_DEVICE=cpu runs the code of these tests on the CPU, against itself."""

import dataclasses
import math

import pytest
import torch
from activation_names import ACTIVATIONS, FUNCTIONS, GATED
from cuda_gemm_helpers import (
    BLOCK_1D,
    BLOCK_2D,
    MXFP8,
    NVFP4,
    SPLIT_ACCUMULATOR,
    WAYS,
    Operand,
    accumulate,
    assert_close_or_not_finite,
    assert_close_to,
    fast_accumulator,
    fit_in_any_order,
    keeps_all_exponents,
    move,
    multiply,
    operands,
)
from cuda_helpers import DEVICE, E4M3, HIGH_PRECISION, assert_same_bits, inputs_of

pytestmark = pytest.mark.skipif(
    DEVICE == "cuda" and not torch.cuda.is_available(), reason="needs a GPU"
)

PIECEWISE = ("relu", "srelu")
LARGE = (2e19, 1e20, 3e38, math.inf, math.nan, -0.0, 1e-40, 1e-45)


def smallest_subnormal(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps


def nearness(dtype: torch.dtype) -> float:
    """How much two backends may differ, relative to the result. In 16 bits, approximations with an
    error of 2^-17 give one of the two neighbors of the exact result, which differ by one unit in
    the last place. FP32: each is within two units plus the error of the exponential, whose argument
    of at most 88 is rounded (tests/core/activation_reference.h).
    """
    eps = torch.finfo(dtype).eps
    return eps if torch.finfo(dtype).bits == 16 else 2 * (88 * 3 * 2**-24 + 2 * eps)


# Below it a sigmoid is zero or subnormal; terms of gradients cancel near their zero.
ABSOLUTE_OF_VALUE = 2 * 2**-121
ABSOLUTE_OF_GRADIENT = 2 * 2**-18


def assert_near(actual, expected, absolute: float, x: torch.Tensor, what: str) -> None:
    """Expects NaN where the CPU has NaN, the same infinities, and elsewhere a value within the
    tolerance.
    """
    assert actual.dtype == expected.dtype
    ours, theirs = actual.cpu().double(), expected.double()
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    largest = torch.maximum(ours.abs(), theirs.abs())
    allowed = nearness(actual.dtype) * largest + absolute + smallest_subnormal(actual.dtype)
    near = ours.isfinite() & theirs.isfinite() & ((ours - theirs).abs() <= allowed)
    wrong = (~(same | near)).flatten()
    if wrong.any():
        first = int(wrong.nonzero()[0])
        pytest.fail(
            f"{what}: {int(wrong.sum())} of {wrong.numel()} are wrong; the first where x is "
            f"{x.flatten()[first].item()!r}: expected {theirs.flatten()[first].item()!r}, got "
            f"{ours.flatten()[first].item()!r}"
        )


def whole_range(dtype: torch.dtype) -> torch.Tensor:
    """Every code of 16-bit formats; for FP32 every exponent, and values as in a diverging run. 256
    columns.
    """
    x = inputs_of(dtype)
    if dtype == torch.float32:
        large = torch.tensor(LARGE)
        x = torch.cat([x, large, -large])
        x = torch.cat([x, torch.zeros(-x.numel() % 256)])
    return x.view(-1, 256)


def aligned(x: torch.Tensor) -> torch.Tensor:
    return move(x)


def misaligned(x: torch.Tensor) -> torch.Tensor:
    """Not aligned for packs, so the kernels read it element by element."""
    memory = move(torch.empty(x.numel() + 1, dtype=x.dtype))
    return memory[1:].view(x.shape).copy_(x)


def multipliers(name: str) -> tuple[float, ...]:
    """An infinite factor times a sigmoid is NaN only if the sigmoid is exactly zero, which depends
    on the precision. So only functions that are piecewise linear or quadratic get infinities.
    """
    return (1.0, -2.5, 0.0, math.nan) + ((math.inf, -math.inf) if name in PIECEWISE else ())


@pytest.mark.parametrize("place", [aligned, misaligned])
@pytest.mark.parametrize("dtype", HIGH_PRECISION)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_activations_match_cpu_over_the_whole_range(ops, name, dtype, place):
    x = whole_range(dtype)
    expected = ops.activation_forward(x, name)
    actual = ops.activation_forward(place(x), name)
    assert_near(actual, expected, ABSOLUTE_OF_VALUE, x, "the value")
    for multiplier in multipliers(name):
        size = abs(multiplier) if math.isfinite(multiplier) else 1.0
        outer = torch.full_like(x, multiplier)
        expected = ops.activation_backward(outer, x, name)
        actual = ops.activation_backward(place(outer), place(x), name)
        what = f"the gradient for {multiplier}"
        assert_near(actual, expected, size * ABSOLUTE_OF_GRADIENT, x, what)

        gated = torch.cat([x, outer], 1)
        expected = ops.activation_forward(gated, GATED[name])
        actual = ops.activation_forward(place(gated), GATED[name])
        what = f"the value times {multiplier}"
        assert_near(actual, expected, size * ABSOLUTE_OF_VALUE, x, what)
        twice = torch.full_like(x, 2.0)
        expected = ops.activation_backward(twice, gated, GATED[name]).chunk(2, 1)
        actual = ops.activation_backward(place(twice), place(gated), GATED[name]).chunk(2, 1)
        what = f"the gradient for 2 * {multiplier}"
        assert_near(actual[0], expected[0], 2 * size * ABSOLUTE_OF_GRADIENT, x, what)
        what = "the gradient of the factor"
        assert_near(actual[1], expected[1], 2 * ABSOLUTE_OF_VALUE, x, what)


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_fused_activation_casts_match_stored_results(ops, name, dtype):
    """On one device the codes and the amax must be the same, also for infinities and NaN."""
    x = move(whole_range(dtype))
    scale, amax, expected_amax = (move(torch.tensor([value])) for value in (3.7, 0.0, 0.0))
    y = ops.activation_forward(x, name)
    codes, columns = ops.activation_quantize(x, name, scale, amax, E4M3, True)
    expected = ops.quantize_fp8_both(y, scale, expected_amax, E4M3)
    assert_same_bits(codes, expected[0])
    assert_same_bits(columns, expected[1])
    assert_same_bits(amax, expected_amax)


# Magnitudes of rows for which squares, or also their sums, leave FP32's range, or are negligible
# compared with eps.
MAGNITUDES = (1.0, 1e20, 3e37, 1e-19, 2e19, 1e-30, 0.0)
RELATIVE = {torch.bfloat16: 2**-7, torch.float32: 2**-16}


def rows_of_all_magnitudes(columns: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(len(MAGNITUDES), columns, generator=generator)
    return (x * torch.tensor(MAGNITUDES)[:, None]).to(dtype)


def assert_near_by_rows(actual, expected, sizes, what: str) -> None:
    """`sizes`, one for each row: the magnitude of the terms of its sums, which determines the FP32
    error.
    """
    ours, theirs = actual.cpu().double(), expected.double()
    assert ours.isfinite().all(), what
    bound = RELATIVE[actual.dtype] * theirs.abs() + 2**-14 * sizes.double()
    bound += smallest_subnormal(actual.dtype)
    excess = (ours - theirs).abs() - bound
    assert excess.max() <= 0, f"{what}: row {int(excess.flatten(1).amax(1).argmax())}"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("columns", [77, 2304])
def test_norms_of_rows_with_any_magnitude_match_cpu(ops, columns, dtype):
    x = rows_of_all_magnitudes(columns, dtype)
    grad = torch.randn(x.shape, generator=torch.Generator().manual_seed(7)).to(dtype)
    weight, bias = torch.linspace(0.5, 2, columns), torch.linspace(-1, 1, columns)
    magnitudes = x.double().abs().amax(1, keepdim=True)
    ones = torch.ones_like(magnitudes)
    layer = (x, weight, bias, 1e-5, False)
    expected = ops.layer_norm_forward(*layer)
    actual = ops.layer_norm_forward(*(move(each) for each in layer))
    assert_near_by_rows(actual[0], expected[0], ones, "LayerNorm's y")
    assert_near_by_rows(actual[1][:, None], expected[1][:, None], magnitudes, "the mean")
    scales = expected[2][:, None]
    assert_near_by_rows(actual[2][:, None], scales, scales, "LayerNorm's 1 / deviation")
    backward = (grad, x, weight, expected[1], expected[2], False)
    gradients = ops.layer_norm_backward(*(move(each) for each in backward))
    references = ops.layer_norm_backward(*backward)
    assert_near_by_rows(gradients[0], references[0], scales, "LayerNorm's dx")
    for ours, theirs in zip(gradients[1:], references[1:], strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-3)

    root = (x, weight, 1e-5, False)
    expected = ops.rms_norm_forward(*root)
    actual = ops.rms_norm_forward(*(move(each) for each in root))
    assert_near_by_rows(actual[0], expected[0], ones, "RMSNorm's y")
    scales = expected[1][:, None]
    assert_near_by_rows(actual[1][:, None], scales, scales, "RMSNorm's 1 / root")
    backward = (grad, x, weight, expected[1], False)
    gradients = ops.rms_norm_backward(*(move(each) for each in backward))
    references = ops.rms_norm_backward(*backward)
    assert_near_by_rows(gradients[0], references[0], scales, "RMSNorm's dx")
    torch.testing.assert_close(gradients[1].cpu(), references[1], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_fused_norm_casts_match_stored_results(ops, dtype):
    x, weight = move(rows_of_all_magnitudes(2304, dtype)), move(torch.linspace(0.5, 2, 2304))
    scale, amax, expected_amax = (move(torch.tensor([value])) for value in (3.7, 0.0, 0.0))
    y, rstd = ops.rms_norm_forward(x, weight, 1e-5, False)
    made = ops.rms_norm_quantize(x, weight, 1e-5, False, scale, amax, E4M3, True)
    expected = ops.quantize_fp8_both(y, scale, expected_amax, E4M3)
    for ours, theirs in zip(made, (*expected, rstd), strict=True):
        assert_same_bits(ours, theirs)
    assert_same_bits(amax, expected_amax)


@pytest.mark.parametrize("length", [1, 2, 16, 1024])
def test_strided_histories_advance_as_on_the_cpu(ops, length):
    wide = torch.rand(length, 7, generator=torch.Generator().manual_seed(8))
    if length > 2:
        wide[2, 3] = math.nan
    on_device = move(wide.clone())
    history, ours = wide[:, 2:5], on_device[:, 2:5]
    for algorithm in ("max", "most_recent"):
        expected = ops.amax_of_history(history, algorithm)
        actual = ops.amax_of_history(ours, algorithm).cpu()
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
        scales = torch.linspace(1, 2, 3)
        scales_on_device = move(scales.clone())
        ops.update_windows([history], [scales], [448.0], algorithm, 0, False)
        ops.update_windows([ours], [scales_on_device], [448.0], algorithm, 0, False)
        assert_same_bits(scales_on_device, scales)
        assert_same_bits(on_device, wide)
        history[0], ours[0] = 0.75, 0.75
    ops.advance_history(history)
    ops.advance_history(ours)
    assert_same_bits(on_device, wide)


# The scales of tests/core/gemm_scales.h: products from 2^-100 to 2^60 whose partial products leave
# FP32's range in every possible way.
SCALE_PAIRS = (
    *((2.0**120, 2.0**-120), (2.0**-120, 2.0**120), (2.0**127, 2.0**-126), (2.0**-126, 2.0**127)),
    *((2.0**127, 2.0**-67), (2.0**-110, 2.0**10), (1.5 * 2.0**119, 1.25 * 2.0**-118)),
    *((1.25 * 2.0**-119, 1.5 * 2.0**121), (1.75 * 2.0**126, 1.25 * 2.0**-122)),
    *((1.75 * 2.0**-126, 1.25 * 2.0**126), (1.75 * 2.0**-117, 1.25 * 2.0**20)),
)


# cuBLASLt multiplies sums of codes by one scale after the other, in an unknown order.
IN_ANY_ORDER = (BLOCK_1D, BLOCK_2D)


def under_scale(operand: Operand, scale: float) -> Operand:
    if operand.way.mode == NVFP4:
        return dataclasses.replace(operand, tensor_scale=torch.tensor([scale]))
    code = scale if operand.way.mode != MXFP8 else math.frexp(scale)[1] - 1 + 127
    return dataclasses.replace(operand, scale_inv=torch.full_like(operand.scale_inv, code))


def expectation_of(a: Operand, b: Operand):
    """Returns the assertion for the newest product. If partial products overflow, the result may be
    non-finite, but must not be another number. If they underflow, the error is within the bound,
    because sums of magnitudes of the codes' products are far above 1.
    """
    in_range = a.way.mode not in IN_ANY_ORDER or keeps_all_exponents() or fit_in_any_order(a, b)
    return assert_close_to if in_range else assert_close_or_not_finite


@pytest.mark.parametrize("scales", SCALE_PAIRS)
@pytest.mark.parametrize("ways", WAYS)
def test_products_with_extreme_scales_are_within_bound(ops, ways, scales):
    only_powers = WAYS[ways][0].mode == MXFP8 or "known" in ways
    if only_powers and any(math.frexp(scale)[0] != 0.5 for scale in scales):
        pytest.skip("its scales are powers of two")
    for shape in ((32, 48, 256), (33, 20, 272)):
        unscaled = [under_scale(each, 1.0) for each in operands(ops, shape, WAYS[ways])]
        values = [each.values(ops) for each in unscaled]
        a, b = (under_scale(*pair) for pair in zip(unscaled, scales, strict=True))
        first = values[0] * (scales[0] * scales[1])  # exact, and no infinity, in FP64
        for split in (True, False):
            out = multiply(ops, a, b, None, torch.float32, split)
            bound = max(SPLIT_ACCUMULATOR, 0 if split else fast_accumulator(shape[2]))
            expectation_of(a, b)(out, first, values[1], torch.zeros(()), bound)
        sums = move(torch.zeros(shape[:2]))
        accumulate(ops, a, b, sums)
        expectation_of(a, b)(sums, first, values[1], torch.zeros(()), SPLIT_ACCUMULATOR)


# The bound is for the values of codes, which are larger than the originals: E2M1, the coarsest
# format, rounds by up to a third.
CODES_ARE_LARGER = 1.5
FEATURES, OUTPUTS = 128, 256
RECIPES = {
    "delayed": lambda recipes: recipes.DelayedScaling(amax_history_len=4),
    "current": lambda recipes: recipes.Float8CurrentScaling(),
    "MXFP8": lambda recipes: recipes.MXFP8BlockScaling(),
    "128-blocks": lambda recipes: recipes.Float8BlockScaling(),
    # Stochastic rounding would draw other random numbers on each device.
    "NVFP4": lambda recipes: recipes.NVFP4BlockScaling(disable_stochastic_rounding=True),
}


def trained_linear(device: str, name: str, x, grad) -> dict[str, torch.Tensor]:
    """The results of the second of two steps of a Linear: delayed scaling takes its scales from the
    first.
    """
    import telens.pytorch as te
    from telens.common import recipe as recipes

    torch.manual_seed(9)
    layer = te.Linear(FEATURES, OUTPUTS, params_dtype=torch.bfloat16, device="cpu").to(device)
    recipe = RECIPES[name](recipes)
    for _ in range(2):
        layer.zero_grad()
        leaf = x.clone().to(device).requires_grad_()
        with te.autocast(enabled=True, recipe=recipe):
            y = layer(leaf)
        y.backward(grad.to(device))
    results = {"fprop": y, "dgrad": leaf.grad, "wgrad": layer.weight.grad}
    results |= {"weight": layer.weight, "bias": layer.bias.grad}
    return {key: value.detach().cpu() for key, value in results.items()}


def assert_near_product(name, ours, theirs, left, right) -> None:
    """For left [M, K] and right [N, K] with the same codes on both devices. The sum of |a| |b| is
    at most the product of the norms, which a Hadamard transform does not change.
    """
    k = left.shape[1]
    norms = left.double().norm(dim=1)[:, None] * right.double().norm(dim=1)
    accumulator = max(SPLIT_ACCUMULATOR, fast_accumulator(k))
    bound = accumulator * CODES_ARE_LARGER * norms + 2 * 2**-8 * theirs.double().abs()
    assert ours.shape == theirs.shape
    excess = (ours.double() - theirs.double()).abs() - bound
    assert excess.max() <= 0, f"{name}: {excess.max()} beyond the bound"


@pytest.mark.parametrize("tokens", [1, 17, 130])
@pytest.mark.parametrize("name", RECIPES)
def test_linear_matches_cpu_for_any_number_of_tokens(ops, name, tokens):
    generator = torch.Generator().manual_seed(10)
    x = torch.randn(tokens, FEATURES, generator=generator).bfloat16()
    grad = torch.randn(tokens, OUTPUTS, generator=generator).bfloat16()
    expected = trained_linear("cpu", name, x, grad)
    actual = trained_linear(DEVICE, name, x, grad)
    weight = expected["weight"]
    assert_same_bits(actual["weight"], weight)
    assert_near_product("fprop", actual["fprop"], expected["fprop"], x, weight)
    assert_near_product("dgrad", actual["dgrad"], expected["dgrad"], grad, weight.t())
    assert_near_product("wgrad", actual["wgrad"], expected["wgrad"], grad.t(), x.t())
    torch.testing.assert_close(actual["bias"], expected["bias"], rtol=2**-7, atol=2**-7)


def padding(length: int, own: tuple[int, ...], in_front: bool) -> torch.Tensor:
    """True at the padding of samples with `own` positions."""
    positions = torch.arange(length)
    counts = torch.tensor(own)[:, None]
    is_padding = positions < length - counts if in_front else positions >= counts
    return is_padding[:, None, None, :]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("in_front", [False, True])
@pytest.mark.parametrize("mask", ["padding_causal_bottom_right", "padding_causal", "padding"])
def test_attention_with_different_paddings_matches_cpu(ops, mask, in_front, dtype):
    """Samples with more keys than queries, with fewer, with one, and with first queries that see no
    key.
    """
    import telens.pytorch as te

    lengths = {"query": (12, (12, 3, 7, 9)), "key": (20, (20, 9, 1, 5))}
    masks = [padding(*each, in_front) for each in lengths.values()]
    generator = torch.Generator().manual_seed(12)
    shapes = ((12, 4, 2, 16), (20, 4, 2, 16), (20, 4, 2, 16))
    tensors = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    grad = torch.randn(12, 4, 32, generator=generator).to(dtype)

    def attended(device: str) -> list[torch.Tensor]:
        module = te.DotProductAttention(2, 16, attn_mask_type=mask)
        leaves = [tensor.clone().to(device).requires_grad_() for tensor in tensors]
        y = module(*leaves, attention_mask=tuple(each.to(device) for each in masks))
        y.backward(grad.to(device))
        return [each.detach().cpu() for each in (y, *(leaf.grad for leaf in leaves))]

    tolerance = 1e-4 if dtype == torch.float32 else 2**-5
    for ours, theirs in zip(attended(DEVICE), attended("cpu"), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
