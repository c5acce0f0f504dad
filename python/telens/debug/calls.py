"""The seven calls for code that watches its own layers: ``debug.transformer_engine.<call>``."""

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
# The tensors of a layer; of those that feed GEMMs, which.
_FEEDS = {
    "activation": ("fprop", "wgrad"),
    "weight": ("fprop", "dgrad"),
    "gradient": ("dgrad", "wgrad"),
}
TENSORS = (*_FEEDS, "output", "wgrad", "dgrad")


class Answer(tuple):
    """What a routing call returns: the pair (enabled, next iteration to ask in).

    It is as true as ``enabled`` is, which a plain pair would not be.
    """

    def __new__(cls, enabled: bool, next_iteration: int) -> Answer:
        return super().__new__(cls, (enabled, next_iteration))

    def __bool__(self) -> bool:
        return self[0]


class LayerCalls:
    """What self-instrumented code asks and tells for a layer that it names itself.

    Calls are about the running iteration unless they name another: then the session is in that one
    for as long as the call takes. Features are asked once per layer and iteration, as the layers of
    this package ask them at the start of a forward. Routing calls return ``(enabled,
    next_iteration)``, of which the second is always the iteration after: the answer of the features
    holds for one only.
    """

    def __init__(self) -> None:
        self._layers: dict[str, _C.WatchedLayer] = {}
        self._asked: dict[str, int] = {}  # at which tick, that is session and iteration
        self._warned = False

    def forget(self) -> None:
        """Lets go of the layers of an ended session."""
        self._layers.clear()
        self._asked.clear()
        self._warned = False

    def fp8_gemm_enabled(
        self, layer_name: str, *, gemm: str, iteration: int | None = None
    ) -> Answer:
        """Whether the GEMM runs in FP8."""
        gemm = _gemm("fp8_gemm_enabled", gemm)
        with self._layer("fp8_gemm_enabled", layer_name, iteration) as (layer, now):
            return Answer(layer.fp8_gemm_enabled(gemm), now + 1)

    def modify_tensor_enabled(
        self, layer_name: str, *, gemm: str, tensor_name: str, iteration: int | None = None
    ) -> Answer:
        """Whether a feature modifies the tensor for the GEMM."""
        gemm, tensor_name = _pair("modify_tensor_enabled", gemm, tensor_name)
        with self._layer("modify_tensor_enabled", layer_name, iteration) as (layer, now):
            return Answer(layer.modify_tensor_enabled(gemm, tensor_name), now + 1)

    def inspect_tensor_enabled(
        self, layer_name: str, *, tensor_name: str, iteration: int | None = None
    ) -> Answer:
        """Whether a feature looks at the tensor."""
        tensor_name = _tensor("inspect_tensor_enabled", tensor_name)
        with self._layer("inspect_tensor_enabled", layer_name, iteration) as (layer, now):
            return Answer(layer.inspect_tensor_enabled(tensor_name), now + 1)

    def inspect_tensor_postquantize_enabled(
        self, layer_name: str, *, gemm: str, tensor_name: str, iteration: int | None = None
    ) -> Answer:
        """Whether a feature looks at the quantized tensor."""
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
        """What takes the tensor's place; the tensor itself where no feature modifies it.

        With ``out`` that is filled, and nothing returned.
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
        """Shows the tensor, and what feeds its two GEMMs, to the features that look at it."""
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
        """Shows the quantized tensor to the features that look at it.

        ``rowwise``: whether it feeds the first of its GEMMs, which then need not be named.
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
        """The layer, asked, and the iteration that the call is about."""
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
            f"debug.transformer_engine: a call is about iteration {iteration} while {running} "
            "runs. It is answered, but a backward of this package's layers whose forward came "
            "before it is not watched; call debug.step() in every iteration, and "
            "debug.initialize_training_step() where counting begins elsewhere"
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
