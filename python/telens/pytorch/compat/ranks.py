"""``transformer_engine.pytorch.distributed``: gathers and reductions, recomputation and random
states by functions that frameworks call themselves."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from typing import Any
from weakref import WeakKeyDictionary

import torch

from telens import _C
from telens.debug.utils import get_distributed_world_size
from telens.pytorch.compat.missing import missing_class
from telens.pytorch.module import Module
from telens.pytorch.parallel.context_parallel import places_of_rank
from telens.pytorch.parallel.rng_tracker import all_trackers
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
    """Concatenates the ranks' tensors along their first dimension.

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
    """Adds the ranks' tensors, and returns this rank's part along the first dimension.

    Raises ShapeError if the first dimension is not divisible by the number of ranks. The second
    value is a handle if ``async_op``.
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
    """The innermost ``activation_recompute_forward`` of a thread."""

    def __init__(self) -> None:
        self.enabled = False
        self.recomputes = False
        self.scope: activation_recompute_forward | None = None


_here = _Recomputation()
# Forwards by layer that are not recomputed yet, in order. Shared by all threads: a
# backward runs on another thread than its forward.
_pending: WeakKeyDictionary[torch.nn.Module, deque[_C.RecomputationTape]] = WeakKeyDictionary()


class activation_recompute_forward(contextlib.ContextDecorator):
    """Context for the forward of a checkpointed function, and of its recomputation.

    For frameworks with their own autograd function; ``te.checkpoint`` does not need it. The
    recomputation uses the recipe, scales and routing of its forward and updates no amax. Each layer
    has a queue of forwards, and a recomputation takes the oldest one, as in a pipeline whose
    backwards run in the order of their forwards. Layers in eval mode are not queued. A forward that
    raises leaves no entry.

    Parameters
    ----------
    activation_recompute
        False: no effect
    recompute_phase
        True: the recomputation. A layer without a queued forward raises UsageError
    """

    def __init__(self, activation_recompute: bool = False, recompute_phase: bool = False) -> None:
        self._enabled = activation_recompute
        self._recomputes = recompute_phase

    def __enter__(self) -> None:
        self._before = _here.enabled, _here.recomputes, _here.scope
        _here.enabled, _here.recomputes = self._enabled, self._recomputes
        _here.scope = self if self._enabled else None
        self._running: list[tuple[torch.nn.Module, _C.RecomputationScope]] = []
        self._recorded: list[tuple[torch.nn.Module, _C.RecomputationTape]] = []
        self._hooks = []
        if self._enabled:
            register = torch.nn.modules.module
            self._hooks = [
                register.register_module_forward_pre_hook(self._enter_layer),
                register.register_module_forward_hook(self._leave_layer, always_call=True),
            ]

    def __exit__(self, kind: Any, *exception: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        _here.enabled, _here.recomputes, _here.scope = self._before
        if kind is not None:
            for module, tape in self._recorded:
                queue = _pending.get(module, deque())
                with contextlib.suppress(ValueError):
                    queue.remove(tape)

    def _enter_layer(self, module: torch.nn.Module, args: Any) -> None:
        """Records or replays an outermost layer of TELens that this thread calls inside."""
        is_layer = _here.scope is self and isinstance(module, Module) and module.training
        if not is_layer or self._running:
            return
        mode = _C.RecomputationMode.replay if self._recomputes else _C.RecomputationMode.record
        scope = _C.RecomputationScope(self._tape(module), mode)
        scope.__enter__()
        self._running.append((module, scope))

    def _leave_layer(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if _here.scope is self and self._running and self._running[-1][0] is module:
            self._running.pop()[1].__exit__(None, None, None)

    def _tape(self, module: torch.nn.Module) -> _C.RecomputationTape:
        if not self._recomputes:
            # The framework's function disables gradients, but this forward is part of a training
            # step: it updates amaxes, as it would without recomputation.
            with torch.enable_grad():
                tape = _C.RecomputationTape()
            _pending.setdefault(module, deque()).append(tape)
            self._recorded.append((module, tape))
            return tape
        queue = _pending.get(module)
        if not queue:
            raise _C.UsageError(
                f"activation_recompute_forward: a recomputation without a forward of "
                f"{type(module).__name__}; run the forward inside "
                "activation_recompute_forward(True, recompute_phase=False)"
            )
        return queue.popleft()


def is_fp8_activation_recompute_enabled() -> bool:
    """Returns whether this thread is inside ``activation_recompute_forward(True)`` and FP8."""
    return _here.enabled and _C.is_fp8_enabled()


def in_fp8_activation_recompute_phase() -> bool:
    """Returns whether this thread is inside a recomputation."""
    return _here.recomputes


def get_all_rng_states() -> dict[str, torch.Generator]:
    """Returns the generators, by name, that graphs advance, from all live trackers."""
    found: dict[str, torch.Generator] = {}
    for tracker in all_trackers:
        found |= tracker._generators
    return found
