"""Runs a function in several processes that form a gloo group."""

from __future__ import annotations

import datetime
import functools
import os
import sys
import tempfile
from collections.abc import Callable

import torch
import torch.distributed
import torch.multiprocessing


def _enter(rank: int, function: Callable[[int], None], world_size: int, store: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        f"file://{store}",  # a free port may be taken before the ranks come to it
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=60),  # ranks that wait for each other fail
    )
    function(rank)
    torch.distributed.barrier()
    # All ranks came through. Taking a gloo group apart now and then aborts a process that is done
    # ("terminate called without an active exception"), which is not what a test is about.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def run_ranks(function: Callable[..., None], *args: object, world_size: int = 2) -> None:
    """Calls ``function(rank, *args)`` on each rank; an exception on any rank fails the caller."""
    bound = functools.partial(_call, function, args)
    with tempfile.TemporaryDirectory() as folder:
        arguments = (bound, world_size, f"{folder}/store")
        torch.multiprocessing.spawn(_enter, arguments, nprocs=world_size)


def _call(function: Callable[..., None], args: tuple, rank: int) -> None:
    function(rank, *args)
