"""Quantized tensors that move to another device, and parameters that take over their codes.

``module.to(device)`` copies each parameter and then sets its ``data``.
"""

from __future__ import annotations

from typing import Any

import torch

from telens import _C

__all__: list[str] = []


class WithSettableData:
    """For a tensor of codes: ``data`` is set along with the codes."""

    _storage: _C.QuantizedStorage
    _quantizer: Any

    @property
    def data(self) -> Any:
        """The tensor outside of autograd's graph, which shares the codes."""
        return torch.Tensor.data.__get__(self)

    @data.setter
    def data(self, other: Any) -> None:
        """Shares the codes of a quantized tensor, or takes the values of another, with scales of
        their own, in its dtype and on its device."""
        if other is self:
            return
        if not isinstance(other, WithSettableData):
            if is_part(self):  # it has no scale of its own to take other values under
                raise _C.UsageError(
                    "data: a shard of codes takes the codes of a quantized tensor, not values in "
                    f"{other.dtype}; convert the module before fully_shard"
                )
            other = _cast_like(self, other)
        torch.Tensor.data.__set__(self, other)  # takes over what C++ sees of the codes
        self._storage = other._storage
        self._quantizer = other._quantizer or self._quantizer
        if is_part(self) or is_part(other):
            self._shard, self._piece = other._shard, other._piece


def is_part(tensor: Any) -> bool:
    """True for a shard, and for a piece that a checkpoint is read into."""
    parts = (getattr(tensor, name, None) for name in ("_shard", "_piece"))
    return any(part is not None for part in parts)


def can_move(tensor: Any, device: torch.device | None, dtype: torch.dtype | None) -> bool:
    """True if a copy keeps the codes: whole tensors' do, on devices that have values."""
    keeps_dtype = dtype is None or dtype == tensor.dtype
    has_values = device is None or torch.device(device).type != "meta"
    return keeps_dtype and has_values and not is_part(tensor)


def _cast_like(tensor: Any, values: torch.Tensor) -> Any:
    storage = tensor._storage
    cast = tensor._get_quantizer().quantize(values.detach())
    if cast._storage.rowwise_data is not None and cast._storage.columnwise_data is not None:
        cast.update_usage(storage.rowwise_data is not None, storage.columnwise_data is not None)
    return cast
