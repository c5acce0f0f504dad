"""``telens.pytorch.TransformerLayer`` where Transformer Engine has it."""

from telens.pytorch.modules import TransformerLayer

__all__ = ["TransformerLayer"]
