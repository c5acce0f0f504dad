"""NVFP4, where scripts for Transformer Engine import it from."""

from telens.pytorch.tensor import NVFP4Quantizer, NVFP4Tensor

__all__ = ["NVFP4Quantizer", "NVFP4Tensor"]
