"""The seven calls for code that watches its own layers: ``debug.transformer_engine.<call>``."""

from __future__ import annotations

from typing import Any

from telens import _C

__all__ = ["LayerCalls"]


class LayerCalls:
    """What self-instrumented code asks and tells for a layer that it names itself.

    Routing calls answer for the running iteration, and ask the features once per layer and
    iteration, as the layers of this package do at the start of a forward.
    """

    def __init__(self) -> None:
        self._layers: dict[str, _C.WatchedLayer] = {}
        self._asked: dict[str, int] = {}  # at which tick, that is session and iteration

    def _layer(self, name: str) -> _C.WatchedLayer:
        tick = _C.debug.tick()  # raises without a session
        if name not in self._layers:
            self._layers[name] = _C.WatchedLayer(name)
        if self._asked.get(name) != tick:
            self._layers[name].begin_forward(under_recipe=True)
            self._asked[name] = tick
        return self._layers[name]

    def forget(self) -> None:
        """Lets go of the layers of an ended session."""
        self._layers.clear()
        self._asked.clear()

    def fp8_gemm_enabled(self, *, layer_name: str, gemm: str, iteration: int | None = None) -> bool:
        """Whether the GEMM runs in FP8."""
        return self._layer(layer_name).fp8_gemm_enabled(gemm)

    def modify_tensor_enabled(
        self, *, layer_name: str, gemm: str, tensor_name: str, iteration: int | None = None
    ) -> bool:
        """Whether a feature modifies the tensor for the GEMM."""
        return self._layer(layer_name).modify_tensor_enabled(gemm, tensor_name)

    def inspect_tensor_enabled(
        self, *, layer_name: str, tensor_name: str, iteration: int | None = None
    ) -> bool:
        """Whether a feature looks at the tensor."""
        return self._layer(layer_name).inspect_tensor_enabled(tensor_name)

    def inspect_tensor_postquantize_enabled(
        self, *, layer_name: str, gemm: str, tensor_name: str, iteration: int | None = None
    ) -> bool:
        """Whether a feature looks at the quantized tensor."""
        return self._layer(layer_name).inspect_tensor_postquantize_enabled(gemm, tensor_name)

    def modify_tensor(self, *, layer_name: str, iteration: int | None = None, **call: Any) -> Any:
        """What takes the tensor's place; the tensor itself where no feature modifies it.

        Takes ``gemm``, ``tensor_name``, ``tensor``, and if there are any ``default_quantizer``,
        ``dtype`` and ``out``.
        """
        return self._layer(layer_name).modify_tensor(**call)

    def inspect_tensor(self, *, layer_name: str, iteration: int | None = None, **call: Any) -> None:
        """Shows the tensor to the features that look at it.

        Takes ``tensor_name``, ``tensor``, and if there are any ``rowwise_quantized_tensor``,
        ``columnwise_quantized_tensor``, ``quantizer``, ``tp_group`` and ``tp_size``.
        """
        self._layer(layer_name).inspect_tensor(**call)

    def inspect_tensor_postquantize(
        self, *, layer_name: str, iteration: int | None = None, **call: Any
    ) -> None:
        """Shows the quantized tensor to the features that look at it.

        Takes ``gemm``, ``tensor_name``, ``tensor``, ``rowwise`` (True), and if there are any
        ``tp_group`` and ``tp_size``.
        """
        self._layer(layer_name).inspect_tensor_postquantize(**call)
