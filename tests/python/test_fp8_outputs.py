"""fp8_output and fp8_grad: the GEMM's result in its own dtype, quantized and dequantized."""

import math

import pytest
import torch

import telens.pytorch as te
from telens.common.recipe import DelayedScaling, Float8CurrentScaling, Format

LAYERS = {"Linear": te.Linear, "LayerNormLinear": te.LayerNormLinear}
# The format of outputs and of gradients.
FORMATS = {
    Format.E4M3: (te.DType.kFloat8E4M3, te.DType.kFloat8E4M3),
    Format.HYBRID: (te.DType.kFloat8E4M3, te.DType.kFloat8E5M2),
}
LARGEST = {te.DType.kFloat8E4M3: 448, te.DType.kFloat8E5M2: 57344}


def make_layer(name: str, dtype: torch.dtype) -> torch.nn.Module:
    torch.manual_seed(1)
    return LAYERS[name](32, 48, params_dtype=dtype)


def make_batches(dtype: torch.dtype, count: int) -> list[torch.Tensor]:
    torch.manual_seed(2)
    # Different amaxes, so that a scale of another iteration would show.
    return [(torch.randn(16, 32) * 3**i).to(dtype).requires_grad_() for i in range(count)]


def step(layer, x, recipe, **options) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the output and the input's gradient."""
    with te.autocast(recipe=recipe):
        out = layer(x, **options)
    torch.manual_seed(3)
    # The same gradient is passed to any kind of output.
    out.backward(torch.randn(out.shape).to(out.dtype))
    return out.detach(), x.grad


def quantized(x: torch.Tensor, fp8: te.DType, scale: float | None) -> torch.Tensor:
    """Casts to FP8 and back; without a scale, with that of the tensor's own amax."""
    if scale is None:
        return te.Float8CurrentScalingQuantizer(fp8)(x).dequantize()
    return te.Float8Quantizer(torch.tensor([scale]), torch.zeros(1), fp8)(x).dequantize()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("fp8_format", FORMATS, ids=lambda f: f.name)
def test_current_scaling_rounds_an_output_to_fp8_after_the_gemm(name, dtype, fp8_format):
    recipe = Float8CurrentScaling(fp8_format=fp8_format)
    layer = make_layer(name, dtype)
    plain, _ = step(layer, make_batches(dtype, 1)[0], recipe)
    rounded, _ = step(layer, make_batches(dtype, 1)[0], recipe, fp8_output=True)
    assert rounded.dtype == dtype
    assert torch.equal(rounded, quantized(plain, FORMATS[fp8_format][0], None))
    assert not torch.equal(rounded, plain)


@pytest.mark.parametrize("fp8_format", FORMATS, ids=lambda f: f.name)
def test_current_scaling_rounds_the_input_gradient_to_fp8(fp8_format):
    recipe = Float8CurrentScaling(fp8_format=fp8_format)
    layer = make_layer("Linear", torch.bfloat16)
    out, plain = step(layer, make_batches(torch.bfloat16, 1)[0], recipe)
    same, rounded = step(layer, make_batches(torch.bfloat16, 1)[0], recipe, fp8_grad=True)
    assert torch.equal(same, out)
    assert torch.equal(rounded, quantized(plain, FORMATS[fp8_format][1], None))
    assert not torch.equal(rounded, plain)


@pytest.mark.parametrize("fp8_format", FORMATS, ids=lambda f: f.name)
@pytest.mark.parametrize("normalization", ["LayerNorm", "RMSNorm"])
def test_gradient_is_rounded_before_the_norms_backward(normalization, fp8_format):
    recipe = Float8CurrentScaling(fp8_format=fp8_format)
    torch.manual_seed(1)
    layer = te.LayerNormLinear(32, 48, normalization=normalization, params_dtype=torch.bfloat16)
    norm = getattr(te, normalization)(32, params_dtype=torch.bfloat16)
    linear = te.Linear(32, 48, params_dtype=torch.bfloat16)
    with torch.no_grad():
        layer.layer_norm_weight.normal_()
        norm.weight.copy_(layer.layer_norm_weight)
        linear.weight.copy_(layer.weight)
        linear.bias.copy_(layer.bias)
    apart = lambda x, **options: linear(norm(x), **options)  # noqa: E731
    results = [
        step(call, make_batches(torch.bfloat16, 1)[0], recipe, fp8_grad=rounds)
        for call in (layer, apart)
        for rounds in (False, True)
    ]
    (out, plain), (same, rounded), _, (_, expected) = results
    assert torch.equal(same, out)
    assert torch.equal(rounded, expected)
    assert not torch.equal(rounded, plain)


def test_delayed_scaling_rounds_with_the_previous_scale():
    def run(**options):
        layer = make_layer("Linear", torch.bfloat16)
        recipe = DelayedScaling(amax_history_len=1, amax_compute_algo="most_recent")
        return [step(layer, x, recipe, **options) for x in make_batches(torch.bfloat16, 3)]

    plain, rounded = run(), run(fp8_output=True, fp8_grad=True)
    for side, fp8 in enumerate(FORMATS[Format.HYBRID]):
        scale = 1.0
        for before, after in zip(plain, rounded, strict=True):
            assert torch.equal(after[side], quantized(before[side], fp8, scale))
            assert not torch.equal(after[side], before[side])
            scale = LARGEST[fp8] / before[side].abs().max().item()


@pytest.mark.parametrize("margin", [0, 1])
def test_power_of_2_scale_rounds_with_the_power_of_two_of_the_formula(margin):
    def run(power_of_2_scale, **options):
        layer = make_layer("Linear", torch.bfloat16)
        recipe = DelayedScaling(
            margin=margin,
            amax_history_len=1,
            amax_compute_algo="most_recent",
            power_of_2_scale=power_of_2_scale,
        )
        # Rows over 15 powers of two: the smallest are subnormal, which would show a scale half as
        # large.
        rows = 2.0 ** -torch.arange(16)[:, None]
        batches = [(x.detach() * rows).bfloat16() for x in make_batches(torch.float32, 3)]
        return [step(layer, x.requires_grad_(), recipe, **options)[0] for x in batches]

    plain, rounded = run(True), run(True, fp8_output=True)
    for before, now, after in zip(plain, plain[1:], rounded[1:], strict=False):
        exact = 448 / before.abs().max().item() / 2**margin
        scale = 2.0 ** math.floor(math.log2(exact))
        assert scale < exact
        assert torch.equal(after, quantized(now, te.DType.kFloat8E4M3, scale))
        for other in (exact, scale / 2, scale * 2):
            assert not torch.equal(after, quantized(now, te.DType.kFloat8E4M3, other))


@pytest.mark.parametrize("name", LAYERS)
def test_nothing_is_rounded_without_a_recipe(name):
    layer, x = make_layer(name, torch.bfloat16), make_batches(torch.bfloat16, 1)[0]
    plain = layer(x)
    asked = layer(x, fp8_output=True, fp8_grad=True)
    assert torch.equal(asked, plain)
    gradients = [torch.autograd.grad(out.sum(), x)[0] for out in (plain, asked)]
    assert torch.equal(*gradients)
