"""The seven calls for code that watches its own layers: ``debug.transformer_engine.<call>``."""

from __future__ import annotations

from typing import Any

import torch

from telens import _C

__all__ = ["LayerCalls"]


class LayerCalls:
    """What self-instrumented code asks and tells for a layer that it names itself.

    Routing calls answer for the running iteration, and ask the features once per layer and
    iteration, as the layers of this package do at the start of a forward.
    """

    def __init__(self) -> None:
        self._layers: dict[str, _C.WatchedLayer] = {}
        self._asked: dict[str, int] = {}

    def _layer(self, name: str) -> _C.WatchedLayer:
        iteration = _C.debug.iteration()  # raises without a session
        if name not in self._layers:
            self._layers[name] = _C.WatchedLayer(name)
        if self._asked.get(name) != iteration:
            self._layers[name].begin_forward(under_recipe=True)
            self._asked[name] = iteration
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

    def modify_tensor(
        self,
        *,
        layer_name: str,
        gemm: str,
        tensor_name: str,
        tensor: torch.Tensor,
        default_quantizer: _C.Quantizer | None = None,
        iteration: int | None = None,
        dtype: torch.dtype | None = None,
        out: Any = None,
    ) -> Any:
        """What takes the tensor's place; the tensor itself where no feature modifies it."""
        return self._layer(layer_name).modify_tensor(
            gemm=gemm,
            tensor_name=tensor_name,
            tensor=tensor,
            default_quantizer=default_quantizer,
            dtype=dtype,
            out=out,
        )

    def inspect_tensor(
        self,
        *,
        layer_name: str,
        tensor_name: str,
        tensor: torch.Tensor | None,
        iteration: int | None = None,
        tp_group: torch.distributed.ProcessGroup | None = None,
        tp_size: int = 1,
        rowwise_quantized_tensor: torch.Tensor | None = None,
        columnwise_quantized_tensor: torch.Tensor | None = None,
        quantizer: _C.Quantizer | None = None,
    ) -> None:
        """Shows the tensor to the features that look at it."""
        self._layer(layer_name).inspect_tensor(
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
        *,
        layer_name: str,
        gemm: str,
        tensor_name: str,
        tensor: torch.Tensor,
        iteration: int | None = None,
        rowwise: bool = True,
        tp_group: torch.distributed.ProcessGroup | None = None,
        tp_size: int = 1,
    ) -> None:
        """Shows the quantized tensor to the features that look at it."""
        self._layer(layer_name).inspect_tensor_postquantize(
            gemm=gemm,
            tensor_name=tensor_name,
            tensor=tensor,
            rowwise=rowwise,
            tp_group=tp_group,
            tp_size=tp_size,
        )
