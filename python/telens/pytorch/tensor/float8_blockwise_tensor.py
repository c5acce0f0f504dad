"""FP8 with scales of 128-blocks, where scripts for Transformer Engine import it from."""

from telens.pytorch.tensor import Float8BlockQuantizer, Float8BlockwiseQTensor

__all__ = ["Float8BlockQuantizer", "Float8BlockwiseQTensor"]
