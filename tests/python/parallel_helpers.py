"""Compares a layer that is divided among ranks with the whole layer: data, shards, comparisons."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import torch
import torch.distributed as dist
from distributed_workers import rank_device

import telens.pytorch as te
from telens.common import recipe as recipes

# Precisions of the layer, by name: dtype and recipe.
PRECISIONS = {
    "FP32": (torch.float32, None),
    "BF16": (torch.bfloat16, None),
    "delayed": (torch.float32, lambda: recipes.DelayedScaling(amax_history_len=2)),
    "current": (torch.float32, recipes.Float8CurrentScaling),
    "MXFP8": (torch.float32, recipes.MXFP8BlockScaling),
    "blocks": (torch.float32, recipes.Float8BlockScaling),
    "NVFP4": (torch.float32, lambda: _nvfp4(disable_rht=True)),
    # A shard of features has another amax after the rotation than the whole.
    "NVFP4 rotated": (torch.float32, lambda: _nvfp4()),
}
# The largest number of each precision. Integers whose sums are exact in BF16; for FP8, quarters
# that E4M3 and E5M2 represent, with a largest one that makes the scale a power of two (448 / 1.75,
# 57344 / 1.75). Every shard contains the largest one.
LARGEST = {"BF16": 1}


def _nvfp4(**options: bool) -> recipes.Recipe:
    return recipes.NVFP4BlockScaling(disable_stochastic_rounding=True, **options)


def numbers(precision: str, *sizes: int, seed: int) -> torch.Tensor:
    """Data with exact sums, so that the order of summation has no effect."""
    dtype, _ = PRECISIONS[precision]
    generator = torch.Generator().manual_seed(seed)
    largest = LARGEST.get(precision, 7)
    drawn = torch.randint(-largest, largest + 1, sizes, generator=generator)
    return (drawn / (1 if largest == 1 else 4)).to(rank_device(), dtype)


def normal(*sizes: int, seed: int = 1) -> torch.Tensor:
    """Normally distributed FP32 numbers, the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(sizes, generator=generator).to(rank_device())


def equal(precision: str, actual: torch.Tensor, expected: torch.Tensor, what: object) -> None:
    """Equal bit for bit. NVFP4's scales are not powers of two, so there the order of FP32 sums has
    an effect.
    """
    assert actual.shape == expected.shape, (what, actual.shape, expected.shape)
    if precision.startswith("NVFP4"):
        bound = 64 * 2.0**-24 * expected.abs().max().item() * 8
        torch.testing.assert_close(actual, expected, rtol=0, atol=bound, msg=f"{what}: {{}}".format)
    else:
        assert torch.equal(actual, expected), (what, (actual - expected).abs().max())


def region(precision: str, group: dist.ProcessGroup | None) -> contextlib.AbstractContextManager:
    """The fp8_autocast of a precision."""
    _, recipe = PRECISIONS[precision]
    if recipe is None:
        return contextlib.nullcontext()
    return te.fp8_autocast(fp8_recipe=recipe(), fp8_group=group)


@dataclass(frozen=True)
class Part:
    """This rank's part of a tensor."""

    rank: int
    size: int

    def of(self, whole: torch.Tensor, dim: int | None) -> torch.Tensor:
        """The part along a dimension; None: all of it."""
        return whole if dim is None else whole.chunk(self.size, dim)[self.rank].contiguous()


def sum_over_ranks(tensor: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    total = tensor.clone()
    dist.all_reduce(total, group=group)
    return total
