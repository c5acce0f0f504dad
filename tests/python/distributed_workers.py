"""Runs a function in several processes that form a gloo group."""

from __future__ import annotations

import datetime
import functools
import socket
from collections.abc import Callable

import torch
import torch.distributed
import torch.multiprocessing


def _enter(rank: int, function: Callable[[int], None], world_size: int, port: int) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=60),  # ranks that wait for each other fail
    )
    try:
        function(rank)
    finally:
        torch.distributed.destroy_process_group()


def run_ranks(function: Callable[..., None], *args: object, world_size: int = 2) -> None:
    """Calls ``function(rank, *args)`` on each rank; an exception on any rank fails the caller."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    bound = functools.partial(_call, function, args)
    torch.multiprocessing.spawn(_enter, (bound, world_size, port), nprocs=world_size)


def _call(function: Callable[..., None], args: tuple, rank: int) -> None:
    function(rank, *args)
