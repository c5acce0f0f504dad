"""Codes and scales that another library cast, in the class that the session accepts."""

from __future__ import annotations

from typing import Any

import torch

from telens import _C
from telens._load import has_core

__all__ = ["StoredCodes", "wrap"]


class StoredCodes:
    """A quantized tensor without telens-core, whose ``QuantizedTensor`` is a torch.Tensor.

    Feature classes receive it as ``rowwise_quantized_tensor`` and ``columnwise_quantized_tensor``.
    """

    def __init__(self, storage: _C.QuantizedStorage) -> None:
        self._storage = storage

    def __repr__(self) -> str:
        return f"StoredCodes({self.shape}, {self._storage.fp8_dtype.name}, {self.dtype})"

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the values before the cast."""
        return self._storage.dtype

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self._storage.sizes)

    def dequantize(self, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Returns the values, in ``dtype`` or in the dtype before the cast."""
        return self._storage.dequantize(dtype or self.dtype)


if not has_core():
    _C.set_quantized_tensor_class(StoredCodes, StoredCodes)


def wrap(storage: _C.QuantizedStorage) -> Any:
    """Returns the tensor of these codes and scales that ``WatchedLayer`` accepts."""
    if not has_core():
        return StoredCodes(storage)
    from telens.pytorch import tensor

    return tensor.wrap(storage)
