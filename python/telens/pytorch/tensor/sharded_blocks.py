"""Block-scaled weights that torch's FSDP2 shards and gathers as codes.

If all ranks have equally many rows in whole blocks, a shard has its own codes and scales in both
orientations, and the gathered weight has the bits of the whole. Other block-scaled weights are
sharded as values.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

import torch

from telens import _C
from telens.pytorch.tensor.sharded_codes import (
    SAME_ROWS,
    as_columns,
    asking_function,
    is_itself,
    same,
)

__all__ = ["WithShardedBlocks", "answer_of_blocks"]

aten = torch.ops.aten

# The functions of FSDP that make shards of a whole parameter and the reverse.
_OF_FSDP = ("_init_sharded_param", "reset_sharded_param", "init_unsharded_param")
# The parts of a tensor, and their dimension along which rows are stored.
_PARTS = (
    ("rowwise_data", 0),
    ("rowwise_scale_inv", 0),
    ("columnwise_data", 1),
    ("columnwise_scale_inv", 1),
)
_Parts = list[torch.Tensor | None]


class WithShardedBlocks:
    """Methods for a block-scaled tensor without a per-tensor scale."""

    _storage: _C.QuantizedStorage
    _is_shard = False

    def _become_part_as(self, other: Any) -> None:
        self._is_shard = other._is_shard

    def fsdp_pre_all_gather(
        self, mesh: Any, outer_size: Any, outer_stride: Any, module: Any, mp_policy: Any
    ) -> tuple[tuple[torch.Tensor, ...], Any]:
        """Codes and scales of this rank's rows, rows first, and the sizes of the whole."""
        sent = [
            part if rows == 0 else part.t()
            for part, (_, rows) in zip(_parts_of(self), _PARTS, strict=True)
            if part is not None
        ]
        return tuple(part.contiguous() for part in sent), outer_size

    def fsdp_post_all_gather(
        self,
        all_gather_outputs: tuple[torch.Tensor, ...],
        metadata: Any,
        param_dtype: torch.dtype,
        *,
        out: Any = None,
    ) -> tuple[Any, tuple[torch.Tensor, ...]] | None:
        """Returns the whole tensor from the gathered codes and scales, in ``param_dtype``."""
        came = iter(all_gather_outputs)
        kept = [None] * len(_PARTS) if out is None else _parts_of(out)
        made: _Parts = []
        own: list[torch.Tensor] = []
        for part, memory, (_, rows) in zip(_parts_of(self), kept, _PARTS, strict=True):
            if part is None:
                made.append(None)
                continue
            whole = next(came)
            if rows == 1:
                whole = as_columns(whole, memory)
                own.append(whole)
            made.append(whole)
        tensor = _of_parts(self, made, list(metadata), param_dtype)
        if out is None:
            return tensor, tuple(own)
        out._storage = tensor._storage
        return None


def answer_of_blocks(func: Any, args: tuple, kwargs: dict) -> Any:
    """Returns the result of an operation of FSDP on a block-scaled tensor; None for other
    operations."""
    first = args[0] if args else None
    if not isinstance(first, WithShardedBlocks):
        return None
    if func is aten.copy_.default:
        return _copy(first, args[1])
    if first._is_shard and is_itself(func, args):
        return same(first)
    rows = _ROWS.get(func)
    frame = asking_function() if rows is not None else None
    if frame is None or frame.f_code.co_name not in _OF_FSDP:
        return None
    return rows(frame, *args, **kwargs)


def _split(frame: FrameType, whole: Any, size: int, dim: int = 0) -> Any:
    """Returns the rows per rank; None if two ranks would share a block."""
    ranks = frame.f_locals.get("shard_world_size")
    block = whole._storage.block_length
    if dim != 0 or whole.dim() != 2 or ranks is None:
        return None
    if size * ranks != whole.shape[0] or size % block or whole._storage.rowwise_data is None:
        return None
    return [_some_rows(whole, rank * size, size) for rank in range(ranks)]


def _some_rows(whole: Any, first: int, count: int) -> Any:
    """Returns a part that consists of whole blocks, in the same memory."""
    rows = whole.shape[0]
    parts: _Parts = []
    for part, (_, dim) in zip(_parts_of(whole), _PARTS, strict=True):
        if part is None:
            parts.append(None)
            continue
        length = part.shape[dim]  # rows, or blocks of them
        blocks = -(-rows // length)
        parts.append(part.narrow(dim, first // blocks, count // blocks))
    return _of_parts(whole, parts, [count, whole.shape[1]], whole.dtype, is_shard=True)


def _new_zeros(frame: FrameType, like: Any, size: list[int], **placement: Any) -> Any:
    chunks = frame.f_locals.get("chunks")
    if not chunks or not isinstance(chunks[0], WithShardedBlocks):
        return None
    parts = [None if part is None else torch.zeros_like(part) for part in _parts_of(chunks[0])]
    return _of_parts(like, parts, list(size), like.dtype, is_shard=True)


def _slice(
    frame: FrameType, rows: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    some = range(*slice(start, end, step).indices(rows.shape[dim]))
    return same(rows) if rows._is_shard and len(some) == rows.shape[dim] else None


_ROWS = {
    aten.split.Tensor: _split,
    aten.new_zeros.default: _new_zeros,
    aten.slice.Tensor: _slice,
    **SAME_ROWS,
}


def _copy(to: Any, source: Any) -> Any:
    """Copies codes and scales without quantizing again if FSDP or a checkpoint writes, or between
    shards."""
    if not isinstance(source, WithShardedBlocks):
        return None
    both_shards = to._is_shard and source._is_shard
    if not both_shards and not (to._is_shard and asking_function() is not None):
        return None
    one, other = to._storage, source._storage
    if (one.mode, one.fp8_dtype, to.shape) != (other.mode, other.fp8_dtype, source.shape):
        return None
    pairs = list(zip(_parts_of(to), _parts_of(source), strict=True))
    if any(target is not None and given is None for target, given in pairs):
        return None
    for target, given in pairs:
        if target is not None:
            target.copy_(given)
    one.blocks = other.blocks
    return to


def _parts_of(tensor: Any) -> _Parts:
    return [getattr(tensor._storage, name) for name, _ in _PARTS]


def _of_parts(
    like: Any, parts: _Parts, sizes: list[int], dtype: torch.dtype, is_shard: bool = False
) -> Any:
    storage = like._storage
    made = _C.QuantizedStorage(*parts, storage.fp8_dtype, storage.mode, dtype, sizes, None, None)
    made.blocks = storage.blocks
    tensor = type(like)(made, False, like._quantizer)
    tensor._is_shard = is_shard
    return tensor
