"""The seven calls for self-instrumented layers: ``debug.transformer_engine.<call>``."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import torch

from telens import _C
from telens.debug import arguments

__all__ = ["GEMMS", "TENSORS", "Answer", "LayerCalls"]

GEMMS = ("fprop", "dgrad", "wgrad")
# The GEMM operands of a layer, each with the GEMMs that use it.
_FEEDS = {
    "activation": ("fprop", "wgrad"),
    "weight": ("fprop", "dgrad"),
    "gradient": ("dgrad", "wgrad"),
}
TENSORS = (*_FEEDS, "output", "wgrad", "dgrad")


class Answer(tuple):
    """The result of a routing call: the pair (enabled, next iteration to query).

    Its truth value is ``enabled``; a plain pair would always be true.
    """

    def __new__(cls, enabled: bool, next_iteration: int) -> Answer:
        return super().__new__(cls, (enabled, next_iteration))

    def __bool__(self) -> bool:
        return self[0]


class LayerCalls:
    """Queries and reports of self-instrumented code for a layer name that it chooses.

    Calls refer to the running iteration unless they name another; the session then switches to it
    during the call. Features are queried once per layer and iteration, as this package's layers do
    at the start of a forward. Routing calls return ``(enabled, next_iteration)`` with the following
    iteration as the second item, because the answer is valid for one iteration.
    """

    def __init__(self) -> None:
        self._layers: dict[str, _C.WatchedLayer] = {}
        self._asked: dict[str, int] = {}  # tick (session and iteration) of the last query
        self._warned = False

    def forget(self) -> None:
        """Drops the layers of an ended session."""
        self._layers.clear()
        self._asked.clear()
        self._warned = False

    def fp8_gemm_enabled(
        self, layer_name: str, *, gemm: str, iteration: int | None = None
    ) -> Answer:
        """Returns whether the GEMM runs in FP8."""
        gemm = _gemm("fp8_gemm_enabled", gemm)
        with self._layer("fp8_gemm_enabled", layer_name, iteration) as (layer, now):
            return Answer(layer.fp8_gemm_enabled(gemm), now + 1)

    def modify_tensor_enabled(
        self, layer_name: str, *, gemm: str, tensor_name: str, iteration: int | None = None
    ) -> Answer:
        """Returns whether a feature modifies the tensor for the GEMM."""
        gemm, tensor_name = _pair("modify_tensor_enabled", gemm, tensor_name)
        with self._layer("modify_tensor_enabled", layer_name, iteration) as (layer, now):
            return Answer(layer.modify_tensor_enabled(gemm, tensor_name), now + 1)

    def inspect_tensor_enabled(
        self, layer_name: str, *, tensor_name: str, iteration: int | None = None
    ) -> Answer:
        """Returns whether a feature inspects the tensor."""
        tensor_name = _tensor("inspect_tensor_enabled", tensor_name)
        with self._layer("inspect_tensor_enabled", layer_name, iteration) as (layer, now):
            return Answer(layer.inspect_tensor_enabled(tensor_name), now + 1)

    def inspect_tensor_postquantize_enabled(
        self, layer_name: str, *, gemm: str, tensor_name: str, iteration: int | None = None
    ) -> Answer:
        """Returns whether a feature inspects the quantized tensor."""
        call = "inspect_tensor_postquantize_enabled"
        gemm, tensor_name = _pair(call, gemm, tensor_name)
        with self._layer(call, layer_name, iteration) as (layer, now):
            return Answer(layer.inspect_tensor_postquantize_enabled(gemm, tensor_name), now + 1)

    def modify_tensor(
        self,
        layer_name: str,
        *,
        gemm: str,
        tensor_name: str,
        tensor: torch.Tensor,
        default_quantizer: Any = None,
        iteration: int | None = None,
        dtype: torch.dtype | None = None,
        out: Any = None,
    ) -> Any:
        """Returns the replacement of the tensor, or the tensor itself if no feature modifies it.

        With ``out``, fills it and returns None.
        """
        gemm, tensor_name = _pair("modify_tensor", gemm, tensor_name)
        with self._layer("modify_tensor", layer_name, iteration) as (layer, _):
            return layer.modify_tensor(
                gemm=gemm,
                tensor_name=tensor_name,
                tensor=tensor,
                default_quantizer=default_quantizer,
                dtype=dtype,
                out=out,
            )

    def inspect_tensor(
        self,
        layer_name: str,
        *,
        tensor_name: str,
        tensor: torch.Tensor | None,
        iteration: int | None = None,
        tp_group: torch.distributed.ProcessGroup | None = None,
        tp_size: int = 1,
        rowwise_quantized_tensor: Any = None,
        columnwise_quantized_tensor: Any = None,
        quantizer: Any = None,
    ) -> None:
        """Passes the tensor and its two quantized GEMM operands to the features that inspect it."""
        tensor_name = _tensor("inspect_tensor", tensor_name)
        with self._layer("inspect_tensor", layer_name, iteration) as (layer, _):
            layer.inspect_tensor(
                tensor_name=tensor_name,
                tensor=tensor,
                rowwise_quantized_tensor=rowwise_quantized_tensor,
                columnwise_quantized_tensor=columnwise_quantized_tensor,
                quantizer=quantizer,
                tp_group=tp_group,
                tp_size=tp_size,
            )

    def inspect_tensor_postquantize(
        self,
        layer_name: str,
        *,
        tensor_name: str,
        tensor: Any,
        gemm: str | None = None,
        iteration: int | None = None,
        tp_group: torch.distributed.ProcessGroup | None = None,
        tp_size: int = 1,
        rowwise: bool = True,
    ) -> None:
        """Passes the quantized tensor to the features that inspect it.

        ``rowwise``: whether it is an operand of its first GEMM, for calls without ``gemm``.
        """
        tensor_name = _tensor("inspect_tensor_postquantize", tensor_name)
        if gemm is None and tensor_name in _FEEDS:
            gemm = _FEEDS[tensor_name][0 if rowwise else 1]
        gemm = _gemm("inspect_tensor_postquantize", gemm)
        with self._layer("inspect_tensor_postquantize", layer_name, iteration) as (layer, _):
            layer.inspect_tensor_postquantize(
                gemm=gemm,
                tensor_name=tensor_name,
                tensor=tensor,
                rowwise=rowwise,
                tp_group=tp_group,
                tp_size=tp_size,
            )

    @contextlib.contextmanager
    def _layer(
        self, call: str, name: str, iteration: int | None
    ) -> Iterator[tuple[_C.WatchedLayer, int]]:
        """Yields the queried layer and the iteration of the call."""
        name = arguments.text(_title(call), "layer_name", name)
        running = _C.debug.iteration()  # raises without a session
        if iteration is None or iteration == running:
            yield self._asked_layer(name), running
            return
        iteration = arguments.integer(_title(call), "iteration", iteration, "an integer from 0 on")
        self._warn_of_another(iteration, running)
        _C.debug.initialize_training_step(iteration)
        try:
            yield self._asked_layer(name), iteration
        finally:
            _C.debug.initialize_training_step(running)

    def _asked_layer(self, name: str) -> _C.WatchedLayer:
        tick = _C.debug.tick()
        if name not in self._layers:
            self._layers[name] = _C.WatchedLayer(name)
        if self._asked.get(name) != tick:
            self._layers[name].begin_forward(under_recipe=True)
            self._asked[name] = tick
        return self._layers[name]

    def _warn_of_another(self, iteration: int, running: int) -> None:
        if self._warned:
            return
        self._warned = True
        message = (
            f"debug.transformer_engine: a call refers to iteration {iteration} during iteration "
            f"{running}. The call is answered, but backwards of this package's layers that are "
            "still pending are not observed. Call debug.step() in every iteration, and "
            "debug.initialize_training_step() if counting does not begin at 0"
        )
        _C.debug.log_message(message, "", logging.WARNING, "")


def _title(call: str) -> str:
    return f"debug.transformer_engine.{call}"


def _gemm(call: str, name: Any) -> str:
    return arguments.one_of(_title(call), "gemm", name, GEMMS)


def _tensor(call: str, name: Any) -> str:
    return arguments.one_of(_title(call), "tensor_name", name, TENSORS)


def _pair(call: str, gemm: Any, tensor_name: Any) -> tuple[str, str]:
    return _gemm(call, gemm), _tensor(call, tensor_name)
