"""The operators of BlockTelemetry against NumPy and ml_dtypes, which share no code with the
library.
"""

import numpy as np
import pytest
import torch
from block_by_block import (
    HADAMARD_SIGNS,
    difference,
    of_blocks_of_128,
    of_mxfp8,
    of_nvfp4,
    special,
    without_hadamard,
)
from block_references import E2M1, E4M3, hadamard

WORDS = np.dtype(
    [
        ("elements", "<i4"),
        ("nonzero", "<i4"),
        ("underflows", "<i4"),
        ("saturated", "<i4"),
        ("squared_error", "<f8"),
    ]
)


FORMATS, MODES = {E4M3: 0, E2M1: 2}, {"mxfp8": 1, "blocks": 2, "squares": 3, "nvfp4": 4}
KINDS = {
    "mxfp8": of_mxfp8,
    "blocks": of_blocks_of_128,
    "squares": lambda x: of_blocks_of_128(x, square=True),
    "nvfp4": of_nvfp4,
    "hadamard": of_nvfp4,
}


def quantized(ops, kind, x):
    """Returns both copies as (codes, scale_inv, tensor_scale), with their format and mode."""
    if kind == "mxfp8":
        a, b, c, d = ops.quantize_mxfp8(x, 0, 0, False, True, True)
    elif kind in ("blocks", "squares"):
        a, b, c, d = ops.quantize_fp8_blocks(x, 0, kind == "squares", True, 0.0, True, True)
    else:
        signs = HADAMARD_SIGNS if kind == "hadamard" else None
        a, b, s, c, d, t = ops.quantize_nvfp4(x, False, signs, None, True, True)
        return (a, b, s), (c, d, t), 2, 4
    return (a, b, None), (c, d, None), 0, MODES[kind]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shape", [(64, 160), (16, 32), (48, 77), (5, 300), (130, 260), (1, 1)])
@pytest.mark.parametrize("kind", ["mxfp8", "blocks", "squares", "nvfp4"])
def test_errors_of_blocks_are_their_definition(telens_ops, kind, shape, dtype):
    x = special(*shape).to(dtype)
    rowwise, columnwise, element, mode = quantized(telens_ops, kind, x)
    for given, data in ((x, rowwise), (x.t(), columnwise), (x.t().contiguous(), columnwise)):
        matrix = np.ascontiguousarray(given.float().numpy())
        copy = KINDS[kind](matrix)
        words = telens_ops.block_cast_errors(given, *data, element, mode)
        assert words.shape == (*copy.scales.shape, 3)
        found = words.numpy().view(WORDS)[..., 0]
        for i, j, block in copy.blocks():
            for name in ("elements", "nonzero", "underflows", "saturated"):
                assert found[i, j][name] == block[name], (i, j, name)
            assert found[i, j]["squared_error"] == pytest.approx(
                block["squared_error"], rel=1e-12, abs=0, nan_ok=True
            ), (i, j)


@pytest.mark.parametrize("order", ["rows", "columns"])
@pytest.mark.parametrize("shape", [(64, 160), (32, 77), (16, 1), (160, 2000)])
@pytest.mark.parametrize("kind", KINDS)
def test_the_difference_of_two_copies_is_its_definition(telens_ops, kind, shape, order):
    x = special(*shape)
    if kind == "hadamard":  # one NaN is many there
        x = torch.nan_to_num(x, nan=1.0, posinf=1.0, neginf=1.0)
    given = x if order == "rows" else x.t().contiguous().t()
    rowwise, columnwise, element, mode = quantized(telens_ops, kind, given)
    signs = HADAMARD_SIGNS if kind == "hadamard" else None
    words = telens_ops.block_copies_difference(*rowwise, *columnwise, element, mode, signs)
    matrix = x.numpy()
    first = KINDS[kind](matrix).decoded
    across = hadamard(matrix, torch.float32)[0] if kind == "hadamard" else matrix
    second = KINDS[kind](np.ascontiguousarray(across.T)).decoded.T
    if kind == "hadamard":
        second = without_hadamard(np.ascontiguousarray(second))
    different, relative = difference(first, second)
    assert words[0].item() == x.numel()
    assert words[1].item() == different
    assert words[2:].numpy().view(np.float64)[0] / x.numel() == pytest.approx(
        relative, rel=1e-12, abs=0, nan_ok=True
    )
    if kind == "squares":
        assert different == 0


@pytest.mark.parametrize("kind", ["mxfp8", "blocks", "squares", "nvfp4"])
@pytest.mark.parametrize("shape", [(0, 64), (64, 0)])
def test_empty_matrix_gives_nothing(telens_ops, kind, shape):
    rowwise, columnwise, element, mode = quantized(telens_ops, kind, torch.zeros(shape))
    assert telens_ops.block_cast_errors(torch.zeros(shape), *rowwise, element, mode).numel() == 0
    words = telens_ops.block_copies_difference(*rowwise, *columnwise, element, mode, None)
    assert words.tolist() == [0, 0, 0]


def test_copies_of_different_matrices_are_refused(telens_ops):
    rowwise, _, element, mode = quantized(telens_ops, "mxfp8", torch.ones(32, 64))
    _, columnwise, _, _ = quantized(telens_ops, "mxfp8", torch.ones(64, 64))
    with pytest.raises(RuntimeError, match="expected codes of a matrix and of its transpose"):
        telens_ops.block_copies_difference(*rowwise, *columnwise, element, mode, None)
