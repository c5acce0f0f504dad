"""Block formats against a copy of as many bytes: BF16, 16384 x 8192."""

import torch

from gpu_rows.bench import E2M1, E4M3, Bench
from gpu_rows.memory_bound import COPY, matrix
from gpu_rows.row import Measured, Row

MXFP8, BLOCK_1D, NVFP4 = 1, 2, 4  # core/formats/scheme.h
SIGNS = 0xD7E8  # the Hadamard transform's, as in Transformer Engine
BOTH = (True, True)
ROWWISE = (True, False)
CAST_WORDS = 7  # words of an accumulator, core/ops/statistics_layout.h


def bytes_of(tensors) -> int:
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)


def quantize(bench: Bench, name: str, *arguments) -> Measured:
    x = matrix(bench)
    operator = bench.operator(name)
    return bench.against_copy(
        lambda: operator(x, *arguments), bytes_of([x, *operator(x, *arguments)])
    )


def hadamard(bench: Bench) -> Measured:
    x = matrix(bench)
    operator = bench.operator("hadamard_transform")
    return bench.against_copy(lambda: operator(x, SIGNS, False), 2 * bytes_of([x]))


def dequantize(bench: Bench, mode: int) -> Measured:
    x = matrix(bench)
    makers = {
        MXFP8: ("quantize_mxfp8", (E4M3, 0, False, *ROWWISE)),
        BLOCK_1D: ("quantize_fp8_blocks", (E4M3, False, True, 0.0, *ROWWISE)),
        NVFP4: ("quantize_nvfp4", (False, None, None, *ROWWISE)),
    }
    name, arguments = makers[mode]
    copies = bench.operator(name)(x, *arguments)
    tensor_scale = copies[2] if mode == NVFP4 else None
    format_id = E2M1 if mode == NVFP4 else E4M3
    arguments = (*copies[:2], tensor_scale, format_id, mode, torch.bfloat16)
    operator = bench.operator("dequantize_blocks")
    return bench.against_copy(lambda: operator(*arguments), bytes_of([x, *copies[:2]]))


def what_if(bench: Bench) -> Measured:
    """Casts that nobody makes: MXFP8, 128-blocks and NVFP4, from one read."""
    x = matrix(bench)
    modes = [MXFP8, BLOCK_1D, NVFP4]
    nothing = [0] * len(modes)
    accumulators = [torch.zeros(CAST_WORDS, dtype=torch.int64, device=bench.device) for _ in modes]
    operator = bench.operator("accumulate_what_if_statistics")
    casts = ([E4M3, E4M3, E2M1], modes, nothing, nothing)
    words = x.view(torch.float32)
    return bench.against(lambda: operator(x, *casts, accumulators), lambda: words.sum())


def row(name: str, operator: str, *arguments) -> Row:
    return Row(name, COPY, lambda bench: quantize(bench, operator, *arguments))


ROWS = [
    row("MXFP8, both orientations", "quantize_mxfp8", E4M3, 0, False, *BOTH),
    row("MXFP8, rowwise", "quantize_mxfp8", E4M3, 0, False, *ROWWISE),
    row("FP8 in 128-blocks, both", "quantize_fp8_blocks", E4M3, False, True, 0.0, *BOTH),
    row("FP8 in 128x128 squares, both", "quantize_fp8_blocks", E4M3, True, True, 0.0, *BOTH),
    row("NVFP4, both orientations", "quantize_nvfp4", False, None, None, *BOTH),
    row("NVFP4 with Hadamard, both", "quantize_nvfp4", False, SIGNS, None, *BOTH),
    Row("Hadamard transform", COPY, hadamard),
    Row("dequantize MXFP8", COPY, lambda bench: dequantize(bench, MXFP8)),
    Row("dequantize 128-blocks", COPY, lambda bench: dequantize(bench, BLOCK_1D)),
    Row("dequantize NVFP4", COPY, lambda bench: dequantize(bench, NVFP4)),
    Row("what-if statistics of three block formats", "torch.sum of as many bytes", what_if),
]
