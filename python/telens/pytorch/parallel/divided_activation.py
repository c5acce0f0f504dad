"""A tensor of which each rank of a group keeps a part between a forward and its backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from telens import _C
from telens._names import refusal

__all__: list[str] = []

_ARGUMENT = "distribute_saved_activations"


class DividedActivation:
    """A tensor that is equal on all ranks of a group: whole the first time, gathered afterwards.

    A rank keeps ``ceil(elements / ranks)`` elements, copied in memory order; the last ones are
    padded. The gathered tensor has the bits and strides of the original, which must be dense.
    """

    def __init__(self, whole: torch.Tensor, group: dist.ProcessGroup) -> None:
        self._group = group
        self._sizes = whole.shape
        whole = whole.detach().resolve_conj().resolve_neg()
        whole = whole if _fills_its_memory(whole) else whole.contiguous()
        self._strides = whole.stride()
        flat = whole.as_strided((whole.numel(),), (1,))
        self._sums = _word_sums(flat)
        count = -(-flat.numel() // group.size())
        own = flat[group.rank() * count : (group.rank() + 1) * count]
        self._part = flat.new_zeros(count)
        self._part[: own.numel()].copy_(own)
        self._whole: torch.Tensor | None = whole

    @property
    def kept_bytes(self) -> int:
        """The size of this rank's part."""
        return self._part.untyped_storage().nbytes()

    def take(self) -> torch.Tensor:
        """Returns the whole tensor. The first call returns the original and releases it."""
        whole, self._whole = self._whole, None
        return self._gather() if whole is None else whole

    def _gather(self) -> torch.Tensor:
        whole = self._part.new_empty(self._part.numel() * self._group.size())
        if whole.numel():
            # Sent as bytes: not every backend supports every dtype.
            sent, got = self._part.view(torch.uint8), whole.view(torch.uint8)
            dist.all_gather_into_tensor(got, sent, group=self._group)
            self._check_all_had_it()
        return whole.as_strided(self._sizes, self._strides).detach()

    def _check_all_had_it(self) -> None:
        """Raises UsageError if the tensors differed: their parts do not form any rank's tensor."""
        if self._sums.is_cuda and torch.cuda.is_current_stream_capturing():
            return  # nothing can be read in a capture; the warm-up before it has compared
        sums = self._sums.new_empty(self._group.size() * self._sums.numel())
        dist.all_gather_into_tensor(sums, self._sums, group=self._group)
        sums = sums.view(self._group.size(), -1)
        if not (sums == sums[0]).all():  # the host waits for a GPU here
            rank = int((sums != sums[0]).any(1).nonzero()[0])
            raise _C.UsageError(
                f"checkpoint: {_ARGUMENT} requires the same tensor on all ranks of tp_group, "
                f"but the tensor of rank {rank} differs from rank 0, of shape "
                f"{list(self._sizes)}; omit it if each rank has a separate part, as under "
                "sequence_parallel"
            )


def _word_sums(flat: torch.Tensor) -> torch.Tensor:
    """Returns two sums of a vector's bits, over all bits and over the first half, to compare
    vectors."""
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32}.get(flat.element_size(), torch.int64)
    bits = flat.view(words)
    half = bits[: bits.numel() // 2]
    return torch.stack([bits.sum(dtype=torch.int64), half.sum(dtype=torch.int64)])


def divide_first_tensor(
    function: Callable[..., Any], args: tuple[Any, ...], tp_group: Any
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Returns (function, args) with the same result, which keep only a part of the first tensor in
    args.

    Without gradients, or in a single-rank group, nothing is divided. Raises UsageError for a value
    that is not a group, for args without a plain tensor, and if ranks have different tensors.
    """
    group = _settle_group(tp_group)
    index = next((i for i, each in enumerate(args) if isinstance(each, torch.Tensor)), None)
    if index is None:
        raise _C.UsageError(
            f"checkpoint: {_ARGUMENT} divides the first tensor among the function's positional "
            "arguments, and there is none; leave it out"
        )
    given = args[index]
    if type(given) not in (torch.Tensor, torch.nn.Parameter) or given.layout != torch.strided:
        raise _C.UsageError(
            f"checkpoint: {_ARGUMENT} divides a plain strided tensor, not a "
            f"{type(given).__name__} of layout {given.layout}; leave it out"
        )
    if group.size() == 1 or not torch.is_grad_enabled():
        return function, args
    _C.compare_activation(f"keeps a part of {given.dtype} {list(given.shape)}", given, group)
    divided = DividedActivation(given, group)

    def of_whole(*args: Any, **kwargs: Any) -> Any:
        whole = _Whole.apply(args[index], divided)
        return function(*args[:index], whole, *args[index + 1 :], **kwargs)

    return of_whole, (*args[:index], _Placeholder.apply(given), *args[index + 1 :])


def _settle_group(tp_group: Any) -> dist.ProcessGroup:
    if tp_group is None and dist.is_available() and dist.is_initialized():
        tp_group = dist.group.WORLD
    if tp_group is None:
        raise _C.UsageError(
            f"checkpoint: {_ARGUMENT}=True without a tp_group is for all ranks, and "
            "torch.distributed is not initialized; call init_process_group first, or leave it out"
        )
    if not isinstance(tp_group, dist.ProcessGroup):
        expected = "a process group of this rank, or None for all ranks"
        raise refusal("checkpoint", "tp_group", expected, tp_group)
    return tp_group


def _fills_its_memory(x: torch.Tensor) -> bool:
    """Returns whether the elements occupy their memory without overlaps and gaps."""
    elements = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size == 1:
            continue
        if stride != elements:
            return False
        elements *= size
    return True


class _Placeholder(torch.autograd.Function):
    """Represents a tensor in the graph and in the checkpoint, with one element of memory."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x.new_empty(()).expand(x.shape).detach()

    @staticmethod
    def backward(context: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


class _Whole(torch.autograd.Function):
    """The tensor that a placeholder represents."""

    @staticmethod
    def forward(
        context: Any, placeholder: torch.Tensor, divided: DividedActivation
    ) -> torch.Tensor:
        return divided.take()

    @staticmethod
    def backward(context: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None
