"""Which rank this process is, and warnings that all ranks would show alike."""

from __future__ import annotations

import logging
import os
import warnings

import torch
import torch.distributed

from telens import _C

__all__: list[str] = []


def rank() -> int:
    """That of torch.distributed, or the launcher's."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return rank_of_environment()[0]


def rank_of_environment() -> tuple[int, int]:
    """RANK and WORLD_SIZE as torchrun sets them; (0, 1) without them."""
    try:
        number, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        return 0, 1
    return (number, world_size) if 0 <= number < world_size else (0, 1)


def warn_of_run(message: str, category: type[Warning] = UserWarning, stacklevel: int = 1) -> None:
    """``warnings.warn`` of what every rank's program says alike: rank 0 shows it.

    On the others it goes into the files of a running session; a filter that makes errors of
    warnings holds on all ranks.
    """
    if rank() == 0 or _is_error(category):
        warnings.warn(message, category, stacklevel + 1)
    elif _C.debug.is_initialized():
        _C.debug.log_message_of_run(message, logging.WARNING)


def _is_error(category: type[Warning]) -> bool:
    first = next((each for each in warnings.filters if issubclass(category, each[2])), None)
    return first is not None and first[0] == "error"
