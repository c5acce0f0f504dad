"""Codes and scales of quantized tensors under the names that feature classes read.

The names are Transformer Engine's, which has one set for per-tensor scales and another for block
scales; code uses ``hasattr`` to find out which of them a tensor has. Missing data is None. Scales
are stored without the padding that Transformer Engine's kernels need.
"""

from __future__ import annotations

import torch

from telens import _C

__all__: list[str] = []


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
