"""Rotary position embedding."""

from __future__ import annotations

from typing import Any

import torch

from telens import _C
from telens._names import refusal, rejects_bools
from telens.common.field_types import check_sizes

__all__ = ["RotaryPositionEmbedding"]


class RotaryPositionEmbedding(torch.nn.Module):
    """Angles of the rotary position embedding (https://arxiv.org/abs/2104.09864).

    Parameters
    ----------
    dim
        channels of a head that are rotated; an even number
    rotary_percent
        the share of dim that is rotated, above 0 and up to 1. The number of channels is rounded
        down
    seq_len_interpolation_factor, pretrained_max_position_embeddings
        if both are given, positions are divided by the factor. Positions of sequences longer than
        the factor times pretrained_max_position_embeddings are divided so that they end at
        pretrained_max_position_embeddings (https://arxiv.org/abs/2306.15595)
    rotary_base
        base of the geometric series of periods
    interleaved
        True: neighboring channels are pairs. False: each channel of the first half is paired with
        one of the second half

    The attribute ``inv_freq`` [dim / 2], FP32, holds the angle per position of each pair. Libraries
    assign other frequencies to it, such as those of Llama 3.1. ``.to()`` neither moves nor casts
    it. State dicts of Transformer Engine may contain it; ours do not.
    """

    inv_freq: torch.Tensor

    @rejects_bools
    def __init__(
        self,
        dim: int,
        rotary_percent: float = 1.0,
        seq_len_interpolation_factor: float | None = None,
        pretrained_max_position_embeddings: int | None = None,
        rotary_base: float = 10000.0,
        interleaved: bool = False,
    ) -> None:
        super().__init__()
        owner = "RotaryPositionEmbedding"
        check_sizes(owner, dim=dim)
        if not 0 < rotary_percent <= 1:
            raise refusal(owner, "rotary_percent", "above 0 and at most 1", rotary_percent)
        for name, value in (
            ("seq_len_interpolation_factor", seq_len_interpolation_factor),
            ("pretrained_max_position_embeddings", pretrained_max_position_embeddings),
        ):
            if value is not None and not value > 0:
                raise refusal(owner, name, "None or above 0", value)
        rotated = int(dim * rotary_percent) if rotary_percent < 1 else dim
        self.dim = rotated
        self.inv_freq = _C.rotary_angles(2, rotated, rotary_base)[1].flatten()[: rotated // 2]
        self.rotary_base = rotary_base
        self.interleaved = interleaved
        self.seq_len_interpolation_factor = seq_len_interpolation_factor
        self.pretrained_max_position_embeddings = pretrained_max_position_embeddings

    @rejects_bools
    def forward(self, max_seq_len: int, offset: int = 0) -> torch.Tensor:
        """Angles [max_seq_len, 1, 1, dim], FP32, of the positions from ``offset`` on."""
        device = self.inv_freq.device
        positions = torch.arange(offset, offset + max_seq_len, dtype=torch.float32, device=device)
        if self.interleaved:  # each frequency twice in a row
            frequencies = self.inv_freq.repeat_interleave(2)
        else:
            frequencies = self.inv_freq.repeat(2)
        return positions.div(self._position_divisor(max_seq_len)).view(-1, 1, 1, 1) * frequencies

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, self._frequencies(value) if name == "inv_freq" else value)

    def _frequencies(self, given: Any) -> torch.Tensor:
        """Returns them in FP32, on the CPU unless they are on the meta device."""
        shape = [self.dim // 2]
        if not isinstance(given, torch.Tensor) or list(given.shape) != shape:
            raise refusal(type(self).__name__, "inv_freq", f"a tensor {shape}", given)
        return given.detach().to("meta" if given.is_meta else "cpu", torch.float32, copy=True)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        key = f"{prefix}inv_freq"
        if key in state_dict:
            state_dict = dict(state_dict)
            self.inv_freq = state_dict.pop(key)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _position_divisor(self, max_seq_len: int) -> float:
        factor, pretrained = (
            self.seq_len_interpolation_factor,
            self.pretrained_max_position_embeddings,
        )
        if factor is None or pretrained is None:
            return 1.0
        return max_seq_len / pretrained if max_seq_len > pretrained * factor else factor
