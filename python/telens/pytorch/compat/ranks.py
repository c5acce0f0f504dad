"""``transformer_engine.pytorch.distributed``: gathers and reductions, recomputation and random
states by functions that frameworks call themselves."""

from __future__ import annotations

import contextlib
import itertools
import threading
from typing import Any

import torch

from telens import _C
from telens.debug.utils import get_distributed_world_size
from telens.pytorch.compat.missing import missing_class
from telens.pytorch.context_places import places_of_rank
from telens.pytorch.rng_tracker import all_trackers
from telens.pytorch.tensor import QuantizedTensor, Quantizer

__all__ = [
    "activation_recompute_forward",
    "gather_along_first_dim",
    "get_all_rng_states",
    "in_fp8_activation_recompute_phase",
    "is_fp8_activation_recompute_enabled",
    "reduce_scatter_along_first_dim",
    "thd_get_partitioned_indices",
]

_NVFP4AllGatherAsyncHandle = missing_class(
    "transformer_engine.pytorch.distributed._NVFP4AllGatherAsyncHandle",
    "gather_along_first_dim returns torch's handles",
)

Group = torch.distributed.ProcessGroup


def gather_along_first_dim(
    inp: torch.Tensor,
    process_group: Group | None,
    async_op: bool = False,
    quantizer: Quantizer | None = None,
    output_tensor: torch.Tensor | None = None,
    external_coalescing: bool = False,
) -> tuple[torch.Tensor, torch.distributed.Work | None]:
    """Concatenates the tensors of all ranks along their first dimension.

    Quantized tensors are gathered in high precision. A ``quantizer`` quantizes the result, which is
    then complete when the function returns. ``external_coalescing`` has no effect.

    Returns
    -------
    (tensor, handle to wait for): no handle unless ``async_op``, and none for one rank
    """
    values = inp.dequantize() if isinstance(inp, QuantizedTensor) else inp
    ranks = get_distributed_world_size(process_group)
    if ranks == 1:
        if quantizer is None or isinstance(inp, QuantizedTensor):
            return inp, None
        return quantizer(values), None
    whole = output_tensor
    if whole is None:
        whole = values.new_empty((values.size(0) * ranks, *values.shape[1:]))
    handle = torch.distributed.all_gather_into_tensor(
        whole, values.contiguous(), group=process_group, async_op=async_op and quantizer is None
    )
    return (whole if quantizer is None else quantizer(whole)), handle


def reduce_scatter_along_first_dim(
    inp: torch.Tensor,
    tp_group: Group | None,
    async_op: bool = False,
    output: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.distributed.Work | None]:
    """Adds the tensors of all ranks, and returns this rank's part along the first dimension.

    Raises ShapeError for a first dimension that the ranks cannot divide. The second value is a
    handle if ``async_op``.
    """
    ranks = get_distributed_world_size(tp_group)
    if ranks == 1:
        return inp, None
    if inp.size(0) % ranks != 0:
        raise _C.ShapeError(
            f"reduce_scatter_along_first_dim: the first dimension is {inp.size(0)}; expected a "
            f"multiple of {ranks} ranks"
        )
    if output is None:
        output = inp.new_empty((inp.size(0) // ranks, *inp.shape[1:]))
    handle = torch.distributed.reduce_scatter_tensor(
        output, inp.contiguous(), group=tp_group, async_op=async_op
    )
    return output, handle


def thd_get_partitioned_indices(
    cu_seqlens: torch.Tensor, total_tokens: int, world_size: int, rank: int
) -> torch.Tensor:
    """Returns which of packed tokens a rank of context parallelism has, int32
    [total_tokens / world_size].

    ``cu_seqlens`` [sequences + 1] has 0 and the sums of the lengths, each a multiple of
    2 * world_size. Raises ShapeError for others, and unless the last sum is ``total_tokens``.
    """
    sums = cu_seqlens.tolist()
    if sums[-1] != total_tokens:
        raise _C.ShapeError(
            f"thd_get_partitioned_indices: the sequences of cu_seqlens have {sums[-1]} tokens; "
            f"expected total_tokens={total_tokens}"
        )
    parts = [
        begin + places_of_rank(end - begin, world_size, rank)
        for begin, end in itertools.pairwise(sums)
    ]
    return torch.cat(parts).to(cu_seqlens.device, torch.int32)


class _Recomputation(threading.local):
    enabled = False
    recomputes = False


_here = _Recomputation()
# Of forwards that are not recomputed yet, the newest last. Of the process: a backward runs on
# another thread than its forward.
_waiting: list[_C.RecomputationTape] = []


class activation_recompute_forward(contextlib.ContextDecorator):
    """Context of the forward of a checkpointed function, and of its recomputation.

    For frameworks with an autograd function of their own; ``te.checkpoint`` needs none. The
    recomputation uses recipe, scales and routing of its forward and updates no amax. It belongs to
    the newest forward of this process that is not recomputed yet, as in a backward over one
    micro-batch; another layer than that forward's is a UsageError.

    Parameters
    ----------
    activation_recompute
        False: no effect
    recompute_phase
        True: the recomputation
    """

    def __init__(self, activation_recompute: bool = False, recompute_phase: bool = False) -> None:
        self._enabled = activation_recompute
        self._recomputes = recompute_phase

    def __enter__(self) -> None:
        self._before = _here.enabled, _here.recomputes
        self._scope = contextlib.nullcontext()
        if self._enabled:
            mode = _C.RecomputationMode.replay if self._recomputes else _C.RecomputationMode.record
            self._scope = _C.RecomputationScope(self._tape(), mode)
        _here.enabled, _here.recomputes = self._enabled, self._recomputes
        self._scope.__enter__()

    def _tape(self) -> _C.RecomputationTape:
        if not self._recomputes:
            tape = _C.RecomputationTape()
            _waiting.append(tape)
            return tape
        if not _waiting:
            raise _C.UsageError(
                "activation_recompute_forward: a recomputation without a forward; run the forward "
                "inside activation_recompute_forward(True, recompute_phase=False)"
            )
        return _waiting.pop()

    def __exit__(self, *exception: Any) -> None:
        self._scope.__exit__(*exception)
        _here.enabled, _here.recomputes = self._before


def is_fp8_activation_recompute_enabled() -> bool:
    """Returns whether this thread is inside ``activation_recompute_forward(True)`` and FP8."""
    return _here.enabled and _C.is_fp8_enabled()


def in_fp8_activation_recompute_phase() -> bool:
    """Returns whether this thread is inside a recomputation."""
    return _here.recomputes


def get_all_rng_states() -> dict[str, torch.Generator]:
    """Returns the generators, by name, that graphs advance: those of all ``CudaRNGStatesTracker``s
    that live."""
    found: dict[str, torch.Generator] = {}
    for tracker in all_trackers:
        found |= tracker._generators
    return found
