"""Ranks of an amax group whose reductions differ: a warning says why before they hang."""

import datetime
import time

import torch
import torch.distributed as dist
from distributed_workers import run_ranks, written_to_stderr

import telens.pytorch as te
from telens.common.recipe import DelayedScaling, MXFP8BlockScaling

# The warning comes after half of it.
LIMIT = datetime.timedelta(seconds=4)
REDUCES = "under fp8_delayed_scaling with 3 amaxes to reduce"


def make_layers(count: int = 1) -> torch.nn.Sequential:
    return torch.nn.Sequential(*(te.Linear(32, 32, device="cpu") for _ in range(count)))


def run(layers: torch.nn.Sequential, recipe, group, factor: float = 1.0) -> None:
    with te.autocast(recipe=recipe, amax_reduction_group=group):
        layers(torch.full((32, 32), factor))


def newest_amax(layers: torch.nn.Sequential) -> float:
    return layers[0].fp8_meta["scaling_fwd"].amax_history[1, 0].item()


def one_rank_reduces_nothing(rank: int) -> None:
    """The other rank prints why it waits, and continues when the late rank comes."""
    group = dist.new_group([0, 1], timeout=LIMIT)
    layers = make_layers()
    if rank == 1:
        assert written_to_stderr(lambda: run(layers, MXFP8BlockScaling(), group)) == ""
        time.sleep(1.5 * LIMIT.total_seconds() / 2)
    said = written_to_stderr(lambda: run(layers, DelayedScaling(), group, 2.0 + rank))
    if rank == 0:
        begin = "telens: autocast: rank 0 of amax_reduction_group (fp8_group) ends a region "
        assert said.startswith(f"{begin}{REDUCES}, rank 1 under mxfp8 with nothing to reduce;"), (
            said
        )
        assert said.count("\n") == 1, said
    else:
        assert said == ""
    assert newest_amax(layers) == 3


def a_rank_is_behind(rank: int) -> None:
    """The late rank's last message is one that this rank has sent before, so it may only be
    late.
    """
    group = dist.new_group([0, 1], timeout=LIMIT)
    few, many = make_layers(), make_layers(2)
    run(few, DelayedScaling(), group)
    if rank == 1:
        time.sleep(1.5 * LIMIT.total_seconds() / 2)
    assert written_to_stderr(lambda: run(many, DelayedScaling(), group, 2.0 + rank)) == ""
    assert newest_amax(many) == 3


def a_rank_is_late(rank: int) -> None:
    """A rank may be late without a warning, also after runs without the group or in evaluation."""
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
    """A rank runs one more region, with a recipe that reduces nothing, before the others come to
    it.
    """
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
        a_rank_is_behind,
        a_rank_is_late,
        a_rank_has_a_region_more,
    ):
        case(rank)
        dist.barrier()


def test_mismatched_reductions_warn():
    run_ranks(every_case)
