"""``FakeQuant`` as a class that feature classes inherit.

The configured feature FakeQuant is built in and supports more formats.
"""

from __future__ import annotations

from typing import Any

import torch

from telens import _C
from telens._names import among
from telens.debug.features.api import TEConfigAPIMapper
from telens.debug.registry import api_method

__all__ = ["FakeQuant", "fake_quantize"]

_ELEMENTS = {"E4M3": "kFloat8E4M3", "E5M2": "kFloat8E5M2"}
_FORMATS = [f"{blocks}FP8{each}" for blocks in ("", "MX") for each in _ELEMENTS]


def fake_quantize(
    tensor: torch.Tensor, fp8_format: str, out: torch.Tensor | None = None
) -> torch.Tensor | None:
    """Returns the tensor after a cast to a format and back, or writes it into ``out``.

    ``fp8_format``: FP8E4M3 or FP8E5M2 with a scale of the tensor's amax, MXFP8E4M3 or MXFP8E5M2.
    """
    among("fake_quantize", "fp8_format", fp8_format, _FORMATS)
    dtype = _C.DType.__members__[_ELEMENTS[fp8_format[-4:]]]
    if fp8_format.startswith("MX"):
        quantizer = _C.MXFP8Quantizer(dtype)
    else:
        quantizer = _C.Float8CurrentScalingQuantizer(dtype, tensor.device)
    values = quantizer(tensor).dequantize()
    if out is None:
        return values
    out.copy_(values)
    return None


class FakeQuant(TEConfigAPIMapper):
    """Casts operands to ``quant_format`` and back, and runs the GEMM in high precision."""

    def _supported_formats(self) -> list[str]:
        """Returns the values of ``quant_format``; a subclass may return others."""
        return list(_FORMATS)

    @api_method
    def fp8_gemm_enabled(
        self, config: dict, layer_name: str, gemm: str, iteration: int
    ) -> tuple[bool, int | None]:
        """Returns (False, None): the GEMM runs in high precision."""
        return False, None

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
        default_quantizer: Any = None,
        out: torch.Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor | None:
        """Returns the tensor's values in the format.

        Raises UsageError for a ``quant_format`` that is missing or not supported.
        """
        owner = f"{type(self).__name__} for {tensor_name} of {gemm} in {layer_name}"
        among(owner, "quant_format", config.get("quant_format"), self._supported_formats())
        return fake_quantize(tensor, config["quant_format"], out)
