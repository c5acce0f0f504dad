"""Process groups of the C++ core, and the collectives of tensor parallelism, over Paddle's groups.

The collectives are functions of Paddle's autograd. Each is one of Megatron's pairs of collectives,
the backward being the transpose of the forward (https://arxiv.org/abs/1909.08053,
https://arxiv.org/abs/2205.05198).
"""

from __future__ import annotations

import weakref
from typing import Any

import paddle
import paddle.distributed as dist
import torch
import torch.distributed as torch_dist
from paddle.autograd import PyLayer

from telens.paddle.core_module import TENSORS

__all__ = [
    "copy_to_group",
    "gather_features",
    "gather_sequence",
    "own_sequence",
    "scatter_sequence",
    "sum_over_group",
    "to_torch_group",
]


def copy_to_group(x: paddle.Tensor, group: Any) -> paddle.Tensor:
    """Returns x; its gradient is summed over the ranks."""
    return _CopyToGroup.apply(x, group)


def sum_over_group(x: paddle.Tensor, group: Any) -> paddle.Tensor:
    """Returns the sum of x over the ranks; the gradient passes unchanged."""
    return _SumOverGroup.apply(x, group)


def gather_sequence(x: paddle.Tensor, group: Any) -> paddle.Tensor:
    """Gathers the sequence from the ranks; its gradient is summed and split."""
    return _GatherSequence.apply(x, group)


def scatter_sequence(x: paddle.Tensor, group: Any) -> paddle.Tensor:
    """Returns this rank's part of the sequence of the sum of x over the ranks; its gradient is
    gathered."""
    return _ScatterSequence.apply(x, group)


def own_sequence(x: paddle.Tensor, group: Any) -> paddle.Tensor:
    """Returns this rank's part of the sequence; the gradient of the rest is 0."""
    return _own_part(x, _sequence_axis(x), group)


def gather_features(x: paddle.Tensor, group: Any) -> paddle.Tensor:
    """Gathers the features from the ranks; the gradient is split."""
    return _GatherFeatures.apply(x, group)


def _sequence_axis(x: paddle.Tensor) -> int:
    return 1 if x.ndim == 3 else 0


def _all_reduce(x: paddle.Tensor, group: Any) -> paddle.Tensor:
    total = x.clone()
    dist.all_reduce(total, group=group)
    return total


def _all_gather(x: paddle.Tensor, axis: int, group: Any) -> paddle.Tensor:
    parts: list[paddle.Tensor] = []
    dist.all_gather(parts, x.contiguous(), group=group)
    return paddle.concat(parts, axis)


def _own_part(x: paddle.Tensor, axis: int, group: Any) -> paddle.Tensor:
    return x.chunk(group.nranks, axis)[group.rank].contiguous()


def _reduce_scatter(x: paddle.Tensor, axis: int, group: Any) -> paddle.Tensor:
    # All-reduce, then slice: gloo does not implement reduce_scatter.
    return _own_part(_all_reduce(x, group), axis, group)


class _CopyToGroup(PyLayer):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return _all_reduce(gradient, ctx.group)


class _SumOverGroup(PyLayer):
    @staticmethod
    def forward(ctx, x, group):
        return _all_reduce(x, group)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clone()


class _GatherSequence(PyLayer):
    @staticmethod
    def forward(ctx, x, group):
        ctx.axis, ctx.group = _sequence_axis(x), group
        return _all_gather(x, ctx.axis, group)

    @staticmethod
    def backward(ctx, gradient):
        return _reduce_scatter(gradient, ctx.axis, ctx.group)


class _ScatterSequence(PyLayer):
    @staticmethod
    def forward(ctx, x, group):
        ctx.axis, ctx.group = _sequence_axis(x), group
        return _reduce_scatter(x, ctx.axis, group)

    @staticmethod
    def backward(ctx, gradient):
        return _all_gather(gradient, ctx.axis, ctx.group)


class _GatherFeatures(PyLayer):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return _all_gather(x, -1, group)

    @staticmethod
    def backward(ctx, gradient):
        return _own_part(gradient, -1, ctx.group)


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
