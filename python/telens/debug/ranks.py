"""Rank, world size and the process group that sessions use."""

from __future__ import annotations

import datetime
import logging
import os
import weakref

import torch
import torch.distributed

from telens import _C

__all__: list[str] = []


def rank() -> int:
    """Returns the rank in torch.distributed, or the launcher's."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return rank_of_environment()[0]


def rank_of_environment() -> tuple[int, int]:
    """Returns RANK and WORLD_SIZE as torchrun sets them; (0, 1) without them."""
    try:
        number, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        return 0, 1
    return (number, world_size) if 0 <= number < world_size else (0, 1)


# True if the session began before torch.distributed; False again after the warning.
_began_without_group = False


def world() -> tuple[int, int, torch.distributed.ProcessGroup | None]:
    """Returns the rank, the number of ranks, and their group if it exists.

    Before ``init_process_group`` they come from the launcher's environment, so that ranks do not
    share files.
    """
    if not torch.distributed.is_initialized():
        return *rank_of_environment(), None
    return rank(), torch.distributed.get_world_size(), torch.distributed.group.WORLD


def note_beginning(group: torch.distributed.ProcessGroup | None) -> None:
    """Called when a session has begun, with its group."""
    global _began_without_group
    _began_without_group = group is None


def tell_of_a_late_group() -> None:
    """Warns once per session if a process group was created after its beginning."""
    global _began_without_group
    if not _began_without_group or not torch.distributed.is_initialized():
        return
    _began_without_group = False
    if torch.distributed.get_world_size() == 1 or not _C.debug.is_initialized():
        return
    message = (
        "debug.initialize came before torch.distributed.init_process_group: every rank records its "
        "own values, nothing is reduced; initialize the process group first"
    )
    _C.debug.log_message(message, "", logging.WARNING, "")


# The group over which sessions compare ranks: the default group, its timeout, and the session's
# group while torch.distributed keeps it. None if there is none yet or a rank did not join.
_comparing: tuple[weakref.ref, int, weakref.ref] | None = None


def begin_comparisons(group: torch.distributed.ProcessGroup | None) -> None:
    """Creates the process group of features that compare ranks. Called on every rank.

    After a failed collective a group stays out of step, so it must not be one of the training's
    groups.
    """
    global _comparing
    limit = _C.debug.longest_wait_for_ranks()
    if limit is None:
        return
    known = _known_group(group, limit)
    if not _C.debug.all_ranks_say(known is not None, group):
        try:
            known = torch.distributed.new_group(
                backend="gloo", timeout=datetime.timedelta(seconds=limit)
            )
        except Exception as error:  # torch without gloo, or a rank that has exited
            message = f"ranks are not compared: torch.distributed.new_group failed: {error}"
            _C.debug.log_message(message, "", logging.WARNING, "")
            return
        _comparing = (weakref.ref(group), limit, weakref.ref(known))
    _C.debug.compare_ranks_over(known)


def _known_group(
    group: torch.distributed.ProcessGroup | None, limit: int
) -> torch.distributed.ProcessGroup | None:
    if _comparing is None or _comparing[1] != limit or _comparing[0]() is not group:
        return None
    return _comparing[2]()


def end_comparisons() -> None:
    """Called when a session ends; drops a group that a rank did not join."""
    global _comparing
    if _C.debug.longest_wait_for_ranks() is not None and not _C.debug.compares_ranks():
        _comparing = None
