"""The rank of this process and the world size."""

from __future__ import annotations

import os

import torch
import torch.distributed

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
