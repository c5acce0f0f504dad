"""For tests of quantized products on a GPU: operands of every format, which kernel must have run on
which GPU, and the error bounds of its accumulator.
"""

from dataclasses import dataclass

import torch
from cuda_helpers import DEVICE, E4M3, E5M2

TENSOR, MXFP8, BLOCK_1D, BLOCK_2D, NVFP4 = range(5)
E2M1 = 2


def move(tensor):
    return tensor.to(DEVICE) if isinstance(tensor, torch.Tensor) else tensor


@dataclass(frozen=True)
class Way:
    """How an operand is quantized."""

    mode: int
    format_id: int = E4M3
    power_of_2_scales: bool = True
    known: bool = False  # the product is told that its scales are powers of two


WAYS = {
    "tensor": (Way(TENSOR), Way(TENSOR)),
    "tensor, E4M3 by E5M2": (Way(TENSOR), Way(TENSOR, E5M2)),
    "tensor, E5M2 by E4M3": (Way(TENSOR, E5M2), Way(TENSOR)),
    "MXFP8": (Way(MXFP8), Way(MXFP8)),
    "MXFP8 of E5M2": (Way(MXFP8, E5M2), Way(MXFP8)),
    "1x128 by 1x128": (Way(BLOCK_1D), Way(BLOCK_1D)),
    "1x128 by 128x128": (Way(BLOCK_1D), Way(BLOCK_2D)),
    "128x128 by 1x128": (Way(BLOCK_2D), Way(BLOCK_1D)),
    "known 1x128 by 1x128": (Way(BLOCK_1D, known=True), Way(BLOCK_1D, known=True)),
    "known 1x128 by 128x128": (Way(BLOCK_1D, E5M2, known=True), Way(BLOCK_2D, known=True)),
    "known 128x128 by 1x128": (Way(BLOCK_2D, known=True), Way(BLOCK_1D, known=True)),
    "1x128 by known 128x128": (Way(BLOCK_1D), Way(BLOCK_2D, known=True)),
    "any 1x128 by any 128x128": (Way(BLOCK_1D, E5M2, False), Way(BLOCK_2D, E4M3, False)),
    "any 128x128 by any 1x128": (Way(BLOCK_2D, E4M3, False), Way(BLOCK_1D, E4M3, False)),
    "NVFP4": (Way(NVFP4, E2M1), Way(NVFP4, E2M1)),
}


@dataclass
class Operand:
    """Codes and scales on the CPU, as arguments of an operator."""

    codes: torch.Tensor
    scale_inv: torch.Tensor
    tensor_scale: torch.Tensor | None
    way: Way

    def arguments(self, place=lambda tensor: tensor) -> tuple:
        tensors = (self.codes, self.scale_inv, self.tensor_scale)
        return (*(place(tensor) for tensor in tensors), self.way.format_id, self.way.mode)

    def on_device(self) -> tuple:
        return self.arguments(move)

    def values(self, ops) -> torch.Tensor:
        if self.way.mode == TENSOR:
            codes = ops.decode_fp8(self.codes, self.way.format_id, torch.float32)
            return codes.double() * self.scale_inv.double()
        return ops.dequantize_blocks(*self.arguments(), torch.float32).double()


def are_known(a: Operand, b: Operand) -> bool:
    return a.way.known and b.way.known


def multiply(ops, a: Operand, b: Operand, bias=None, dtype=torch.float32, split=True):
    """Computes a times b^T on the device and asserts that the right kernel for this GPU did it."""
    out = ops.gemm(
        *a.on_device(), *b.on_device(), move(bias), dtype, split, power_of_2_scales=are_known(a, b)
    )
    assert_kernel_of_the_card(a, b, dtype)
    return out


def accumulate(ops, a: Operand, b: Operand, out: torch.Tensor) -> None:
    ops.gemm_accumulate(*a.on_device(), *b.on_device(), out, power_of_2_scales=are_known(a, b))
    assert_kernel_of_the_card(a, b, torch.float32)


def capability() -> int | None:
    """90 for Hopper, 100 for Blackwell; None if the tests are rehearsed on the CPU."""
    if DEVICE != "cuda":
        return None
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


HOPPER, BLACKWELL = 90, 100


def native_kernel(a: Operand, b: Operand, dtype: torch.dtype, card: int) -> str | None:
    """The name of the native cuBLASLt product; None if BF16 products are used."""
    two = 2 if a.way.mode == NVFP4 else 1
    m, n, k = a.codes.shape[0], b.codes.shape[0], a.codes.shape[1] * two
    if m % 16 or n % 16 or a.way.format_id == b.way.format_id == E5M2:
        return None
    if a.way.mode == TENSOR:
        return "cuBLASLt FP8 product" if k % 16 == 0 else None
    if a.way.mode in (BLOCK_1D, BLOCK_2D):
        if card == HOPPER and k % 128 == 0:
            return "cuBLASLt FP8 product of 128-blocks"
        as_mxfp8 = card >= BLACKWELL and are_known(a, b) and k % 32 == 0
        return "cuBLASLt MXFP8 product of 128-blocks" if as_mxfp8 else None
    if card < BLACKWELL or k % 32:
        return None
    if a.way.mode == MXFP8:
        return "cuBLASLt MXFP8 product"
    return None if dtype == torch.float16 else "cuBLASLt NVFP4 product"


EMULATED = {
    TENSOR: "BF16 product of decoded operands",
    MXFP8: "BF16 product of rescaled operands",
    BLOCK_1D: "BF16 products by blocks of K",
    BLOCK_2D: "BF16 products by blocks of K",
    NVFP4: "BF16 product of decoded operands",
}


def assert_kernel_of_the_card(a: Operand, b: Operand, dtype: torch.dtype) -> None:
    """Asserts that the newest product ran natively if this GPU supports it, and emulated
    otherwise.
    """
    from telens import _C

    kernel, reason = _C.newest_gemm_choice()
    card = capability()
    if a.codes.numel() == 0 or b.codes.numel() == 0:
        return
    if card is None:
        assert kernel.startswith(("BF16 GEMM", "FP32 GEMM", "FP64 GEMM")), kernel
        return
    native = native_kernel(a, b, dtype, card)
    if native is not None:
        assert (kernel, reason) == (native, "")
    else:
        assert kernel == EMULATED[a.way.mode]
        assert reason


def newest_kernel() -> str:
    from telens import _C

    return _C.newest_gemm_choice()[0]


def keeps_all_exponents() -> bool:
    """Whether the newest product cannot overflow in its scales: MXFP8 adds exponents, and emulation
    takes them out of the rows.
    """
    return "MXFP8" in newest_kernel() or newest_kernel() in EMULATED.values()


def fit_in_any_order(a: Operand, b: Operand) -> bool:
    """Whether sums of 128 products of codes may be multiplied by their FP32 scales in any order."""
    smallest, largest = (
        [f(operand.scale_inv.double()).item() for operand in (a, b)] for f in (torch.min, torch.max)
    )
    largest_sum = 128 * 448.0**2
    normal = min(*smallest, smallest[0] * smallest[1]) >= 2.0**-126
    return normal and max(largest) * largest_sum < 2.0**128


def quantized(ops, x: torch.Tensor, way: Way, columnwise: bool) -> Operand:
    """Quantizes x [rows, K]; K is along the rows of the codes or, if columnwise, along their
    columns in memory.
    """
    source = x.t().contiguous() if columnwise else x
    asked = (not columnwise, columnwise)
    if way.mode == TENSOR:
        codes = ops.quantize_fp8(x, torch.tensor([3.7]), None, way.format_id)
        codes = codes.t().contiguous().t() if columnwise else codes
        return Operand(codes, torch.tensor([1 / 3.7]), None, way)
    if way.mode == NVFP4:
        copies = ops.quantize_nvfp4(source, False, None, None, *asked)
        return Operand(*(copies[3:] if columnwise else copies[:3]), way)
    if way.mode == MXFP8:
        copies = ops.quantize_mxfp8(source, way.format_id, 0, False, *asked)
    else:
        squares = way.mode == BLOCK_2D
        copies = ops.quantize_fp8_blocks(
            source, way.format_id, squares, way.power_of_2_scales, 0.0, *asked
        )
    return Operand(*(copies[2:] if columnwise else copies[:2]), None, way)


def operands(ops, shape, ways, columnwise=(False, False), spread=1.0):
    generator = torch.Generator().manual_seed(11)
    m, n, k = shape

    def normal(rows: int) -> torch.Tensor:
        powers = torch.randn(rows, k, generator=generator).mul(spread)
        return torch.randn(rows, k, generator=generator) * powers.exp2() / 16

    a = quantized(ops, normal(m), ways[0], columnwise[0])
    return a, quantized(ops, normal(n), ways[1], columnwise[1])


# Relative error of the output's own rounding.
OUTPUT_ROUNDING = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2**-24}
# Hopper's tensor cores add 32 products of FP8 codes to the sum so far in one operation. Each term
# is cut to 13 bits after the leading bit of the largest one, which is at most sum |a| |b|. Largest
# error that was measured on an H100: 2^-8.7; root mean square: 2^-12.5.
CUT_OF_32_PRODUCTS = 33 * 2**-13
# Error of the accumulator relative to sum |a| |b|. Sums of 128 products are added in FP32. The
# products of other kernels are within this bound, too.
SPLIT_ACCUMULATOR = 128 / 32 * CUT_OF_32_PRODUCTS


def fast_accumulator(k: int) -> float:
    return -(-k // 32) * CUT_OF_32_PRODUCTS


def fp32_accumulator(k: int) -> float:
    return k * 2**-23


def bound_of(out, first, second, added, accumulator) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns first [M, K] times second [N, K]^T plus `added`, in FP64 on the CPU, and how much
    `out` may differ. Some kernels of cuBLASLt round the product before they add the bias.
    """
    product = first @ second.t()
    exact = product + added
    bound = accumulator * (first.abs() @ second.abs().t() + abs(added))
    rounded = torch.maximum(product.abs(), exact.abs())
    return exact, bound + 2 * OUTPUT_ROUNDING[out.dtype] * rounded


# FP16's subnormals are multiples of 2^-24; for other outputs the relative bound is enough.
ABSOLUTE = {torch.float16: 2**-24, torch.bfloat16: 0.0, torch.float32: 0.0}


def assert_close_to(out, first, second, added, accumulator) -> None:
    exact, bound = bound_of(out, first, second, added, accumulator)
    excess = (out.cpu().double() - exact).abs() - bound - ABSOLUTE[out.dtype]
    assert excess.max() <= 0, f"{excess.max()} beyond the bound"


def assert_close_or_not_finite(out, first, second, added, accumulator) -> None:
    exact = (first @ second.t() + added).to(out.dtype)
    found = out.cpu()
    assert_close_to(torch.where(found.isfinite(), found, exact), first, second, added, accumulator)


def assert_within_bound(out, ops, a, b, bias=None, accumulator=SPLIT_ACCUMULATOR) -> None:
    added = torch.zeros(()) if bias is None else bias.double()
    assert_close_to(out, a.values(ops), b.values(ops), added, accumulator)
