"""Which rank this is, of how many, and whether they can tell each other anything."""

from __future__ import annotations

import logging
import os

import torch
import torch.distributed

from telens import _C

__all__: list[str] = []

# True if the session began before torch.distributed; False again after the warning.
_began_without_group = False


def rank() -> int:
    """That of torch.distributed, or the launcher's."""
    if torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return _rank_of_environment()[0]


def world() -> tuple[int, int, torch.distributed.ProcessGroup | None]:
    """This rank, the number of ranks, and their group if there is one yet.

    Before ``init_process_group`` the launcher's environment tells: ranks must not take each other's
    files for their own.
    """
    if not torch.distributed.is_initialized():
        return *_rank_of_environment(), None
    return rank(), torch.distributed.get_world_size(), torch.distributed.group.WORLD


def _rank_of_environment() -> tuple[int, int]:
    """RANK and WORLD_SIZE as torchrun sets them; (0, 1) without them."""
    try:
        number, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        return 0, 1
    return (number, world_size) if 0 <= number < world_size else (0, 1)


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
