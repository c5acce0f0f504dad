"""Products of quantized operands on a GPU against FP64 and against the CPU: all formats, shapes and
orientations, native or emulated as the card has it. Skipped where there is no GPU; `make gpu-check`
runs them. TELENS_TEST_DEVICE=cpu runs the code of these tests on the CPU, against itself."""

import pytest
import torch
from cuda_gemm_helpers import (
    BLOCK_2D,
    SPLIT_ACCUMULATOR,
    WAYS,
    Operand,
    accumulate,
    assert_close_to,
    assert_within_bound,
    fast_accumulator,
    fp32_accumulator,
    move,
    multiply,
    operands,
    quantized,
)
from cuda_helpers import DEVICE, HIGH_PRECISION

pytestmark = pytest.mark.skipif(
    DEVICE == "cuda" and not torch.cuda.is_available(), reason="needs a GPU"
)

# Whole tiles; one K block of 4; K blocks that are no multiple of 4; small; what FP8 does not take.
SHAPES = ((256, 128, 384), (128, 128, 128), (144, 272, 640), (16, 48, 2048), (33, 20, 272))


@pytest.mark.parametrize("out_dtype", HIGH_PRECISION)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ways", WAYS)
def test_products_are_within_the_bound_of_their_accumulator(ops, out_dtype, shape, ways):
    """Every format in both orientations; a scale in the wrong place is far beyond any bound."""
    bias = torch.randn(shape[1]).to(torch.bfloat16).to(out_dtype)
    for columnwise in ((False, False), (True, False), (False, True), (True, True)):
        a, b = operands(ops, shape, WAYS[ways], columnwise, spread=2.0)
        for given in (None, bias):
            out = multiply(ops, a, b, given, out_dtype)
            assert out.dtype == out_dtype
            assert out.device.type == DEVICE
            assert_within_bound(out, ops, a, b, given)


@pytest.mark.parametrize("ways", WAYS)
def test_products_with_fast_accumulation_are_within_its_bound(ops, ways):
    """Only Hopper's products with one scale for each tensor have it; other products ignore the
    option.
    """
    for shape in ((128, 128, 384), (16, 48, 2048)):
        a, b = operands(ops, shape, WAYS[ways], spread=2.0)
        out = multiply(ops, a, b, None, torch.bfloat16, split=False)
        bound = max(SPLIT_ACCUMULATOR, fast_accumulator(shape[2]))
        assert_within_bound(out, ops, a, b, accumulator=bound)


@pytest.mark.parametrize("ways", WAYS)
def test_products_are_added_to_the_output(ops, ways):
    """The product is not rounded first; also for a view that is not contiguous, and for sizes that
    FP8 products do not support.
    """
    for m, n, k in ((128, 256, 384), (33, 20, 272)):
        a, b = operands(ops, (m, n, k), WAYS[ways], columnwise=(True, True))
        before = torch.randn(m, 2 * n, generator=torch.Generator().manual_seed(5))
        for columns in (slice(0, n), slice(0, 2 * n, 2)):
            whole = move(before.clone())
            out = whole[:, columns] if columns.step else whole[:, columns].contiguous()
            accumulate(ops, a, b, out)
            added = before[:, columns].double()
            assert_close_to(out, a.values(ops), b.values(ops), added, SPLIT_ACCUMULATOR)
            if columns.step:
                assert torch.equal(whole[:, 1::2].cpu(), before[:, 1::2])


@pytest.mark.parametrize("ways", WAYS)
def test_equal_descriptions_give_equal_bits(ops, ways):
    """Codes in another memory order are brought into the usual one first."""
    a, b = operands(ops, (256, 128, 512), WAYS[ways])
    out = multiply(ops, a, b, None, torch.bfloat16)
    again = multiply(ops, a, b, None, torch.bfloat16)
    assert torch.equal(out, again)
    copy = Operand(a.codes.t().contiguous().t(), a.scale_inv, a.tensor_scale, a.way)
    turned = multiply(ops, copy, b, None, torch.bfloat16)
    assert_within_bound(turned, ops, a, b)


def misaligned(codes: torch.Tensor) -> torch.Tensor:
    memory = torch.empty(codes.numel() + 1, dtype=torch.uint8, device=codes.device)
    view = memory[1:].view(codes.shape)
    return view.copy_(codes)


def every_other_row(codes: torch.Tensor) -> torch.Tensor:
    return codes.repeat_interleave(2, 0)[::2]


@pytest.mark.parametrize("view", [misaligned, every_other_row])
@pytest.mark.parametrize("ways", WAYS)
def test_views_that_are_misaligned_or_strided_are_the_same_operands(ops, view, ways):
    a, b = operands(ops, (128, 128, 256), WAYS[ways])
    expected = ops.gemm(*a.on_device(), *b.on_device(), None, torch.float32)
    codes, *rest = a.on_device()
    actual = ops.gemm(view(codes), *rest, *b.on_device(), None, torch.float32)
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("ways", WAYS)
def test_nan_makes_its_row_and_no_other_nan(ops, ways):
    x = torch.ones(32, 256)
    x[3, 7] = float("nan")
    a = quantized(ops, x, WAYS[ways][0], False)
    b = quantized(ops, torch.ones(16, 256), WAYS[ways][1], False)
    if WAYS[ways][0].mode == BLOCK_2D and torch.isnan(a.values(ops)).sum() > 256:
        pytest.skip("a NaN scale, of a whole square")
    nans = multiply(ops, a, b, None, torch.bfloat16).isnan().cpu()
    assert nans[3].all()
    assert nans.sum() == 16


@pytest.mark.parametrize("ways", WAYS)
def test_products_over_nothing_are_the_bias(ops, ways):
    bias = move(torch.arange(32.0).bfloat16())
    for shape in ((0, 32, 32), (32, 32, 0)):
        a, b = operands(ops, shape, WAYS[ways])
        out = ops.gemm(*a.on_device(), *b.on_device(), bias, torch.bfloat16)
        assert torch.equal(out, bias.expand(shape[0], 32))


PLAIN_DTYPES = [(dtype, dtype) for dtype in HIGH_PRECISION]
PLAIN_DTYPES += [(torch.bfloat16, torch.float32), (torch.float16, torch.float32)]
LAYOUTS = {
    "rows": lambda t: t,
    "columns": lambda t: t.t().contiguous().t(),
    "apart": lambda t: torch.cat([t, t], 1)[:, : t.shape[1]],
    "scattered": lambda t: t.repeat_interleave(2, 1)[:, ::2],
}


@pytest.mark.parametrize("dtypes", PLAIN_DTYPES)
@pytest.mark.parametrize("shape", [(256, 128, 384), (48, 80, 100), (33, 21, 7), (1, 1, 1)])
@pytest.mark.parametrize("right", LAYOUTS)
@pytest.mark.parametrize("left", LAYOUTS)
def test_plain_products_are_within_the_bound_of_fp32_sums(ops, dtypes, shape, left, right):
    m, n, k = shape
    a, b = torch.randn(m, k).to(dtypes[0]), torch.randn(n, k).to(dtypes[0])
    bias = torch.randn(n).to(dtypes[1])
    for given in (None, bias):
        left_view, right_view = LAYOUTS[left](move(a)), LAYOUTS[right](move(b))
        out = ops.matmul(left_view, right_view, move(given), dtypes[1])
        assert out.dtype == dtypes[1]
        added = torch.zeros(()) if given is None else given.double()
        assert_close_to(out, a.double(), b.double(), added, fp32_accumulator(k + 1))
    sums = torch.randn(m, n)
    out = move(sums.clone())
    ops.matmul_accumulate(LAYOUTS[left](move(a)), LAYOUTS[right](move(b)), out)
    assert_close_to(out, a.double(), b.double(), sums.double(), fp32_accumulator(k + 1))


def test_plain_products_over_nothing_are_the_bias_and_add_nothing(ops):
    bias = move(torch.arange(16.0))
    for m, k in ((0, 8), (4, 0)):
        a, b = move(torch.ones(m, k)), move(torch.ones(16, k))
        assert torch.equal(ops.matmul(a, b, bias, torch.float32), bias.expand(m, 16))
        sums = move(torch.ones(m, 16))
        ops.matmul_accumulate(a, b, sums)
        assert (sums == 1).all()


def test_plain_products_of_fp64_are_exact_to_it(ops):
    a, b = torch.randn(32, 64).double(), torch.randn(16, 64).double()
    out = ops.matmul(move(a), move(b), None, torch.float64).cpu()
    torch.testing.assert_close(out, a @ b.t(), rtol=1e-13, atol=1e-13)


@pytest.mark.skipif(DEVICE != "cuda", reason="needs a GPU")
def test_plain_products_of_fp32_are_tf32_only_where_torch_allows_it(ops):
    a, b = torch.full((256, 256), 1 + 2**-12, device="cuda"), torch.eye(256, device="cuda")
    allowed = torch.backends.cuda.matmul.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = False
        assert torch.equal(ops.matmul(a, b, None, torch.float32), a)
        torch.backends.cuda.matmul.allow_tf32 = True
        assert (ops.matmul(a, b, None, torch.float32) - a).abs().max() < 2**-10
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed


@pytest.mark.skipif(DEVICE != "cuda", reason="needs a GPU")
def test_plain_products_of_fp32_follow_the_newer_setting_of_torch_too(ops):
    """After its use, torch's older setting raises an error where the two differ."""
    products = torch.backends.cuda.matmul
    if not hasattr(products, "fp32_precision"):
        pytest.skip("this torch has the older setting alone")
    a, b = torch.full((256, 256), 1 + 2**-12, device="cuda"), torch.eye(256, device="cuda")
    before = products.fp32_precision
    try:
        for precision in ("ieee", "tf32", "ieee"):
            products.fp32_precision = precision
            out, sums = ops.matmul(a, b, None, torch.float32), torch.zeros_like(a)
            ops.matmul_accumulate(a, b, sums)
            for product in (out, sums):
                assert ((product - a).abs().max() < 2**-10).item()
                # TF32 has 10 bits after the point: 2^-12 is rounded away.
                assert torch.equal(product, a) == (precision == "ieee"), precision
    finally:
        products.fp32_precision = before


@pytest.mark.skipif(DEVICE != "cuda", reason="needs a GPU")
@pytest.mark.parametrize("ways", WAYS)
def test_an_operand_on_another_device_is_refused_by_name(ops, ways):
    a, b = operands(ops, (32, 32, 128), WAYS[ways])
    on_device = list(b.on_device())
    for place in (0, 1):
        arguments = list(on_device)
        arguments[place] = arguments[place].cpu()
        with pytest.raises(RuntimeError, match="on c"):
            ops.gemm(*a.on_device(), *arguments, None, torch.bfloat16)


@pytest.mark.skipif(DEVICE != "cuda", reason="needs a GPU")
@pytest.mark.parametrize("ways", WAYS)
def test_products_are_enqueued_without_waiting_and_can_be_captured(ops, ways):
    """A graph takes nothing that reads the device; replayed, it multiplies new codes."""
    a, b = operands(ops, (128, 128, 256), WAYS[ways])
    left, right = a.on_device(), b.on_device()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        ops.gemm(*left, *right, None, torch.bfloat16)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = ops.gemm(*left, *right, None, torch.bfloat16)
    left[0].zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert (out == 0).all()
