"""Runs a function in several processes that form a group, on CPUs or on GPUs."""

from __future__ import annotations

import datetime
import functools
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.reduction
import os
import sys
import tempfile
from collections.abc import Callable

import pytest
import torch
import torch.distributed
import torch.multiprocessing

# The devices of the matrices in tests of parallel layers, as a test parameter. A machine without a
# GPU skips the second one.
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(
            not torch.cuda.is_available(), reason="needs a GPU: processes on it, by NCCL or gloo"
        ),
    ),
]

_DEVICE = torch.device("cpu")
_ENVIRONMENT = dict(os.environ)  # before any test has changed it
# What tests of several ranks import.
_PRELOADED = ["pytest", "torch.distributed.fsdp", "torch.distributed.tensor", "telens.pytorch"]


def rank_device() -> torch.device:
    """The device of this rank's tensors and layers."""
    return _DEVICE


def has_own_gpus(world_size: int) -> bool:
    """True if each rank has a GPU of its own, which NCCL needs."""
    return torch.cuda.device_count() >= world_size


def _choose(device: str, rank: int, world_size: int) -> tuple[str, torch.device]:
    """The backend, and the rank's device: NCCL where there are GPUs enough, one for one rank;
    otherwise gloo, over CUDA tensors on the first GPU that all ranks share."""
    if device == "cpu":
        return "gloo", torch.device("cpu")
    if has_own_gpus(world_size):
        return "nccl", torch.device("cuda", rank)
    return "gloo", torch.device("cuda", 0)


class _ProcessState:
    """The caller's environment variables, working directory, standard output and error.

    Processes of a fork server would otherwise get those of the server's start.
    """

    def __getstate__(self) -> dict:
        streams = [multiprocessing.reduction.DupFd(each) for each in (1, 2)]
        return {"environment": dict(os.environ), "folder": os.getcwd(), "streams": streams}

    def enter(self) -> None:
        os.environ.clear()
        os.environ.update(self.environment)
        os.chdir(self.folder)
        for number, stream in enumerate(self.streams, start=1):
            descriptor = stream.detach()
            os.dup2(descriptor, number)
            os.close(descriptor)


def _enter(
    rank: int,
    function: Callable[[int], None],
    world_size: int,
    store: str,
    device: str,
    state: _ProcessState,
) -> None:
    global _DEVICE
    state.enter()
    torch.set_num_threads(1)
    backend, _DEVICE = _choose(device, rank, world_size)
    if _DEVICE.type == "cuda":
        torch.cuda.set_device(_DEVICE)
    torch.distributed.init_process_group(
        backend,
        f"file://{store}",  # a free port may be taken before the ranks come to it
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=60),  # ranks that wait for each other fail
        device_id=_DEVICE if backend == "nccl" else None,
    )
    function(rank)
    torch.distributed.barrier()
    # All ranks have succeeded. Destroying a gloo group sometimes aborts a process ("terminate
    # called without an active exception"), which must not fail the test.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def run_ranks(
    function: Callable[..., None], *args: object, world_size: int = 2, device: str = "cpu"
) -> None:
    """Calls ``function(rank, *args)`` on each rank; an exception on any rank fails the caller.

    device: one of DEVICES; ranks find their own by `rank_device`. A build without kernels for GPUs
    skips cuda.
    """
    if device == "cuda":
        _skip_without_kernels()
    bound = functools.partial(_call, function, args)
    with tempfile.TemporaryDirectory() as folder:
        arguments = (bound, world_size, f"{folder}/store", device, _ProcessState())
        # The fork server imports torch once, not for every rank. A process that has used CUDA
        # cannot be forked.
        method = "forkserver" if device == "cpu" else "spawn"
        if method == "forkserver":
            _start_fork_server()
        torch.multiprocessing.start_processes(
            _enter, arguments, nprocs=world_size, start_method=method
        )


def _start_fork_server() -> None:
    """Starts the server, if it does not run, with the environment of the start of the tests.

    What its modules read at import would otherwise depend on the test that needs it first.
    """
    changed = dict(os.environ)
    os.environ.clear()
    os.environ.update(_ENVIRONMENT)
    try:
        multiprocessing.set_forkserver_preload(_PRELOADED)
        multiprocessing.forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(changed)


def _skip_without_kernels() -> None:
    import telens  # noqa: F401

    if "telens::amax" not in torch._C._dispatch_get_registrations_for_dispatch_key("CUDA"):
        pytest.skip("libtelens.so was built without CUDA (TELENS_CUDA=OFF)")


def _call(function: Callable[..., None], args: tuple, rank: int) -> None:
    function(rank, *args)


def written_to_stderr(call: Callable[[], object]) -> str:
    """Returns the lines that a call writes to stderr, from C++ too."""
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            call()
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        file.seek(0)
        return file.read().decode()
