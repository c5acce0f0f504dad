"""Context parallelism: the groups of modules that contain attention, and the batches of a rank.

A sequence is divided into 2 * cp_size equal chunks. Rank r has the chunks r and 2 * cp_size - 1 -
r, which gives all ranks the same work under a causal mask.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from telens import _C
from telens._names import among, refusal

__all__ = [
    "generate_positional_ids_for_cp",
    "get_batch_on_this_cp_rank",
    "pad_thd_sequences_for_cp",
]

COMM_TYPES = ("p2p", "all_gather", "a2a", "a2a+p2p")
# Attributes of modules without a group, under Transformer Engine's names.
ATTRIBUTES = {
    "cp_group": None,
    "cp_global_ranks": None,
    "cp_stream": None,
    "cp_comm_type": "p2p",
}
_HOLDERS = ("DotProductAttention", "MultiheadAttention", "TransformerLayer")
_LOST = "_telens_lost_context_ranks"


def is_context_group(value: Any) -> bool:
    """A process group, or a list of them."""
    groups = value if isinstance(value, list | tuple) else [value]
    return bool(groups) and all(isinstance(each, torch.distributed.ProcessGroup) for each in groups)


def _ranks(groups: list[torch.distributed.ProcessGroup]) -> int:
    sizes = 1
    for group in groups:
        sizes *= group.size()
    return sizes


class WithContextParallel:
    """The part of ``telens.pytorch.Module`` for context parallelism."""

    def set_context_parallel_group(
        self,
        cp_group: torch.distributed.ProcessGroup | Sequence[torch.distributed.ProcessGroup] | None,
        cp_global_ranks: Sequence[int] | None = None,
        cp_stream: Any = None,
        cp_comm_type: str = "p2p",
    ) -> None:
        """Sets the ranks that share each sequence in the attention of this module and of modules
        inside.

        A rank has two chunks of each sequence (docs/parallel.md): see
        ``telens.pytorch.attention.dot_product_attention.context_parallel``.

        Parameters
        ----------
        cp_group
            the group; for cp_comm_type a2a+p2p a list of two groups, for a2a and for p2p; None:
            sequences are not divided
        cp_global_ranks
            the ranks of the group in the default group; only their number is checked
        cp_stream
            no effect: transfers run on the streams of torch.distributed
        cp_comm_type
            p2p: keys and values travel around a ring; all_gather: they are gathered; a2a: heads are
            exchanged for whole sequences; a2a+p2p: both
        """
        owner = f"{type(self).__name__}.set_context_parallel_group"
        if cp_group is not None and not is_context_group(cp_group):
            raise refusal(owner, "cp_group", "a process group, a list of two, or None", cp_group)
        if cp_comm_type not in COMM_TYPES:
            raise refusal(owner, "cp_comm_type", f"one of {', '.join(COMM_TYPES)}", cp_comm_type)
        groups = _listed(cp_group)
        if cp_global_ranks is not None and groups and len(cp_global_ranks) != _ranks(groups):
            raise _C.UsageError(
                f"{owner}: cp_global_ranks has {len(cp_global_ranks)} ranks and cp_group "
                f"{_ranks(groups)}; give as many"
            )
        values = (cp_group, cp_global_ranks, cp_stream, cp_comm_type)
        for module in self.modules():
            if isinstance(module, WithContextParallel):
                module._telens_adapter.set_context_parallel_group(groups, cp_comm_type, 0)
                module.__dict__.pop(_LOST, None)
                if module._type.name in _HOLDERS:
                    module.__dict__.update(zip(ATTRIBUTES, values, strict=True))

    def _note_context(self) -> None:
        """Sets the attributes of a new module."""
        if self._type.name in _HOLDERS:
            self.__dict__.update(ATTRIBUTES)

    def _reattach_context(self) -> None:
        """Sets the group of a new C++ module, or marks that a pickle has lost it."""
        group, lost = self.__dict__.get("cp_group"), self.__dict__.get(_LOST, 0)
        if group is not None or lost:
            self._telens_adapter.set_context_parallel_group(
                _listed(group), self.__dict__["cp_comm_type"], lost
            )


def without_context(state: dict[str, Any]) -> None:
    """Removes process groups and streams from a module's state for a pickle."""
    group = state.get("cp_group")
    if group is not None:
        state |= {"cp_group": None, "cp_stream": None, _LOST: _ranks(_listed(group))}


def copy_context(module: torch.nn.Module, copied: torch.nn.Module) -> None:
    """Gives a copy the groups of the modules inside, since it stays in the process."""
    for ours, theirs in zip(module.modules(), copied.modules(), strict=False):
        if isinstance(ours, WithContextParallel) and ours.__dict__.get("cp_group") is not None:
            theirs.__dict__.pop(_LOST, None)
            theirs.__dict__.update({name: ours.__dict__[name] for name in ATTRIBUTES})
            theirs._reattach_context()


def _listed(cp_group: Any) -> list[torch.distributed.ProcessGroup]:
    if cp_group is None:
        return []
    return list(cp_group) if isinstance(cp_group, list | tuple) else [cp_group]


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
