"""The captures of ``make_graphed_callables``: which can be, in which order and in which memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from telens import _C
from telens.pytorch.captured import Captured
from telens.pytorch.cuda_graphs import Graphs
from telens.pytorch.graph_order import Pass, Schedule
from telens.pytorch.graph_runner import Runner
from telens.pytorch.module import Module
from telens.pytorch.recipes_in_use import running

__all__ = ["capture_all", "check_can_be_captured"]


def capture_all(runners: Sequence[Runner], schedule: Schedule, graphs: Graphs, pool: Any) -> None:
    """Replaces the runners' passes by graphs.

    Graphs that share memory are captured in the order of their replays. Where micro-batches keep
    quantized weights, the first one's graphs fill what the others' read. A fill between another
    forward and its backward would be an error of autograd, so those graphs are captured micro-batch
    by micro-batch, each in memory of its own.
    """
    pool = graphs.new_pool() if pool is None else pool
    for forwards in schedule.by_microbatch():
        firsts = [index for index in forwards if True in runners[index].flags]
        own = graphs.new_pool() if firsts else None
        passes = {index: Captured(runners[index], True, graphs, own) for index in firsts}
        for index in firsts:
            passes[index].capture_forward()
        for index in reversed(firsts):
            passes[index].capture_backward()
            runners[index].passes[True] = passes[index]
        _capture_weight_gradients([passes[index] for index in reversed(firsts)], graphs)
    others: dict[int, Captured] = {}
    without_place = []
    in_order = {index for index, what in schedule.events if what is Pass.weight_gradients}
    for index, what in schedule.events:
        if what is Pass.forward:
            flag = runners[index].flags[-1]
            others[index] = Captured(runners[index], flag, graphs, pool)
            others[index].capture_forward()
        elif what is Pass.backward:
            others[index].capture_backward()
            if index not in in_order:
                without_place.append(others[index])
        else:
            others[index].capture_weight_gradients(pool)
    _capture_weight_gradients(without_place, graphs)
    for index, made in others.items():
        runners[index].passes[runners[index].flags[-1]] = made


def _capture_weight_gradients(passes: Sequence[Captured], graphs: Graphs) -> None:
    """Behind all backwards, each in memory of its own: no order says when they are replayed, and
    what they multiply lies in the graphs' memory until the next forward."""
    for each in passes:
        each.capture_weight_gradients(graphs.new_pool())


def check_can_be_captured(runners: Sequence[Runner], iterations: int) -> None:
    """Raises UsageError for what no graph can hold, before anything runs."""
    if iterations < 1:
        raise _C.UsageError(
            f"make_graphed_callables: num_warmup_iters is {iterations}; expected at least 1 on a "
            "GPU: what is made in a capture has no value, so all that stays must be there before"
        )
    if running.regions:
        raise _C.UsageError(
            "make_graphed_callables: an autocast is open, to whose region the warm-up would "
            "belong; call it outside, with the recipe as an argument"
        )
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise _C.UsageError(
            "make_graphed_callables: a capture is under way; call it outside of torch.cuda.graph"
        )
    for runner in runners:
        for module in runner.module.modules():
            _check_module(module)


def _check_module(module: torch.nn.Module) -> None:
    if isinstance(module, Module) and module.__dict__.get("checkpoint"):
        raise _C.UsageError(
            f"make_graphed_callables: {type(module).__name__} has checkpoint=True, which sets "
            "random states in its backward, and no graph can hold that; leave it out"
        )
