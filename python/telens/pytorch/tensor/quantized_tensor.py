"""What all formats share, where scripts for Transformer Engine import it from."""

from telens.pytorch.tensor import QuantizedTensor, Quantizer

__all__ = ["QuantizedTensor", "Quantizer"]
