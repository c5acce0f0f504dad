"""Cross entropy over a vocabulary that may be divided among ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from telens import _C
from telens._names import refusal, rejects_bools

__all__ = ["parallel_cross_entropy"]

# Maximum number of logits that are processed at a time. An FP32 copy of them takes 16 MiB.
_BLOCK = 1 << 22
_OWNER = "parallel_cross_entropy"


@rejects_bools
def parallel_cross_entropy(
    inp: torch.Tensor,
    target: torch.Tensor,
    label_smoothing: float = 0.0,
    reduce_loss: bool = False,
    dist_process_group: dist.ProcessGroup | None = None,
    ignore_idx: int = -100,
    is_cg_capturable: bool = False,
) -> torch.Tensor:
    """Returns -log softmax(inp)[target], FP32, without a copy of the softmax for the backward.

    Parameters
    ----------
    inp
        logits [..., vocabulary], BF16, FP16, FP32 or FP64 (then the loss is FP64); with a group
        this rank's equal part of the vocabulary, in the order of ranks. It is not changed:
        Transformer Engine's kernels write the gradient into it
    target
        [...], int64 or int32: classes of the whole vocabulary
    label_smoothing
        0 to 1: this share of the target is spread over the vocabulary
    reduce_loss
        whether to return the mean over targets that are not ignored (NaN if there are none),
        instead of the losses [...]
    dist_process_group
        the ranks among which the vocabulary is divided; all of them must call
    ignore_idx
        targets that have no loss and give no gradient
    is_cg_capturable
        no effect: nothing here waits for the GPU

    Raises UsageError for arguments that do not fit. Two errors are only
    raised on a CPU: a class that is not in the vocabulary (on a GPU its loss is +Inf), and unequal
    parts of the vocabulary (on a GPU the loss is NaN).
    """
    _check(inp, target, label_smoothing)
    size, rank = (1, 0)
    if dist_process_group is not None:
        size, rank = dist_process_group.size(), dist_process_group.rank()
    classes = inp.size(-1) * size
    flat = target.reshape(-1).to(torch.int64)
    counts = flat != ignore_idx
    refused = None
    if not flat.is_cuda:
        wrong = flat[counts & ((flat < 0) | (flat >= classes))]
        if wrong.numel():
            expected = f"classes from 0 to {classes - 1}, or ignore_idx ({ignore_idx})"
            refused = refusal(_OWNER, "target", expected, int(wrong[0]))
    options = {
        "group": dist_process_group if size > 1 else None,
        "first": rank * inp.size(-1),
        "classes": classes,
        "refused": refused,
        "rank": rank,
    }
    losses = _Losses.apply(inp, flat, counts, float(label_smoothing), options)
    if reduce_loss:
        return losses.sum() / counts.sum()
    return losses.view(target.shape)


def _check(inp: torch.Tensor, target: torch.Tensor, label_smoothing: float) -> None:
    if not inp.is_floating_point() or inp.dim() == 0 or inp.size(-1) == 0:
        shown = f"{inp.dtype} {list(inp.shape)}"
        raise refusal(_OWNER, "inp", "floating-point logits [..., vocabulary]", shown)
    if target.shape != inp.shape[:-1] or target.dtype not in (torch.int64, torch.int32):
        expected = f"int64 or int32 {list(inp.shape[:-1])}, as inp without its last dimension"
        raise refusal(_OWNER, "target", expected, f"{target.dtype} {list(target.shape)}")
    if not 0 <= label_smoothing <= 1:
        raise refusal(_OWNER, "label_smoothing", "a number from 0 to 1", label_smoothing)


def _reduce(values: torch.Tensor, how: Any, group: dist.ProcessGroup | None) -> None:
    if group is not None:
        dist.all_reduce(values, how, group)


def _raise_refused(rank_from_1: torch.Tensor, refused: Exception | None) -> None:
    """Raises on all ranks if one rejects its targets. ``rank_from_1`` is 0 if none does."""
    if rank_from_1.is_cuda or not rank_from_1:
        return
    if refused is None:
        expected = "a class or ignore_idx on each rank of dist_process_group"
        rank = int(rank_from_1) - 1
        raise _C.UsageError(
            f"{_OWNER}: target must be {expected}, not another number on rank {rank}"
        )
    raise refused


def _compare_parts(extremes: torch.Tensor) -> torch.Tensor:
    """Returns whether all ranks have equally many classes; by the largest number and the negative
    smallest."""
    is_even = extremes.sum() == 0
    if not extremes.is_cuda and not is_even:
        most, least = (abs(int(each)) for each in extremes)
        expected = "an equal part of the vocabulary on each rank of dist_process_group"
        shown = f"{least} classes on one and {most} on another"
        raise refusal(_OWNER, "inp", expected, shown)
    return is_even


class _Losses(torch.autograd.Function):
    """The losses of the rows. The backward recomputes the softmax from the log of its sums."""

    @staticmethod
    def forward(
        context: Any,
        inp: torch.Tensor,
        target: torch.Tensor,
        counts: torch.Tensor,
        smoothing: float,
        options: dict[str, Any],
    ) -> torch.Tensor:
        logits = inp.reshape(-1, inp.size(-1))
        dtype = torch.float64 if inp.dtype == torch.float64 else torch.float32
        group, columns = options["group"], logits.size(1)
        column = target - options["first"]
        here = counts & (column >= 0) & (column < columns)
        column = column.clamp(0, columns - 1)

        # Two rows to reduce: the largest logit of each token, and the target's logit. Two columns
        # follow: the largest and the smallest part of the vocabulary (negated), and the last rank
        # that rejects its targets.
        count = logits.size(0)
        largest = logits.new_empty((2, count + 2), dtype=dtype)
        largest[0, :count] = logits.amax(1)
        own = logits.gather(1, column.unsqueeze(1)).squeeze(1).to(dtype)
        largest[1, :count] = own.masked_fill(~here, -torch.inf)
        largest[0, count], largest[1, count] = columns, -columns
        largest[:, count + 1] = 0.0 if options["refused"] is None else options["rank"] + 1.0
        _reduce(largest, dist.ReduceOp.MAX, group)
        is_divided_evenly = _compare_parts(largest[:, count])
        _raise_refused(largest[0, count + 1], options["refused"])
        top, wanted = largest[:, :count]
        sums = torch.zeros((2, count), dtype=dtype, device=logits.device)
        for rows in _blocks(logits):
            block = logits[rows].to(dtype)
            if smoothing:
                sums[1, rows] = block.sum(1)
            sums[0, rows] = block.sub(top[rows].unsqueeze(1)).exp_().sum(1)
        _reduce(sums, dist.ReduceOp.SUM, group)

        log_sum = sums[0].log().add_(top)
        losses = log_sum - wanted
        if smoothing:
            spread = log_sum - sums[1] / options["classes"]
            losses = losses * (1 - smoothing) + spread * smoothing
        context.save_for_backward(inp, column, here, counts, log_sum)
        context.smoothing, context.options = smoothing, options
        return losses.masked_fill(~counts, 0).masked_fill_(~is_divided_evenly, torch.nan)

    @staticmethod
    @once_differentiable
    def backward(context: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        inp, column, here, counts, log_sum = context.saved_tensors
        smoothing = context.smoothing
        logits = inp.reshape(-1, inp.size(-1))
        result = torch.empty_like(logits)
        grad = grad.masked_fill(~counts, 0)
        at_target = (here.to(grad.dtype) * (smoothing - 1)).unsqueeze(1)
        for rows in _blocks(logits):
            block = logits[rows].to(log_sum.dtype).sub(log_sum[rows].unsqueeze(1)).exp_()
            if smoothing:
                block.sub_(smoothing / context.options["classes"])
            block.scatter_add_(1, column[rows].unsqueeze(1), at_target[rows])
            block.mul_(grad[rows].unsqueeze(1))
            # A row that is ignored may hold NaN or Inf.
            result[rows] = block.masked_fill_(~counts[rows].unsqueeze(1), 0).to(result.dtype)
        return result.view(inp.shape), None, None, None, None


def _blocks(logits: torch.Tensor) -> list[slice]:
    """Rows of at most _BLOCK elements, one at least."""
    rows, columns = logits.shape
    step = max(1, _BLOCK // columns)
    return [slice(first, min(first + step, rows)) for first in range(0, rows, step)]
