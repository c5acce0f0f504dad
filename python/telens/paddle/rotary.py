"""Rotary position embedding (https://arxiv.org/abs/2104.09864)."""

from __future__ import annotations

from typing import Any

import paddle

from telens import _C
from telens._names import refusal
from telens.paddle.arguments import check_sizes
from telens.paddle.core_module import TENSORS

__all__ = ["RotaryPositionEmbedding", "rotate"]


class RotaryPositionEmbedding(paddle.nn.Layer):
    """Computes ``rotary_pos_emb``: (cosines, sines), each [1, max_seq_len, 1, dim], FP32.

    Parameters
    ----------
    dim
        channels of a head that are rotated, an even number
    max_position_embeddings
        number of positions to compute at first. More are computed when they are requested
    """

    def __init__(self, dim: int, max_position_embeddings: int) -> None:
        super().__init__()
        check_sizes(
            "RotaryPositionEmbedding", dim=dim, max_position_embeddings=max_position_embeddings
        )
        self.dim = dim
        self.max_position_embeddings = max_position_embeddings
        self._make(max_position_embeddings)

    def _make(self, positions: int) -> None:
        angles = TENSORS.wrap(_C.rotary_angles(positions, self.dim, 10000.0).transpose(0, 1))
        self.register_buffer("cos_cached", angles.cos(), persistable=False)
        self.register_buffer("sin_cached", angles.sin(), persistable=False)

    def forward(self, max_seq_len: int) -> tuple[paddle.Tensor, paddle.Tensor]:
        check_sizes("RotaryPositionEmbedding.forward", max_seq_len=max_seq_len)
        if max_seq_len > self.cos_cached.shape[1]:
            self._make(max_seq_len)
        return self.cos_cached[:, :max_seq_len], self.sin_cached[:, :max_seq_len]


def rotate(
    query: paddle.Tensor, key: paddle.Tensor, rotary_pos_emb: Any
) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Returns query and key [batch, seq, heads, channels], rotated.

    ``rotary_pos_emb``: (cosines, sines), each [1, seq, 1, dim], as in Transformer Engine's layers
    for Paddle; or (angles of the query, angles of the key), each [seq, 1, 1, dim], as in its layers
    for PyTorch.
    """
    owner = "MultiHeadAttention.forward"
    expected = (
        "a tuple of two tensors: cosines and sines [1, seq, 1, dim], or angles [seq, 1, 1, dim]"
    )
    if not isinstance(rotary_pos_emb, tuple) or len(rotary_pos_emb) != 2:
        raise refusal(owner, "rotary_pos_emb", expected, rotary_pos_emb)
    first, second = rotary_pos_emb
    if first.ndim != 4 or first.shape[2] != 1 or (first.shape[0] != 1 and first.shape[1] != 1):
        raise _C.ShapeError(
            f"{owner}: rotary_pos_emb has shape {list(first.shape)}; expected {expected}"
        )
    if first.shape[0] == 1:
        return _turn(query, first, second), _turn(key, first, second)
    angles = [each.transpose([1, 0, 2, 3]) for each in (first, second)]
    return (
        _turn(query, angles[0].cos(), angles[0].sin()),
        _turn(key, angles[1].cos(), angles[1].sin()),
    )


def _turn(x: paddle.Tensor, cosines: paddle.Tensor, sines: paddle.Tensor) -> paddle.Tensor:
    positions, channels = x.shape[1], cosines.shape[-1]
    if cosines.shape[1] < positions or channels > x.shape[-1] or channels % 2 != 0:
        raise _C.ShapeError(
            f"rotary_pos_emb has {cosines.shape[1]} positions and {channels} channels; expected at "
            f"least {positions} positions and an even number of at most {x.shape[-1]} channels"
        )
    cosines = cosines[:, :positions].astype("float32")
    sines = sines[:, :positions].astype("float32")
    turned, kept = x[..., :channels].astype("float32"), x[..., channels:]
    half = channels // 2
    across = paddle.concat([-turned[..., half:], turned[..., :half]], axis=-1)
    rotated = (turned * cosines + across * sines).astype(x.dtype)
    return rotated if channels == x.shape[-1] else paddle.concat([rotated, kept], axis=-1)
