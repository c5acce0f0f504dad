"""Operations shared by the weights that torch's FSDP2 shards and gathers as codes.

FSDP splits and joins rows with plain operations. Here are those whose result is the tensor itself;
the calling function distinguishes them from the same operations elsewhere.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch

__all__ = ["NARROW", "SAME_ROWS", "as_columns", "asking_function", "is_itself", "same"]

aten = torch.ops.aten

# Functions of torch that split and join rows, and their packages: FSDP's convert between shards and
# whole parameters, those of its checkpoints read and write pieces.
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
