"""Per-tensor scaled weights that torch's FSDP2 shards and gathers as codes.

`fully_shard` splits a parameter with plain operations, which return values for other callers. If
FSDP itself calls them, they return rows of codes; FSDP gathers them by the two methods of its
extensions. Operations whose result is the tensor itself are shared with block-scaled weights
(sharded_blocks.py).
"""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch.utils._pytree import tree_map
from torch.utils.weak import WeakIdKeyDictionary

from telens import _C

__all__ = [
    "NARROW",
    "SAME_ROWS",
    "WithShardedCodes",
    "answer",
    "answer_checkpoint",
    "as_columns",
    "asking_function",
    "is_itself",
    "largest_of_ranks",
    "same",
]

aten = torch.ops.aten

# ---- pieces of a quantized weight, into which DCP reads values one by one. They share scales,
# which are known when the last piece has been read: until then the values are kept.


@dataclass
class Piece:
    """A piece of a weight, for one load of a checkpoint."""

    whole: Any
    load: Any  # the planner, which a load has for itself
    place: tuple[range, range]  # rows and columns

    def narrow(self, dim: int, some: range) -> Piece:
        rows, columns = self.place
        within = slice(some.start, some.stop)
        place = (rows[within], columns) if dim == 0 else (rows, columns[within])
        return Piece(self.whole, self.load, place)


@dataclass
class Arriving:
    """Values of a weight of which some pieces have been read."""

    values: torch.Tensor
    places: set[tuple[range, range]]


# A load's weights, by their storages, which all views of a weight share.
_arriving = WeakIdKeyDictionary()
_lock = threading.Lock()  # some readers write from several threads


def write_values(piece: Piece, values: torch.Tensor) -> None:
    """Writes the values of a piece; after the last piece, quantizes the whole weight once.

    DCP saves only pieces that cover a tensor and reads all of them, so the last piece is always
    read.
    """
    whole, (rows, columns) = piece.whole, piece.place
    with _lock:
        of_load = _arriving.setdefault(piece.load, {})
        if whole._storage not in of_load:
            empty = torch.empty(whole.shape, dtype=whole.dtype, device=whole.device)
            of_load[whole._storage] = Arriving(empty, set())
        arriving = of_load[whole._storage]
        arriving.values[rows.start : rows.stop, columns.start : columns.stop].copy_(values)
        arriving.places.add(piece.place)
        if sum(len(rows) * len(columns) for rows, columns in arriving.places) < whole.numel():
            return
        del of_load[whole._storage]
    whole.quantize_(arriving.values)


class PieceOfValues(torch.Tensor):
    """A piece as a tensor in high precision; a copy into it is written to the weight."""

    _piece: Piece

    @staticmethod
    def __new__(cls, piece: Piece) -> PieceOfValues:
        whole, sizes = piece.whole, [len(some) for some in piece.place]
        made = torch.Tensor._make_wrapper_subclass(
            cls, sizes, dtype=whole.dtype, device=whole.device
        )
        made._piece = piece
        return made

    def values(self) -> torch.Tensor:
        rows, columns = self._piece.place
        whole = self._piece.whole.dequantize()
        return whole[rows.start : rows.stop, columns.start : columns.stop]

    def narrowed(self, dim: int = 0, start: Any = None, end: Any = None) -> PieceOfValues:
        some = range(*slice(start, end).indices(self.shape[dim]))
        return PieceOfValues(self._piece.narrow(dim, some))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is aten.detach.default:
            return PieceOfValues(args[0]._piece)
        if func is aten.slice.Tensor and len(args) <= 4:
            return args[0].narrowed(*args[1:])
        if func is aten.copy_.default and isinstance(args[0], PieceOfValues):
            write_values(args[0]._piece, args[1])
            return args[0]
        plain_args, plain_kwargs = tree_map(_plain, (args, kwargs or {}))
        return func(*plain_args, **plain_kwargs)

    __torch_function__ = torch._C._disabled_torch_function_impl


def _plain(value: Any) -> Any:
    return value.values() if isinstance(value, PieceOfValues) else value


# Functions of torch that split and join rows, and their packages. FSDP converts between shards and
# whole parameters; checkpoints read and write pieces.
_FSDP = "torch.distributed.fsdp."
_CHECKPOINT = "torch.distributed.checkpoint."
NARROW = "narrow_tensor_by_index"
_ASKING = {
    "_init_sharded_param": _FSDP, "reset_sharded_param": _FSDP, "init_unsharded_param": _FSDP,
    NARROW: "torch.distributed._shard.", "read_data": _CHECKPOINT,
    "_process_read_request": _CHECKPOINT,
}  # fmt: skip
_MOST_FRAMES = 5  # how many callers of an operation are looked at; torch calls it within four


def asking_function() -> FrameType | None:
    """Returns the function of torch that makes the call."""
    frame = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return None
        package = _ASKING.get(frame.f_code.co_name)
        if package is not None and frame.f_globals.get("__name__", "").startswith(package):
            return frame
        frame = frame.f_back
    return None


def is_itself(func: Any, args: tuple) -> bool:
    """Returns whether the result is the whole part, as DTensor.to_local requests it."""
    same_view = func is aten.view.default and list(args[1]) == list(args[0].shape)
    return same_view or func in (aten.detach.default, aten.alias.default)


def same(tensor: Any) -> Any:
    """Returns another tensor with the same codes and the same part of the whole."""
    made = type(tensor)(tensor._storage, False, tensor._quantizer)
    made._become_part_as(tensor)
    return made


def _view(frame: FrameType, rows: Any, size: list[int]) -> Any:
    # FSDP keeps it in addition to the shard, whose codes it uses instead.
    return same(rows) if rows._is_shard else None


def _as_strided(frame: FrameType, whole: Any, size: Any, stride: Any, offset: int = 0) -> Any:
    return same(whole) if list(size) == list(whole.shape) else None


# Answers to operations of FSDP, by operation.
SAME_ROWS = {aten.view.default: _view, aten.as_strided.default: _as_strided}


def as_columns(rows: torch.Tensor, memory: torch.Tensor | None) -> torch.Tensor:
    """Returns their transpose, in memory that FSDP frees and allocates from now on; None: in new
    memory."""
    columns = rows.new_empty(rows.shape[::-1]) if memory is None else memory
    # A backward that has saved them requires their current values, like FSDP's outputs.
    with torch.autograd._unsafe_preserve_version_counter(columns):
        columns.copy_(rows.t())
    return columns


@dataclass
class Shard:
    """State that the shards of a tensor share."""

    group: torch.distributed.ProcessGroup
    codes: torch.Tensor  # this shard's rows, padded with zeros to the same number on every rank


class WithShardedCodes:
    """Methods of FSDP2 and checkpoints for a tensor with one scale."""

    _shard: Shard | None = None  # None unless the tensor is a shard of FSDP2
    _piece: Piece | None = None  # None unless a checkpoint is read into it

    @property
    def _is_shard(self) -> bool:
        return self._shard is not None

    def _shares_scale(self) -> bool:
        return self._shard is not None or self._piece is not None

    def _become_part_as(self, other: Any) -> None:
        self._shard, self._piece = other._shard, other._piece

    def quantize_(self, tensor: torch.Tensor) -> Any:
        """Quantizes the rows of this rank with the scale of the whole tensor.

        All ranks of the group must call it: the scale comes from the largest value of any rank.
        """
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
        """Returns the codes of this rank's rows, and metadata for the whole tensor."""
        # An optimizer step changes the shard's scale while codes that were already gathered stay.
        return (self._shard.codes,), (self._storage.rowwise_scale_inv.clone(), outer_size[0])

    def fsdp_post_all_gather(
        self,
        all_gather_outputs: tuple[torch.Tensor, ...],
        metadata: Any,
        param_dtype: torch.dtype,
        *,
        out: Any = None,
    ) -> tuple[Any, tuple[torch.Tensor, ...]] | None:
        """Returns the whole tensor from the gathered codes, with dtype ``param_dtype``."""
        scale_inv, rows = metadata
        if scale_inv.is_cuda:  # made on FSDP's own stream, whose memory it is
            scale_inv.record_stream(torch.cuda.current_stream(scale_inv.device))
        codes = all_gather_outputs[0].narrow(0, 0, rows)
        columns, own = _columns_of(codes, out)
        whole = _of_codes(self, codes, scale_inv, None, columns, param_dtype)
        if out is None:
            return whole, own
        out._storage = whole._storage
        return None


def takes_any_layout(device: torch.device) -> bool:
    """Returns whether the GEMM accepts codes in any layout (CPU) or only rows (GPU)."""
    return device.type == "cpu"


def _columns_of(codes: torch.Tensor, out: Any) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """Returns the codes as columns, and their memory, which FSDP frees and allocates."""
    if takes_any_layout(codes.device):
        return codes.t(), ()
    columns = as_columns(codes, None if out is None else out._storage.columnwise_data)
    return columns, (columns,)


def answer(func: Any, args: tuple, kwargs: dict) -> Any:
    """Returns the result of an operation of FSDP on codes; None for other operations."""
    first = args[0] if args else None
    if func is aten.copy_.default:
        return _copy(first, args[1]) if isinstance(first, WithShardedCodes) else None
    is_part = isinstance(first, WithShardedCodes) and first._shares_scale()
    if is_part and is_itself(func, args):
        return same(first)
    rows = _ROWS.get(func)
    frame = asking_function() if rows is not None else None
    return None if frame is None else rows(frame, *args, **kwargs)


def answer_checkpoint(func: Any, args: tuple) -> Any:
    """Returns the piece of a quantized tensor into which DCP reads values."""
    if func is not aten.slice.Tensor or args[0].dim() != 2:
        return None
    frame = asking_function()
    if frame is None or frame.f_code.co_name != NARROW:
        return None
    planner = sys.modules["torch.distributed.checkpoint.planner"].LoadPlanner
    piece = _piece_of(frame, args[0])
    return PieceOfValues(piece).narrowed(*args[1:]) if isinstance(piece.load, planner) else None


def _are_alike(one: Any, other: Any) -> bool:
    """Returns whether both tensors are whole, or both are shards with a common scale."""
    both = isinstance(one, WithShardedCodes) and isinstance(other, WithShardedCodes)
    return both and (one._shard is None) == (other._shard is None)


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
    if step != 1 or rows.dim() != 2 or storage.rowwise_data is None:
        return None
    some = range(*slice(start, end).indices(rows.shape[dim]))
    codes = storage.rowwise_data.narrow(dim, some.start, len(some))
    columns = storage.columnwise_data
    if columns is not None:
        columns = columns.narrow(1 - dim, some.start, len(some))
    made = _of_codes(rows, codes, storage.rowwise_scale_inv, rows._shard, columns)
    if frame.f_code.co_name == NARROW:
        made._piece = _piece_of(frame, rows).narrow(dim, some)
    return made


def _piece_of(frame: FrameType, tensor: Any) -> Piece:
    rows, columns = tensor.shape
    load = frame.f_back.f_locals.get("self", tensor)
    return getattr(tensor, "_piece", None) or Piece(tensor, load, (range(rows), range(columns)))


def _copy(to: Any, source: Any) -> Any:
    """Copies codes with their scale, without quantizing again, if FSDP or a checkpoint writes or
    both tensors are of the same kind. A piece of a whole tensor never gets a separate scale."""
    torch_asks = to._piece is not None or asking_function() is not None
    codes_come = isinstance(source, WithShardedCodes)
    if codes_come and (torch_asks or _are_alike(to, source)) and _copy_codes(to, source):
        return to
    if not torch_asks:
        return None
    if to._shard is not None:
        came = source._storage.fp8_dtype.name if codes_come else source.dtype
        raise _C.UsageError(
            f"FSDP2: a checkpoint has values in {came} for a weight that is stored in "
            f"{to._storage.fp8_dtype.name} and sharded; load it before fully_shard, or make the "
            "model without fp8_model_init"
        )
    if to._piece is None:
        return None
    write_values(to._piece, source.dequantize() if codes_come else source)
    return to


def _copy_codes(to: Any, source: Any) -> bool:
    """Writes the codes if they fit, and returns whether they did."""
    target, given = to._storage, source._storage
    codes = given.rowwise_data
    if target.rowwise_data is None or codes is None:
        return False
    if given.fp8_dtype != target.fp8_dtype or source.shape != to.shape:
        return False
    target.rowwise_data.copy_(codes)
    target.rowwise_scale_inv.copy_(given.rowwise_scale_inv)
    columns = target.columnwise_data
    if columns is not None:
        if columns.data_ptr() != target.rowwise_data.data_ptr():
            columns.copy_(codes.t())
        target.columnwise_scale_inv.copy_(given.rowwise_scale_inv)
    return True


_ROWS = {
    aten.split.Tensor: _split,
    aten.new_zeros.default: _new_zeros,
    aten.slice.Tensor: _slice,
    **SAME_ROWS,
}


def largest_of_ranks(values: torch.Tensor, group: torch.distributed.ProcessGroup) -> torch.Tensor:
    """Returns max |x| over all ranks, or NaN if there is one (its bits are the largest)."""
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
    dtype: torch.dtype | None = None,
) -> Any:
    """Returns a tensor of such rows."""
    storage = like._storage
    of_columns = None if columns is None else scale_inv
    made = _C.QuantizedStorage(
        codes, scale_inv, columns, of_columns, storage.fp8_dtype, storage.mode,
        dtype or storage.dtype, list(codes.shape), None, None,
    )  # fmt: skip
    made.blocks = storage.blocks
    rows = type(like)(made, False, like._quantizer)
    rows._shard = shard
    return rows
