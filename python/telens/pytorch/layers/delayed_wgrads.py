"""Delayed weight gradients: methods that modules with ``delay_wgrad_compute`` have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from telens import _C
from telens._names import refusal

__all__: list[str] = []

_HOOKS = "_telens_wgrad_hooks"


class WeightGradStore:
    """The deferred gradients of a layer's backwards, under Transformer Engine's name."""

    def __init__(self, layer: WithDelayedWgrads) -> None:
        self._layer = layer

    def delay_wgrad_compute(self) -> bool:
        """Returns whether the backward defers weight gradients."""
        return self._layer.need_backward_dw()

    def is_empty(self) -> bool:
        """Returns whether no backward has deferred weight gradients."""
        return not self._layer._telens_adapter.has_delayed_wgrads()


class WithDelayedWgrads:
    """Transformer Engine's methods for schedules that compute weight gradients later."""

    @property
    def wgrad_store(self) -> WeightGradStore:
        """The pending weight gradients."""
        return WeightGradStore(self)

    def need_backward_dw(self) -> bool:
        """Whether the backward defers weight gradients to ``backward_dw``."""
        return bool(self.__dict__.get("delay_wgrad_compute"))

    def backward_dw(self) -> None:
        """Computes and accumulates the weight gradients of the oldest backward that deferred them.

        Gradients are accumulated as by the backward: into ``.grad``, without the weights' hooks
        (which the backward has run without a gradient), or into ``main_grad`` under
        ``fuse_wgrad_accumulation``. Biases and norms got their gradients in the backward. Layers
        inside follow, the last one first. Does nothing without ``delay_wgrad_compute``. Raises
        UsageError if nothing is pending.
        """
        if self.need_backward_dw():
            self._make_weight_gradients()
            self._call_wgrad_hooks()

    def _layers_inside(self) -> list[WithDelayedWgrads]:
        return [each for each in self.modules() if isinstance(each, WithDelayedWgrads)]

    def _make_weight_gradients(self) -> None:
        made = [each._telens_adapter.backward_dw() for each in reversed(self._layers_inside())]
        if not any(made):
            raise _C.UsageError(
                f"{self.name or type(self).__name__}: backward_dw makes the gradients that one "
                "backward left, and none is left; call it once after each backward"
            )

    def _call_wgrad_hooks(self) -> None:
        for each in self._layers_inside():
            for hook in each.__dict__.get(_HOOKS, ()):
                hook()

    def register_wgrad_accumulation_and_reduce_hooks(self, hook: Callable[[], Any]) -> None:
        """Registers ``hook()`` to be called after each ``backward_dw``, for Megatron-LM's
        reductions."""
        if not callable(hook):
            owner = f"{type(self).__name__}.register_wgrad_accumulation_and_reduce_hooks"
            raise refusal(owner, "hook", "a function", hook)
        self.__dict__.setdefault(_HOOKS, []).append(hook)
