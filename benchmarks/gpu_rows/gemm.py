"""FP8 products, 8192^3, against torch's with the same accumulation and against BF16."""

import torch

from gpu_rows.bench import E4M3, TENSOR_SCALING, Bench
from gpu_rows.row import CannotRun, Measured, Row, at_least

SCALE = 80.0
SCALED_MM = "torch._scaled_mm with the same accumulation"


class Operands:
    """Two square matrices in BF16 and in E4M3, the second one transposed, as FP8 products want."""

    def __init__(self, bench: Bench):
        size = bench.sizes.gemm
        self.operations = 2.0 * size**3
        self.a, self.b = bench.randn(size, size), bench.randn(size, size)
        scale = bench.one(SCALE)
        self.inverse = scale.reciprocal()
        quantize = bench.operator("quantize_fp8")
        self.left = quantize(self.a, scale, None, E4M3)
        self.right = quantize(self.b, scale, None, E4M3)

    def by_torch(self, fast: bool) -> torch.Tensor:
        return torch._scaled_mm(
            self.left.view(torch.float8_e4m3fn),
            self.right.view(torch.float8_e4m3fn).t(),
            self.inverse,
            self.inverse,
            out_dtype=torch.bfloat16,
            use_fast_accum=fast,
        )


def product(bench: Bench, operands: Operands, fast: bool = False):
    operator = bench.operator("gemm")
    takes = {argument.name for argument in operator.default._schema.arguments}
    if fast and "split_accumulator" not in takes:
        raise CannotRun("telens::gemm of this build has no split_accumulator")
    setting = {"split_accumulator": False} if fast else {}
    scaled = (operands.inverse, None, E4M3, TENSOR_SCALING)
    left, right = operands.left, operands.right
    return lambda: operator(left, *scaled, right, *scaled, None, torch.bfloat16, **setting)


def against_scaled_mm(bench: Bench, fast: bool) -> Measured:
    operands = Operands(bench)
    call = product(bench, operands, fast)
    return bench.against(call, lambda: operands.by_torch(fast), operands.operations)


def against_bf16(bench: Bench) -> Measured:
    operands = Operands(bench)
    call = product(bench, operands)
    return bench.against(call, lambda: operands.a @ operands.b.t(), operands.operations)


ROWS = [
    Row(
        "FP8 GEMM 8192^3, split accumulator",
        SCALED_MM,
        lambda bench: against_scaled_mm(bench, False),
        at_least(0.98),
    ),
    Row(
        "FP8 GEMM 8192^3, fast accumulation",
        SCALED_MM,
        lambda bench: against_scaled_mm(bench, True),
        at_least(0.98),
    ),
    Row("FP8 GEMM 8192^3 over BF16", "torch.mm", against_bf16),
]
