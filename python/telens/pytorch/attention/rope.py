"""Rotary position embedding, under the names that scripts for Transformer Engine import."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from telens import _C
from telens._names import among, refusal
from telens.pytorch.layers.rotary import RotaryPositionEmbedding
from telens.pytorch.parallel.context_parallel import packed_places_of_rank, places_of_rank

__all__ = [
    "RotaryPositionEmbedding",
    "apply_fused_qkv_rotary_pos_emb",
    "apply_rotary_pos_emb",
]

_OWNER = "apply_rotary_pos_emb"


def apply_rotary_pos_emb(
    t: torch.Tensor,
    freqs: torch.Tensor,
    tensor_format: str = "sbhd",
    start_positions: torch.Tensor | None = None,
    interleaved: bool = False,
    fused: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    cp_size: int = 1,
    cp_rank: int = 0,
) -> torch.Tensor:
    """Rotates the first channels of queries or keys. Differentiable with respect to them.

    Parameters
    ----------
    t
        [seq, batch, heads, channels] ("sbhd"), [batch, seq, heads, channels] ("bshd") or [tokens,
        heads, channels] ("thd")
    freqs
        angles [positions, 1, 1, an even number up to channels], from RotaryPositionEmbedding
    start_positions
        [batch], for sbhd and bshd: the position at which each sequence begins
    interleaved
        whether neighboring channels are pairs; must match the angles
    fused
        no effect
    cu_seqlens
        int32 [batch + 1], for thd: 0 and the sums of the sequences' lengths
    cp_size, cp_rank
        number of ranks that share each sequence, and this rank. freqs and cu_seqlens describe the
        whole sequences, of which this rank has two chunks (docs/parallel.md)

    The arithmetic is FP32 (FP64 for FP64), rounded once. Raises UsageError for inconsistent
    arguments and ShapeError for too few angles.
    """
    among(_OWNER, "tensor_format", tensor_format, ["sbhd", "bshd", "thd"])
    if cp_size != 1 and start_positions is not None:
        raise _C.UsageError(f"{_OWNER}: start_positions do not go with cp_size {cp_size}")
    if tensor_format == "thd":
        if cu_seqlens is None or start_positions is not None:
            raise _C.UsageError(f"{_OWNER}: thd needs cu_seqlens, and takes no start_positions")
        if cp_size != 1:
            places = packed_places_of_rank(cu_seqlens.tolist(), t.size(0), cp_size, cp_rank)
            own = _angles_of(freqs, places)
            return _C.apply_rotary_embedding(t.unsqueeze(1), own, 1, interleaved).squeeze(1)
        return _C.apply_rotary_embedding_packed(t, freqs, cu_seqlens, interleaved)
    if cu_seqlens is not None:
        raise _C.UsageError(f"{_OWNER}: cu_seqlens is only supported for tensor_format thd")
    batch_dim = 1 if tensor_format == "sbhd" else 0
    if cp_size != 1:
        places = places_of_rank(t.size(1 - batch_dim) * cp_size, cp_size, cp_rank)
        freqs = _angles_of(freqs, places)
    if start_positions is not None:
        freqs = _shifted(freqs, start_positions, t.size(1 - batch_dim), t.size(batch_dim))
    return _C.apply_rotary_embedding(t, freqs, batch_dim, interleaved)


def apply_fused_qkv_rotary_pos_emb(
    qkv: torch.Tensor,
    q_freqs: torch.Tensor,
    k_freqs: torch.Tensor,
    qkv_split_arg_list: Sequence[int],
    tensor_format: str = "sbhd",
    start_positions: torch.Tensor | None = None,
    interleaved: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    cp_size: int = 1,
    cp_rank: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Splits a fused projection into query, key and value, and rotates the first two.

    Parameters
    ----------
    qkv
        [seq, batch, groups, channels] ("sbhd") or [batch, seq, groups, channels] ("bshd")
    qkv_split_arg_list
        channels of a group's queries, its key and its value; the first is a multiple of the second
    q_freqs, k_freqs, start_positions, interleaved, cp_size, cp_rank
        as of ``apply_rotary_pos_emb``
    cu_seqlens
        must be None: packed sequences are not supported

    Returns
    -------
    (query [..., heads, channels], key [..., groups, channels], value [..., groups, channels])
    """
    owner = "apply_fused_qkv_rotary_pos_emb"
    among(owner, "tensor_format", tensor_format, ["sbhd", "bshd"])
    if cu_seqlens is not None:
        raise refusal(owner, "cu_seqlens", "None: only whole sequences can be split", cu_seqlens)
    queries, channels, values = qkv_split_arg_list
    if queries % channels != 0 or queries + channels + values != qkv.size(-1):
        raise _C.ShapeError(
            f"{owner}: qkv_split_arg_list is {list(qkv_split_arg_list)} for {qkv.size(-1)} "
            "channels; expected parts with this sum, the first a multiple of the second"
        )
    query, key, value = qkv.split([queries, channels, values], dim=-1)
    query = query.reshape(*qkv.shape[:2], -1, channels)
    options = {"start_positions": start_positions, "interleaved": interleaved}
    query, key = (
        apply_rotary_pos_emb(
            each, freqs, tensor_format, **options, cp_size=cp_size, cp_rank=cp_rank
        )
        for each, freqs in ((query, q_freqs), (key, k_freqs))
    )
    return query, key, value


def _angles_of(freqs: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    most = int(places.max()) if places.numel() else -1
    if most >= freqs.size(0):
        raise _C.ShapeError(
            f"{_OWNER}: freqs has {freqs.size(0)} positions; {most + 1} are needed, for the "
            "whole sequence"
        )
    return freqs[places.to(freqs.device)]


def _shifted(
    freqs: torch.Tensor, start_positions: torch.Tensor, sequence: int, batch: int
) -> torch.Tensor:
    """[sequence, batch, 1, channels]: each sequence's angles from its start on."""
    if start_positions.shape != (batch,):
        shown = f"of shape {list(start_positions.shape)}"
        raise refusal(_OWNER, "start_positions", f"integers [{batch}]", shown)
    first = start_positions.to(freqs.device, torch.int64)
    if not freqs.is_cuda and batch and int(first.min()) < 0:
        raise refusal(_OWNER, "start_positions", "0 or more", int(first.min()))
    places = torch.arange(sequence, device=freqs.device)[:, None] + first
    if not freqs.is_cuda and places.numel() and int(places.max()) >= freqs.size(0):
        raise _C.ShapeError(
            f"{_OWNER}: freqs has {freqs.size(0)} positions, but the last token is at "
            f"{int(places.max())}; compute angles for all positions"
        )
    return freqs[places.clamp(0, freqs.size(0) - 1)].squeeze(3)
