"""Weights under one scale that torch's FSDP2 shards and gathers as codes.

`fully_shard` cuts a parameter with plain operations, which see values everywhere else. Where FSDP
itself asks, rows of codes answer; it gathers them by the two methods of its extensions.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from telens import _C

__all__ = ["WithShardedCodes", "answer", "largest_of_ranks"]

aten = torch.ops.aten

# Functions of torch that cut and join rows, by name and by a part of their file's: FSDP's make
# shards and whole parameters of each other, those of its checkpoints read and write pieces.
_FSDP = "_fully_shard"
_ASKING = {
    "_init_sharded_param": _FSDP, "reset_sharded_param": _FSDP, "init_unsharded_param": _FSDP,
    "narrow_tensor_by_index": "_shard", "read_data": "checkpoint",
}  # fmt: skip
_MOST_FRAMES = 5  # an operation is so far from one of them


@dataclass
class Shard:
    """What the rows of one rank share with those of others."""

    group: torch.distributed.ProcessGroup
    codes: torch.Tensor  # the rows', and zeros behind them that give all ranks as many


class WithShardedCodes:
    """For a tensor of codes under one scale."""

    _shard: Shard | None = None  # None: a whole tensor

    def quantize_(self, tensor: torch.Tensor) -> Any:
        """As of a whole tensor, of which this rank has some rows: the scale is that of the largest
        value of any rank, so each rank of the group calls it."""
        if self._shard is None:
            return super().quantize_(tensor)
        with torch.no_grad():
            values = tensor.detach().to(self.dtype).reshape(self.shape)
            row = values.new_zeros(1, values.shape[1])
            row[0, 0] = largest_of_ranks(values, self._shard.group)
            made = self._get_quantizer().quantize(torch.cat([values, row]))._storage
            own, other = self._storage.rowwise_data, made.rowwise_data
            own.copy_(other[: own.shape[0]])
            self._storage.rowwise_scale_inv.copy_(made.rowwise_scale_inv)
        return self

    def fsdp_pre_all_gather(
        self, mesh: Any, outer_size: Any, outer_stride: Any, module: Any, mp_policy: Any
    ) -> tuple[tuple[torch.Tensor, ...], Any]:
        """The codes of this rank's rows, and what the whole tensor takes of this rank."""
        return (self._shard.codes,), (self._storage.rowwise_scale_inv, outer_size[0])

    def fsdp_post_all_gather(
        self,
        all_gather_outputs: tuple[torch.Tensor, ...],
        metadata: Any,
        param_dtype: torch.dtype,
        *,
        out: Any = None,
    ) -> tuple[Any, tuple[torch.Tensor, ...]] | None:
        """The whole tensor of the codes of all ranks."""
        scale_inv, rows = metadata
        codes = all_gather_outputs[0].narrow(0, 0, rows)
        # The CPU's GEMM takes codes in any layout, those of GPUs take rows.
        columns = codes.t() if codes.device.type == "cpu" else codes.t().contiguous()
        whole = _of_codes(self, codes, scale_inv, None, columns)
        if out is None:
            return whole, ()
        out._storage = whole._storage
        return None


def answer(func: Any, args: tuple, kwargs: dict) -> Any:
    """What an operation of FSDP gets for a tensor of codes; None: what any other gets."""
    first = args[0] if args else None
    if _shard_of(first) is not None and _is_itself(func, args):
        return _like(first, first._storage, first._shard)
    if func is aten.copy_.default and _are_alike(first, args[1]):
        return _copy_codes(first, args[1])
    rows = _ROWS.get(func)
    frame = _asking() if rows is not None else None
    return None if frame is None else rows(frame, *args, **kwargs)


def _shard_of(tensor: Any) -> Shard | None:
    return getattr(tensor, "_shard", None)


def _are_alike(one: Any, other: Any) -> bool:
    """Whether both are whole, or both shards, whose scales are those of all ranks."""
    both = isinstance(one, WithShardedCodes) and isinstance(other, WithShardedCodes)
    return both and (one._shard is None) == (other._shard is None)


def _is_itself(func: Any, args: tuple) -> bool:
    """Whether the result is the shard as it is, as DTensor.to_local asks for it."""
    same_view = func is aten.view.default and list(args[1]) == list(args[0].shape)
    return same_view or func in (aten.detach.default, aten.alias.default)


def _split(frame: FrameType, whole: Any, size: int, dim: int = 0) -> Any:
    codes = whole._storage.rowwise_data
    if dim != 0 or whole.dim() != 2 or codes is None:
        return None
    return [_of_codes(whole, part, whole._storage.rowwise_scale_inv) for part in codes.split(size)]


def _new_zeros(frame: FrameType, like: Any, size: list[int], **placement: Any) -> Any:
    if len(size) != 2 or size[1] != like.shape[1] or like._storage.rowwise_data is None:
        return None
    codes = like._storage.rowwise_data.new_zeros(size)
    group = frame.f_locals["self"].mesh_info.shard_process_group
    scale_inv = like._storage.rowwise_scale_inv.clone()
    return _of_codes(like, codes, scale_inv, Shard(group, codes))


def _slice(
    frame: FrameType, rows: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    storage = rows._storage
    if dim != 0 or step != 1 or rows.dim() != 2 or storage.rowwise_data is None:
        return None
    some = slice(start, end)
    columns = None if storage.columnwise_data is None else storage.columnwise_data[:, some]
    codes = storage.rowwise_data[some]
    return _of_codes(rows, codes, storage.rowwise_scale_inv, rows._shard, columns)


def _copy(frame: FrameType, to: Any, source: Any, non_blocking: bool = False) -> Any:
    # A piece of a checkpoint comes with the scale of the tensor that it is from, as all pieces do.
    if isinstance(to, WithShardedCodes) and isinstance(source, WithShardedCodes):
        return _copy_codes(to, source)
    if _shard_of(to) is not None:
        raise _C.UsageError(
            f"FSDP2: a checkpoint has values in {source.dtype} for a weight that is stored in FP8 "
            "and sharded; load it before fully_shard, or make the model without fp8_model_init"
        )
    return None


def _copy_codes(to: Any, source: Any) -> Any:
    target, given = to._storage, source._storage
    codes = given.rowwise_data
    if target.rowwise_data is None or codes is None:
        return None
    if given.fp8_dtype != target.fp8_dtype or source.shape != to.shape:
        return None
    target.rowwise_data.copy_(codes)
    target.rowwise_scale_inv.copy_(given.rowwise_scale_inv)
    columns = target.columnwise_data
    if columns is not None:
        if columns.data_ptr() != target.rowwise_data.data_ptr():
            columns.copy_(codes.t())
        target.columnwise_scale_inv.copy_(given.rowwise_scale_inv)
    return to


def _view(frame: FrameType, rows: Any, size: list[int]) -> Any:
    # FSDP keeps it beside the shard, whose codes it takes instead.
    return None if rows._shard is None else _like(rows, rows._storage, rows._shard)


def _as_strided(frame: FrameType, whole: Any, size: Any, stride: Any, offset: int = 0) -> Any:
    return _like(whole, whole._storage, None) if list(size) == list(whole.shape) else None


_ROWS = {
    aten.split.Tensor: _split,
    aten.new_zeros.default: _new_zeros,
    aten.slice.Tensor: _slice,
    aten.copy_.default: _copy,
    aten.view.default: _view,
    aten.as_strided.default: _as_strided,
}


def _asking() -> FrameType | None:
    """The function of torch that asks."""
    frame = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return None
        if _ASKING.get(frame.f_code.co_name, "\n") in frame.f_code.co_filename:
            return frame
        frame = frame.f_back
    return None


def largest_of_ranks(values: torch.Tensor, group: torch.distributed.ProcessGroup) -> torch.Tensor:
    """Of all ranks: max |x|, or NaN, whose bits are the largest."""
    own = values.abs().amax() if values.numel() else values.new_zeros(())
    bits = own.float().view(torch.int32)
    torch.distributed.all_reduce(bits, torch.distributed.ReduceOp.MAX, group=group)
    return bits.view(torch.float32)


def _of_codes(
    like: Any,
    codes: torch.Tensor,
    scale_inv: torch.Tensor,
    shard: Shard | None = None,
    columns: torch.Tensor | None = None,
) -> Any:
    """A tensor of such rows."""
    storage = like._storage
    of_columns = None if columns is None else scale_inv
    made = _C.QuantizedStorage(
        codes, scale_inv, columns, of_columns, storage.fp8_dtype, storage.mode, storage.dtype,
        list(codes.shape), None, None,
    )  # fmt: skip
    made.blocks = storage.blocks
    return _like(like, made, shard)


def _like(like: Any, storage: _C.QuantizedStorage, shard: Shard | None) -> Any:
    made = type(like)(storage, False, like._quantizer)
    made._shard = shard
    return made
