"""Replacements for functions of ``torch.distributed`` while "cuda" means the CPU (device.py).

They use gloo instead of NCCL.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from telens.run_as_te.cuda_functions import Replacement, returning

__all__ = ["FSDP", "distributed_replacements", "place_shards"]

# The module of FullyShardedDataParallel, whose import takes seconds.
FSDP = "torch.distributed.fsdp.fully_sharded_data_parallel"


def _with_gloo(make: Callable) -> Callable:
    """Wraps a function that creates process groups: gloo replaces NCCL."""

    @functools.wraps(make)
    def call(*args: Any, **kwargs: Any) -> Any:
        args = tuple("gloo" if _is_nccl(each) else each for each in args)
        if _is_nccl(kwargs.get("backend")):
            kwargs["backend"] = "gloo"
        kwargs.pop("device_id", None)  # a GPU for eager initialization
        kwargs.pop("pg_options", None)  # options of NCCL
        return make(*args, **kwargs)

    return call


def _is_nccl(backend: Any) -> bool:
    return isinstance(backend, str) and "nccl" in backend


def _with_cpu_mesh(make: Callable) -> Callable:
    """Wraps a function with the argument device_type: "cpu" replaces "cuda"."""

    @functools.wraps(make)
    def call(*args: Any, **kwargs: Any) -> Any:
        args = tuple("cpu" if _is_cuda(each) else each for each in args)
        if _is_cuda(kwargs.get("device_type")):
            kwargs["device_type"] = "cpu"
        return make(*args, **kwargs)

    return call


def _is_cuda(device_type: Any) -> bool:
    # Other arguments may be arrays, whose == is elementwise.
    return isinstance(device_type, str) and device_type == "cuda"


def _without_devices(init: Callable) -> Callable:
    """Wraps the constructor of DistributedDataParallel: devices are dropped."""

    @functools.wraps(init)
    def call(
        self: Any,
        module: torch.nn.Module,
        device_ids: Any = None,
        output_device: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        init(self, module, None, None, *args, **kwargs)

    return call


def _with_cpu_shards(init: Callable) -> Callable:
    """Wraps the constructor of FullyShardedDataParallel: ``device_id`` is the CPU."""

    @functools.wraps(init)
    def call(self: Any, module: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        given = inspect.signature(init).bind(self, module, *args, **kwargs)
        given.arguments["device_id"] = torch.device("cpu")
        init(*given.args, **given.kwargs)

    return call


def place_shards() -> Callable[[], None]:
    """Makes the imported FullyShardedDataParallel run on the CPU. Returns a function to undo it."""
    sharded = sys.modules[FSDP].FullyShardedDataParallel
    patch = mock.patch.object(sharded, "__init__", _with_cpu_shards(sharded.__init__))
    patch.start()
    return patch.stop


def _without_device_ids(barrier: Callable) -> Callable:
    """Wraps ``barrier``, whose ``device_ids`` gloo does not accept."""

    @functools.wraps(barrier)
    def call(group: Any = None, async_op: bool = False, device_ids: Any = None) -> Any:
        return barrier(group, async_op)

    return call


class _AveragingWork:
    """An asynchronous sum that ``wait()`` turns into the average."""

    def __init__(self, work: Any, result: torch.Tensor, ranks: int) -> None:
        self._work, self._result, self._ranks = work, result, ranks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        done = self._work.wait(*args, **kwargs)
        self._result.div_(self._ranks)
        self._ranks = 1
        return done


def _averaging(reduce: Callable) -> Callable:
    """Wraps a reduction: supports ReduceOp.AVG, which gloo does not have."""
    signature = inspect.signature(reduce)

    @functools.wraps(reduce)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        if given.get("op") != dist.ReduceOp.AVG:
            return reduce(*args, **kwargs)
        given["op"] = dist.ReduceOp.SUM
        work = reduce(**given)
        result = given[next(iter(signature.parameters))]
        ranks = dist.get_world_size(given.get("group"))
        if ranks < 1:  # -1: this rank is not in the group, and nothing was reduced
            return work
        if work is not None:
            return _AveragingWork(work, result, ranks)
        result.div_(ranks)
        return None

    return call


def distributed_replacements() -> Iterator[Replacement]:
    """Yields (owner, name, replacement) for functions and classes of ``torch.distributed``."""
    if not dist.is_available():
        return
    from torch.distributed import device_mesh, distributed_c10d

    for owner in (dist, distributed_c10d):
        for name in ("init_process_group", "new_group", "new_subgroups_by_enumeration"):
            yield owner, name, _with_gloo(getattr(owner, name))
        for name in ("all_reduce", "reduce_scatter_tensor", "reduce_scatter"):
            yield owner, name, _averaging(getattr(owner, name))
        yield owner, "barrier", _without_device_ids(owner.barrier)
        yield owner, "is_nccl_available", returning(lambda: True)
    for owner in (dist, device_mesh):
        yield owner, "init_device_mesh", _with_cpu_mesh(owner.init_device_mesh)
    mesh = device_mesh.DeviceMesh
    yield mesh, "__init__", _with_cpu_mesh(mesh.__init__)
    replicas = torch.nn.parallel.DistributedDataParallel
    yield replicas, "__init__", _without_devices(replicas.__init__)
