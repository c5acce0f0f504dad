"""Tokens sorted by expert, and back: the functions of a mixture of experts.

Each is an operator ``torch.ops.telens.moe_*`` on the CPU and on CUDA, with gradients of any order.
Rows are copied bit for bit; sums over a token's experts are FP32 and rounded once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from telens import _C
from telens._names import among, refusal, rejects_bools
from telens.common.field_types import check_sizes
from telens.pytorch.quantization import FP8GlobalStateManager
from telens.pytorch.tensor import QuantizedTensor, wrap

__all__ = [
    "Fp8Padding",
    "Fp8Unpadding",
    "moe_permute",
    "moe_permute_and_pad_with_probs",
    "moe_permute_with_probs",
    "moe_sort_chunks_by_index",
    "moe_sort_chunks_by_index_with_probs",
    "moe_unpermute",
]

_MAP_TYPES = ["mask", "index"]


def _operators() -> Any:
    return torch.ops.telens


@rejects_bools
def moe_permute(
    inp: torch.Tensor,
    routing_map: torch.Tensor,
    num_out_tokens: int = -1,
    max_token_num: int = -1,
    map_type: str = "mask",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies tokens to their experts: rows sorted by expert, within one by token.

    Parameters
    ----------
    inp
        [tokens, hidden], of any dtype. A quantized tensor gives one: its codes and the scales of
        its rows are copied.
    routing_map
        map_type "mask": [tokens, experts], 1 (True) if the token goes to the expert;
        "index": [tokens, top_k] numbers of experts, int32 (others are converted, with a warning).
        A negative entry of either is an empty slot, which gets no row
    num_out_tokens
        number of rows of the result. Rows beyond the routed ones are 0. A smaller number drops the
        last rows, so that tokens lack an expert. For "index" this is a feature; for a mask it is a
        mistake, since Transformer Engine writes past its output: a mask on the CPU gets a warning,
        a mask on a GPU is not counted. -1: as many rows as are routed, for which the host waits for
        the GPU ("index": -1 or 0, one row for each slot; rows of empty slots are 0 and come last)
    max_token_num
        no effect: no workspace is kept between calls
    map_type
        "mask" or "index"

    Returns
    -------
    (rows, row_id_map), the latter for `moe_unpermute`
    """
    among("moe_permute", "map_type", map_type, _MAP_TYPES)
    _check_count("moe_permute", num_out_tokens)
    if map_type == "index":
        index = _int32("moe_permute", "routing_map", routing_map)

        def permute(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return _operators().moe_permute_index(rows, index, num_out_tokens)
    else:
        _check_mask("moe_permute", routing_map, num_out_tokens)

        def permute(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            made = _operators().moe_permute_mask(rows, None, routing_map, num_out_tokens, None, -1)
            return made[0], made[2]

    return _on_rows("moe_permute", inp, permute)


def moe_permute_with_probs(
    inp: torch.Tensor,
    probs: torch.Tensor,
    routing_map: torch.Tensor,
    num_out_tokens: int = -1,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`moe_permute` by a mask, which also permutes the rows' probabilities.

    ``probs``: [tokens, experts], of any dtype. Returns (rows, the rows' probabilities, row_id_map).
    """
    _check_count("moe_permute_with_probs", num_out_tokens)
    _check_mask("moe_permute_with_probs", routing_map, num_out_tokens)

    def permute(rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return _operators().moe_permute_mask(rows, probs, routing_map, num_out_tokens, None, -1)

    return _on_rows("moe_permute_with_probs", inp, permute)


def moe_permute_and_pad_with_probs(
    inp: torch.Tensor,
    probs: torch.Tensor,
    routing_map: torch.Tensor,
    tokens_per_expert: torch.Tensor,
    align_size: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """`moe_permute_with_probs` with each expert's rows padded by zeros to multiples of align_size.

    ``tokens_per_expert``: [experts], the sums of routing_map's columns. Returns (rows, their
    probabilities, row_id_map, pad_offsets, padded row counts by expert). pad_offsets are for
    `moe_unpermute`, and None if nothing was padded.
    """
    check_sizes("moe_permute_and_pad_with_probs", align_size=align_size)
    if align_size < 1:
        raise refusal("moe_permute_and_pad_with_probs", "align_size", "1 or more", align_size)
    _check_mask("moe_permute_and_pad_with_probs", routing_map, -1)
    counts = tokens_per_expert.to(torch.int64)
    padded = (counts + (align_size - 1)) // align_size * align_size
    routed, made = int(counts.sum()), int(padded.sum())
    lengths = padded - counts
    offsets = None if routed == made else lengths.cumsum(0) - lengths

    def permute(rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        on_device = None if offsets is None else offsets.to(rows.device)
        return _operators().moe_permute_mask(rows, probs, routing_map, routed, on_device, made)

    rows, row_probs, row_id_map = _on_rows("moe_permute_and_pad_with_probs", inp, permute)
    return rows, row_probs, row_id_map, offsets, padded


def moe_unpermute(
    inp: torch.Tensor,
    row_id_map: torch.Tensor,
    merging_probs: torch.Tensor | None = None,
    restore_shape: torch.Size | tuple[int, int] | None = None,
    map_type: str = "mask",
    probs: torch.Tensor | None = None,
    pad_offsets: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns [tokens, hidden]: the sum of each token's rows times their probabilities.

    Parameters
    ----------
    inp
        [rows, hidden], sorted by expert
    row_id_map
        the map that `moe_permute` returned. On a CPU, a row number beyond the rows of ``inp``
        raises UsageError. On a GPU it is not checked, since the host would wait for the device:
        such a row counts as 0
    merging_probs
        "mask": [tokens, experts], "index": [tokens, top_k]. If it is None, each row has weight 1,
        and for "index" each token has one row
    restore_shape
        [tokens, hidden], checked against the shape of the result
    map_type
        "mask" or "index"
    probs
        the former name of merging_probs
    pad_offsets
        returned by `moe_permute_and_pad_with_probs`
    """
    among("moe_unpermute", "map_type", map_type, _MAP_TYPES)
    if probs is not None:
        if merging_probs is not None:
            raise _C.UsageError(
                "moe_unpermute: probs is the former name of merging_probs, and both are given; "
                "give merging_probs"
            )
        message = "moe_unpermute: probs is called merging_probs by now"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        merging_probs = probs
    if isinstance(inp, QuantizedTensor):
        raise refusal("moe_unpermute", "inp", "in high precision, in which rows are added", inp)
    if map_type == "mask":
        _check_mask_rows(row_id_map, pad_offsets, inp)
        out = _operators().moe_unpermute_mask(inp, row_id_map, merging_probs, pad_offsets)
    else:
        row_id_map = _int32("moe_unpermute", "row_id_map", row_id_map)
        if _is_readable(row_id_map):
            _check_rows(row_id_map, inp)
        out = _operators().moe_unpermute_index(inp, row_id_map, merging_probs)
    if restore_shape is not None and tuple(restore_shape) != tuple(out.shape):
        raise _C.ShapeError(
            f"moe_unpermute: restore_shape is {tuple(restore_shape)}, and row_id_map and inp make "
            f"{tuple(out.shape)}"
        )
    return out


def moe_sort_chunks_by_index(
    inp: torch.Tensor, split_sizes: torch.Tensor, sorted_index: torch.Tensor
) -> torch.Tensor:
    """``torch.cat([chunks[i] for i in sorted_index])`` with ``chunks = inp.split(split_sizes)``.

    ``split_sizes``, ``sorted_index``: [chunks], integers; neither is read by the host on a GPU.
    Transformer Engine documents a pair, but returns only the tensor, as this function does.
    """

    def sort(rows: torch.Tensor) -> tuple[torch.Tensor]:
        made = _operators().moe_sort_chunks(rows, None, *_chunks(rows, split_sizes, sorted_index))
        return (made[0],)

    return _on_rows("moe_sort_chunks_by_index", inp, sort)[0]


def moe_sort_chunks_by_index_with_probs(
    inp: torch.Tensor,
    probs: torch.Tensor,
    split_sizes: torch.Tensor,
    sorted_index: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Like `moe_sort_chunks_by_index`, but also sorts the rows' probabilities, [rows]."""

    def sort(rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return _operators().moe_sort_chunks(rows, probs, *_chunks(rows, split_sizes, sorted_index))

    return _on_rows("moe_sort_chunks_by_index_with_probs", inp, sort)


class _RowsOfSplits(torch.nn.Module):
    """Base of padding and unpadding: sizes of the parts with and without padding."""

    def __init__(self, num_gemms: int, align_size: int | None = None) -> None:
        super().__init__()
        self.num_gemms = num_gemms
        if align_size is None:
            align_size = FP8GlobalStateManager.get_fp8_recipe()._row_multiple
        check_sizes(type(self).__name__, num_gemms=num_gemms, align_size=align_size)
        self.align_size = align_size

    def _padded(self, m_splits: Sequence[int]) -> list[int]:
        if len(m_splits) != self.num_gemms:
            raise _C.ShapeError(
                f"{type(self).__name__}: m_splits has {len(m_splits)} numbers; expected one for "
                f"each of {self.num_gemms} GEMMs"
            )
        if min(m_splits, default=0) < 0:
            raise refusal(type(self).__name__, "m_splits", "numbers of 0 or more", min(m_splits))
        size = self.align_size
        return [(rows + size - 1) // size * size for rows in m_splits]

    @staticmethod
    def _places(sizes: list[int], padded: list[int], device: torch.device) -> torch.Tensor:
        """Returns the index per row among the padded rows, int32 [rows, 1]."""
        starts = [0]
        for rows in padded:
            starts.append(starts[-1] + rows)
        runs = [
            torch.arange(start, start + rows, dtype=torch.int32)
            for start, rows in zip(starts, sizes, strict=False)
        ]
        return torch.cat(runs).unsqueeze(1).to(device)


class Fp8Padding(_RowsOfSplits):
    """Appends rows of zeros to each part of a grouped GEMM's input, up to multiples of align_size.

    Parameters
    ----------
    num_gemms
        number of parts
    align_size
        rows are padded to multiples of it. If it is None, the recipe of the current autocast
        decides: 32 for blocks of 32 elements, else 16
    """

    def forward(self, inp: torch.Tensor, m_splits: list[int]) -> tuple[torch.Tensor, list[int]]:
        """Returns (padded input, padded m_splits), or ``inp`` itself if it needs no padding."""
        padded = self._padded(m_splits)
        if padded == list(m_splits):
            return inp, m_splits
        rows = inp.reshape(-1, inp.size(-1))
        places = self._places(list(m_splits), padded, inp.device)
        return _operators().spread_rows(rows, places, None, sum(padded)), padded


class Fp8Unpadding(_RowsOfSplits):
    """Removes the rows that Fp8Padding appended.

    Parameters
    ----------
    num_gemms, align_size
        as Fp8Padding's
    """

    def forward(self, inp: torch.Tensor, m_splits: list[int]) -> torch.Tensor:
        """Returns the rows of ``inp`` without padding.

        ``m_splits`` are the sizes of the parts without padding. Raises ShapeError if ``inp`` does
        not have the padded number of rows.
        """
        padded = self._padded(m_splits)
        if padded == list(m_splits):
            return inp
        rows = inp.reshape(-1, inp.size(-1))
        if rows.size(0) != sum(padded):
            raise _C.ShapeError(
                f"Fp8Unpadding: inp has {rows.size(0)} rows; expected {sum(padded)}, m_splits "
                f"{list(m_splits)} padded to multiples of {self.align_size}"
            )
        places = self._places(list(m_splits), padded, inp.device)
        return _operators().combine_rows(rows, places, None)


def _check_whole_numbers(function: str, name: str, tensor: torch.Tensor, expected: str) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise refusal(function, name, f"a tensor: {expected}", tensor)
    if tensor.is_floating_point() or tensor.is_complex():
        raise _C.UsageError(
            f"{function}: {name} must be {expected}, not {tensor.dtype}; probabilities are a "
            "separate argument"
        )


def _check_count(function: str, num_out_tokens: int) -> None:
    # Other types are not checked, because torch.compile passes symbolic numbers.
    if isinstance(num_out_tokens, bool):
        raise refusal(function, "num_out_tokens", "an integer", num_out_tokens)


def _check_mask(function: str, routing_map: torch.Tensor, num_out_tokens: int) -> None:
    expected = "bool or integers, 1 if a token is routed to an expert"
    _check_whole_numbers(function, "routing_map", routing_map, expected)
    if num_out_tokens < 0 or not _is_readable(routing_map):
        return
    if num_out_tokens < int((routing_map > 0).sum()):
        # The text does not contain counts, which change in each step: equal warnings are shown
        # once.
        warnings.warn(
            f"{function}: num_out_tokens is less than the rows that routing_map routes, and the "
            "last ones are dropped; give routing_map.sum(), or -1",
            stacklevel=3,
        )


def _is_readable(tensor: torch.Tensor) -> bool:
    """Returns whether the host can read values: a GPU would have to finish, a trace has none."""
    is_plain = tensor.device.type == "cpu" and type(tensor) is torch.Tensor
    return is_plain and not torch.compiler.is_compiling()


def _check_mask_rows(
    row_id_map: torch.Tensor, pad_offsets: torch.Tensor | None, inp: torch.Tensor
) -> None:
    """Raises UsageError for rows beyond ``inp`` in a map [tokens, 2 * experts + 1] on the CPU."""
    if not _is_readable(row_id_map) or row_id_map.dim() != 2 or row_id_map.size(1) % 2 != 1:
        return  # the operator reports the shape
    experts = row_id_map.size(1) // 2
    rows = row_id_map[:, :experts]
    # Only the first n slots of a token are written, n being its last entry.
    written = torch.arange(experts) < row_id_map[:, -1:]
    if pad_offsets is not None:
        if not _is_readable(pad_offsets):
            return
        rows = rows + pad_offsets[row_id_map[:, experts:-1].clamp_min(0)] * (rows >= 0)
    _check_rows(rows[written], inp)


def _check_rows(rows: torch.Tensor, inp: torch.Tensor) -> None:
    if rows.numel() and int(rows.max()) >= inp.size(0):
        raise _C.UsageError(
            f"moe_unpermute: row_id_map has row {int(rows.max())}, but inp has {inp.size(0)} rows; "
            "pass the map that moe_permute returned for these rows"
        )


def _int32(function: str, name: str, tensor: torch.Tensor) -> torch.Tensor:
    _check_whole_numbers(function, name, tensor, "whole numbers, best int32")
    if tensor.dtype == torch.int32:
        return tensor
    warnings.warn(
        f"{function}: {name} is {tensor.dtype} and is converted to torch.int32 in every call; pass "
        "torch.int32",
        stacklevel=3,
    )
    return tensor.to(torch.int32)


def _chunks(
    inp: torch.Tensor,
    split_sizes: torch.Tensor | Sequence[int],
    sorted_index: torch.Tensor | Sequence[int],
) -> tuple[torch.Tensor, torch.Tensor]:
    sizes = torch.as_tensor(split_sizes, dtype=torch.int64)
    order = torch.as_tensor(sorted_index, dtype=torch.int64)
    _check_chunks(sizes, order)
    # Those on a GPU are not read: that would wait for it.
    if sizes.device.type == "cpu" and int(sizes.sum()) != inp.size(0):
        raise _C.ShapeError(
            f"moe_sort_chunks_by_index: split_sizes are {int(sizes.sum())} rows in all; inp has "
            f"{inp.size(0)}"
        )
    return sizes, order


def _check_chunks(sizes: torch.Tensor, order: torch.Tensor) -> None:
    """Raises UsageError for a sentinel; those on a GPU fail there, without a name."""
    if sizes.device.type == "cpu" and bool((sizes < 0).any()):
        raise _C.UsageError(
            f"moe_sort_chunks_by_index: split_sizes has {int(sizes.min())}; expected 0 or more: an "
            "empty chunk has 0 rows"
        )
    if order.device.type == "cpu" and order.sort().values.tolist() != list(range(order.numel())):
        raise _C.UsageError(
            f"moe_sort_chunks_by_index: sorted_index is {order.tolist()}; expected each chunk's "
            f"number once, from 0 to {order.numel() - 1}: drop chunks by a size of 0, not by -1"
        )


def _on_rows(
    function: str,
    inp: torch.Tensor,
    operation: Callable[[torch.Tensor], tuple[torch.Tensor, ...]],
) -> tuple:
    """The operation's results for inp; the first of them is quantized if inp is."""
    if not isinstance(inp, QuantizedTensor):
        return operation(inp)
    storage = inp._storage
    whole = storage.mode == _C.ScalingMode.tensor
    if storage.rowwise_data is None or storage.mode == _C.ScalingMode.block_2d:
        raise refusal(function, "inp", "quantized by rows, with scales per row or one scale", inp)
    codes, *others = operation(storage.rowwise_data)
    scales = storage.rowwise_scale_inv if whole else operation(storage.rowwise_scale_inv)[0]
    tensor_scale = storage.rowwise_tensor_scale
    if tensor_scale is not None and tensor_scale.numel() != 1:
        tensor_scale = operation(tensor_scale.view(-1, 1))[0].view(-1)
    made = _C.QuantizedStorage(
        codes, scales, None, None, storage.fp8_dtype, storage.mode, storage.dtype,
        [codes.size(0), inp.size(1)], tensor_scale,
    )  # fmt: skip
    made.blocks = storage.blocks
    return (wrap(made), *others)
