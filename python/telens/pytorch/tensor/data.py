"""Codes and scales of quantized tensors under the names that feature classes read.

The names are Transformer Engine's, which has one set for per-tensor scales and another for block
scales; code uses ``hasattr`` to find out which of them a tensor has. Missing data is None. Scales
are stored without the padding that Transformer Engine's kernels need.

Also tensors that move to another device, and parameters that adopt their codes:
``module.to(device)`` copies each parameter and then sets its ``data``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from telens import _C

__all__ = [
    "HIGH_PRECISION",
    "BlockData",
    "OneScaleData",
    "WithSettableData",
    "can_move",
    "copy_storage",
    "list_tensors",
    "storage_like",
]


class OneScaleData:
    """Data of a per-tensor scaled tensor: ``_data``, and ``_transpose``, its codes as columns."""

    _storage: _C.QuantizedStorage

    @property
    def _fp8_dtype(self) -> _C.DType:
        return self._storage.fp8_dtype

    @property
    def _data(self) -> torch.Tensor | None:
        return self._storage.rowwise_data

    @property
    def _transpose(self) -> torch.Tensor | None:
        return self._storage.columnwise_data

    @property
    def _scale_inv(self) -> torch.Tensor:
        storage = self._storage
        rowwise = storage.rowwise_scale_inv
        return storage.columnwise_scale_inv if rowwise is None else rowwise


class BlockData:
    """Data of a block-scaled tensor: codes and scales in either orientation."""

    _storage: _C.QuantizedStorage

    @property
    def _fp8_dtype(self) -> _C.DType:
        return self._storage.fp8_dtype

    # 4-bit elements do not have an FP8 dtype.
    _fp4_dtype = _fp8_dtype

    @property
    def _rowwise_data(self) -> torch.Tensor | None:
        return self._storage.rowwise_data

    @property
    def _columnwise_data(self) -> torch.Tensor | None:
        return self._storage.columnwise_data

    @property
    def _rowwise_scale_inv(self) -> torch.Tensor | None:
        return self._storage.rowwise_scale_inv

    @property
    def _columnwise_scale_inv(self) -> torch.Tensor | None:
        return self._storage.columnwise_scale_inv


# The dtypes that can be quantized, and to which codes can be dequantized.
HIGH_PRECISION = (torch.bfloat16, torch.float16, torch.float32)


class WithSettableData:
    """For a tensor of codes: setting ``data`` also sets the codes."""

    _storage: _C.QuantizedStorage
    _quantizer: Any

    @property
    def data(self) -> Any:
        """The tensor outside of autograd's graph, sharing the codes."""
        return torch.Tensor.data.__get__(self)

    @data.setter
    def data(self, other: Any) -> None:
        """Shares the codes of a quantized tensor, or adopts the values of another tensor with new
        scales, in its dtype and on its device.

        Raises UsageError for anything else than a high-precision tensor of this shape.
        """
        if other is self:
            return
        _check_data(self, other)
        has_codes = isinstance(other, WithSettableData)
        made = other if has_codes else _cast_like(self, other)
        torch.Tensor.data.__set__(self, made)  # adopts the payload that C++ sees
        self._storage = made._storage
        self._quantizer = made._quantizer or self._quantizer
        if has_codes:
            self._become_part_as(made)

    def _shares_scale(self) -> bool:
        """Returns whether it is a part of a tensor whose scale is shared by other parts."""
        return False

    def _become_part_as(self, other: Any) -> None:
        """Called after the codes of a tensor of this type were adopted. Becomes a part if ``other``
        is one."""


def can_move(tensor: Any, device: torch.device | None, dtype: torch.dtype | None) -> bool:
    """Returns whether a copy can keep the codes: tensors whose scale is not shared can, on devices
    with real memory."""
    keeps_dtype = dtype is None or dtype == tensor.dtype
    has_values = device is None or torch.device(device).type != "meta"
    return keeps_dtype and has_values and not tensor._shares_scale()


def copy_storage(
    storage: _C.QuantizedStorage, device: Any = None, non_blocking: bool = False
) -> _C.QuantizedStorage:
    def clone(tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else tensor.to(device, copy=True, non_blocking=non_blocking)

    return storage_like(storage, clone, storage.sizes)


def list_tensors(storage: _C.QuantizedStorage) -> list[torch.Tensor]:
    """Returns its codes and scales."""
    tensors = (
        storage.rowwise_data,
        storage.rowwise_scale_inv,
        storage.rowwise_tensor_scale,
        storage.columnwise_data,
        storage.columnwise_scale_inv,
        storage.columnwise_tensor_scale,
    )
    return [each for each in tensors if each is not None]


def storage_like(
    storage: _C.QuantizedStorage,
    of: Callable[[torch.Tensor | None], torch.Tensor | None],
    sizes: list[int],
) -> _C.QuantizedStorage:
    """Returns another storage with these sizes; ``of`` converts each tensor."""
    made = _C.QuantizedStorage(
        of(storage.rowwise_data),
        of(storage.rowwise_scale_inv),
        of(storage.columnwise_data),
        of(storage.columnwise_scale_inv),
        storage.fp8_dtype,
        storage.mode,
        storage.dtype,
        sizes,
        of(storage.rowwise_tensor_scale),
        of(storage.columnwise_tensor_scale),
    )
    made.blocks = storage.blocks
    return made


def _check_data(tensor: Any, other: Any) -> None:
    if not isinstance(other, torch.Tensor):
        raise _C.UsageError(
            f"data: {other!r} is not a tensor; expected a {type(tensor).__name__} or values of "
            f"shape {tuple(tensor.shape)}: set it to a tensor"
        )
    if other.shape != tensor.shape:
        raise _C.UsageError(
            f"data: a tensor of shape {tuple(other.shape)}; expected {tuple(tensor.shape)}, the "
            "weight's own: make another parameter for other shapes"
        )
    if isinstance(other, WithSettableData):
        if type(other) is not type(tensor):
            raise _C.UsageError(
                f"data: a {type(other).__name__}; expected a {type(tensor).__name__} or values: "
                "set it to the tensor's dequantize()"
            )
        return
    if tensor._shares_scale():
        raise _C.UsageError(
            "data: a shard of codes takes the codes of a quantized tensor, not values in "
            f"{other.dtype}; convert the module before fully_shard"
        )
    if other.dtype not in HIGH_PRECISION:
        raise _C.UsageError(
            f"data: values in {other.dtype} for a weight that is stored in "
            f"{tensor._storage.fp8_dtype.name}; expected torch.bfloat16, torch.float16 or "
            "torch.float32: convert them, or make the module without fp8_model_init"
        )


def _cast_like(tensor: Any, values: torch.Tensor) -> Any:
    storage = tensor._storage
    cast = tensor._get_quantizer().quantize(values.detach())
    if cast._storage.rowwise_data is not None and cast._storage.columnwise_data is not None:
        cast.update_usage(storage.rowwise_data is not None, storage.columnwise_data is not None)
    return cast
