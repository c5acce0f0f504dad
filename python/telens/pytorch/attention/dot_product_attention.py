"""``telens.pytorch.DotProductAttention`` where Transformer Engine has it."""

from telens.pytorch.modules import DotProductAttention

__all__ = ["DotProductAttention"]
