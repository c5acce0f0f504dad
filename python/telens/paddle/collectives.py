"""The collectives of tensor parallelism as functions of Paddle's autograd.

Each is one of Megatron's pairs of collectives, the backward being the transpose of the forward
(https://arxiv.org/abs/1909.08053, https://arxiv.org/abs/2205.05198).
"""

from __future__ import annotations

from typing import Any

import paddle
import paddle.distributed as dist
from paddle.autograd import PyLayer

__all__ = [
    "copy_to_group",
    "gather_features",
    "gather_sequence",
    "own_sequence",
    "scatter_sequence",
    "sum_over_group",
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
