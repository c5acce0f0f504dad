"""What all formats share, where scripts for Transformer Engine 2.20 import it from."""

from telens.pytorch.tensor import QuantizedTensor, Quantizer

__all__ = ["QuantizedTensor", "Quantizer"]
