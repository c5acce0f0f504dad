"""The positions that a rank has of sequences that are shared (context parallelism)."""

from __future__ import annotations

import itertools

import torch

from telens import _C

__all__: list[str] = []


def places_of_rank(length: int, size: int, rank: int) -> torch.Tensor:
    """Those of one sequence: chunk ``rank`` and chunk ``2 * size - 1 - rank`` of ``2 * size``."""
    if not 0 <= rank < size:
        raise _C.UsageError(f"cp_rank is {rank}; expected one of {size} ranks (cp_size)")
    if length % (2 * size) != 0:
        raise _C.ShapeError(
            f"a sequence has {length} positions; {size} ranks divide multiples of {2 * size}"
        )
    chunks = torch.arange(length).view(2 * size, length // (2 * size))
    return torch.cat([chunks[rank], chunks[2 * size - 1 - rank]])


def packed_places_of_rank(sums: list[int], tokens: int, size: int, rank: int) -> torch.Tensor:
    """Those of packed sequences, and 0 for tokens of no sequence."""
    found = [places_of_rank(end - start, size, rank) for start, end in itertools.pairwise(sums)]
    known = sum(map(len, found))
    if known > tokens:
        raise _C.ShapeError(
            f"the sequences of cu_seqlens have {known} tokens on this rank, and there are {tokens}"
        )
    return torch.cat([*found, torch.zeros(tokens - known, dtype=torch.long)])
