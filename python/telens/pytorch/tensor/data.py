"""Codes and scales of quantized tensors under the names that feature classes read.

They are Transformer Engine's, which has one set of names for one scale a tensor and another for
scales of blocks; code asks with ``hasattr`` which of them a tensor has. What is not kept is None.
Scales lie without the padding that Transformer Engine's kernels need.
"""

from __future__ import annotations

import torch

from telens import _C

__all__: list[str] = []


class OneScaleData:
    """Of a tensor with one scale: ``_data``, and ``_transpose``, its codes as columns."""

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
    """Of a tensor with scales of blocks: codes and scales of either orientation."""

    _storage: _C.QuantizedStorage

    @property
    def _fp8_dtype(self) -> _C.DType:
        return self._storage.fp8_dtype

    # Elements of 4 bits are no FP8.
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
