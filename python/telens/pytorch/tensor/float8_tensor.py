"""Per-tensor FP8, where scripts for Transformer Engine import it from."""

from telens.pytorch.tensor import Float8CurrentScalingQuantizer, Float8Quantizer, Float8Tensor

__all__ = ["Float8CurrentScalingQuantizer", "Float8Quantizer", "Float8Tensor"]
