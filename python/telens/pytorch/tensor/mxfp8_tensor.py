"""MXFP8, where scripts for Transformer Engine import it from."""

from telens.pytorch.tensor import MXFP8Quantizer, MXFP8Tensor

__all__ = ["MXFP8Quantizer", "MXFP8Tensor"]
