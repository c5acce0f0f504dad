"""Recomputation and random states where Transformer Engine has them."""

from telens.pytorch.checkpointing import checkpoint
from telens.pytorch.rng_tracker import CudaRNGStatesTracker

__all__ = ["CudaRNGStatesTracker", "checkpoint"]
