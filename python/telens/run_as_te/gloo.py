"""What ``torch.distributed`` is while "cuda" means the CPU (device.py): gloo in place of NCCL."""

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


def _of_group(make: Callable) -> Callable:
    """A function that makes process groups, with gloo in place of NCCL."""

    @functools.wraps(make)
    def call(*args: Any, **kwargs: Any) -> Any:
        args = tuple("gloo" if _is_nccl(each) else each for each in args)
        if _is_nccl(kwargs.get("backend")):
            kwargs["backend"] = "gloo"
        kwargs.pop("device_id", None)  # a GPU for eager initialization
        kwargs.pop("pg_options", None)  # NCCL's
        return make(*args, **kwargs)

    return call


def _is_nccl(backend: Any) -> bool:
    return isinstance(backend, str) and "nccl" in backend


def _of_mesh(make: Callable) -> Callable:
    """A function whose argument device_type names the devices of a mesh."""

    @functools.wraps(make)
    def call(*args: Any, **kwargs: Any) -> Any:
        args = tuple("cpu" if each == "cuda" else each for each in args)
        if kwargs.get("device_type") == "cuda":
            kwargs["device_type"] = "cpu"
        return make(*args, **kwargs)

    return call


def _of_replicas(init: Callable) -> Callable:
    """The constructor of DistributedDataParallel, which accepts no devices on the CPU."""

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


def _of_shards(init: Callable) -> Callable:
    """The constructor of FullyShardedDataParallel, which requires the CPU as ``device_id``."""

    @functools.wraps(init)
    def call(self: Any, module: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        given = inspect.signature(init).bind(self, module, *args, **kwargs)
        given.arguments["device_id"] = torch.device("cpu")
        init(*given.args, **given.kwargs)

    return call


def place_shards() -> Callable[[], None]:
    """Makes FullyShardedDataParallel of the imported module run on the CPU. Returns the undo."""
    sharded = sys.modules[FSDP].FullyShardedDataParallel
    patch = mock.patch.object(sharded, "__init__", _of_shards(sharded.__init__))
    patch.start()
    return patch.stop


def _barrier(barrier: Callable) -> Callable:
    @functools.wraps(barrier)
    def call(group: Any = None, async_op: bool = False, device_ids: Any = None) -> Any:
        return barrier(group, async_op)

    return call


class _AveragingWork:
    """A running reduction whose sum becomes the average in wait()."""

    def __init__(self, work: Any, result: torch.Tensor, ranks: int) -> None:
        self._work, self._result, self._ranks = work, result, ranks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)

    def wait(self, *args: Any) -> Any:
        done = self._work.wait(*args)
        self._result.div_(self._ranks)
        self._ranks = 1
        return done


def _averaging(reduce: Callable) -> Callable:
    """A reduction with ReduceOp.AVG, which NCCL has and gloo does not."""
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
        if work is not None:
            return _AveragingWork(work, result, ranks)
        result.div_(ranks)
        return None

    return call


def distributed_replacements() -> Iterator[Replacement]:
    """Returns (owner, name, replacement) for functions and classes of ``torch.distributed``."""
    if not dist.is_available():
        return
    from torch.distributed import device_mesh, distributed_c10d

    for owner in (dist, distributed_c10d):
        for name in ("init_process_group", "new_group", "new_subgroups_by_enumeration"):
            yield owner, name, _of_group(getattr(owner, name))
        for name in ("all_reduce", "reduce_scatter_tensor", "reduce_scatter"):
            yield owner, name, _averaging(getattr(owner, name))
        yield owner, "barrier", _barrier(owner.barrier)
        yield owner, "is_nccl_available", returning(lambda: True)
    for owner in (dist, device_mesh):
        yield owner, "init_device_mesh", _of_mesh(owner.init_device_mesh)
    mesh = device_mesh.DeviceMesh
    yield mesh, "__init__", _of_mesh(mesh.__init__)
    replicas = torch.nn.parallel.DistributedDataParallel
    yield replicas, "__init__", _of_replicas(replicas.__init__)
