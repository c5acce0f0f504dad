"""Schedules and reduction groups for feature classes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from telens._names import rejects_bools
from telens.debug import sessions

__all__ = ["get_reduction_params", "next_enabled_iter"]


@rejects_bools
def next_enabled_iter(
    start_step: int | None,
    end_step: int | None,
    start_end_list: Sequence[Sequence[int | None]] | None,
    freq: int,
    iteration: int,
) -> tuple[bool, int | None]:
    """Returns whether a schedule contains the iteration, and the next one in it (None if it is the
    last).

    Both ends of a range are included; -1 and None mean an open end. ``start_end_list`` replaces
    ``start_step`` and ``end_step``.
    """
    ranges = start_end_list or [(start_step or 0, end_step)]
    enabled, following = False, []
    for first, last in ranges:
        ends = last is not None and last != -1
        enabled |= iteration % freq == 0 and first <= iteration and not (ends and iteration > last)
        step = max(iteration + 1, first)
        step += -step % freq
        if not (ends and step > last):
            following.append(step)
    return enabled, min(following, default=None)


@rejects_bools
def get_reduction_params(
    tensor_name: str, tp_group: torch.distributed.ProcessGroup | None, tp_size: int
) -> tuple[bool, torch.distributed.ProcessGroup | None, bool]:
    """Returns the group over which a class must reduce a tensor's statistics.

    Returns (skip_reduction, reduction_group, reduce_within_microbatch). For a weight it is the
    tensor-parallel group, if present and ``set_weight_tensor_tp_group_reduce`` allows it, else the
    rank itself; for other tensors the result of ``get_tensor_reduction_group``.
    """
    if tensor_name != "weight":
        return False, sessions.get_tensor_reduction_group(), True
    if sessions.weights_are_reduced() and tp_size > 1 and tp_group is not None:
        return False, tp_group, False
    return True, sessions.get_tensor_reduction_group(), False
