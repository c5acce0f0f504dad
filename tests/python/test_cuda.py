"""The operators on a GPU against the same operators on the CPU. Skipped where there is no GPU or
the library was built without CUDA; `make gpu-check` runs it where there is one."""

import math

import pytest
import torch
from activation_names import ACTIVATIONS
from cuda_helpers import E4M3, E5M2, FORMATS, HIGH_PRECISION, assert_same_bits, inputs_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

# core/ops/statistics_layout.h: words of TensorSums and of CastSums, and which of them are counts.
TENSOR_COUNTS = slice(0, 6)
TENSOR_EXTREMES = slice(6, 9)
SUM, L1, SUM_SQUARES, M2 = 9, 10, 11, 12
MOMENTS = slice(13, 18)
TENSOR_WORDS = 18
CAST_WORDS = 7
CAST_COUNTS = slice(0, 4)
CAST_ERROR = 4


def one(value: float, device="cpu") -> torch.Tensor:
    return torch.tensor([value], dtype=torch.float32, device=device)


SCALES = (1.0, 0.37, 448 / 3, 2.0**-12, 2.0**30, 1e38, 1e-38, 2.0**-149, 0.0, -0.0, -2.5)
SCALES += (math.inf, -math.inf, math.nan)


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
@pytest.mark.parametrize("format_name", FORMATS)
def test_codes_of_every_special_value_match_cpu(ops, dtype, format_name):
    x = inputs_of(dtype)
    for scale in SCALES:
        expected = ops.quantize_fp8(x, one(scale), None, FORMATS[format_name])
        actual = ops.quantize_fp8(x.cuda(), one(scale, "cuda"), None, FORMATS[format_name])
        assert_same_bits(actual, expected, x)


@pytest.mark.parametrize("format_name", FORMATS)
def test_codes_and_amax_of_1e8_random_values_match_cpu(ops, format_name):
    generator = torch.Generator().manual_seed(1)
    for dtype in HIGH_PRECISION:
        for _ in range(4):
            x = (torch.randn(25_000_000 // 3, generator=generator) * 3).to(dtype)
            amax, amax_cuda = one(0.5), one(0.5, "cuda")
            expected = ops.quantize_fp8(x, one(97.3), amax, FORMATS[format_name])
            actual = ops.quantize_fp8(x.cuda(), one(97.3, "cuda"), amax_cuda, FORMATS[format_name])
            assert_same_bits(actual, expected, x)
            assert_same_bits(amax_cuda, amax)
            assert_same_bits(ops.amax(x.cuda()), ops.amax(x))


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
@pytest.mark.parametrize("format_name", FORMATS)
def test_values_of_every_code_match_cpu(ops, dtype, format_name):
    codes = torch.arange(256, dtype=torch.uint8).repeat(100)
    for scale in SCALES:
        arguments = (FORMATS[format_name], dtype)
        expected = ops.dequantize_fp8(codes, one(scale), *arguments)
        actual = ops.dequantize_fp8(codes.cuda(), one(scale, "cuda"), *arguments)
        assert_same_bits(actual, expected, codes)
    if dtype != torch.float16:
        expected = ops.decode_fp8(codes, FORMATS[format_name], dtype)
        assert_same_bits(ops.decode_fp8(codes.cuda(), FORMATS[format_name], dtype), expected)


def test_strided_and_misaligned_views_match_cpu_bits(ops):
    x = torch.randn(37, 70).to(torch.bfloat16)
    on_gpu = x.cuda()
    for view in (
        lambda t: t.t(),
        lambda t: t[1:],
        lambda t: t[:, 1:50],
        lambda t: t.flatten()[1:],
        lambda t: t.flatten()[3:4],
        lambda t: t[:0],
        lambda t: t[2, 5],
    ):
        amax, amax_cuda = one(0.0), one(0.0, "cuda")
        expected = ops.quantize_fp8(view(x), one(50.0), amax, E4M3)
        actual = ops.quantize_fp8(view(on_gpu), one(50.0, "cuda"), amax_cuda, E4M3)
        assert_same_bits(actual, expected)
        assert_same_bits(amax_cuda, amax)
        expected = ops.dequantize_fp8(expected, one(0.5), E4M3, torch.float32)
        actual = ops.dequantize_fp8(actual, one(0.5, "cuda"), E4M3, torch.float32)
        assert_same_bits(actual, expected)
        words = ops.statistics(view(on_gpu), [], [])
        assert torch.equal(
            words.cpu()[TENSOR_COUNTS], ops.statistics(view(x), [], [])[TENSOR_COUNTS]
        )


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
@pytest.mark.parametrize("shape", [(16, 16), (272, 144), (1024, 4096), (37, 70)])
def test_both_orientations_hold_the_codes_of_the_cpu(ops, dtype, shape):
    x = torch.randn(shape).to(dtype)
    for format_id in FORMATS.values():
        amax, amax_cuda = one(0.0), one(0.0, "cuda")
        expected, transposed = ops.quantize_fp8_both(x, one(50.0), amax, format_id)
        assert transposed.data_ptr() == expected.data_ptr(), "a view on the CPU"
        codes, columns = ops.quantize_fp8_both(x.cuda(), one(50.0, "cuda"), amax_cuda, format_id)
        assert_same_bits(codes, expected)
        assert_same_bits(columns, transposed)
        assert columns.is_contiguous(), "the next product reads it row by row"
        for view in (codes, columns.t()):
            later = ops.transpose_codes(view)
            assert_same_bits(later, transposed)
            assert later.is_contiguous()
        assert_same_bits(amax_cuda, amax)


@pytest.mark.parametrize("power_of_two", [False, True])
def test_scales_match_cpu(ops, power_of_two):
    amaxes = torch.tensor([0.0, 1e-45, 1e-30, 0.1, 3.0, 448.0, 1e30, math.inf, math.nan])
    expected = ops.scale_from_amax(amaxes, 448.0, 0.0, power_of_two)
    assert_same_bits(ops.scale_from_amax(amaxes.cuda(), 448.0, 0.0, power_of_two), expected)

    old = torch.linspace(0.5, 2.0, amaxes.numel())
    maxima = torch.full_like(old, 57344.0)
    on_cpu, on_gpu = old.clone(), old.cuda()
    ops.update_scale(amaxes, on_cpu, maxima, 1, power_of_two)
    ops.update_scale(amaxes.cuda(), on_gpu, maxima.cuda(), 1, power_of_two)
    assert_same_bits(on_gpu, on_cpu)


@pytest.mark.parametrize("length", [1, 2, 16, 1024])
def test_histories_advance_as_on_the_cpu(ops, length):
    history = torch.rand(length, 3)
    if length > 2:
        history[2, 1] = math.nan
    on_gpu = history.cuda()
    for algorithm in ("max", "most_recent"):
        expected = ops.amax_of_history(history, algorithm)
        actual = ops.amax_of_history(on_gpu, algorithm).cpu()
        assert torch.equal(actual.isnan(), expected.isnan())
        assert torch.equal(actual.nan_to_num(), expected.nan_to_num())
    ops.advance_history(history)
    ops.advance_history(on_gpu)
    assert_same_bits(on_gpu, history)


def statistics_inputs(dtype: torch.dtype):
    generator = torch.Generator().manual_seed(3)
    normal = torch.randn(1000, 1003, generator=generator)
    yield "normal", normal.to(dtype)
    yield "few", normal[0, :77].to(dtype)
    yield "around a mean", (normal * 1e-2 + 100).to(dtype)
    yield "small", (normal * 1e-6).to(dtype)
    yield "not negative", normal.relu().to(dtype)
    yield "zeros", torch.zeros(20000, dtype=dtype)
    yield "special", inputs_of(dtype)
    one_nan = normal.to(dtype)
    one_nan[500, 500] = math.nan
    yield "one NaN", one_nan


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
def test_statistics_match_cpu(ops, dtype):
    scales = (100.0, 1.0, -3.0, 1e-9)
    formats = [E4M3, E5M2, E4M3, E4M3]
    for name, x in statistics_inputs(dtype):
        expected = ops.statistics(x, [one(s) for s in scales], formats)
        actual = ops.statistics(x.cuda(), [one(s, "cuda") for s in scales], formats).cpu()
        again = ops.statistics(x.cuda(), [one(s, "cuda") for s in scales], formats).cpu()
        assert torch.equal(actual, again), f"{name}: the same bits in every run"
        assert torch.equal(actual[TENSOR_COUNTS], expected[TENSOR_COUNTS]), name
        assert torch.equal(actual[TENSOR_EXTREMES], expected[TENSOR_EXTREMES]), name
        values, reference = actual.view(torch.float64), expected.view(torch.float64)
        magnitude = reference[L1].item()
        squares = reference[SUM_SQUARES].item()
        assert values[SUM].item() == pytest.approx(reference[SUM].item(), abs=2**-16 * magnitude)
        assert values[L1].item() == pytest.approx(magnitude, rel=2**-16)
        assert values[SUM_SQUARES].item() == pytest.approx(squares, rel=2**-16)
        assert values[M2].item() == pytest.approx(reference[M2].item(), abs=2**-14 * squares)
        for cast in range(len(scales)):
            first = TENSOR_WORDS + cast * CAST_WORDS
            ours, theirs = actual[first : first + CAST_WORDS], expected[first : first + CAST_WORDS]
            assert torch.equal(ours[CAST_COUNTS], theirs[CAST_COUNTS]), f"{name}, cast {cast}"
            error = ours.view(torch.float64)[CAST_ERROR].item()
            reference_error = theirs.view(torch.float64)[CAST_ERROR].item()
            assert error == pytest.approx(reference_error, rel=2**-16, nan_ok=True)


# Successive additions on either device: at most as many as a chunk has elements (kStatisticsChunk).
ADDITIONS = 2**13
# The most successive merges that an element of the largest of statistics_inputs (1,003,000
# elements, 123 chunks) goes through. CPU (statistics.cpp and central_moments_range.cpp): 16 chunks
# into a part (kStatisticsPart), fewer than 32 elements that fill no vector of AVX-512, 8 parts, the
# accumulator. GPU (statistics.cuh and sums.cuh): the chunk of a thread (no block has two), 5 steps
# over a warp and the other 7 warps; merge_parts does the same with the parts of the blocks, of
# which no thread has two; the accumulator. When the tensor is added a second time, the sums of the
# first time go through one more merge.
MERGES_CPU = 16 + 31 + 8 + 1
MERGES_GPU = (1 + 5 + 7) + (1 + 5 + 7) + 1
MERGES = max(MERGES_CPU, MERGES_GPU) + 1
UNIT = 2.0**-53


def bounds_of_moments(x: torch.Tensor, m2: float) -> tuple[float, float]:
    """How much the means of two devices may differ, and their moments: m2 and m4 relative to
    themselves, m3 relative to sqrt(m2 m4).

    A chunk's center is rounded, a unit of the mean of |x|, and a merge rounds the mean four times,
    three of them what it adds to it; as a merge adds the smaller part to the larger one on either
    device, that too is at most the mean of |x|. What a chunk's elements have beside its center is
    added up. An error e of the mean, small beside the deviation s, moves m2 by 2 e/s of itself, m3
    by 3 e/s of sqrt(m2 m4), and m4 by 4 e/s of itself, as Cauchy and Schwarz have it.

    The terms of a merged m4 with its d, taken without their signs, are at most 14 times m4: with
    a^2 = m4 of a part and b the square of d, the fourth power is at least a^2 / 3 + b^2, and they
    are 5/3 a^2 + 12 a b + b^2. Each is rounded at most 24 times (d has 2, the longest product 11
    with d2 d2, 10 more, and the sum). m2 and m3 are less.
    """
    finite = x.double()[x.isfinite()]
    magnitude = finite.abs().mean().item()
    spread = (finite - finite.mean()).abs().mean().item()
    of_mean = 2 * UNIT * (4 * MERGES * magnitude + 2 * ADDITIONS * spread)
    deviation = math.sqrt(m2 / (2 * finite.numel()))  # x was added twice
    of_center = 4 * of_mean / deviation if deviation else 0.0
    return of_mean, 2 * UNIT * (ADDITIONS + 14 * 24 * MERGES) + of_center


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
def test_central_moments_match_cpu(ops, dtype):
    for name, x in statistics_inputs(dtype):
        expected = ops.statistics(x, [], [])
        actual = ops.statistics(x.cuda(), [], [])
        assert not actual[MOMENTS].any(), f"{name}: nothing asked for them yet"
        for _ in range(2):  # the second one adds to the first
            ops.accumulate_central_moments(x, expected)
            ops.accumulate_central_moments(x.cuda(), actual)
        assert actual[MOMENTS][0].item() == expected[MOMENTS][0].item(), name
        ours, theirs = (sums.cpu()[MOMENTS].view(torch.float64) for sums in (actual, expected))
        _, mean, m2, m3, m4 = theirs.tolist()
        of_mean, relative = bounds_of_moments(x, m2)
        assert ours[1].item() == pytest.approx(mean, rel=0, abs=of_mean), name
        assert ours[2].item() == pytest.approx(m2, rel=0, abs=relative * m2), name
        assert ours[3].item() == pytest.approx(m3, rel=0, abs=relative * math.sqrt(m2 * m4)), name
        assert ours[4].item() == pytest.approx(m4, rel=0, abs=relative * m4), name


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
def test_dynamic_ranges_of_blocks_match_cpu(ops, dtype):
    for name, x in statistics_inputs(dtype):
        matrix = x.reshape(1, -1) if x.dim() == 1 else x
        for size, dims, both in ((32, 1, False), (128, 1, True), (32, 2, False)):
            expected = ops.blockwise_dynamic_range(matrix, size, dims, both)
            actual = ops.blockwise_dynamic_range(matrix.cuda(), size, dims, both)
            assert torch.equal(actual.cpu(), expected), f"{name}, {size}, {dims}"
            quarter = matrix / 4
            ops.accumulate_blockwise_dynamic_range(quarter, size, dims, both, expected)
            ops.accumulate_blockwise_dynamic_range(quarter.cuda(), size, dims, both, actual)
            assert torch.equal(actual.cpu(), expected), f"{name}, {size}, {dims}, two tensors"


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
def test_histograms_match_cpu(ops, dtype):
    for name, x in statistics_inputs(dtype):
        counts = torch.full((514,), 3, dtype=torch.int64)
        counts_cuda = counts.cuda()
        ops.exponent_histogram(x, counts)
        ops.exponent_histogram(x.cuda(), counts_cuda)
        assert torch.equal(counts_cuda.cpu(), counts), name
        if dtype != torch.float32:
            codes = torch.zeros(65536, dtype=torch.int64)
            codes_cuda = codes.cuda()
            ops.code_histogram(x, codes)
            ops.code_histogram(x.cuda(), codes_cuda)
            assert torch.equal(codes_cuda.cpu(), codes), name


TOLERANCE = {torch.bfloat16: 2**-7, torch.float16: 2**-10, torch.float32: 1e-5}


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
@pytest.mark.parametrize("columns", [77, 4096])
def test_norms_match_cpu(ops, dtype, columns):
    x, grad = torch.randn(300, columns).to(dtype), torch.randn(300, columns).to(dtype)
    weight, bias = torch.randn(columns), torch.randn(columns)
    close = {"rtol": TOLERANCE[dtype], "atol": 1e-4}
    for zero_centered in (False, True):
        expected = ops.layer_norm_forward(x, weight, bias, 1e-5, zero_centered)
        actual = ops.layer_norm_forward(x.cuda(), weight.cuda(), bias.cuda(), 1e-5, zero_centered)
        for ours, theirs in zip(actual, expected, strict=True):
            torch.testing.assert_close(ours.cpu(), theirs, **close)
        _, mean, rstd = expected
        arguments = (grad, x, weight, mean, rstd)
        expected = ops.layer_norm_backward(*arguments, zero_centered)
        actual = ops.layer_norm_backward(*(a.cuda() for a in arguments), zero_centered)
        torch.testing.assert_close(actual[0].cpu(), expected[0], **close)
        for ours, theirs in zip(actual[1:], expected[1:], strict=True):
            torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-3)
        expected = ops.rms_norm_forward(x, weight, 1e-5, zero_centered)
        actual = ops.rms_norm_forward(x.cuda(), weight.cuda(), 1e-5, zero_centered)
        for ours, theirs in zip(actual, expected, strict=True):
            torch.testing.assert_close(ours.cpu(), theirs, **close)


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_match_cpu(ops, dtype, name):
    for columns in (154, 4096):
        x = (torch.randn(100, columns) * 3).to(dtype)
        expected = ops.activation_forward(x, name)
        actual = ops.activation_forward(x.cuda(), name)
        close = {"rtol": TOLERANCE[dtype], "atol": 1e-5}
        torch.testing.assert_close(actual.cpu(), expected, **close)
        grad = torch.randn_like(expected)
        torch.testing.assert_close(
            ops.activation_backward(grad.cuda(), x.cuda(), name).cpu(),
            ops.activation_backward(grad, x, name),
            **close,
        )


def test_operands_on_two_devices_are_refused_by_name(ops):
    x = torch.randn(16, 16, device="cuda")
    with pytest.raises(RuntimeError, match="is on cpu and the tensor on cuda"):
        ops.quantize_fp8(x, one(1.0), None, E4M3)


def test_kernels_run_on_the_current_stream(ops):
    """A graph captures what its stream runs and nothing else: replayed, it reads new inputs."""
    x = torch.randn(512, 512, device="cuda", dtype=torch.bfloat16)
    scale, amax = one(10.0, "cuda"), one(0.0, "cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        ops.quantize_fp8(x, scale, amax, E4M3)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        codes = ops.quantize_fp8(x, scale, amax, E4M3)
        words = ops.statistics(x, [scale], [E4M3])
    x.copy_(torch.full_like(x, 0.25))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(codes, ops.quantize_fp8(x, scale, None, E4M3))
    assert torch.equal(words, ops.statistics(x, [scale], [E4M3]))


def train(device: str, recipe) -> tuple[list[float], torch.nn.Module]:
    import telens.pytorch as te

    torch.manual_seed(7)
    model = torch.nn.Sequential(
        te.LayerNormLinear(64, 128, params_dtype=torch.bfloat16),
        te.Linear(128, 64, params_dtype=torch.bfloat16),
    )
    x = torch.randn(32, 64).to(torch.bfloat16)
    model, x = model.to(device), x.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        with te.autocast(enabled=recipe is not None, recipe=recipe):
            loss = (model(x) - x).float().square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


@pytest.mark.parametrize("recipe_name", [None, "DelayedScaling", "Float8CurrentScaling"])
def test_modules_train_as_on_the_cpu(ops, recipe_name):
    """Not the same bits, because products and norms sum in another order, but the same training."""
    recipes = pytest.importorskip("telens.common.recipe")
    recipe = None if recipe_name is None else getattr(recipes, recipe_name)
    make = (lambda: None) if recipe is None else recipe
    on_cpu, _ = train("cpu", make())
    on_gpu, model = train("cuda", make())
    assert all(parameter.device.type == "cuda" for parameter in model.parameters())
    assert on_gpu[-1] < on_gpu[0]
    assert on_gpu == pytest.approx(on_cpu, rel=0.05)
