"""Batches for context parallelism: pads packed sequences to divisible lengths, and selects a rank's
part.

A sequence is divided into 2 * cp_size equal chunks. Rank r has the chunks r and 2 * cp_size - 1 -
r, which gives all ranks the same work under a causal mask.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch

from telens import _C
from telens._names import among

__all__: list[str] = [
    "generate_positional_ids_for_cp",
    "get_batch_on_this_cp_rank",
    "pad_thd_sequences_for_cp",
]


def places_of_rank(length: int, size: int, rank: int) -> torch.Tensor:
    """Returns this rank's positions of a sequence: chunks ``rank`` and ``2 * size - 1 - rank``."""
    if not 0 <= rank < size:
        raise _C.UsageError(f"cp_rank is {rank}; expected one of {size} ranks (cp_size)")
    if length % (2 * size) != 0:
        raise _C.ShapeError(
            f"a sequence has {length} positions; {size} ranks divide multiples of {2 * size}"
        )
    chunks = torch.arange(length).view(2 * size, length // (2 * size))
    return torch.cat([chunks[rank], chunks[2 * size - 1 - rank]])


def packed_places_of_rank(sums: list[int], tokens: int, size: int, rank: int) -> torch.Tensor:
    """Returns this rank's positions of packed sequences, and 0 for tokens outside of sequences."""
    found = [places_of_rank(end - start, size, rank) for start, end in itertools.pairwise(sums)]
    known = sum(map(len, found))
    if known > tokens:
        raise _C.ShapeError(
            f"the sequences of cu_seqlens have {known} tokens on this rank, and there are {tokens}"
        )
    return torch.cat([*found, torch.zeros(tokens - known, dtype=torch.long)])


def _padded_lengths(cu_seqlens: torch.Tensor, factor: int) -> tuple[list[int], list[int]]:
    """The lengths of sequences, and the next multiples of the factor."""
    if factor < 1:
        raise _C.UsageError(f"divisibility_factor is {factor}; expected 1 or more (2 * cp_size)")
    lengths = cu_seqlens.diff().tolist()
    return lengths, [-(-length // factor) * factor for length in lengths]


def pad_thd_sequences_for_cp(
    input_ids: torch.Tensor,
    labels: torch.Tensor,
    cu_seqlens: torch.Tensor,
    divisibility_factor: int,
    padding_token_id: int = 0,
    padding_label_id: int = -100,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pads packed sequences at their ends to multiples of the factor.

    Parameters
    ----------
    input_ids, labels
        [tokens] or [1, tokens]
    cu_seqlens
        [sequences + 1]: 0 and the sums of the lengths
    divisibility_factor
        2 * cp_size
    padding_token_id, padding_label_id
        values of the padding

    Returns
    -------
    input_ids and labels [padded tokens], and the sums of the padded lengths, of cu_seqlens' dtype
    """
    ids, marks = input_ids.flatten(), labels.flatten()
    lengths, padded = _padded_lengths(cu_seqlens, divisibility_factor)
    if not sum(lengths) == len(ids) == len(marks):
        raise _C.ShapeError(
            f"pad_thd_sequences_for_cp: cu_seqlens has {sum(lengths)} tokens, input_ids "
            f"{len(ids)} and labels {len(marks)}; expected as many"
        )

    def pad(x: torch.Tensor, value: int) -> torch.Tensor:
        parts = x.split(lengths)
        grown = [
            torch.nn.functional.pad(part, (0, to - len(part)), value=value)
            for part, to in zip(parts, padded, strict=True)
        ]
        return torch.cat(grown) if grown else x

    sums = torch.tensor([0, *padded], dtype=cu_seqlens.dtype, device=cu_seqlens.device)
    return (
        pad(ids, padding_token_id),
        pad(marks, padding_label_id),
        sums.cumsum(0, dtype=cu_seqlens.dtype),
    )


def generate_positional_ids_for_cp(
    cu_seqlens: torch.Tensor, divisibility_factor: int, dtype: torch.dtype = torch.long
) -> torch.Tensor:
    """Returns positions [padded tokens] for such padded sequences: each counts from 0, including
    its padding."""
    _, padded = _padded_lengths(cu_seqlens, divisibility_factor)
    positions = [torch.arange(length, dtype=dtype) for length in padded]
    return (torch.cat(positions) if positions else torch.empty(0, dtype=dtype)).to(
        cu_seqlens.device
    )


def get_batch_on_this_cp_rank(
    cu_seqlens_padded: torch.Tensor | None,
    input_ids_padded: torch.Tensor | None,
    labels_padded: torch.Tensor | None,
    position_ids_padded: torch.Tensor | None = None,
    cp_group: torch.distributed.ProcessGroup | None = None,
    qvk_format: str = "thd",
    cp_rank: int | None = None,
    cp_size: int | None = None,
) -> tuple[torch.Tensor | None, ...]:
    """Returns this rank's part of input ids, labels and position ids; None stays None.

    Parameters
    ----------
    cu_seqlens_padded
        sums of the lengths of packed sequences, each divisible by 2 * cp_size; None for the other
        formats
    input_ids_padded, labels_padded, position_ids_padded
        for thd [tokens] or [1, tokens], for bshd [batch, seq, ...] and for sbhd [seq, batch, ...];
        for bshd and sbhd also [seq]
    cp_group
        the group; None: the default group, or no group if cp_rank and cp_size are given
    qvk_format
        thd, bshd or sbhd
    """
    owner = "get_batch_on_this_cp_rank"
    among(owner, "qvk_format", qvk_format, ["thd", "bshd", "sbhd"])
    if cp_size is None:
        cp_size = torch.distributed.get_world_size(cp_group)
    if cp_rank is None:
        cp_rank = torch.distributed.get_rank(cp_group)
    tensors = (input_ids_padded, labels_padded, position_ids_padded)
    if cp_size == 1:
        return tensors
    if qvk_format != "thd":
        dim = 1 if qvk_format == "bshd" else 0
        return tuple(_own_part(owner, x, dim, cp_rank, cp_size) for x in tensors)
    if cu_seqlens_padded is None:
        raise _C.UsageError(f"{owner}: qvk_format thd needs cu_seqlens_padded")
    places = _own_places(owner, cu_seqlens_padded.tolist(), cp_rank, cp_size)
    return tuple(_take(owner, x, places, int(cu_seqlens_padded[-1])) for x in tensors)


def _own_part(owner: str, x: Any, dim: int, rank: int, size: int) -> torch.Tensor | None:
    if x is None:
        return None
    dim = 0 if x.dim() == 1 else dim
    if x.shape[dim] % (2 * size) != 0:
        raise _C.ShapeError(
            f"{owner}: a sequence has {x.shape[dim]} positions; {size} ranks divide multiples of "
            f"{2 * size}"
        )
    return x.index_select(dim, places_of_rank(x.shape[dim], size, rank).to(x.device))


def _own_places(owner: str, sums: list[int], rank: int, size: int) -> torch.Tensor:
    places = [torch.empty(0, dtype=torch.long)]
    for start, end in itertools.pairwise(sums):
        if (end - start) % (2 * size) != 0:
            raise _C.ShapeError(
                f"{owner}: a sequence has {end - start} tokens; {size} ranks divide multiples of "
                f"{2 * size}: pad with pad_thd_sequences_for_cp"
            )
        places.append(start + places_of_rank(end - start, size, rank))
    return torch.cat(places)


def _take(owner: str, x: Any, places: torch.Tensor, tokens: int) -> torch.Tensor | None:
    if x is None:
        return None
    for dim in (0,) if x.dim() == 1 else (1, 0):
        if x.shape[dim] == tokens:
            return x.index_select(dim, places.to(x.device))
    raise _C.ShapeError(
        f"{owner}: a tensor is {list(x.shape)}; cu_seqlens_padded has {tokens} tokens, [{tokens}] "
        f"or [1, {tokens}]"
    )
