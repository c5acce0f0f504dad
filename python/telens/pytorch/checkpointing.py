"""Activation recomputation that keeps recipe, scales and routing of the first forward."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.utils.checkpoint

from telens import _C
from telens._names import refusal
from telens.pytorch.parallel.divided_activation import divide_first_tensor

__all__ = ["checkpoint", "checkpoint_context_fn"]

# Keywords that torch's checkpoint has without reentrance.
_OF_TORCH = ("preserve_rng_state", "determinism_check", "debug", "early_stop")

# run_as_te replaces torch's function by one that calls this module.
_checkpoint_of_torch = torch.utils.checkpoint.checkpoint

Contexts = tuple[AbstractContextManager, AbstractContextManager]


def checkpoint_context_fn() -> Contexts:
    """The ``context_fn`` that makes ``torch.utils.checkpoint.checkpoint`` right for our modules.

    ``torch.utils.checkpoint.checkpoint(f, x, use_reentrant=False,
    context_fn=telens.pytorch.checkpoint_context_fn)``. The recomputation uses recipe, scales and
    routing plan of its first forward, updates no amax and logs nothing twice.
    """
    return _scopes(_C.RecomputationTape())


def _scopes(tape: _C.RecomputationTape) -> Contexts:
    return (
        _C.RecomputationScope(tape, _C.RecomputationMode.record),
        _C.RecomputationScope(tape, _C.RecomputationMode.replay),
    )


def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls ``function(*args, **kwargs)`` without keeping its activations, and again in backward.

    Other keywords are passed to the function.

    Parameters
    ----------
    use_reentrant
        True: a custom autograd node, which runs the forward without a graph and requires
        ``backward()`` (not ``autograd.grad``) and an input that requires a gradient. False, the
        default here, requires neither; Transformer Engine's default is True
    get_rng_state_tracker
        a function that returns a ``CudaRNGStatesTracker``: the recomputation draws the same numbers
        from its states as the forward, and the states afterwards continue as if it had not run
    preserve_rng_state
        the same for the devices' default generators (default: True)
    context_fn, determinism_check, debug, early_stop
        arguments of ``torch.utils.checkpoint.checkpoint`` if ``use_reentrant`` is False
    distribute_saved_activations
        True: between forward and backward each rank of tp_group keeps an equal part of the first
        tensor in args, and gathers it for the recomputation with unchanged bits. All ranks must
        have the same tensor: its bits are compared in the forward for each new shape, and sums of
        them in each backward. Works with and without ``use_reentrant``; Transformer Engine ignores
        it without
    tp_group
        the group for distribute_saved_activations (default: all ranks)

    Raises UsageError for other types of arguments, and on all ranks of tp_group if their tensors
    differ.
    """
    if not callable(function):
        raise refusal("checkpoint", "function", "a function or a module", function)
    distributes = kwargs.pop("distribute_saved_activations", False)
    if type(distributes) is not bool:
        raise refusal("checkpoint", "distribute_saved_activations", "True or False", distributes)
    tp_group = kwargs.pop("tp_group", None)
    get_tracker = kwargs.pop("get_rng_state_tracker", None)
    if get_tracker is not None and not callable(get_tracker):
        raise refusal("checkpoint", "get_rng_state_tracker", "a function or None", get_tracker)
    context_fn = kwargs.pop("context_fn", None)
    reentrant = kwargs.pop("use_reentrant", False)
    options = {name: kwargs.pop(name) for name in _OF_TORCH if name in kwargs}

    if distributes:
        function, args = divide_first_tensor(function, args, tp_group)

    def contexts(tape: _C.RecomputationTape | None = None) -> Contexts:
        return _joined(
            _scopes(tape or _C.RecomputationTape()),
            () if get_tracker is None else _tracked(get_tracker()),
            () if context_fn is None else context_fn(),
        )

    if not reentrant:
        return _checkpoint_of_torch(
            function, *args, use_reentrant=False, context_fn=contexts, **options, **kwargs
        )
    preserve = options.pop("preserve_rng_state", True)
    if options or context_fn is not None:
        name = next(iter(options), "context_fn")
        raise _C.UsageError(f"checkpoint: {name} needs use_reentrant=False; leave out one of them")
    tape = _C.RecomputationTape()
    # torch does not recompute a reentrant checkpoint if no input requires a gradient.
    tape.has_backward = any(isinstance(x, torch.Tensor) and x.requires_grad for x in args)
    return _checkpoint_of_torch(
        _Twice(function, kwargs, contexts(tape)),
        *args,
        use_reentrant=True,
        preserve_rng_state=preserve,
    )


class _Twice:
    """A function that runs in one context the first time, and in another one afterwards."""

    def __init__(
        self, function: Callable[..., Any], kwargs: dict[str, Any], contexts: Contexts
    ) -> None:
        self._function = function
        self._kwargs = kwargs
        self._first, self._again = contexts
        self._ran = False

    def __call__(self, *args: Any) -> Any:
        context = self._again if self._ran else self._first
        self._ran = True
        with context:
            return self._function(*args, **self._kwargs)


def _joined(*pairs: tuple[AbstractContextManager, ...]) -> Contexts:
    """Combines several pairs of contexts to one pair; the first is the outermost."""
    first, again = _Nested(), _Nested()
    for pair in filter(None, pairs):
        first.parts.append(pair[0])
        again.parts.append(pair[1])
    return first, again


class _Nested:
    """Nested contexts, which may be entered a second time after they were left."""

    def __init__(self) -> None:
        self.parts: list[AbstractContextManager] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> None:
        with contextlib.ExitStack() as stack:
            for part in self.parts:
                stack.enter_context(part)
            self._stack = stack.pop_all()

    def __exit__(self, *exception: Any) -> bool | None:
        return self._stack.__exit__(*exception)


class _Noting:
    """Saves a tracker's states when the forward begins."""

    def __init__(self, tracker: Any) -> None:
        self.tracker = tracker
        self.states: dict[str, Any] = {}

    def __enter__(self) -> None:
        self.states = self.tracker.get_states()

    def __exit__(self, *exception: Any) -> None:
        pass


class _Taking:
    """Restores a tracker's saved states for a recomputation, and its current states afterwards."""

    def __init__(self, noted: _Noting) -> None:
        self._noted = noted
        self._present: dict[str, Any] = {}

    def __enter__(self) -> None:
        self._present = self._noted.tracker.get_states()
        self._noted.tracker.set_states(self._noted.states)

    def __exit__(self, *exception: Any) -> None:
        self._noted.tracker.set_states(self._present)


def _tracked(tracker: Any) -> Contexts:
    noted = _Noting(tracker)
    return noted, _Taking(noted)
