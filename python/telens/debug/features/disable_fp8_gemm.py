"""``DisableQuantizationGEMM`` under its former name."""

from telens.debug.features.disable_quantization_gemm import (
    DisableQuantizationGEMM as DisableFP8GEMM,
)

__all__ = ["DisableFP8GEMM"]
