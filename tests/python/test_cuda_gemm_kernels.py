"""Which kernel multiplies quantized operands on which GPU, and that its algorithm is chosen once.
cuda_gemm_helpers.multiply asserts the first of every product. Skipped where there is no GPU;
TELENS_TEST_DEVICE=cpu rehearses them on the CPU, which keeps no algorithms."""

import pytest
import torch
from cuda_gemm_helpers import (
    BLACKWELL,
    HOPPER,
    WAYS,
    accumulate,
    capability,
    move,
    multiply,
    newest_kernel,
    operands,
)
from cuda_helpers import DEVICE, HIGH_PRECISION

pytestmark = pytest.mark.skipif(
    DEVICE == "cuda" and not torch.cuda.is_available(), reason="needs a GPU"
)

# Another shape than in other tests, whose algorithms are already known.
SHAPE = (208, 112, 896)
# Words that describe the operands of each kernel in the list of cuBLASLt's algorithms.
LISTED = {
    "cuBLASLt FP8 product": "under one scale",
    "cuBLASLt FP8 product of 128-blocks": "x128 blocks",
    "cuBLASLt MXFP8 product": "in MXFP8 blocks",
    "cuBLASLt MXFP8 product of 128-blocks": "in MXFP8 blocks",
    "cuBLASLt NVFP4 product": "in NVFP4 blocks",
    "BF16 product of decoded operands": "A BF16, ",
    "BF16 product of rescaled operands": "A BF16, ",
    "BF16 products by blocks of K": "A BF16, ",
}


def algorithms(ops) -> list[str]:
    return ops.gemm_algorithms(move(torch.zeros(1)))


@pytest.mark.parametrize("ways", WAYS)
def test_the_second_product_of_a_shape_asks_for_no_algorithm(ops, ways):
    # Each case has its own number of rows, because all BF16 products share their algorithms.
    rows = SHAPE[0] + 32 * list(WAYS).index(ways)
    a, b = operands(ops, (rows, *SHAPE[1:]), WAYS[ways])
    bias = torch.zeros(SHAPE[1], dtype=torch.bfloat16)
    out = move(torch.zeros(rows, SHAPE[1]))

    def products():
        multiply(ops, a, b, None, torch.bfloat16)
        multiply(ops, a, b, bias, torch.bfloat16)
        multiply(ops, a, b, None, torch.bfloat16, split=False)
        accumulate(ops, a, b, out)

    products()
    known = algorithms(ops)
    for _ in range(3):
        products()
    assert algorithms(ops) == known
    more = rows + 16
    multiply(ops, *operands(ops, (more, *SHAPE[1:]), WAYS[ways]), None, torch.bfloat16)
    new = set(algorithms(ops)) - set(known)
    assert bool(new) == (DEVICE == "cuda")
    assert all(f"[{more}, 112, " in line for line in new)


@pytest.mark.parametrize("ways", WAYS)
def test_cublaslt_runs_the_planned_products(ops, ways):
    """Checked in cuBLASLt's own list: codes with their scales, or BF16."""
    if DEVICE != "cuda":
        pytest.skip("the CPU keeps no algorithms")
    a, b = operands(ops, SHAPE, WAYS[ways])
    for dtype in HIGH_PRECISION:
        multiply(ops, a, b, None, dtype)
        lines = [line for line in algorithms(ops) if "= [208, 112, " in line]
        assert not any("no algorithm" in line for line in lines)
        assert any(LISTED[newest_kernel()] in line for line in lines), lines


@pytest.mark.parametrize("ways", WAYS)
def test_native_products_on_hopper_and_blackwell(ops, ways):
    """Written out here, so that expectations that follow the plan cannot hide a wrong plan."""
    card = capability()
    if card not in (HOPPER, BLACKWELL):
        pytest.skip("needs a H100, H200 or B200")
    multiply(ops, *operands(ops, SHAPE, WAYS[ways]), None, torch.bfloat16)
    native = {
        HOPPER: "128" in ways or "tensor" in ways,
        BLACKWELL: "FP" in ways or "tensor" in ways or ways.startswith("known"),
    }
    assert newest_kernel().startswith("cuBLASLt") == native[card]
