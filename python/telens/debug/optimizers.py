"""Records an optimizer's learning rate, gradient norm and update size with step hooks."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch

from telens import _C
from telens._names import rejects_bools
from telens.debug import arguments

__all__ = ["watch_optimizer"]


class _Handle:
    """A handle for several hooks; ``remove()`` removes them."""

    def __init__(self, hooks: Iterable[Any]) -> None:
        self._hooks = list(hooks)

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Returns this rank's part of a sharded tensor."""
    tensor = tensor.detach()
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _norms(groups: Iterable[Iterable[torch.Tensor]]) -> list[float]:
    """Returns the norm over the elements of a group, for every group. Synchronizes once per
    device."""
    by_device: dict[torch.device, list[tuple[int, torch.Tensor]]] = {}
    count = 0
    for group, tensors in enumerate(groups):
        count = group + 1
        for each in tensors:
            norm = torch.linalg.vector_norm(each, dtype=torch.float32)
            by_device.setdefault(norm.device, []).append((group, norm))
    squares = [0.0] * count
    for norms in by_device.values():
        values = torch.stack([norm for _, norm in norms]).cpu().double().tolist()
        for (group, _), value in zip(norms, values, strict=True):
            squares[group] += value * value
    return [math.sqrt(each) for each in squares]


class _Watch:
    """Reads the gradients before a step, and the weights before and after it."""

    def __init__(self, prefix: str, every: int) -> None:
        self.prefix = prefix
        self.every = every
        self.steps = 0
        self.before: list[tuple[torch.Tensor, torch.Tensor]] = []

    def record(self, name: str, value: float) -> None:
        _C.debug.record(self.prefix + name, float(value))

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        self.before = []
        if not _C.debug.is_initialized():
            return
        due = self.steps % self.every == 0
        self.steps += 1
        self.record("lr", optimizer.param_groups[0]["lr"])
        if not due:
            return
        trained = [p for group in optimizer.param_groups for p in group["params"]]
        trained = [p for p in trained if p.grad is not None]
        dense = [p.grad for p in trained if not p.grad.is_sparse]
        (size,) = _norms([(_local(each) for each in dense)])
        self.record("grad_norm", size)
        self.before = [(p, _local(p).clone()) for p in trained]

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        before, self.before = self.before, []
        if not before or not _C.debug.is_initialized():
            return
        # Computes one difference at a time, so that a step holds one copy of the weights instead of
        # two.
        size, update = _norms([(old for _, old in before), (_local(p) - old for p, old in before)])
        if size > 0:
            self.record("update_to_weight", update / size)


def _harmless(call: Callable, hooks: list[Any]) -> Callable:
    """Wraps a call so that a failure ends the recording, but never the training."""

    def hook(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        try:
            with torch.no_grad():
                call(optimizer)
        except Exception as error:
            _Handle(hooks).remove()
            warnings.warn(
                f"debug.watch_optimizer: no steps are watched any more: {error}", stacklevel=2
            )

    return hook


@rejects_bools
def watch_optimizer(optimizer: torch.optim.Optimizer, every: int = 10, name: str = "") -> _Handle:
    """Records numbers about an optimizer's steps in the run, as ``debug.record`` does.

    Records ``lr`` of the first parameter group in each step. Every ``every`` steps it also records
    ``grad_norm``, the norm of the gradients before the step, and ``update_to_weight``, the norm of
    the change over the norm of the weights before it. On a rank that holds a part of the weights
    both refer to that part. Such a step synchronizes with the device twice and keeps a copy of the
    weights until its end. ``telens diagnose`` recognizes the learning rate as a cause under any
    ``name``.

    Parameters
    ----------
    optimizer
        any optimizer of torch, or with ``register_step_pre_hook`` and ``register_step_post_hook``
    every
        steps from one measurement to the next; 1 in a run that looks for a fault
    name
        prefix of the recorded names, as in ``name.lr``, for programs with several optimizers

    Returns
    -------
    a handle whose ``remove()`` ends the recording; nothing is recorded outside of a session

    Raises
    ------
    telens.UsageError
        if ``optimizer`` does not support step hooks, or ``every`` is not a number from 1 on
    """
    call = "debug.watch_optimizer"
    if not callable(getattr(optimizer, "register_step_pre_hook", None)):
        raise arguments.refusal(call, "optimizer", "an optimizer of torch", optimizer)
    if arguments.index(call, "every", every) < 1:
        raise arguments.refusal(call, "every", "a number of steps from 1 on", every)
    prefix = arguments.text(call, "name", name, empty=True)
    watch = _Watch(f"{prefix}." if prefix else "", every)
    hooks: list[Any] = []
    hooks.append(optimizer.register_step_pre_hook(_harmless(watch.before_step, hooks)))
    hooks.append(optimizer.register_step_post_hook(_harmless(watch.after_step, hooks)))
    return _Handle(hooks)
