"""Casts, norms and activations against a copy of as many bytes: BF16, 16384 x 8192."""

import torch

from gpu_rows.bench import E4M3, Bench
from gpu_rows.row import Measured, Row, at_least

COPY = "a copy of as many bytes"
EPSILON = 1e-5


def matrix(bench: Bench) -> torch.Tensor:
    return bench.randn(bench.sizes.rows, bench.sizes.columns)


def amax(bench: Bench) -> Measured:
    x = matrix(bench)
    operator = bench.operator("amax")
    return bench.against_copy(lambda: operator(x), 2 * x.numel())


def quantize(bench: Bench, name: str, bytes_each: int) -> Measured:
    x, scale, amax = matrix(bench), bench.one(80.0), bench.one(0.0)
    operator = bench.operator(name)
    return bench.against_copy(lambda: operator(x, scale, amax, E4M3), bytes_each * x.numel())


def dequantize(bench: Bench) -> Measured:
    scale = bench.one(80.0)
    codes = bench.operator("quantize_fp8")(matrix(bench), scale, None, E4M3)
    operator = bench.operator("dequantize_fp8")
    return bench.against_copy(
        lambda: operator(codes, scale, E4M3, torch.bfloat16), 3 * codes.numel()
    )


def layer_norm(bench: Bench) -> Measured:
    x, weight = matrix(bench), bench.randn(bench.sizes.columns)
    operator = bench.operator("layer_norm_forward")
    return bench.against_copy(lambda: operator(x, weight, weight, EPSILON, False), 4 * x.numel())


def swiglu(bench: Bench) -> Measured:
    x = matrix(bench)
    operator = bench.operator("activation_forward")
    return bench.against_copy(lambda: operator(x, "swiglu"), 3 * x.numel())


def fused(bench: Bench, name: str, values: dict, moved: int) -> Measured:
    """With the codes' transpose, as training makes them, if `columnwise` is among the values."""
    defaults = {
        **{"scale": bench.one(80.0), "amax": bench.one(0.0)},
        **{"format": E4M3, "columnwise": False},
    }
    arguments = bench.arguments_of(name, defaults | values)
    operator = bench.operator(name)
    return bench.against_copy(lambda: operator(*arguments), moved)


def copies_of(codes: int, columnwise: bool) -> int:
    """Bytes of the codes in one orientation or in both."""
    return 2 * codes if columnwise else codes


def layer_norm_quantize(bench: Bench, columnwise: bool = False) -> Measured:
    x, weight = matrix(bench), bench.randn(bench.sizes.columns)
    values = {"x": x, "weight": weight, "bias": weight, "eps": EPSILON}
    values |= {"zero_centered_gamma": False, "columnwise": columnwise}
    moved = 2 * x.numel() + copies_of(x.numel(), columnwise)
    return fused(bench, "layer_norm_quantize", values, moved)


def swiglu_quantize(bench: Bench, columnwise: bool = False) -> Measured:
    x = matrix(bench)
    values = {"x": x, "activation": "swiglu", "columnwise": columnwise}
    moved = 2 * x.numel() + copies_of(x.numel() // 2, columnwise)
    return fused(bench, "activation_quantize", values, moved)


def swiglu_backward_quantize(bench: Bench) -> Measured:
    """The gradient of what SwiGLU was given, in both orientations, and the bias's."""
    x = matrix(bench)
    values = {"x": x, "grad": bench.randn(x.shape[0], x.shape[1] // 2), "activation": "swiglu"}
    values |= {"columnwise": True, "bias_dtype": torch.bfloat16}
    moved = 3 * x.numel() + copies_of(x.numel(), True)
    return fused(bench, "activation_backward_quantize", values, moved)


ROWS = [
    Row(
        "quantize BF16 to E4M3",
        COPY,
        lambda bench: quantize(bench, "quantize_fp8", 3),
        at_least(0.85),
    ),
    Row(
        "quantize BF16 to E4M3, both orientations",
        COPY,
        lambda bench: quantize(bench, "quantize_fp8_both", 4),
        at_least(0.85),
    ),
    Row("layer norm and quantize, fused", COPY, layer_norm_quantize, at_least(0.75)),
    Row("SwiGLU and quantize, fused", COPY, swiglu_quantize, at_least(0.75)),
    Row(
        "layer norm and quantize, fused, both orientations",
        COPY,
        lambda bench: layer_norm_quantize(bench, columnwise=True),
    ),
    Row(
        "SwiGLU and quantize, fused, both orientations",
        COPY,
        lambda bench: swiglu_quantize(bench, columnwise=True),
    ),
    Row(
        "SwiGLU's gradient and its bias's, quantized, fused, both orientations",
        COPY,
        swiglu_backward_quantize,
    ),
    Row("amax of BF16", COPY, amax),
    Row("dequantize E4M3 to BF16", COPY, dequantize),
    Row("layer norm", COPY, layer_norm),
    Row("SwiGLU", COPY, swiglu),
]
