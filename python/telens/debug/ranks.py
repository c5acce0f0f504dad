"""Which rank this is, of how many, and whether they can tell each other anything."""

from __future__ import annotations

import datetime
import logging
import weakref

import torch
import torch.distributed

from telens import _C
from telens._ranks import rank, rank_of_environment

__all__: list[str] = []

# True if the session began before torch.distributed; False again after the warning.
_began_without_group = False


def world() -> tuple[int, int, torch.distributed.ProcessGroup | None]:
    """This rank, the number of ranks, and their group if there is one yet.

    Before ``init_process_group`` the launcher's environment tells: ranks must not take each other's
    files for their own.
    """
    if not torch.distributed.is_initialized():
        return *rank_of_environment(), None
    return rank(), torch.distributed.get_world_size(), torch.distributed.group.WORLD


def note_beginning(group: torch.distributed.ProcessGroup | None) -> None:
    """A session has begun, with the group that there was."""
    global _began_without_group
    _began_without_group = group is None


def tell_of_a_late_group() -> None:
    """Warns, once a session, of a group of several ranks that came after its beginning."""
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


# The group over which sessions compare ranks: that of all ranks, the time of its collectives, and
# itself, while torch.distributed keeps it. None: there is none yet, or a rank of it did not come.
_comparing: tuple[weakref.ref, int, weakref.ref] | None = None


def begin_comparisons(group: torch.distributed.ProcessGroup | None) -> None:
    """Gives features of the session that compare ranks a group of their own; on every rank.

    Where a collective fails, its group is out of step for good. That group must not be one of the
    training's.
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
        except Exception as error:  # a torch without gloo, a rank that is gone
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
    """A session ends; a group that a rank did not come to is of no more use."""
    global _comparing
    if _C.debug.longest_wait_for_ranks() is not None and not _C.debug.compares_ranks():
        _comparing = None
