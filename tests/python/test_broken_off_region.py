"""An exception inside an autocast: no scale is updated, and no other rank is waited for."""

import datetime

import pytest
import torch
import torch.distributed as dist
from distributed_workers import run_ranks

import telens.pytorch as te
from telens.common.recipe import DelayedScaling
from telens.pytorch import autocast, fp8_autocast


class OwnError(Exception):
    """The error of the block."""


def make_layer() -> te.Linear:
    torch.manual_seed(1)
    return te.Linear(32, 32, device="cpu")


def get_state(layer: te.Linear) -> tuple[torch.Tensor, torch.Tensor]:
    meta = layer.fp8_meta["scaling_fwd"]
    return meta.scale.clone(), meta.amax_history.clone()


def break_off(layer: te.Linear, x: torch.Tensor, **options: object) -> None:
    def block() -> None:
        with autocast(**options):
            layer(x)
            raise OwnError

    with pytest.raises(OwnError):
        block()


def test_a_region_that_an_exception_leaves_updates_no_scale():
    layer = make_layer()
    with autocast():
        layer(torch.ones(16, 32))
    scale, history = get_state(layer)
    break_off(layer, torch.full((16, 32), 5.0))
    found, collected = get_state(layer)
    assert torch.equal(found, scale)
    assert torch.equal(collected[1:], history[1:])
    # Amaxes that were collected before the exception count in the next region, like a micro-batch.
    with autocast():
        layer(torch.ones(16, 32))
    assert get_state(layer)[1][1, 0] == 5


def test_exception_ends_the_region():
    layer = make_layer()
    with autocast():
        with pytest.raises(OwnError), autocast(enabled=False):
            raise OwnError
        assert te.FP8GlobalStateManager.is_fp8_enabled()
        layer(torch.ones(16, 32))
    assert not te.FP8GlobalStateManager.is_fp8_enabled()
    assert get_state(layer)[1][1, 0] == 1, "the outer region ended as any"


def one_rank_raises(rank: int) -> None:
    layer = make_layer()
    group = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=60))
    if rank == 0:
        break_off(layer, torch.ones(16, 32), amax_reduction_group=group)
    dist.barrier()
    # The ranks are in step: their next reduction is the same one.
    with fp8_autocast(fp8_recipe=DelayedScaling(), fp8_group=group):
        layer(torch.full((16, 32), 2.0 + rank))
    assert get_state(layer)[1][1, 0] == 3


def test_error_on_one_rank_keeps_ranks_in_step():
    run_ranks(one_rank_raises)
