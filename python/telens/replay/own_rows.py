"""Restricts a GEMM over the rows of every rank (sequence parallelism) to the rows in this rank's
dump."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from telens import RecordError, UsageError

if TYPE_CHECKING:
    from telens.replay.dumps import Dump
    from telens.replay.gemm_error import Cast


def _rows(cast: Cast, first: int, count: int) -> Cast:
    height, length = cast.block
    scales, tensor_scale = cast.scales, cast.tensor_scale
    if length:
        scales = scales[first // height : -(-(first + count) // height)]
    if tensor_scale is not None and tensor_scale.numel() > 1:
        tensor_scale = tensor_scale[first : first + count]
    codes = cast.codes[first : first + count]
    return dataclasses.replace(cast, codes=codes, scales=scales, tensor_scale=tensor_scale)


def take(dump: Dump) -> Dump:
    """Returns the dump with result and left operand cut to this rank's rows.

    Raises UsageError for a wgrad, which sums over the rows of every rank, and RecordError for
    missing rows.
    """
    if all(operand.first_row is None for operand in dump.operands):
        return dump
    left = dump.operands[0]
    if dump.gemm == "wgrad" or left.first_row is None:
        name = next(each.name for each in dump.operands if each.first_row is not None)
        raise UsageError(
            f"{dump.path}: {dump.gemm} sums over the rows of every rank (sequence_parallel), but "
            f"the dump has only this rank's rows of the {name} in high precision; replay fprop or "
            f"dgrad, or dump "
            "the layer without sequence_parallel"
        )
    first, rows = left.first_row, left.cast.codes.shape[0]
    own = rows if left.original is None else left.original.shape[0]
    is_whole = rows > own
    height = left.cast.block[0] if left.cast.block[1] else 1
    cuts = is_whole and (first % height or own % height)
    last = first + own
    if first < 0 or last > dump.result.shape[0] or (is_whole and last > rows) or cuts:
        raise RecordError(
            f"{dump.path}: the {left.name} of this rank has {own} rows from row {first} on, which "
            f"do not fit a result of {dump.result.shape[0]} rows"
        )
    if is_whole:
        left.cast = _rows(left.cast, first, own)
    dump.result = dump.result[first:last]
    return dump
