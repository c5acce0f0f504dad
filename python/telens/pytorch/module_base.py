"""The base of layers with GEMMs, under the name that scripts for Transformer Engine import."""

from telens.pytorch.extra_state import WithExtraState as TransformerEngineBaseModule

__all__ = ["TransformerEngineBaseModule"]
