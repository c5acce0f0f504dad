"""Rotary position embedding."""

from __future__ import annotations

import torch

from telens import _C

__all__ = ["RotaryPositionEmbedding"]


class RotaryPositionEmbedding(torch.nn.Module):
    """Angles of the rotary position embedding (https://arxiv.org/abs/2104.09864).

    Parameters
    ----------
    dim
        channels of a head that are rotated; an even number
    rotary_base
        of the geometric series of periods
    """

    def __init__(self, dim: int, rotary_base: float = 10000.0) -> None:
        super().__init__()
        _C.rotary_angles(0, dim, rotary_base)  # refuses an odd dim here, not in the first forward
        self.dim = dim
        self.rotary_base = rotary_base

    def forward(self, max_seq_len: int, offset: int = 0) -> torch.Tensor:
        """Angles [max_seq_len, 1, 1, dim], FP32, of the positions from ``offset`` on."""
        return _C.rotary_angles(max_seq_len + offset, self.dim, self.rotary_base)[offset:]
