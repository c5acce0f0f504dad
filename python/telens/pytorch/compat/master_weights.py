"""``transformer_engine.pytorch.tensor.utils``: quantized weights under distributed optimizers. Each
rank has parts of the high-precision master weights and the whole quantized weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from telens import _C
from telens._names import refusal
from telens.pytorch.tensor import MXFP6Tensor, MXFP8Tensor, NVFP4Tensor, QuantizedTensor, wrap

__all__ = [
    "cast_master_weights_to_fp8",
    "post_all_gather_processing",
    "quantize_master_weights",
    "replace_raw_data",
]


def replace_raw_data(tensor: QuantizedTensor, new_raw_data: torch.Tensor) -> None:
    """Moves a tensor's codes into memory of the caller, such as a slice of a buffer.

    Values, scales and type do not change. Later casts into the tensor write to that memory, and
    bytes written there become the tensor's codes (``post_all_gather_processing``).

    Raises UsageError for an MXFP8Tensor or MXFP6Tensor, whose two orientations have separate codes,
    and for memory of another shape or dtype.
    """
    _check_quantized("replace_raw_data", tensor)
    if isinstance(tensor, MXFP8Tensor | MXFP6Tensor):
        raise _C.UsageError(
            f"replace_raw_data: an {type(tensor).__name__} has other codes for its rows than for "
            "its columns; expected one of the other formats: gather its _rowwise_data and "
            "_columnwise_data"
        )
    storage = tensor._storage
    rows, columns = storage.rowwise_data, storage.columnwise_data
    if rows is None:
        raise _C.UsageError("replace_raw_data: the tensor keeps no codes of its rows")
    if new_raw_data.dtype != rows.dtype or new_raw_data.shape != rows.shape:
        raise _C.UsageError(
            f"replace_raw_data: new_raw_data is {new_raw_data.dtype} of shape "
            f"{tuple(new_raw_data.shape)}; expected {rows.dtype} of shape {tuple(rows.shape)}"
        )
    moved = new_raw_data.detach()
    moved.copy_(rows)
    # Columns that are a view of the rows follow them.
    follows = columns is not None and _share_memory(rows, columns)

    made = _C.QuantizedStorage(
        moved,
        storage.rowwise_scale_inv,
        moved.t() if follows else columns,
        storage.columnwise_scale_inv,
        storage.fp8_dtype,
        storage.mode,
        storage.dtype,
        storage.sizes,
        storage.rowwise_tensor_scale,
        storage.columnwise_tensor_scale,
    )
    made.blocks = storage.blocks
    tensor.data = wrap(made, quantizer=tensor._quantizer)


def quantize_master_weights(
    model_weights: Sequence[QuantizedTensor],
    master_weights: Sequence[torch.Tensor | None],
    start_offsets: Sequence[int | None],
    group: torch.distributed.ProcessGroup | None,
    fsdp_shard_model_weights: Sequence[Any] | None = None,
    manual_post_all_gather_processing: bool = False,
) -> None:
    """Quantizes master weights, of which each rank has a part, into the model's weights.

    The ranks exchange their parts in the weight's dtype, one weight at a time. Then each rank
    quantizes the whole weight. The result is ``weight.quantize_(master)`` on all ranks, for
    every format. ``_high_precision_init_val`` is cleared.

    Parameters
    ----------
    model_weights
        the quantized weights, on all ranks in one order
    master_weights
        this rank's contiguous part of every weight, flat; None if the rank has no part
    start_offsets
        index of the first element of the part in the flat weight
    group
        the ranks that have the parts. Default: the default group, or only this process if
        torch.distributed is not initialized
    fsdp_shard_model_weights
        memory for the codes of a part (MXFP8: two, for rows and columns), written instead of the
        model weight's codes; scales are still the model weight's
    manual_post_all_gather_processing
        no effect: every rank has all codes when the function returns

    Raises UsageError on all ranks unless their parts cover every element exactly once.
    """
    shards = fsdp_shard_model_weights or [None] * len(model_weights)
    weights = list(zip(model_weights, master_weights, start_offsets, shards, strict=True))
    for weight, master, start, _ in weights:
        _check_quantized("quantize_master_weights", weight)
        if master is not None:
            _check_part(weight, master, start)
    is_alone = not torch.distributed.is_initialized()
    if not is_alone:
        _check_cover(weights, group)
    with torch.no_grad():
        for weight, master, start, shard in weights:
            if hasattr(weight, "clear_high_precision_init_val"):
                weight.clear_high_precision_init_val()
            # An even number, so that BF16 can be summed as int32: adding zeros to bits preserves
            # them (also of -0 and NaN), and gloo does not support int16.
            count = weight.numel()
            whole = torch.zeros(count + count % 2, dtype=weight.dtype, device=weight.device)
            if master is not None:
                whole[start : start + master.numel()] = master.detach().reshape(-1)
            if not is_alone:
                torch.distributed.all_reduce(whole.view(torch.int32), group=group)
            whole = whole[:count].view(weight.shape)
            if shard is None:
                weight.quantize_(whole)
            else:
                _quantize_shard(weight, whole, master, start, shard)


# The former name of quantize_master_weights.
cast_master_weights_to_fp8 = quantize_master_weights


@torch.no_grad()
def post_all_gather_processing(model_weights: QuantizedTensor | Sequence[QuantizedTensor]) -> None:
    """Computes the codes of columns from the codes of rows, after the latter were written as bytes.

    Skips weights whose columns share memory with the rows, or have separate codes (MXFP8, NVFP4).
    """
    weights = [model_weights] if isinstance(model_weights, torch.Tensor) else model_weights
    for weight in weights:
        _check_quantized("post_all_gather_processing", weight)
        rows, columns = weight._storage.rowwise_data, weight._storage.columnwise_data
        if (
            rows is None
            or columns is None
            or isinstance(weight, MXFP8Tensor | MXFP6Tensor | NVFP4Tensor)
        ):
            continue
        if not _share_memory(rows, columns):
            columns.copy_(rows.t())


def _quantize_shard(
    weight: QuantizedTensor,
    whole: torch.Tensor,
    master: torch.Tensor | None,
    start: int | None,
    shard: Any,
) -> None:
    made = weight._get_quantizer().quantize(whole)._storage
    for name in ("scale_inv", "tensor_scale"):
        for orientation in ("rowwise", "columnwise"):
            scales = getattr(weight._storage, f"{orientation}_{name}")
            if scales is not None:
                scales.copy_(getattr(made, f"{orientation}_{name}"))
    if master is None:
        return
    # Elements per byte of codes: 2 for E2M1.
    per_byte = weight.numel() // made.rowwise_data.numel()
    end = start + master.numel()
    both = isinstance(shard, tuple | list)
    for memory, codes in zip(
        shard if both else [shard], (made.rowwise_data, made.columnwise_data), strict=False
    ):
        flat = codes if codes is made.rowwise_data else codes.t()
        part = flat.reshape(-1)[start // per_byte : end // per_byte]
        memory.view(torch.uint8).view(-1)[: part.numel()].copy_(part)


def _check_quantized(owner: str, tensor: Any) -> None:
    if not isinstance(tensor, QuantizedTensor):
        expected = "a quantized tensor, as quantized_model_init makes weights"
        raise refusal(owner, "a weight", expected, tensor)


def _check_part(weight: QuantizedTensor, master: torch.Tensor, start: int | None) -> None:
    end = None if start is None else start + master.numel()
    if start is None or start < 0 or end > weight.numel():
        raise _C.UsageError(
            f"quantize_master_weights: a part of {master.numel()} elements begins at {start}; "
            f"expected an offset of a part of the weight's {weight.numel()} elements"
        )


def _check_cover(weights: Sequence[tuple], group: torch.distributed.ProcessGroup | None) -> None:
    """Raises UsageError on all ranks unless the ranks' parts tile each weight without overlap."""
    if not weights:
        return
    parts = [
        (0, 0) if master is None else (start, start + master.numel())
        for _, master, start, _ in weights
    ]
    own = torch.tensor(parts, dtype=torch.int64, device=weights[0][0].device)
    ranks = torch.distributed.get_world_size(group)
    of_ranks = [torch.empty_like(own) for _ in range(ranks)]
    torch.distributed.all_gather(of_ranks, own, group=group)
    for index, (weight, intervals) in enumerate(
        zip([each[0] for each in weights], torch.stack(of_ranks, 1).tolist(), strict=True)
    ):
        _check_intervals(index, weight.numel(), intervals)


def _check_intervals(index: int, count: int, intervals: Sequence[Sequence[int]]) -> None:
    """Raises UsageError unless [begin, end) of the ranks cover 0 to ``count`` exactly once."""
    covered = 0
    for begin, end in sorted(each for each in map(tuple, intervals) if each[0] < each[1]):
        if begin != covered:
            what = "no rank has" if begin > covered else "several ranks have"
            first, last = sorted((begin, covered))
            raise _C.UsageError(
                f"quantize_master_weights: {what} the elements {first} to "
                f"{min(last, end) - 1} of weight {index}; expected each of its {count} elements on "
                "one rank: pass matching start_offsets and the group whose ranks have the parts"
            )
        covered = end
    if covered != count:
        raise _C.UsageError(
            f"quantize_master_weights: no rank has the elements {covered} to {count - 1} of weight "
            f"{index}; expected each of its {count} elements on one rank: pass matching "
            "start_offsets and the group whose ranks have the parts"
        )


def _share_memory(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
