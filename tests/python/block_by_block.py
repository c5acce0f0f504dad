"""Statistics of single blocks in NumPy and ml_dtypes, of the copies that block_references.py makes:
the errors of each block, the worst blocks, the scales, and how two copies differ.
"""

import numpy as np
import torch
from block_references import E2M1, E4M3, FLT_MAX, ONE, blocks_of_128, mxfp8, nvfp4

STATISTICS = [
    "zero_blocks%",
    "smallest_scale_blocks%",
    "largest_scale_blocks%",
    "block_underflows%_max",
    "block_underflows%_mean",
    "block_saturated%_max",
    "block_saturated%_mean",
]
# The smallest value that would round to more than the largest code without saturation. 464 and 7
# are ties; 464 rounds to the even 448.
CLIPPED = {E4M3: np.nextafter(np.float32(464), np.float32(500)), E2M1: np.float32(7)}
ROW_SIGNS = np.array([1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1], np.float32)
HADAMARD_SIGNS = sum(1 << row for row, sign in enumerate(ROW_SIGNS) if sign < 0)


class Copy:
    """One copy of a matrix: the original, the decoded values, and a scale for each stored block."""

    def __init__(self, x, decoded, scales, *, height, length, histogram, bins, dtype=E4M3):
        self.x, self.decoded, self.scales = x, decoded, scales
        self.height, self.length, self.dtype = height, length, dtype
        self.histogram, self.bins = histogram, bins

    def blocks(self):
        """Yields (row, column, dict of the block's numbers), row by row."""
        for i in range(self.scales.shape[0]):
            for j in range(self.scales.shape[1]):
                at = np.s_[
                    i * self.height : (i + 1) * self.height, j * self.length : (j + 1) * self.length
                ]
                x, decoded, scale = self.x[at], self.decoded[at], self.scales[i, j]
                with np.errstate(all="ignore"):
                    magnitude = np.abs(x) * np.minimum(ONE / scale, FLT_MAX)
                    error = decoded.astype(np.float64) - x
                clipped = (magnitude >= CLIPPED[self.dtype]) & ~np.isnan(scale)
                yield (
                    i,
                    j,
                    {
                        "elements": x.size,
                        "nonzero": int(np.any(x != 0)),
                        "underflows": np.count_nonzero((x != 0) & (decoded == 0)),
                        "saturated": np.count_nonzero(clipped),
                        "squared_error": np.sum(error * error),
                    },
                )


def of_mxfp8(x, square=False):
    with np.errstate(all="ignore"):
        decoded, scales = mxfp8(x)
        bins = np.log2(scales.astype(np.float64)).astype(np.int64) + 127
    return Copy(
        x, decoded, scales, height=1, length=32, histogram="scale_histogram_e8m0", bins=bins
    )


def of_blocks_of_128(x, square=False):
    height = 128 if square else 1
    with np.errstate(all="ignore"):
        decoded, scales = blocks_of_128(x, height=height)
    scales = scales.astype(np.float32)
    bins = scales.view(np.uint32) >> 23
    return Copy(
        x, decoded, scales, height=height, length=128, histogram="scale_histogram_fp32", bins=bins
    )


def of_nvfp4(x, square=False):
    with np.errstate(all="ignore"):
        decoded, scales = nvfp4(x, 16 if square else 1)
        largest = np.nanmax(np.abs(x))
        factor = np.float32(448 * 6) / largest if 0 < largest < np.inf else ONE
        codes = (scales * np.minimum(factor, FLT_MAX)).astype(E4M3).view(np.uint8)
    if square:
        scales, codes = (np.repeat(each, 16, axis=0)[: x.shape[0]] for each in (scales, codes))
    return Copy(
        x,
        decoded,
        scales,
        height=1,
        length=16,
        histogram="scale_histogram_e4m3",
        bins=codes,
        dtype=E2M1,
    )


def without_hadamard(decoded):
    """Undoes the transform of each 16 rows; adds in the order of the library."""
    rows = decoded.reshape(-1, 16, decoded.shape[1])
    for distance in (1, 2, 4, 8):
        other = np.arange(16) ^ distance
        sign = np.where(np.arange(16) & distance, -ONE, ONE)[:, None]
        rows = rows[:, other] + sign * rows
    return (rows * np.float32(0.25) * ROW_SIGNS[:, None]).reshape(decoded.shape)


def difference(rowwise, columnwise):
    """Returns (elements that differ, mean relative difference) of two matrices."""
    a, b = rowwise.astype(np.float32), columnwise.astype(np.float32)
    equal = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(all="ignore"):
        relative = np.where(equal, ONE * 0, np.abs(a - b) / np.maximum(np.abs(a), np.abs(b)))
    return np.count_nonzero(~equal), relative.mean(dtype=np.float64)


def values_of(copies):
    """The block statistics of the copies of several micro-batches, by name."""
    blocks, bins = [], []
    for copy in copies:
        blocks += [each for _, _, each in copy.blocks()]
        bins += list(copy.bins.reshape(-1))
    zero = np.array([block["nonzero"] == 0 for block in blocks])
    bins = np.array(bins)
    largest = 126 if copies[0].dtype == E2M1 else 254
    share = {
        name: np.array([100 * block[name] / block["elements"] for block in blocks])
        for name in ("underflows", "saturated")
    }
    return {
        "zero_blocks%": 100 * zero.mean(),
        "smallest_scale_blocks%": 100 * np.mean((bins == 0) & ~zero),
        "largest_scale_blocks%": 100 * np.mean(bins == largest),
        **{
            f"block_{name}%_{end}": getattr(share[name], end)()
            for name in share
            for end in ("max", "mean")
        },
    }, {
        int(bin): int(count)
        for bin, count in zip(*np.unique(bins, return_counts=True), strict=True)
    }


def worst(copy, columnwise, measure, k):
    """[(value, block row, block column)] of one copy, in the tensor's orientation."""
    rows = []
    for i, j, block in copy.blocks():
        value = {
            "block_underflows%": 100 * block["underflows"] / block["elements"],
            "block_mse": block["squared_error"] / block["elements"],
        }[measure]
        if value != 0:
            rows.append((value, *((j, i) if columnwise else (i, j))))
    rows.sort(key=lambda row: -np.inf if np.isnan(row[0]) else -row[0])
    return rows[:k]


def special(rows, columns, seed=3):
    """Magnitudes of all sizes, and blocks of zeros, with NaN, Inf, -0 and subnormals."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, generator=generator) * torch.logspace(-6, 2, columns)
    x = x[:, torch.randperm(columns, generator=generator)]
    if rows > 4 and columns > 8:
        x[0] = 0
        x[0, ::3] = -0.0
        x[1, ::2] = -0.0
        x[2, 3] = float("nan")
        x[3, 4], x[3, 8] = float("inf"), -float("inf")
        x[4, ::3] = 2.0**-140
    return x
