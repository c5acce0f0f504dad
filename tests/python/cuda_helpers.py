"""For tests that compare operators on a GPU with the same operators on the CPU."""

import math
import os

import pytest
import torch

# A dry run of tests that take this device compares the CPU with itself.
DEVICE = os.environ.get("TELENS_TEST_DEVICE", "cuda")
E4M3, E5M2 = 0, 1
FORMATS = {"e4m3": E4M3, "e5m2": E5M2}
HIGH_PRECISION = (torch.bfloat16, torch.float16, torch.float32)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
    return tensor.cpu().contiguous().view(kinds[tensor.element_size()])


def assert_same_bits(actual: torch.Tensor, expected: torch.Tensor, inputs=None) -> None:
    actual, expected = bits(actual), bits(expected)
    assert actual.shape == expected.shape
    differs = (actual != expected).flatten()
    if differs.any():
        first = int(differs.nonzero()[0])
        given = "" if inputs is None else f" for {inputs.flatten()[first].item()!r}"
        pytest.fail(
            f"{int(differs.sum())} of {differs.numel()} differ; the first at {first}: expected "
            f"{expected.flatten()[first].item():#x}, got {actual.flatten()[first].item():#x}{given}"
        )


def to_gpu(arguments) -> list:
    return [a.cuda() if isinstance(a, torch.Tensor) else a for a in arguments]


def every_16_bit_value(dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)


def special_fp32() -> torch.Tensor:
    """Every exponent with mantissas around every rounding decision of 8-bit formats, both signs."""
    exponents = torch.arange(256, dtype=torch.int64) << 23
    around = torch.tensor([-1, 0, 1])
    mantissas = ((torch.arange(64, dtype=torch.int64) << 17)[:, None] + around).flatten() & 0x7FFFFF
    magnitudes = (exponents[:, None] | mantissas).flatten()
    return torch.cat([magnitudes, magnitudes | 1 << 31]).to(torch.uint32).view(torch.float32)


def inputs_of(dtype: torch.dtype) -> torch.Tensor:
    return special_fp32() if dtype == torch.float32 else every_16_bit_value(dtype)


def block_matrix(
    shape: tuple[int, int], dtype: torch.dtype, infinities: bool = True
) -> torch.Tensor:
    """Magnitudes over many powers of two, blocks of zeros, and special values among them. With one
    infinity NVFP4's tensor scale is 1; data without infinities has fewer powers of two, so that
    neither FP16 nor a sum of the Hadamard transform overflows.
    """
    generator = torch.Generator().manual_seed(3)
    powers = torch.randn(shape, generator=generator).mul(6 if infinities else 3)
    x = torch.randn(shape, generator=generator) * powers.exp2()
    x[1:4, :140] = 0
    special = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 448.0, 449.0, 6.0, 0.25, 1e-40])
    if not infinities:
        special = special[~special.isinf()]
    flat = x.view(-1)
    places = torch.arange(150, max(150, flat.numel()), 61)
    flat[places] = special[torch.arange(len(places)) % len(special)]
    return x.to(dtype)
