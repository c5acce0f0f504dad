"""Models whose weights are stored in FP8 with one scale, sharded by FSDP2 or not."""

from __future__ import annotations

import itertools

import torch
import torch.distributed as dist
from distributed_workers import rank_device
from torch.distributed.fsdp import fully_shard

import telens.pytorch as te
from telens.common.recipe import DelayedScaling, Float8CurrentScaling

RANKS = 3
RECIPES = {"current": Float8CurrentScaling, "delayed": DelayedScaling}


SIZES = (32, 96, 80)


def make(recipe, shard: bool, seed: int = 1, sizes=SIZES, **options) -> torch.nn.Sequential:
    """A model with weights of 96 rows, 32 on each rank, and of 80 rows: 27, 27 and 26."""
    torch.manual_seed(seed)
    with te.fp8_model_init(recipe=recipe):
        model = torch.nn.Sequential(
            *(te.Linear(*each, device=rank_device()) for each in itertools.pairwise(sizes))
        )
    if shard:
        mesh = dist.device_mesh.init_device_mesh(rank_device().type, (RANKS,))
        for module in (*model, model):
            fully_shard(module, mesh=mesh, **options)
    return model


def batch(step: int, rank: int, rows: int = 16, width: int = 32) -> torch.Tensor:
    """Integers that are mostly 0, so that the mean of the ranks' gradients is exact."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randint(-1, 2, (rows, width), generator=generator).float().to(rank_device())


def run(model, recipe, x: torch.Tensor, group=None) -> torch.Tensor:
    with te.fp8_autocast(fp8_recipe=recipe, fp8_group=group):
        return model(x)


def parts_of(whole: torch.Tensor, rank: int) -> torch.Tensor:
    parts = whole.chunk(RANKS)
    return parts[rank]
