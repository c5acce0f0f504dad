"""The operators on a GPU against the same operators on the CPU. Skipped where there is no GPU or
the library was built without CUDA; `make gpu-check` runs it where there is one."""

import itertools
import math

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

E4M3, E5M2 = 0, 1
FORMATS = {"e4m3": E4M3, "e5m2": E5M2}
HIGH_PRECISION = (torch.bfloat16, torch.float16, torch.float32)
TENSOR_SCALING = 0

# core/ops/statistics_layout.h: words of TensorSums and of CastSums, and which of them are counts.
TENSOR_COUNTS = slice(0, 6)
TENSOR_EXTREMES = slice(6, 9)
SUM, L1, SUM_SQUARES, M2 = 9, 10, 11, 12
TENSOR_WORDS = 13
CAST_WORDS = 7
CAST_COUNTS = slice(0, 4)
CAST_ERROR = 4


@pytest.fixture(scope="module")
def ops(telens_ops):
    registered = torch._C._dispatch_get_registrations_for_dispatch_key("CUDA")
    if "telens::amax" not in registered:
        pytest.skip("libtelens.so was built without CUDA (TELENS_CUDA=OFF)")
    return telens_ops


def bits(tensor: torch.Tensor) -> torch.Tensor:
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
    return tensor.cpu().contiguous().view(kinds[tensor.element_size()])


def assert_same_bits(actual: torch.Tensor, expected: torch.Tensor, inputs=None) -> None:
    actual, expected = bits(actual), bits(expected)
    assert actual.shape == expected.shape
    differs = (actual != expected).flatten()
    if differs.any():
        first = int(differs.nonzero()[0])
        given = "" if inputs is None else f" for {inputs.flatten()[first].item()!r}"
        pytest.fail(
            f"{int(differs.sum())} of {differs.numel()} differ; the first at {first}: expected "
            f"{expected.flatten()[first].item():#x}, got {actual.flatten()[first].item():#x}{given}"
        )


def every_16_bit_value(dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)


def special_fp32() -> torch.Tensor:
    """Every exponent with mantissas around every rounding decision of 8-bit formats, both signs."""
    exponents = torch.arange(256, dtype=torch.int64) << 23
    around = torch.tensor([-1, 0, 1])
    mantissas = ((torch.arange(64, dtype=torch.int64) << 17)[:, None] + around).flatten() & 0x7FFFFF
    magnitudes = (exponents[:, None] | mantissas).flatten()
    return torch.cat([magnitudes, magnitudes | 1 << 31]).to(torch.uint32).view(torch.float32)


def one(value: float, device="cpu") -> torch.Tensor:
    return torch.tensor([value], dtype=torch.float32, device=device)


SCALES = (1.0, 0.37, 448 / 3, 2.0**-12, 2.0**30, 1e38, 1e-38, 2.0**-149, 0.0, -0.0, -2.5)
SCALES += (math.inf, -math.inf, math.nan)


def inputs_of(dtype: torch.dtype) -> torch.Tensor:
    return special_fp32() if dtype == torch.float32 else every_16_bit_value(dtype)


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
@pytest.mark.parametrize("format_name", FORMATS)
def test_codes_of_every_special_value_are_those_of_the_cpu(ops, dtype, format_name):
    x = inputs_of(dtype)
    for scale in SCALES:
        expected = ops.quantize_fp8(x, one(scale), None, FORMATS[format_name])
        actual = ops.quantize_fp8(x.cuda(), one(scale, "cuda"), None, FORMATS[format_name])
        assert_same_bits(actual, expected, x)


@pytest.mark.parametrize("format_name", FORMATS)
def test_codes_and_amax_of_10_to_the_8_random_values_are_those_of_the_cpu(ops, format_name):
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
def test_values_of_every_code_are_those_of_the_cpu(ops, dtype, format_name):
    codes = torch.arange(256, dtype=torch.uint8).repeat(100)
    for scale in SCALES:
        arguments = (FORMATS[format_name], dtype)
        expected = ops.dequantize_fp8(codes, one(scale), *arguments)
        actual = ops.dequantize_fp8(codes.cuda(), one(scale, "cuda"), *arguments)
        assert_same_bits(actual, expected, codes)
    if dtype != torch.float16:
        expected = ops.decode_fp8(codes, FORMATS[format_name], dtype)
        assert_same_bits(ops.decode_fp8(codes.cuda(), FORMATS[format_name], dtype), expected)


def test_views_that_are_strided_or_misaligned_give_the_bits_of_the_cpu(ops):
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
        assert_same_bits(amax_cuda, amax)


BLOCK_SHAPES = ((256, 384), (37, 70), (130, 264), (0, 64), (1, 1))
SIGNS = 0xD7E8  # of the Hadamard transform, as Transformer Engine has them
RANDOM_STATE = torch.tensor([0x123456789ABCDEF0, 7])
AMAXES = torch.tensor([123, 0.01])  # of the orientations, neither the largest magnitude of any x
ORIENTATIONS = {"both": (True, True), "rowwise": (True, False), "columnwise": (False, True)}
MXFP8, BLOCK_1D, BLOCK_2D, NVFP4 = range(1, 5)
E2M1 = 2


def block_matrix(
    shape: tuple[int, int], dtype: torch.dtype, infinities: bool = True
) -> torch.Tensor:
    """Magnitudes over many powers of two, blocks of zeros, and special values strewn in. One
    infinity makes NVFP4's tensor scale 1; without, fewer powers of two, so that none overflows
    FP16, nor does a sum of the Hadamard transform."""
    generator = torch.Generator().manual_seed(3)
    powers = torch.randn(shape, generator=generator).mul(6 if infinities else 3)
    x = torch.randn(shape, generator=generator) * powers.exp2()
    x[1:4, :140] = 0
    special = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 448.0, 449.0, 6.0, 0.25, 1e-40])
    if not infinities:
        special = special[~special.isinf()]
    flat = x.view(-1)
    places = torch.arange(150, max(150, flat.numel()), 61)
    flat[places] = special[torch.arange(len(places)) % len(special)]
    return x.to(dtype)


def assert_same_copies(actual, expected) -> None:
    """Codes and scales of both orientations, and how they lie in memory; None is none asked for."""
    for got, want in zip(actual, expected, strict=True):
        assert (got is None) == (want is None)
        if want is not None:
            assert_same_bits(got, want)
            assert got.stride() == want.stride() or want.numel() <= 1


def to_gpu(arguments) -> list:
    return [a.cuda() if isinstance(a, torch.Tensor) else a for a in arguments]


def copies_on_both(operator, x, arguments, view=lambda t: t) -> list:
    """The copies that an operator makes of a view of x, the same ones on a GPU and on the CPU."""
    expected = operator(view(x), *arguments)
    assert_same_copies(operator(view(x.cuda()), *to_gpu(arguments)), expected)
    return expected


def block_quantizations(ops, x, orientations):
    """Operators and their arguments but x: every path that one of them has of its own."""
    for squares in (False, True):
        yield ops.quantize_mxfp8, (E4M3, 0, squares, *orientations)
        yield ops.quantize_fp8_blocks, (E5M2, squares, False, 0.0, *orientations)
        for chance in (None, RANDOM_STATE):
            for signs in transforms_of(x, squares):
                yield ops.quantize_nvfp4, (squares, signs, chance, *orientations)


def transforms_of(x, squares: bool) -> list:
    return [None] if squares or x.size(0) % 16 else [None, SIGNS]


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
@pytest.mark.parametrize("shape", BLOCK_SHAPES)
@pytest.mark.parametrize("squares", [False, True])
def test_fp8_blocks_are_those_of_the_cpu(ops, dtype, shape, squares):
    x = block_matrix(shape, dtype)
    for format_id in FORMATS.values():
        for rounding in range(3):
            arguments = (format_id, rounding, squares, True, True)
            expected = ops.quantize_mxfp8(x, *arguments)
            assert_same_copies(ops.quantize_mxfp8(x.cuda(), *arguments), expected)
        for power_of_2_scales in (False, True):
            arguments = (format_id, squares, power_of_2_scales, 0.0, True, True)
            expected = ops.quantize_fp8_blocks(x, *arguments)
            assert_same_copies(ops.quantize_fp8_blocks(x.cuda(), *arguments), expected)


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
@pytest.mark.parametrize("shape", BLOCK_SHAPES)
@pytest.mark.parametrize("squares", [False, True])
@pytest.mark.parametrize("infinities", [False, True])
def test_nvfp4_blocks_are_those_of_the_cpu(ops, dtype, shape, squares, infinities):
    x = block_matrix(shape, dtype, infinities)
    for signs in transforms_of(x, squares):
        for chance in (None, RANDOM_STATE):
            copies = copies_on_both(ops.quantize_nvfp4, x, (squares, signs, chance, True, True))
            assert_tensor_scales_scale(copies, x, infinities)


def assert_tensor_scales_scale(copies, x, infinities: bool) -> None:
    """What a test says of NVFP4's second level of scales it says nothing of where they are 1."""
    tensor_scales = [copies[2].item(), copies[5].item()]
    assert infinities or x.numel() == 0 or 1 not in tensor_scales, tensor_scales


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
@pytest.mark.parametrize("orientations", ["rowwise", "columnwise"])
def test_blocks_of_one_orientation_alone_are_those_of_the_cpu(ops, dtype, orientations):
    asked = ORIENTATIONS[orientations]
    x = block_matrix((80, 264), dtype, infinities=False)
    for operator, arguments in block_quantizations(ops, x, asked):
        copies = copies_on_both(operator, x, arguments)
        half = len(copies) // 2
        assert [copies[0] is not None, copies[half] is not None] == list(asked)


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
@pytest.mark.parametrize("squares", [False, True])
@pytest.mark.parametrize("orientations", ORIENTATIONS)
def test_nvfp4_scales_of_given_amaxes_are_those_of_the_cpu(ops, dtype, squares, orientations):
    """The columnwise amax is for what is not quantized together with the rowwise orientation."""
    rowwise, columnwise = ORIENTATIONS[orientations]
    x = block_matrix((80, 264), dtype, infinities=False)
    of_rows, of_columns = (AMAXES / (448 * 6)).tolist()
    for signs in transforms_of(x, squares):
        for chance in (None, RANDOM_STATE):
            arguments = (squares, signs, chance, rowwise, columnwise, AMAXES)
            copies = copies_on_both(ops.quantize_nvfp4, x, arguments)
            apart = not squares and (signs is not None or chance is not None)
            if rowwise:
                assert copies[2].item() == pytest.approx(of_rows, rel=1e-6)
            if columnwise:
                expected = of_columns if apart else of_rows
                assert copies[5].item() == pytest.approx(expected, rel=1e-6)


def misaligned(x: torch.Tensor) -> torch.Tensor:
    """Contiguous, whole packs of 8 a row, and no row where loads and stores of packs may begin."""
    rows, columns = x.shape
    view = x.view(-1)[1 : 1 + (rows - 16) * columns].view(rows - 16, columns)
    assert view.is_contiguous()
    assert view.data_ptr() % 16 != 0
    return view


VIEWS = {"transposed": lambda t: t.t(), "columns": lambda t: t[:, 1:], "misaligned": misaligned}


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
@pytest.mark.parametrize("view", VIEWS)
def test_blocks_of_views_that_are_strided_or_misaligned_are_those_of_the_cpu(ops, dtype, view):
    x = block_matrix((80, 272), dtype, infinities=False)
    for operator, arguments in block_quantizations(ops, VIEWS[view](x), (True, True)):
        copies_on_both(operator, x, arguments, VIEWS[view])


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
@pytest.mark.parametrize("shape", BLOCK_SHAPES)
@pytest.mark.parametrize("infinities", [False, True])
def test_values_of_blocks_are_those_of_the_cpu(ops, dtype, shape, infinities):
    x = block_matrix(shape, dtype, infinities)
    rowwise, columnwise = slice(0, 2), slice(2, 4)
    copies = [
        (*ops.quantize_mxfp8(x, E4M3, 0, False, True, True)[orientation], None, E4M3, MXFP8)
        for orientation in (rowwise, columnwise)
    ]
    for squares, mode in ((False, BLOCK_1D), (True, BLOCK_2D)):
        both = ops.quantize_fp8_blocks(x, E5M2, squares, False, 0.0, True, True)
        copies += [(*both[orientation], None, E5M2, mode) for orientation in (rowwise, columnwise)]
    both = ops.quantize_nvfp4(x, False, None, None, True, True)
    assert_tensor_scales_scale(both, x, infinities)
    copies += [(*both[:3], E2M1, NVFP4), (*both[3:], E2M1, NVFP4)]
    for codes, scale_inv, tensor_scale, format_id, mode in copies:
        arguments = (codes, scale_inv, tensor_scale, format_id, mode, dtype)
        expected = ops.dequantize_blocks(*arguments)
        assert_same_copies([ops.dequantize_blocks(*to_gpu(arguments))], [expected])


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
def test_hadamard_transforms_are_those_of_the_cpu(ops, dtype):
    """Sums that overflow or meet a NaN are NaN on both, with bits that nobody promises."""
    for shape, infinities in itertools.product(((256, 384), (16, 71)), (False, True)):
        x = block_matrix(shape, dtype, infinities)
        for inverse in (False, True):
            expected = ops.hadamard_transform(x, SIGNS, inverse)
            assert infinities or not expected.isinf().any(), "a sum that overflows"
            actual = ops.hadamard_transform(x.cuda(), SIGNS, inverse).cpu()
            assert torch.equal(actual.isnan(), expected.isnan())
            numbers = ~expected.isnan()
            assert_same_bits(actual[numbers], expected[numbers])


@pytest.mark.parametrize("power_of_two", [False, True])
def test_scales_are_those_of_the_cpu(ops, power_of_two):
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
def test_statistics_are_those_of_the_cpu(ops, dtype):
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


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
def test_dynamic_ranges_of_blocks_are_those_of_the_cpu(ops, dtype):
    for name, x in statistics_inputs(dtype):
        matrix = x.reshape(1, -1) if x.dim() == 1 else x
        for size, dims, both in ((32, 1, False), (128, 1, True), (32, 2, False)):
            expected = ops.blockwise_dynamic_range(matrix, size, dims, both)
            actual = ops.blockwise_dynamic_range(matrix.cuda(), size, dims, both)
            assert torch.equal(actual.cpu(), expected), f"{name}, {size}, {dims}"


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
def test_histograms_are_those_of_the_cpu(ops, dtype):
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
def test_norms_are_those_of_the_cpu(ops, dtype, columns):
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


FUNCTIONS = ("gelu", "qgelu", "relu", "srelu", "silu")
GATED = ("geglu", "qgeglu", "reglu", "sreglu", "swiglu")


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
@pytest.mark.parametrize("name", FUNCTIONS + GATED)
def test_activations_are_those_of_the_cpu(ops, dtype, name):
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


def quantized(ops, x, format_id):
    scale = ops.scale_from_amax(ops.amax(x), 448.0 if format_id == E4M3 else 57344.0, 0.0, False)
    scale = scale.reshape(1)
    return ops.quantize_fp8(x, scale, None, format_id), scale.reciprocal()


# Of the output's own rounding, on both sides.
OUTPUT_ROUNDING = {
    torch.bfloat16: 2 * 2**-8,
    torch.float16: 2 * 2**-11,
    torch.float32: 2 * 2**-24,
}
SPLIT_ACCUMULATOR = 2**-10  # of sum |a| |b|, on Hopper


@pytest.mark.parametrize("out_dtype", HIGH_PRECISION)
@pytest.mark.parametrize("shape", [(256, 512, 768), (16, 16, 16), (48, 80, 4096), (33, 20, 7)])
@pytest.mark.parametrize("formats", [(E4M3, E4M3), (E5M2, E4M3), (E4M3, E5M2)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_products_are_within_the_bound_of_their_accumulator(
    ops, out_dtype, shape, formats, with_bias
):
    m, n, k = shape
    a, a_inv = quantized(ops, torch.randn(m, k), formats[0])
    b, b_inv = quantized(ops, torch.randn(n, k), formats[1])
    bias = torch.randn(n).to(torch.bfloat16).to(out_dtype) if with_bias else None
    left = (a, a_inv, None, formats[0], TENSOR_SCALING)
    arguments = (*left, b, b_inv, None, formats[1], TENSOR_SCALING, bias)
    on_gpu = to_gpu(arguments)
    actual = ops.gemm(*on_gpu, out_dtype).cpu().double()
    first = ops.decode_fp8(a, formats[0], torch.float32).double() * a_inv.double()
    second = ops.decode_fp8(b, formats[1], torch.float32).double() * b_inv.double()
    exact = first @ second.t() + (bias.double() if with_bias else 0)
    bound = SPLIT_ACCUMULATOR * (first.abs() @ second.abs().t())
    bound += OUTPUT_ROUNDING[out_dtype] * exact.abs() + 1e-6
    excess = (actual - exact).abs() - bound
    assert excess.max() <= 0, f"{excess.max()} beyond the bound"
    # A product of nothing but the codes' layout: a transposed view is the same operand.
    on_gpu[0] = on_gpu[0].t().contiguous().t()
    assert torch.equal(ops.gemm(*on_gpu, out_dtype).cpu().double(), actual)


def test_products_over_nothing_are_the_bias(ops):
    for m, n, k in ((0, 16, 16), (16, 0, 16), (16, 16, 0)):
        a = torch.zeros(m, k, dtype=torch.uint8, device="cuda")
        b = torch.zeros(n, k, dtype=torch.uint8, device="cuda")
        bias = torch.ones(n, dtype=torch.bfloat16, device="cuda")
        scale = one(1.0, "cuda")
        left = (a, scale, None, E4M3, TENSOR_SCALING)
        right = (b, scale, None, E4M3, TENSOR_SCALING)
        out = ops.gemm(*left, *right, bias, torch.bfloat16)
        assert out.shape == (m, n)
        assert (out == 1).all()


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
    """Not the same bits: products and norms sum in another order. The same training."""
    recipes = pytest.importorskip("telens.common.recipe")
    recipe = None if recipe_name is None else getattr(recipes, recipe_name)
    make = (lambda: None) if recipe is None else recipe
    on_cpu, _ = train("cpu", make())
    on_gpu, model = train("cuda", make())
    assert all(parameter.device.type == "cuda" for parameter in model.parameters())
    assert on_gpu[-1] < on_gpu[0]
    assert on_gpu == pytest.approx(on_cpu, rel=0.05)
