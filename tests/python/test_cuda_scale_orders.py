"""Which scales a product of quantized operands on a GPU uses: native products read them in an order
of their own. The scales are powers of two that differ widely, and every element of the result has
one scale of either operand, so that a scale at a wrong place is far beyond the bound. Skipped where
there is no GPU; `make gpu-check` runs them. TELENS_TEST_DEVICE=cpu rehearses them on the CPU.
"""

import pytest
import torch
from cuda_gemm_helpers import (
    BLOCK_1D,
    BLOCK_2D,
    MXFP8,
    NVFP4,
    SPLIT_ACCUMULATOR,
    TENSOR,
    WAYS,
    Operand,
    Way,
    assert_within_bound,
    bound_of,
    fit_in_any_order,
    keeps_all_exponents,
    multiply,
    quantized,
)
from cuda_helpers import DEVICE, E5M2

pytestmark = pytest.mark.skipif(
    DEVICE == "cuda" and not torch.cuda.is_available(), reason="needs a GPU"
)

IN_BLOCKS = [name for name, (way, _) in WAYS.items() if way.mode != TENSOR]
LENGTH = {MXFP8: 32, BLOCK_1D: 128, BLOCK_2D: 128, NVFP4: 16}
# Codes of values in [1, 2): the first one, and how many there are.
ONES = {False: (0x38, 8), True: (0x3C, 4)}  # E4M3, E5M2
E2M1_ONES = (2, 2)


def random_scales(way: Way, lines: int, blocks: int, generator) -> torch.Tensor:
    """61 powers of two; without power_of_2_scales, any values near them; NVFP4: 119 E4M3 codes of
    normal values.
    """
    if way.mode == NVFP4:
        return torch.randint(8, 127, (lines, blocks), generator=generator).byte()
    exponents = torch.randint(-30, 31, (lines, blocks), generator=generator)
    if way.mode == MXFP8:
        return (exponents + 127).byte()
    scales = exponents.float().exp2()
    if not way.power_of_2_scales:
        scales *= 1 + torch.rand(lines, blocks, generator=generator)
    return scales


def operand(way: Way, rows: int, k: int, one_block: bool, columnwise: bool) -> Operand:
    """Positive codes of similar size. With `one_block`, line i is zero except for one block of K (i
    modulo the number of blocks), so that each element of a product has only one block.
    """
    generator = torch.Generator().manual_seed(17 * rows + k)
    length = LENGTH[way.mode]
    blocks = -(-k // length)
    first, count = E2M1_ONES if way.mode == NVFP4 else ONES[way.format_id == E5M2]
    codes = torch.randint(first, first + count, (rows, k), generator=generator).byte()
    if one_block:
        own = torch.arange(rows)[:, None] % blocks
        codes[torch.arange(k)[None, :] // length != own] = 0
    if way.mode == NVFP4:
        codes = codes[:, ::2] | codes[:, 1::2] << 4
    lines = -(-rows // 128) if way.mode == BLOCK_2D else rows
    scales = random_scales(way, lines, blocks, generator)
    if columnwise:  # as the copies that feed dgrad and wgrad lie in memory
        codes, scales = codes.t().contiguous().t(), scales.t().contiguous().t()
    return Operand(codes, scales, torch.tensor([0.5]) if way.mode == NVFP4 else None, way)


ORIENTATIONS = {
    "fprop": (False, False),
    "dgrad": (False, True),
    "wgrad": (True, True),
    "columnwise by rowwise": (True, False),
}
# M, N and K differ; multiples of tiles and others. Numbers of blocks that are not multiples of 4
# need padding: 3, 5 and 9 of 128, 13 of 32. The last shape is emulated everywhere.
SHAPES = (
    (144, 272, 384),
    (272, 144, 640),
    (80, 208, 416),
    (384, 256, 512),
    (16, 48, 1152),
    (33, 40, 272),
)


@pytest.mark.parametrize("single", ["a", "b"])
@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ways", IN_BLOCKS)
def test_each_element_is_scaled_by_its_own_pair(ops, ways, shape, orientation, single):
    """`single`: the operand with one block of K in each line; each scale of the other one has an
    effect.
    """
    m, n, k = shape
    columnwise = ORIENTATIONS[orientation]
    a = operand(WAYS[ways][0], m, k, single == "a", columnwise[0])
    b = operand(WAYS[ways][1], n, k, single == "b", columnwise[1])
    for dtype in (torch.float32, torch.bfloat16):
        assert_within_bound(multiply(ops, a, b, None, dtype), ops, a, b)


def read_row_by_row(memory: torch.Tensor, width: int, like: torch.Tensor) -> torch.Tensor:
    """Reads memory as a matrix with rows of `width` elements."""
    lines, blocks = like.shape
    index = torch.arange(lines)[:, None] * width + torch.arange(blocks)
    return memory.flatten()[index % memory.numel()]


def padded(scales: torch.Tensor, multiple: int) -> torch.Tensor:
    return torch.nn.functional.pad(scales, (0, -scales.shape[1] % multiple))


def not_padded(scales: torch.Tensor) -> torch.Tensor:
    """Scales without padding, read as if rows were padded to a multiple of 4."""
    return read_row_by_row(scales, padded(scales, 4).shape[1], scales)


def padded_unasked(scales: torch.Tensor) -> torch.Tensor:
    return read_row_by_row(padded(scales, 4), scales.shape[1], scales)


def column_major(scales: torch.Tensor) -> torch.Tensor:
    return read_row_by_row(scales.t().contiguous(), scales.shape[1], scales)


def in_tiles(scales: torch.Tensor, transposed: bool = False) -> torch.Tensor:
    """Tiles of 128 x 4, which begin with lines 0, 32, 64 and 96; read row by row or from top to
    bottom.
    """
    lines, blocks = scales.shape
    wide = torch.nn.functional.pad(scales, (0, -blocks % 4, 0, -lines % 128))
    tiles = wide.view(wide.shape[0] // 128, 4, 32, wide.shape[1] // 4, 4)
    order = (3, 0, 2, 1, 4) if transposed else (0, 3, 2, 1, 4)
    memory = tiles.permute(order).contiguous()
    if not transposed:
        return read_row_by_row(memory, wide.shape[1], scales)
    down_then_across = memory.view(wide.shape[0] // 128, wide.shape[1] // 4, 32, 4, 4)
    back = down_then_across.permute(0, 3, 2, 1, 4).reshape(wide.shape)
    return back[:lines, :blocks]


def exchanged(scales: torch.Tensor) -> torch.Tensor:
    out = scales.clone()
    out[0, 0], out[0, 1] = scales[0, 1], scales[0, 0]
    return out


WRONG_ORDERS = {
    "the next block of K": lambda s: s.roll(1, 1),
    "the next line": lambda s: s.roll(1, 0),
    "the line 32 away": lambda s: s.roll(32, 0),
    "K backwards": lambda s: s.flip(1),
    "column-major": column_major,
    "not padded": not_padded,
    "padded where it should not be": padded_unasked,
    "tiles read as rows": in_tiles,
    "tiles from top to bottom": lambda s: in_tiles(s, transposed=True),
    "two scales exchanged": exchanged,
}
# In multiples of the bound. The smallest error is that of two neighboring E4M3 scales.
FAR = 10


@pytest.mark.parametrize("wrong", WRONG_ORDERS)
@pytest.mark.parametrize("ways", IN_BLOCKS)
def test_a_wrong_order_would_be_far_beyond_the_bound(ops, ways, wrong):
    """Shows that the test above would see wrong orders in either operand. This works on any device,
    because the scales are given in the wrong order.
    """
    seen = 0
    for m, n, k in SHAPES[:3]:
        for place in (0, 1):
            pair = [
                operand(way, size, k, side != place, False)
                for side, (way, size) in enumerate(zip(WAYS[ways], (m, n), strict=True))
            ]
            right = pair[place]
            scales = WRONG_ORDERS[wrong](right.scale_inv).contiguous()
            if torch.equal(scales, right.scale_inv):
                continue  # such as the line 32 away of 128x128 blocks
            given = list(pair)
            given[place] = Operand(right.codes, scales, right.tensor_scale, right.way)
            out = multiply(ops, *given)
            exact, bound = bound_of(out, *(o.values(ops) for o in pair), 0.0, SPLIT_ACCUMULATOR)
            assert ((out.cpu().double() - exact).abs() / bound).max() > FAR
            seen += 1
    if seen == 0:
        pytest.skip("the same order for these blocks")


ONE, LARGEST = 0x38, 0x7E  # E4M3's 1 and 448


def under_scales(way: Way, exponents: list[int], rows: int, code: int = ONE) -> Operand:
    """Blocks of K with the scales 2^exponent, in turn."""
    k = 128 * len(exponents)
    codes = torch.full((rows, k), code, dtype=torch.uint8)
    powers = torch.tensor(exponents, dtype=torch.float64).exp2().float()
    if way.mode == TENSOR:
        return Operand(codes, powers[:1], None, way)
    lines = -(-rows // 128) if way.mode == BLOCK_2D else rows
    return Operand(codes, powers.expand(lines, -1).contiguous(), None, way)


FP32_SCALES = {
    "tensor": (Way(TENSOR), Way(TENSOR)),
    "1x128 by 1x128": (Way(BLOCK_1D), Way(BLOCK_1D)),
    "1x128 by 128x128": (Way(BLOCK_1D), Way(BLOCK_2D)),
    "known 1x128 by 1x128": (Way(BLOCK_1D, known=True), Way(BLOCK_1D, known=True)),
    "known 128x128 by 1x128": (Way(BLOCK_2D, known=True), Way(BLOCK_1D, known=True)),
}
TINY = -100  # 2^-100 is 8e-31


@pytest.mark.parametrize("exponents", [
    ([TINY] * 3, [0] * 3),
    ([0] * 3, [TINY] * 3),
    ([TINY] * 3, [90] * 3),
    ([TINY] * 3, [-20] * 3),
    ([TINY, 0, TINY], [0, TINY, 0]),
    ([TINY, 100, TINY], [100, TINY, 100]),
    ([120, TINY, 0], [-120, 100, 0]),
])  # fmt: skip
@pytest.mark.parametrize("ways", FP32_SCALES)
def test_tiny_scales_keep_the_bound_if_products_are_normal(ops, ways, exponents):
    """In any order of scales and sums, only the product of the two scales is small, and it is at
    least 2^-126.
    """
    a, b = (
        under_scales(way, powers, 144)
        for way, powers in zip(FP32_SCALES[ways], exponents, strict=True)
    )
    for dtype in (torch.float32, torch.bfloat16):
        out = multiply(ops, a, b, None, dtype)
        exact, bound = bound_of(out, a.values(ops), b.values(ops), 0.0, SPLIT_ACCUMULATOR)
        assert ((out.cpu().double() - exact).abs() <= bound).all()
        assert (out != 0).all()


@pytest.mark.parametrize("ways", FP32_SCALES)
def test_products_of_scales_below_normal_fp32_may_be_zero(ops, ways):
    """They may only become zero, and other blocks keep their sums."""
    left, right = FP32_SCALES[ways]
    a = under_scales(left, [TINY] * 3, 144, LARGEST)
    b = under_scales(right, [-40] * 3, 144, LARGEST)
    out = multiply(ops, a, b)
    exact = a.values(ops) @ b.values(ops).t()
    assert exact.min() > 2**-114
    assert (out >= 0).all()
    assert (out.cpu().double() <= exact * (1 + SPLIT_ACCUMULATOR)).all()
    if left.mode != TENSOR:
        beside = [under_scales(way, [TINY, 0, TINY], 144) for way in (left, right)]
        assert (multiply(ops, *beside) == 128).all()


@pytest.mark.parametrize("ways", ["MXFP8", "1x128 by 1x128", "known 1x128 by 1x128"])
def test_exponents_at_the_ends_of_their_range_are_kept(ops, ways):
    """Exponents with which decoding to BF16, or partial sums in FP32, would leave their range.
    Where 128-blocks are multiplied by FP32 scales, only products that FP32 can hold in any order
    are compared.
    """
    for left, right in ((-64, -66), (-100, -25), (-126, 100), (120, -120), (60, 59)):
        x = torch.full((32, 256), 2.0**left)
        y = torch.full((32, 256), 1.5 * 2.0**right)
        a, b = quantized(ops, x, WAYS[ways][0], False), quantized(ops, y, WAYS[ways][1], False)
        out = multiply(ops, a, b).cpu().double()
        exact = a.values(ops) @ b.values(ops).t()
        if ways == "MXFP8" or keeps_all_exponents() or fit_in_any_order(a, b):
            assert ((out - exact).abs() <= exact.abs() * SPLIT_ACCUMULATOR).all(), (left, right)
        assert (out >= 0).all()


@pytest.mark.parametrize("exponent", [-127, 127])
def test_the_ends_of_e8m0_are_powers_of_two_as_all_others(ops, exponent):
    """2^-127 is subnormal in FP32, and the smallest value of E8M0."""
    left, right = FP32_SCALES["known 1x128 by 1x128"]
    a, b = under_scales(left, [exponent] * 3, 32), under_scales(right, [-exponent] * 3, 32)
    out = multiply(ops, a, b)
    assert (out >= 0).all()
    if keeps_all_exponents():
        assert (out == 384).all()


@pytest.mark.parametrize("scale", [3.0, 0.0, -1.0, 2.0**-128, float("inf"), float("nan")])
def test_a_broken_promise_of_powers_of_two_is_nan_or_without_effect(ops, scale):
    """The result must not be another number: NaN if the product runs as MXFP8, else that of these
    scales, with or without their sign, which scales do not have.
    """
    ways = FP32_SCALES["known 1x128 by 1x128"]
    a, b = under_scales(ways[0], [0] * 3, 32), under_scales(ways[1], [0] * 3, 32)
    a.scale_inv[5, 1] = scale
    out = multiply(ops, a, b).cpu().double()
    exact = a.values(ops) @ b.values(ops).t()
    assert (out[:5] == 384).all()
    assert (out[6:] == 384).all()
    signed = torch.full_like(exact[5], 128 * (2 + scale))
    assert out[5].isnan().all() or any(torch.equal(out[5], each) for each in (exact[5], signed))
