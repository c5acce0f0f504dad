"""Weights' gradients of graphed modules with ``delay_wgrad_compute``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from telens import _C
from telens.pytorch.delayed_wgrads import WithDelayedWgrads

__all__ = ["WeightGradients"]


class WeightGradients:
    """Those that the backward of a module, or of modules inside, leaves to ``backward_dw``."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._modules = _find_outermost(module)
        self._parameters = [p for each in self._modules for p in each.parameters()]

    def __bool__(self) -> bool:
        return bool(self._modules)

    def may_be_left(self, parameter: torch.Tensor) -> bool:
        """Whether the backward may return no gradient of this parameter."""
        return any(each is parameter for each in self._parameters)

    def make(self) -> None:
        """Makes those that the oldest backward left, and adds them up, as ``backward_dw`` does."""
        for each in reversed(self._modules):
            each._make_weight_gradients()

    def call_hooks(self) -> None:
        """Calls what ``register_wgrad_accumulation_and_reduce_hooks`` was given."""
        for each in reversed(self._modules):
            each._call_wgrad_hooks()

    @contextlib.contextmanager
    def apart(self) -> Iterator[list[tuple[torch.Tensor, torch.Tensor]]]:
        """``.grad`` keeps what it has; the list gets what was made inside, by parameter."""
        kept = [each.grad for each in self._parameters]
        made: list[tuple[torch.Tensor, torch.Tensor]] = []
        for each in self._parameters:
            each.grad = None
        try:
            yield made
            made += [(each, each.grad) for each in self._parameters if each.grad is not None]
        finally:
            for each, gradient in zip(self._parameters, kept, strict=True):
                each.grad = gradient

    def check_hooks(self, name: str) -> None:
        """Raises UsageError for hooks of weights, which a capture would call and a replay not."""
        for each in self._parameters:
            if each._backward_hooks or getattr(each, "_post_accumulate_grad_hooks", None):
                raise _C.UsageError(
                    f"make_graphed_callables: a parameter of {name} has hooks, and with "
                    "delay_wgrad_compute=True a graph would call them once; register them "
                    "afterwards"
                )


def _find_outermost(module: torch.nn.Module) -> list[WithDelayedWgrads]:
    """A module's ``backward_dw`` is that of those inside too."""
    if isinstance(module, WithDelayedWgrads) and module.need_backward_dw():
        return [module]
    return [found for each in module.children() for found in _find_outermost(each)]
