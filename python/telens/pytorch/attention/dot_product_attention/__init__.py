"""``telens.pytorch.DotProductAttention`` where Transformer Engine has it."""

from telens.pytorch.attention.dot_product_attention import context_parallel
from telens.pytorch.modules import DotProductAttention

__all__ = ["DotProductAttention", "context_parallel"]
