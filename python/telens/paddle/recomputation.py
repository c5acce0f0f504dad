"""Activation recomputation that keeps recipe, scales and routing of the first forward."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import paddle
import torch
from paddle.distributed.fleet.utils import recompute as fleet_recompute

from telens import _C
from telens._names import refusal

__all__ = ["recompute"]


def recompute(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call ``function(*args, **kwargs)`` without keeping its activations, and again in backward.

    Wraps ``paddle.distributed.fleet.utils.recompute`` and accepts its arguments, for example
    ``preserve_rng_state``. The recomputation uses the recipe, scales and routing plan of the first
    forward, updates no amax and logs nothing twice. ``use_reentrant`` must be True, Paddle's
    default: with False, Paddle keeps the tensors that our layers save, so it saves no memory.
    """
    if not callable(function):
        raise refusal("recompute", "function", "a function or a paddle.nn.Layer", function)
    if kwargs.pop("use_reentrant", True) is not True:
        raise refusal("recompute", "use_reentrant", "True", False)
    return fleet_recompute(_run_twice(function), *args, **kwargs)


def _run_twice(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, recording its first run and replaying the record in later runs."""
    # The tape and its scopes distinguish training and evaluation by torch's gradient mode.
    with torch.set_grad_enabled(paddle.is_grad_enabled()):
        tape = _C.RecomputationTape()
    mode = _C.RecomputationMode.record

    # Paddle reads the signature to assign keyword arguments.
    @functools.wraps(function.forward if isinstance(function, paddle.nn.Layer) else function)
    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal mode
        present, mode = mode, _C.RecomputationMode.replay
        with (
            torch.set_grad_enabled(paddle.is_grad_enabled()),
            _C.RecomputationScope(tape, present),
        ):
            return function(*args, **kwargs)

    return run
