"""``telens.pytorch.InferenceParams`` where Transformer Engine has it."""

from telens.pytorch.inference_params import InferenceParams

__all__ = ["InferenceParams"]
