"""Batches for context parallelism where Transformer Engine has their functions."""

from telens.pytorch.parallel.context_parallel import (
    generate_positional_ids_for_cp,
    get_batch_on_this_cp_rank,
    pad_thd_sequences_for_cp,
)

__all__ = [
    "generate_positional_ids_for_cp",
    "get_batch_on_this_cp_rank",
    "pad_thd_sequences_for_cp",
]
