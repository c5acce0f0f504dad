"""``telens.pytorch.checkpoint`` where Transformer Engine has it."""

from telens.pytorch.checkpointing import checkpoint

__all__ = ["checkpoint"]
