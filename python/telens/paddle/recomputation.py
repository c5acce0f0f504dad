"""Activation recomputation that keeps recipe, scales and routing of the first forward."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import paddle
from paddle.distributed.fleet.utils import recompute as fleet_recompute

from telens import _C
from telens._names import refusal

__all__ = ["recompute"]


def recompute(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls ``function(*args, **kwargs)`` without keeping its activations, and again in backward.

    A wrapper of ``paddle.distributed.fleet.utils.recompute``, which takes ``preserve_rng_state``
    and the like. The recomputation uses recipe, scales and routing plan of the first forward,
    updates no amax and logs nothing twice. ``use_reentrant`` must be True,
    Paddle's default: its other way keeps what our layers save, and so no memory.
    """
    if not callable(function):
        raise refusal("recompute", "function", "a function or a paddle.nn.Layer", function)
    if kwargs.pop("use_reentrant", True) is not True:
        raise refusal("recompute", "use_reentrant", "True", False)
    return fleet_recompute(_run_twice(function), *args, **kwargs)


def _run_twice(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose first run is written down and whose later runs follow it."""
    tape = _C.RecomputationTape()
    mode = _C.RecomputationMode.record

    # Paddle reads the signature, to put keywords into their places.
    @functools.wraps(function.forward if isinstance(function, paddle.nn.Layer) else function)
    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal mode
        present, mode = mode, _C.RecomputationMode.replay
        with _C.RecomputationScope(tape, present):
            return function(*args, **kwargs)

    return run
