"""Ranks of an amax group whose reductions do not fit: each learns why before it hangs."""

import datetime
import time

import pytest
import torch
import torch.distributed as dist
from distributed_workers import run_ranks, written_to_stderr

import telens
import telens.pytorch as te
from telens.common.recipe import DelayedScaling, MXFP8BlockScaling

# Half of it is the longest wait, and half of that the time until a warning.
LIMIT = datetime.timedelta(seconds=3)
REDUCES = r"under fp8_delayed_scaling with 3 amaxes to reduce"


def make_layers(count: int = 1) -> torch.nn.Sequential:
    return torch.nn.Sequential(*(te.Linear(32, 32, device="cpu") for _ in range(count)))


def run(layers: torch.nn.Sequential, recipe, group, factor: float = 1.0) -> None:
    with te.autocast(recipe=recipe, amax_reduction_group=group):
        layers(torch.full((32, 32), factor))


def newest_amax(layers: torch.nn.Sequential) -> float:
    return layers[0].fp8_meta["scaling_fwd"].amax_history[1, 0].item()


def one_rank_reduces_nothing(rank: int) -> None:
    group = dist.new_group([0, 1], timeout=LIMIT)
    layers = make_layers()
    if rank == 0:
        message = rf"rank 0 of .*fp8_group.* {REDUCES}, rank 1 under mxfp8 with nothing to reduce"

        def refused() -> None:
            with pytest.raises(telens.UsageError, match=message):
                run(layers, DelayedScaling(), group)

        begin = time.monotonic()
        lines = written_to_stderr(refused).splitlines()
        assert time.monotonic() - begin < 3, "it came to the reduction, and waited for its time"
        assert [line.startswith("telens: autocast: rank 0 of ") for line in lines] == [True], lines
    else:
        assert written_to_stderr(lambda: run(layers, MXFP8BlockScaling(), group)) == ""
    dist.barrier()
    # The group is in step, and ranks that agree reduce.
    run(layers, DelayedScaling(), group, 2.0 + rank)
    assert newest_amax(layers) == 3


def ranks_have_unlike_layers(rank: int) -> None:
    group = dist.new_group([0, 1], timeout=LIMIT)
    with pytest.raises(telens.UsageError, match=r"3 amaxes to reduce.*6 amaxes to reduce|6.*3"):
        run(make_layers(1 + rank), DelayedScaling(), group)


def a_rank_is_late(rank: int) -> None:
    """It may be, and one that has run without the group, or in evaluation, too."""
    group = dist.new_group([0, 1], timeout=LIMIT)
    layers = make_layers()
    if rank == 1:
        run(layers, MXFP8BlockScaling(), None)
        with torch.no_grad():
            run(layers, MXFP8BlockScaling(), group)
        time.sleep(1)
    assert written_to_stderr(lambda: run(layers, DelayedScaling(), group, 2.0 + rank)) == ""
    assert newest_amax(layers) == 3


def a_rank_has_a_region_more(rank: int) -> None:
    """Under a recipe that reduces nothing, before the others come to it."""
    group = dist.new_group([0, 1], timeout=LIMIT)
    layers = make_layers()
    if rank == 1:
        run(layers, MXFP8BlockScaling(), group)
    for recipe in (DelayedScaling(), MXFP8BlockScaling(), DelayedScaling()):
        assert written_to_stderr(lambda recipe=recipe: run(layers, recipe, group, 2.0 + rank)) == ""
    assert newest_amax(layers) == 3


def every_case(rank: int) -> None:
    for case in (
        one_rank_reduces_nothing,
        ranks_have_unlike_layers,
        a_rank_is_late,
        a_rank_has_a_region_more,
    ):
        case(rank)
        dist.barrier()


def test_ranks_whose_reductions_do_not_fit_learn_it_and_others_go_on():
    run_ranks(every_case)
