"""Forward and backward of one Linear under delayed scaling, 8192 tokens x 8192 x 8192, against its
three GEMMs alone, torchao's float8 Linear and torch.nn.Linear in BF16."""

import torch

from gpu_rows.bench import E4M3, E5M2, TENSOR_SCALING, Bench, fp8
from gpu_rows.float8_peer import to_float8
from gpu_rows.row import Measured, Row, at_least, at_most

SCALE = 80.0


def training_step(module, x: torch.Tensor, gradient: torch.Tensor, region=None):
    """A call that goes forwards and backwards through a module, forwards in `region` if given."""
    parameters = list(module.parameters())

    def step():
        x.grad = None
        for parameter in parameters:
            parameter.grad = None
        if region is None:
            y = module(x)
        else:
            with region():
                y = module(x)
        y.backward(gradient)

    return step


def our_linear(bench: Bench):
    import telens.pytorch as te

    size = bench.sizes.gemm
    return te.Linear(size, size, bias=False, params_dtype=torch.bfloat16, device=bench.device)


def torch_linear(bench: Bench) -> torch.nn.Module:
    size = bench.sizes.gemm
    return torch.nn.Linear(size, size, bias=False, dtype=torch.bfloat16, device=bench.device)


def tensors(bench: Bench) -> tuple[torch.Tensor, torch.Tensor]:
    """An input and the output's gradient."""
    size = bench.sizes.gemm
    return bench.randn(size, size, requires_grad=True), bench.randn(size, size)


def three_products(bench: Bench):
    """fprop, dgrad and wgrad of operands that are codes already, all in TN form."""
    size = bench.sizes.gemm
    scale = bench.one(SCALE)
    inverse = scale.reciprocal()
    quantize, gemm = bench.operator("quantize_fp8_both"), bench.operator("gemm")
    x, x_columns = quantize(bench.randn(size, size), scale, None, E4M3)
    weight, weight_columns = quantize(bench.randn(size, size), scale, None, E4M3)
    gradient, gradient_columns = quantize(bench.randn(size, size), scale, None, E5M2)
    activation, error = (
        (inverse, None, E4M3, TENSOR_SCALING),
        (inverse, None, E5M2, TENSOR_SCALING),
    )

    def products():
        gemm(x, *activation, weight, *activation, None, torch.bfloat16)
        gemm(gradient, *error, weight_columns, *activation, None, torch.bfloat16)
        gemm(gradient_columns, *error, x_columns, *activation, None, torch.bfloat16)

    return products


def against(bench: Bench, peer) -> Measured:
    x, gradient = tensors(bench)
    ours = training_step(our_linear(bench), x, gradient, fp8)
    theirs = peer if not isinstance(peer, torch.nn.Module) else training_step(peer, x, gradient)
    return bench.against(ours, theirs, 3 * 2.0 * bench.sizes.gemm**3)


def over_three_products(bench: Bench) -> Measured:
    return against(bench, three_products(bench))


def over_torchao(bench: Bench) -> Measured:
    return against(bench, to_float8(bench, torch_linear(bench)))


def over_bf16(bench: Bench) -> Measured:
    return against(bench, torch_linear(bench))


STEP = "Linear forward and backward, 8192 x 8192 x 8192, delayed scaling"
ROWS = [
    Row(
        f"{STEP}, over its GEMMs",
        "its three GEMMs alone",
        over_three_products,
        at_most(1.15),
        of_time=True,
    ),
    Row(f"{STEP}, against BF16", "torch.nn.Linear in BF16", over_bf16),
    Row(
        f"{STEP}, against torchao",
        "torchao's float8 Linear (tensorwise, compiled)",
        over_torchao,
        at_least(1),
    ),
]
