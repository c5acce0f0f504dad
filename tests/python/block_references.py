"""Block-scaled casts of a matrix in NumPy and ml_dtypes, which share no code with the library:
MXFP8, MXFP6, FP8 in 128-blocks, NVFP4.
"""

import ml_dtypes
import numpy as np
import torch

E4M3, E5M2, E2M1 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float4_e2m1fn
E3M2, E2M3 = ml_dtypes.float6_e3m2fn, ml_dtypes.float6_e2m3fn
LARGEST = {
    E4M3: np.float32(448),
    E5M2: np.float32(57344),
    E2M1: np.float32(6),
    E3M2: np.float32(28),
    E2M3: np.float32(7.5),
}
FLT_MAX = np.finfo(np.float32).max
ONE = np.float32(1)


def amax_of_blocks(x, height, length, nan_wins=False):
    """[rows / height, columns / length]; NaNs are ignored unless nan_wins."""
    rows, columns = x.shape
    padded = np.pad(np.abs(x), ((0, -rows % height), (0, -columns % length)))
    blocks = padded.reshape(padded.shape[0] // height, height, -1, length).swapaxes(1, 2)
    flat = blocks.reshape(*blocks.shape[:2], -1)
    return flat.max(-1) if nan_wins else np.nan_to_num(np.fmax.reduce(flat, axis=-1), posinf=np.inf)


def spread(scales, x, height, length):
    """Repeats the scales of blocks for each element."""
    return np.repeat(np.repeat(scales, height, 0), length, 1)[: x.shape[0], : x.shape[1]]


def rounded(scaled, dtype):
    """Rounds to the format with saturation; NaN stays NaN."""
    clipped = np.where(np.isnan(scaled), scaled, np.clip(scaled, -LARGEST[dtype], LARGEST[dtype]))
    return clipped.astype(dtype).astype(np.float32)


def mxfp6(x, dtype=E3M2, height=1):
    """Like mxfp8, but a NaN makes its block NaN. height: rows that share a scale."""
    return mxfp8(x, dtype, height, nan_wins=True)


def mxfp8(x, dtype=E4M3, height=1, nan_wins=False):
    """Returns the decoded values, and a scale for each block."""
    amax = amax_of_blocks(x, height, 32, nan_wins).astype(np.float64)
    with np.errstate(divide="ignore"):
        exponent = np.ceil(np.log2(amax / float(LARGEST[dtype])))
    exponent += amax > float(LARGEST[dtype]) * np.exp2(exponent)  # a logarithm may round
    exponent -= amax <= float(LARGEST[dtype]) * np.exp2(exponent - 1)
    scales = np.exp2(np.clip(exponent, -127, 127)).astype(np.float32)
    of_elements = spread(scales, x, height, 32)
    return rounded(x * (ONE / of_elements), dtype) * of_elements, scales


def blocks_of_128(x, dtype=E4M3, height=1):
    amax = amax_of_blocks(x, height, 128)
    scale = np.where(amax > 0, LARGEST[dtype] / amax, ONE).astype(np.float32)
    scale = np.where(np.isinf(amax), ONE, scale)
    scale = (scale.view(np.int32) & -(2**23)).view(np.float32)  # down to a power of two
    of_elements = spread(scale, x, height, 128)
    return rounded(x * of_elements, dtype) * (ONE / of_elements), ONE / scale


def nvfp4(x, height=1):
    amax = amax_of_blocks(x, height, 16, nan_wins=True)
    largest = np.nanmax(np.abs(x))
    factor = np.float32(448 * 6) / largest if 0 < largest < np.inf else ONE
    factor = np.minimum(factor, FLT_MAX)
    tensor_scale = ONE / factor
    scales = np.minimum(amax * (factor * (ONE / np.float32(6))), np.float32(448))
    scales = scales.astype(E4M3).astype(np.float32) * tensor_scale
    of_elements = spread(scales, x, height, 16)
    return rounded(x * np.minimum(ONE / of_elements, FLT_MAX), E2M1) * of_elements, scales


SIGNS = np.array([1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1], np.float32)[:, None]


def mixed(x):
    """Multiplies each 16 rows of x by the Hadamard matrix / 4, which is its own inverse."""
    rows = x.reshape(-1, 16, x.shape[1])
    for distance in (1, 2, 4, 8):
        other = np.arange(16) ^ distance
        sign = np.where(np.arange(16) & distance, -ONE, ONE)[:, None]
        rows = rows[:, other] + sign * rows
    return (rows * np.float32(0.25)).reshape(x.shape)


def hadamard(x, dtype):
    """Transforms each 16 rows of x [rows, columns]; returns the result in FP32 and rounded to
    dtype."""
    exact = mixed((x.reshape(-1, 16, x.shape[1]) * SIGNS).reshape(x.shape))
    return exact, torch.from_numpy(exact).to(dtype).float().numpy()


def without_hadamard(x):
    """Undoes the transform of x, in FP32."""
    return (mixed(x).reshape(-1, 16, x.shape[1]) * SIGNS).reshape(x.shape)
