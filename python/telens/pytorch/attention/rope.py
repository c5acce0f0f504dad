"""``telens.pytorch.RotaryPositionEmbedding`` where Transformer Engine has it."""

from telens.pytorch.rotary import RotaryPositionEmbedding

__all__ = ["RotaryPositionEmbedding"]
