"""Activation recomputation that keeps recipe, scales and routing of the first forward."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.utils.checkpoint

from telens import _C
from telens._names import refusal

__all__ = ["checkpoint", "checkpoint_context_fn"]

# Keywords of Transformer Engine's checkpoint that are taken with their defaults alone, and why.
_UNSUPPORTED = {
    "distribute_saved_activations": (False, "every rank keeps its own input"),
    "get_rng_state_tracker": (None, "there is one generator a device, and torch restores it"),
}


def checkpoint_context_fn() -> tuple[AbstractContextManager, AbstractContextManager]:
    """The ``context_fn`` that makes ``torch.utils.checkpoint.checkpoint`` right for our modules.

    ``torch.utils.checkpoint.checkpoint(f, x, use_reentrant=False,
    context_fn=telens.pytorch.checkpoint_context_fn)``. The recomputation uses recipe, scales and
    routing plan of its first forward, updates no amax and logs nothing twice.
    """
    tape = _C.RecomputationTape()
    return (
        _C.RecomputationScope(tape, _C.RecomputationMode.record),
        _C.RecomputationScope(tape, _C.RecomputationMode.replay),
    )


def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls ``function(*args, **kwargs)`` without keeping its activations, and again in backward.

    ``preserve_rng_state`` and ``determinism_check`` go to ``torch.utils.checkpoint.checkpoint``.
    Of Transformer Engine's own keywords, ``use_reentrant`` is without effect (both ways are this
    one here), as is ``tp_group``, which only ``distribute_saved_activations`` reads; that one and
    ``get_rng_state_tracker`` are refused but for their defaults, False and None. Every other
    keyword goes to the function.
    """
    if not callable(function):
        raise refusal("checkpoint", "function", "a function or a module", function)
    options = {
        name: kwargs.pop(name)
        for name in ("preserve_rng_state", "determinism_check")
        if name in kwargs
    }
    for name in ("use_reentrant", "tp_group"):
        kwargs.pop(name, None)
    for name, (default, advice) in _UNSUPPORTED.items():
        value = kwargs.pop(name, default)
        if value is not default:
            raise _C.UsageError(
                f"checkpoint: {name} must be {default}, not {value!r}: {advice}; leave it out"
            )
    return torch.utils.checkpoint.checkpoint(
        function,
        *args,
        use_reentrant=False,
        context_fn=checkpoint_context_fn,
        **options,
        **kwargs,
    )
