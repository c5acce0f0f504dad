"""A watched module or attention, and its place in the session."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from telens import _C
from telens.attach.edges import (
    Edge,
    computed_first,
    find_edges,
    newest_node,
    on_gradient,
    source_of,
)
from telens.attach.modules import Weight, own_tensors

__all__ = ["Call", "Layer", "has_kernels", "local_part"]

_LEAST_CAPABILITY = (8, 0)  # as in core/kernels/cuda/device.cpp


@functools.cache
def has_kernels(device: torch.device) -> bool:
    """Returns whether this build computes statistics of tensors on the device."""
    if device.type != "cuda":
        return device.type == "cpu"
    built = torch.device(_C.default_device(True)).type == "cuda"
    return built and torch.cuda.get_device_capability(device) >= _LEAST_CAPABILITY


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor without its graph; of a DTensor, this rank's part.

    The result is on the host if the device of the tensor has no kernels.
    """
    tensor = tensor.detach()
    tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return tensor if has_kernels(tensor.device) else tensor.cpu()


class Layer:
    """One module or attention that is shown to the features of the session.

    Parameters
    ----------
    name
        its name in the run
    attention
        whether it has the tensors of an attention (``query``, ...) or of a module (``weight``, ...)
    """

    def __init__(self, name: str, attention: bool = False) -> None:
        self.name = name
        self.calls = _C.WatchedLayer(name, attention)
        self.weight_shown = -1  # the tick in which the weight was shown last
        self.weight: Weight | None = None
        self.call: Call | None = None  # the running forward
        # Of low-precision layers: how to convert the casts of the running forward, by tensor name,
        # and whether the backward casts the gradient.
        self.casts: dict[str, Callable[[], Any]] = {}
        self.casts_gradient = False
        # Of a compiled forward: whether it is shown, and the hook of the weight's gradient.
        self.compiled_call: bool | None = None
        self.weight_hook: Any = None

    def asks_for(self, tensor_name: str) -> bool:
        """Returns True if a feature asked for the tensor in the newest forward."""
        return self.calls.inspect_tensor_enabled(tensor_name)

    def show(
        self, tensor_name: str, tensor: torch.Tensor, rowwise: Any = None, columnwise: Any = None
    ) -> None:
        """Shows a tensor, and its quantized copies, to the features that asked for it."""
        if not self.asks_for(tensor_name):
            return
        if not has_kernels(tensor.device):
            rowwise = columnwise = None  # the casts are on that device
        tensor = local_part(tensor)
        if tensor.layout != torch.strided:  # such as the sparse gradient of an embedding
            return
        if tensor.dtype == torch.float64:
            tensor = tensor.float()  # the statistics have no kernels for FP64
        if tensor.is_floating_point():
            self.calls.inspect_tensor(
                tensor_name=tensor_name,
                tensor=tensor,
                rowwise_quantized_tensor=rowwise,
                columnwise_quantized_tensor=columnwise,
                cast_elsewhere=True,
            )

    def show_operand(self, tensor_name: str, tensor: torch.Tensor) -> None:
        """Shows an input or weight together with its cast in the running forward."""
        cast = self.casts.get(tensor_name)
        if cast is None or not self.asks_for(tensor_name):
            self.show(tensor_name, tensor)
        else:
            self.show(tensor_name, tensor, cast())

    def show_weight(self, weight: torch.Tensor, tick: int) -> None:
        """Shows the weight once in an iteration."""
        if self.weight_shown == tick or not self.asks_for("weight"):
            return
        self.weight_shown = tick
        self.show_operand("weight", weight if self.weight is None else self.weight.decoded(weight))

    def forget_forward(self) -> None:
        """Drops what was kept of a forward that has ended."""
        self.casts.clear()
        if self.weight is not None:
            self.weight.forget()

    def shower(self, tensor_name: str, guard: Callable[[Callable], Callable]) -> Callable:
        """Returns a hook that shows its argument as this tensor."""

        def show(tensor: torch.Tensor) -> None:
            self.show(tensor_name, tensor)

        return guard(show)


class Call:
    """One forward of a module, and its backward.

    Parameters
    ----------
    layer
        the module
    inputs
        its arguments, before the module could change them in place
    first
        False in a recomputation for a checkpoint: its forward has been shown
    """

    def __init__(self, layer: Layer, inputs: Any, first: bool) -> None:
        self._layer = layer
        self._first = first
        tensors = [*own_tensors(inputs)]
        self._floor = newest_node(tensors)
        self._source: Edge | None = None
        if tensors:
            self._source = source_of(tensors[0])
            if first:
                layer.show_operand("activation", tensors[0])

    def finish(self, output: Any, tick: int, guard: Callable[[Callable], Callable]) -> None:
        """Shows weight and output, and their gradients when the backward computes them."""
        layer = self._layer
        weight = None if layer.weight is None else layer.weight.take()
        result = next(own_tensors(output), None)
        if self._first:
            if weight is not None:
                layer.show_weight(weight, tick)
            if result is not None:
                layer.show("output", result)
        if result is None or not result.requires_grad:
            return
        if layer.asks_for("gradient") and not layer.casts_gradient:
            computed_first(result, self._floor).register_hook(layer.shower("gradient", guard))
        sources = {"dgrad": self._source, "wgrad": None if weight is None else source_of(weight)}
        for tensor_name, source in sources.items():
            if source is None or not layer.asks_for(tensor_name):
                continue
            edges = find_edges(result, source, self._floor)
            if edges:
                on_gradient(edges, layer.shower(tensor_name, guard))
