"""Wraps a Paddle group for the C++ core."""

from __future__ import annotations

import weakref
from typing import Any

import paddle
import paddle.distributed as dist
import torch
import torch.distributed as torch_dist

from telens.paddle.core_module import TENSORS

__all__ = ["to_torch_group"]

_OPERATIONS = [
    (torch_dist.ReduceOp.SUM, dist.ReduceOp.SUM),
    (torch_dist.ReduceOp.MAX, dist.ReduceOp.MAX),
    (torch_dist.ReduceOp.MIN, dist.ReduceOp.MIN),
    (torch_dist.ReduceOp.PRODUCT, dist.ReduceOp.PROD),
]


class _Done(torch_dist.Work):
    """A finished collective: the wrapper waits for Paddle's."""

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


class _PaddleGroup(torch_dist.ProcessGroup):
    """Implements the core's collectives (sum, max, gather) with Paddle's."""

    def __init__(self, group: Any) -> None:
        super().__init__(group.rank, group.nranks)
        self._group = group

    def allreduce(self, tensors, options=None):
        asked = torch_dist.ReduceOp.SUM if options is None else options.reduceOp
        operation = next(ours for theirs, ours in _OPERATIONS if asked == theirs)
        for tensor in tensors:
            total = TENSORS.wrap(tensor).clone()
            dist.all_reduce(total, op=operation, group=self._group)
            tensor.copy_(TENSORS.view(total))
        return _Done()

    def allgather(self, outputs, inputs, options=None):
        for parts, tensor in zip(outputs, inputs, strict=True):
            found: list[paddle.Tensor] = []
            dist.all_gather(found, TENSORS.wrap(tensor).clone(), group=self._group)
            for part, source in zip(parts, found, strict=True):
                part.copy_(TENSORS.view(source))
        return _Done()

    def getBackendName(self) -> str:
        return "paddle"


_known: weakref.WeakKeyDictionary[Any, _PaddleGroup] = weakref.WeakKeyDictionary()


def to_torch_group(group: Any) -> torch.distributed.ProcessGroup | None:
    """Returns the core's object of the group, always the same one; None for None."""
    if group is None or isinstance(group, torch_dist.ProcessGroup):
        return group
    if group not in _known:
        _known[group] = _PaddleGroup(group)
    return _known[group]
