"""Fused casts and updates on a GPU: the operators against their unfused pairs on the same GPU, bit
for bit, and trainings that nobody watches against watched ones. Skipped where there is no GPU or
the library was built without CUDA; `make gpu-check` runs it where there is one."""

import math

import pytest
import torch
from activation_names import ACTIVATIONS, GATED
from cuda_helpers import E4M3, E5M2, HIGH_PRECISION, assert_same_bits
from fused_helpers import ALL_TENSORS, FEATURES, HIDDEN, assert_same_training, training

import telens.pytorch as te

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

DEVICE = "cuda"
# Whole tiles of 128, parts of tiles, more rows than tiles can be resident.
SHAPES = ((128, 256), (48, 272), (16400, 144))


def one(value: float) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.float32, device=DEVICE)


def random(*shape, dtype=torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return (torch.randn(shape, generator=generator) * 2).to(DEVICE, dtype)


def with_specials(x: torch.Tensor) -> torch.Tensor:
    specials = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-7, -1e-7])
    x.view(-1)[: specials.numel()] = specials.to(DEVICE, x.dtype)
    return x


def assert_pair(ops, fused, y, cast) -> None:
    """Asserts that ``fused(cast)`` gives the codes and the amax of quantizing y."""
    scale, start, format_id, columnwise = cast
    amax, expected_amax = one(start), one(start)
    made = fused(one(scale), amax, format_id, columnwise)
    rows = y.reshape(-1, y.shape[-1])
    codes, transposed = ops.quantize_fp8_both(rows, one(scale), expected_amax, format_id)
    assert_same_bits(made[0], codes)
    if columnwise:
        assert_same_bits(made[1], transposed)
    else:
        assert made[1] is None
    assert_same_bits(amax, expected_amax)


CASTS = ((50.0, 0.0, E4M3, True), (3.0, 1e9, E5M2, True), (50.0, 0.0, E4M3, False))


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
@pytest.mark.parametrize("shape", SHAPES)
def test_fused_norm_codes_equal_codes_of_stored_results(ops, dtype, shape):
    x, weight, bias = random(*shape, dtype=dtype), random(shape[1]), random(shape[1])
    for zero_centered in (False, True):
        arguments = (x, weight, bias, 1e-5, zero_centered)
        y, mean, rstd = ops.layer_norm_forward(*arguments)
        for cast in CASTS:
            assert_pair(ops, lambda *c, a=arguments: ops.layer_norm_quantize(*a, *c), y, cast)
        made = ops.layer_norm_quantize(*arguments, one(1.0), None, E4M3, True)
        assert_same_bits(made[2], mean)
        assert_same_bits(made[3], rstd)
        arguments = (x, weight, 1e-5, zero_centered)
        y, rstd = ops.rms_norm_forward(*arguments)
        for cast in CASTS:
            assert_pair(ops, lambda *c, a=arguments: ops.rms_norm_quantize(*a, *c), y, cast)
        made = ops.rms_norm_quantize(*arguments, one(1.0), None, E4M3, True)
        assert_same_bits(made[2], rstd)


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_fused_activation_codes_equal_codes_of_stored_results(ops, dtype, name):
    gated = name in GATED.values()
    for rows, columns in SHAPES:
        x = with_specials(random(rows, 2 * columns if gated else columns, dtype=dtype))
        y = ops.activation_forward(x, name)
        for cast in CASTS:
            assert_pair(ops, lambda *c, x=x: ops.activation_quantize(x, name, *c), y, cast)
        grad = random(rows, columns, dtype=dtype)
        dx = ops.activation_backward(grad, x, name)
        for cast in CASTS:
            assert_pair(
                ops,
                lambda *c, x=x, g=grad: ops.activation_backward_quantize(
                    g, x, name, *c, torch.float32
                ),
                dx,
                cast,
            )
        made = ops.activation_backward_quantize(grad, x, name, one(1.0), None, E5M2, True, dtype)
        assert_same_bits(made[2].nan_to_num(), ops.bias_gradient(dx, dtype).nan_to_num())


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
@pytest.mark.parametrize("shape", [*SHAPES, (37, 70), (0, 16)])
def test_gradients_of_a_bias_are_sums_of_rows(ops, dtype, shape):
    grad = random(*shape, dtype=dtype)
    exact = grad.double().sum(0)
    # The error of each of rows - 1 FP32 additions is at most 2^-24 of the sum so far.
    bound = grad.double().abs().sum(0) * shape[0] * 2**-24
    actual = ops.bias_gradient(grad, torch.float32)
    assert ((actual.double() - exact).abs() <= bound).all()
    assert_same_bits(ops.bias_gradient(grad.contiguous(), torch.float32), actual)
    offset = torch.cat([grad.new_zeros(1), grad.flatten()])[1:].view(grad.shape)
    assert_same_bits(ops.bias_gradient(offset, torch.float32), actual)


def test_shapes_that_tiles_do_not_fit_give_the_bits_of_the_pair(ops):
    x, weight = random(37, 70, dtype=torch.bfloat16), random(70)
    y, _ = ops.rms_norm_forward(x, weight, 1e-5, False)
    for cast in CASTS:
        assert_pair(ops, lambda *c: ops.rms_norm_quantize(x, weight, 1e-5, False, *c), y, cast)
    y = ops.activation_forward(x, "geglu")
    for cast in CASTS:
        assert_pair(ops, lambda *c: ops.activation_quantize(x, "geglu", *c), y, cast)
    nothing = ops.activation_quantize(x[:0], "gelu", one(1.0), None, E4M3, True)
    assert nothing[0].shape == (0, 70)


def test_misaligned_and_strided_views_give_the_bits_of_their_copies(ops):
    x = random(65, 272, dtype=torch.bfloat16)
    for view in (x[1:], x[:64, 16:], x[:64].t(), x.flatten()[3 : 3 + 64 * 256].view(64, 256)):
        copy = view.clone(memory_format=torch.contiguous_format)
        cast = (one(50.0), None, E4M3, True)
        actual = ops.activation_quantize(view, "silu", *cast)
        expected = ops.activation_quantize(copy, "silu", *cast)
        for ours, theirs in zip(actual, expected, strict=True):
            assert_same_bits(ours, theirs)


# More amax histories than one launch takes.
@pytest.mark.parametrize("count", [1, 80, 163])
@pytest.mark.parametrize("algorithm", ["max", "most_recent"])
def test_windows_are_updated_as_on_the_cpu(ops, count, algorithm):
    generator = torch.Generator().manual_seed(5)
    histories = [torch.rand(1 + i % 40, 2 + i % 2, generator=generator) for i in range(count)]
    histories[0][0, 0] = math.nan
    histories[-1][0] = 0
    scales = [torch.rand(h.shape[1], generator=generator) + 1 for h in histories]
    maxima = [448.0 if i % 2 else 57344.0 for i in range(count)]
    on_gpu = [t.clone().to(DEVICE) for t in histories + scales]
    ops.update_windows(histories, scales, maxima, algorithm, 1, True)
    ops.update_windows(on_gpu[:count], on_gpu[count:], maxima, algorithm, 1, True)
    for ours, theirs in zip(on_gpu, histories + scales, strict=True):
        assert_same_bits(ours, theirs)


@pytest.mark.parametrize("activation", ["gelu", "swiglu"])
@pytest.mark.parametrize("norm", ["LayerNorm", "RMSNorm"])
def test_a_training_that_nobody_watches_has_the_bits_of_a_watched_one(
    tmp_path, ops, activation, norm
):
    def make():
        return te.LayerNormMLP(
            FEATURES,
            HIDDEN,
            activation=activation,
            normalization=norm,
            params_dtype=torch.bfloat16,
            device=DEVICE,
            name="layer",
        )

    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        actual, _ = training(make, device=DEVICE)
        expected, _ = training(make, device=DEVICE, tensors=ALL_TENSORS, log_dir=tmp_path)
    finally:
        torch.use_deterministic_algorithms(deterministic)
    assert_same_training(actual, expected)
