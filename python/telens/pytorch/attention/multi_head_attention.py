"""``telens.pytorch.MultiheadAttention`` where Transformer Engine has it."""

from telens.pytorch.modules import MultiheadAttention

__all__ = ["MultiheadAttention"]
