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


def fused(bench: Bench, name: str, values: dict, x: torch.Tensor, outputs: int) -> Measured:
    """`outputs`: elements of the result, whose codes take a byte each."""
    defaults = {
        **{"x": x, "scale": bench.one(80.0), "amax": bench.one(0.0)},
        **{"format": E4M3, "rowwise": True, "columnwise": False, "both": False},
    }
    arguments = bench.arguments_of(name, defaults | values)
    operator = bench.operator(name)
    return bench.against_copy(lambda: operator(*arguments), 2 * x.numel() + outputs)


def layer_norm_quantize(bench: Bench) -> Measured:
    x, weight = matrix(bench), bench.randn(bench.sizes.columns)
    values = {"weight": weight, "bias": weight, "eps": EPSILON, "zero_centered_gamma": False}
    return fused(bench, "layer_norm_quantize", values, x, x.numel())


def swiglu_quantize(bench: Bench) -> Measured:
    x = matrix(bench)
    return fused(bench, "activation_quantize", {"activation": "swiglu"}, x, x.numel() // 2)


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
    Row("amax of BF16", COPY, amax),
    Row("dequantize E4M3 to BF16", COPY, dequantize),
    Row("layer norm", COPY, layer_norm),
    Row("SwiGLU", COPY, swiglu),
]
