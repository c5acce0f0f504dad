"""Recomputation, random states and FSDP at Transformer Engine's path."""

from typing import TYPE_CHECKING, Any

from telens.pytorch.checkpointing import checkpoint
from telens.pytorch.parallel.rng_tracker import CudaRNGStatesTracker

if TYPE_CHECKING:
    from telens.pytorch.parallel.fsdp import FullyShardedDataParallel, prepare_te_modules_for_fsdp

__all__ = [
    "CudaRNGStatesTracker",
    "FullyShardedDataParallel",
    "checkpoint",
    "prepare_te_modules_for_fsdp",
]


def __getattr__(name: str) -> Any:
    # Imported on first use: torch.distributed.fsdp takes a second.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from telens.pytorch.parallel import fsdp

    return getattr(fsdp, name)
