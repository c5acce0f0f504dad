"""``PerTensorScaling`` as a class that feature classes inherit.

The configured feature PerTensorScaling is built in.
"""

from __future__ import annotations

from typing import Any

import torch

from telens import _C
from telens._names import refusal
from telens.debug.features.api import TEConfigAPIMapper
from telens.debug.registry import api_method

__all__ = ["PerTensorScaling", "per_tensor_cast"]


def per_tensor_cast(tensor: torch.Tensor, fp8_dtype: _C.DType, out: Any = None) -> Any:
    """Returns the tensor in FP8 scaled by its current amax, or writes it into ``out``."""
    quantizer = _C.Float8CurrentScalingQuantizer(fp8_dtype, tensor.device)
    if out is None:
        return quantizer(tensor)
    quantizer.update_quantized(tensor, out)
    return None


class PerTensorScaling(TEConfigAPIMapper):
    """Casts operands with a scale from their current amax, under delayed scaling."""

    @api_method
    def modify_tensor_enabled(
        self, config: dict, layer_name: str, tensor_name: str, gemm: str, iteration: int
    ) -> tuple[bool, int | None]:
        """Returns (True, the next iteration)."""
        return True, iteration + 1

    @api_method
    def modify_tensor(
        self,
        config: dict,
        layer_name: str,
        gemm: str,
        tensor_name: str,
        tensor: torch.Tensor,
        iteration: int,
        default_quantizer: Any,
        out: Any = None,
        dtype: torch.dtype | None = None,
    ) -> Any:
        """Returns the tensor's codes.

        Raises UsageError unless the layer uses delayed scaling.
        """
        if not isinstance(default_quantizer, _C.Float8Quantizer):
            owner = f"{type(self).__name__} for {tensor_name} of {gemm} in {layer_name}"
            expected = "a Float8Quantizer: it goes with DelayedScaling only"
            raise refusal(owner, "the layer's quantizer", expected, default_quantizer)
        return per_tensor_cast(tensor, default_quantizer.dtype, out)
