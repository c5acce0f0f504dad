"""Saved activations that wait for the backward in the host's memory."""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

from telens import _C
from telens._names import refusal, rejects_bools

__all__ = ["get_cpu_offload_context", "mark_not_offload"]

# Smaller tensors stay: their copies would cost more than their memory.
_LEAST_ELEMENTS = 256 * 1024

Synchronize = Callable[..., Any]


@rejects_bools
def get_cpu_offload_context(
    enabled: bool = False,
    num_layers: int = 1,
    model_layers: int = 1,
    offload_activations: bool = True,
    offload_weights: bool = False,
    double_buffering: bool = False,
    manual_synchronization: bool = False,
    retain_pinned_cpu_buffers: bool = False,
    offload_stream: torch.Stream | None = None,
) -> tuple[AbstractContextManager[Any], Synchronize]:
    """Returns a context for each layer's forward, and a function to call after it.

        context, synchronize = te.get_cpu_offload_context(True, 2, len(layers))
        for layer in layers:
            with context:
                x = layer(x)
            x = synchronize(x)

    The tensors that autograd saves in the first ``num_layers`` of ``model_layers`` layers move to
    the host. The copy of layer i starts when the next layer begins. Its device memory is released
    when layer ``model_layers - num_layers + i`` begins, and its copy back starts with the backward
    of layer ``model_layers - 1 - num_layers + i``, so that the last layers have the memory. If
    ``model_layers`` is 1, the number of layers is unknown: memory is released when the second next
    layer begins, and the copy back starts with the backward of the next layer.

    Parameters, small tensors (under 256 Ki elements), tensors with gaps between their elements
    (with a warning) and tensors passed to ``mark_not_offload`` are not moved. Neither are quantized
    operands, which layers of TELens do not save through autograd. Gradients are bit-identical. On a
    GPU, copies run on a separate stream into pinned memory; on a CPU they are copies as well, so
    that programs can be tested there.

    Parameters
    ----------
    enabled
        False: returns an empty context and an identity function, and checks nothing
    offload_activations
        must be True if enabled
    offload_weights
        no effect: parameters are not moved
    double_buffering
        no effect: each tensor that comes back gets new memory
    manual_synchronization, offload_stream
        must be at their defaults if enabled: transfers start and end with the layers
    retain_pinned_cpu_buffers
        no effect: torch caches pinned memory

    Returns
    -------
    (context, synchronize): ``synchronize(output)`` returns the output, whose backward then starts
    the copies back. Without an argument, a tensor is copied back when it is used.

    Raises UsageError for options that are not supported, and inside a debug session.
    """
    if not enabled:
        return contextlib.nullcontext(), lambda output=None: output
    for name, value in (("num_layers", num_layers), ("model_layers", model_layers)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise refusal("get_cpu_offload_context", name, "an integer from 1 on", value)
    if manual_synchronization or offload_stream is not None:
        name = "manual_synchronization" if manual_synchronization else "offload_stream"
        raise _C.UsageError(
            f"get_cpu_offload_context: {name} is given; expected its default: transfers begin and "
            "end with the layers, and no controller is returned"
        )
    if offload_weights:
        warnings.warn(
            "get_cpu_offload_context: offload_weights has no effect: parameters are not moved; "
            "omit it",
            stacklevel=2,
        )
    if not offload_activations:
        raise _C.UsageError(
            "get_cpu_offload_context: offload_activations must be True: only activations can be "
            "offloaded; or pass enabled=False"
        )
    if model_layers != 1 and num_layers > model_layers - 1:
        raise _C.UsageError(
            f"get_cpu_offload_context: num_layers is {num_layers}; expected at most "
            f"{model_layers - 1}, one less than model_layers: the last layer's backward comes at "
            "once"
        )
    if _C.debug.is_initialized():
        raise _C.UsageError(
            "get_cpu_offload_context: a debug session looks at tensors that this would move; "
            "offload in runs without one"
        )
    offloading = _Offloading(num_layers, None if model_layers == 1 else model_layers)
    return offloading, offloading.synchronize


def mark_not_offload(*tensors: torch.Tensor) -> None:
    """Keeps these tensors on their device when autograd saves them."""
    for tensor in tensors:
        tensor._telens_not_offloaded = True


class _Saved:
    """A tensor that autograd saved: on the device, on the host, or in transfer."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor: torch.Tensor | None = tensor
        self._device = tensor.device
        self._host: torch.Tensor | None = None
        self._ready: torch.Event | None = None

    def copy_to_host(self, stream: torch.Stream | None) -> None:
        """Starts the copy to the host. The device keeps the tensor until ``free``."""
        if self._host is None and self.tensor is not None:
            pinned = stream is not None
            self._host = torch.empty_like(self.tensor, device="cpu", pin_memory=pinned)
            self._ready = _copy(self._host, self.tensor, stream)

    def free(self) -> None:
        """Releases the device's tensor after its copy to the host has finished."""
        if self._host is not None:
            if self._ready is not None:
                self._ready.synchronize()
            self.tensor = None

    def copy_back(self, stream: torch.Stream | None) -> None:
        """Starts the copy back to the device."""
        if self.tensor is None:
            self.tensor = torch.empty_like(self._host, device=self._device)
            self._ready = _copy(self.tensor, self._host, stream)

    def take(self) -> torch.Tensor:
        """Returns the tensor on the device; the current stream waits for its copy."""
        self.copy_back(None)
        if self._ready is not None and self._device.type != "cpu":
            torch.accelerator.current_stream(self._device).wait_event(self._ready)
        self._host = None
        return self.tensor


def _copy(
    to: torch.Tensor, source: torch.Tensor, stream: torch.Stream | None
) -> torch.Event | None:
    """Copies, on ``stream`` if it is given. Returns the event of its end, or None on a CPU."""
    with torch.no_grad():
        if stream is None:
            to.copy_(source)
            return None
        stream.wait_stream(torch.accelerator.current_stream(stream.device))
        with stream:
            to.copy_(source, non_blocking=True)
            return stream.record_event()


class _Offloading:
    """The layers of a model, from its first forward to the end of its backward."""

    def __init__(self, offloaded: int, layers: int | None) -> None:
        self._offloaded = offloaded
        # Layers until device memory is released; the copy back starts one layer earlier.
        self._distance = 2 if layers is None else layers - offloaded
        self._layers = layers
        self._begin()
        self._stream: torch.Stream | None = None
        # Frameworks read whether a forward runs inside.
        self.inside_context = False

    def _begin(self) -> None:
        self._layer = -1
        # Weak: only the autograd graph owns the tensors, and released ones are not moved.
        self._saved: list[list[weakref.ref[_Saved]]] = []
        self._by_place: dict[tuple, weakref.ref[_Saved]] = {}
        self._in_backward = False
        self._depth = 0

    def __enter__(self) -> None:
        self._depth += 1
        self.inside_context = True
        if self._depth == 1:
            self._begin_layer()
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
        self._hooks.__enter__()

    def __exit__(self, *exception: Any) -> None:
        self._hooks.__exit__(*exception)
        self._depth -= 1
        self.inside_context = self._depth > 0

    def _begin_layer(self) -> None:
        if self._in_backward or self._layer + 1 == self._layers:
            depth = self._depth
            self._begin()
            self._depth = depth
        self._layer += 1
        self._saved.append([])
        self._by_place.clear()
        for saved in self._of_layer(self._layer - 1):
            saved.copy_to_host(self._stream)
        for saved in self._of_layer(self._layer - self._distance):
            saved.free()

    def _of_layer(
        self, layer: int, saved: list[list[weakref.ref[_Saved]]] | None = None
    ) -> Iterator[_Saved]:
        """Yields the saved tensors of a layer that autograd still holds."""
        layers = self._saved if saved is None else saved
        if 0 <= layer < min(self._offloaded, len(layers)):
            yield from (each for ref in layers[layer] if (each := ref()) is not None)

    def _pack(self, tensor: torch.Tensor) -> Any:
        if self._layer >= self._offloaded or not _is_offloaded(tensor):
            return tensor
        if tensor.device.type != "cpu" and self._stream is None:
            self._stream = torch.Stream(tensor.device)
        # A tensor that is saved twice is moved once.
        place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor._version)
        known = self._by_place.get(place)
        saved = None if known is None else known()
        if saved is None:
            saved = _Saved(tensor.detach())
            self._by_place[place] = weakref.ref(saved)
            self._saved[-1].append(self._by_place[place])
        return saved

    @staticmethod
    def _unpack(saved: Any) -> torch.Tensor:
        return saved.take() if isinstance(saved, _Saved) else saved

    def synchronize(self, output: Any = None) -> Any:
        """Registers the copies back with the backward of ``output``; call it after each layer."""
        tensors = output if isinstance(output, tuple | list) else (output,)
        nodes = [each.grad_fn for each in tensors if getattr(each, "grad_fn", None) is not None]
        if output is not None and not nodes and torch.is_grad_enabled():
            raise refusal(
                "get_cpu_offload_context: synchronize",
                "output",
                "a layer's output that requires a gradient",
                output,
            )
        layer, saved = self._layer, self._saved
        for node in nodes[:1]:
            node.register_prehook(lambda gradients: self._begin_backward(layer, saved))
        return output

    def _begin_backward(self, layer: int, saved: list[list[weakref.ref[_Saved]]]) -> None:
        if saved is self._saved:
            self._in_backward = True
        for each in self._of_layer(layer - self._distance + 1, saved):
            each.copy_back(self._stream)


def _is_offloaded(tensor: torch.Tensor) -> bool:
    base = tensor if tensor._base is None else tensor._base
    is_parameter = isinstance(tensor, torch.nn.Parameter) or isinstance(base, torch.nn.Parameter)
    stays = getattr(tensor, "_telens_not_offloaded", False)
    if is_parameter or stays or type(tensor) is not torch.Tensor:
        return False
    if tensor.numel() < _LEAST_ELEMENTS:
        return False
    if torch.empty_like(tensor, device="meta").stride() != tensor.stride():
        warnings.warn(
            f"get_cpu_offload_context: a tensor of shape {tuple(tensor.shape)} has gaps between "
            "its elements and is not moved",
            stacklevel=2,
        )
        return False
    return True
