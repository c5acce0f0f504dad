"""softmax(Q K^T / sqrt(d)) V."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from typing import Any

import paddle
import paddle.nn.functional as F
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from telens import _C
from telens._names import among
from telens.paddle.arguments import (
    check_bias,
    check_group,
    check_optional_sizes,
    check_probabilities,
    check_sizes,
    check_tensors,
)
from telens.paddle.core_module import CoreModule, autocast_dtype, view_in_torch
from telens.paddle.fused_scale_mask_softmax import MASK_TYPES, FusedScaleMaskSoftmax
from telens.paddle.layer import check_backend

__all__ = ["DotProductAttention", "torch_draws_from_paddle"]


class DotProductAttention(paddle.nn.Layer):
    """Scaled dot-product attention (https://arxiv.org/abs/1706.03762), without projections.

    Parameters
    ----------
    num_attention_heads
        heads of the query
    kv_channels
        size of a head
    num_gqa_groups
        heads of key and value; None for as many as the query has
    attention_dropout
        probability of dropping an attention weight in training, drawn from Paddle's random state
    attn_mask_type
        'causal' (``attention_mask`` is ignored), 'padding' or 'no_mask'
    attention_type
        'self' or 'cross', which demands ``attention_mask``
    tp_group
        the heads are divided among its ranks: query, key and value are this rank's part
    backend
        'transformer_engine' (the C++ core, through LibTorch) or 'paddle' (Paddle's operators)

    With the environment variable NVTE_ALLOW_NONDETERMINISTIC_ALGO=0, as the layer is made, the
    core's attention runs by LibTorch's plain formula, whose backward is deterministic everywhere.
    """

    def __init__(
        self,
        num_attention_heads: int,
        kv_channels: int,
        num_gqa_groups: int | None = None,
        attention_dropout: float = 0.1,
        attn_mask_type: str = "causal",
        attention_type: str = "self",
        tp_group: Any = None,
        backend: str = "transformer_engine",
    ) -> None:
        super().__init__()
        owner = "DotProductAttention"
        check_sizes(owner, num_attention_heads=num_attention_heads, kv_channels=kv_channels)
        check_optional_sizes(owner, num_gqa_groups=num_gqa_groups)
        check_probabilities(owner, attention_dropout=attention_dropout)
        check_group(owner, "tp_group", tp_group)
        ranks = 1 if tp_group is None else tp_group.nranks
        self.attn_mask_type = among(owner, "attn_mask_type", attn_mask_type, MASK_TYPES)
        self.attention_type = among(owner, "attention_type", attention_type, ["self", "cross"])
        self.backend = check_backend(owner, backend)
        self.num_attention_heads = num_attention_heads // ranks
        self.num_gqa_groups = (num_gqa_groups or num_attention_heads) // ranks
        self.kv_channels = kv_channels
        self.attention_dropout = attention_dropout
        self._deterministic = os.environ.get("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "1") == "0"
        self._softmax = FusedScaleMaskSoftmax(attn_mask_type, backend=backend)
        self._core = CoreModule(
            "DotProductAttention",
            {
                "num_attention_heads": self.num_attention_heads,
                "kv_channels": int(kv_channels),
                "num_gqa_groups": self.num_gqa_groups,
                "attention_dropout": attention_dropout,
                "qkv_format": "bshd",
                "attn_mask_type": "causal" if attn_mask_type == "causal" else "no_mask",
            },
            ("query_layer", "key_layer", "value_layer"),
        )

    def forward(
        self,
        query_layer: paddle.Tensor,
        key_layer: paddle.Tensor,
        value_layer: paddle.Tensor,
        attention_mask: paddle.Tensor | None = None,
        core_attention_bias_type: str = "no_bias",
        core_attention_bias: paddle.Tensor | None = None,
        set_zero: bool = True,
    ) -> paddle.Tensor:
        """[batch, seq, heads, kv_channels] -> the query's shape.

        Parameters
        ----------
        query_layer, key_layer, value_layer
            [batch, seq, heads or groups, kv_channels]
        attention_mask
            booleans that broadcast to [batch, heads, seq_q, seq_kv]; True is masked out. A query
            that may see no key gives zeros
        core_attention_bias_type
            only 'no_bias'
        core_attention_bias
            must be None
        set_zero
            ignored: outputs that no key reaches are zeros either way
        """
        check_bias("DotProductAttention", core_attention_bias_type, core_attention_bias)
        self._check_heads(query_layer, key_layer, value_layer)
        if self.attention_type == "cross" and attention_mask is None:
            raise _C.UsageError("DotProductAttention: cross attention needs attention_mask")
        if self.attn_mask_type != "padding":
            attention_mask = None
        if attention_mask is not None:
            check_tensors("DotProductAttention", attention_mask=attention_mask)
            _check_mask_shape(attention_mask, query_layer, key_layer)
        if self.backend == "paddle":
            return self._forward_in_paddle(query_layer, key_layer, value_layer, attention_mask)
        options = {}
        if attention_mask is not None:
            options["attn_mask_type"] = "arbitrary"
            options["attention_mask"] = view_in_torch(attention_mask)
        drops = self.training and self.attention_dropout > 0
        with torch_draws_from_paddle(drops), self._algorithms():
            out = self._core(
                (query_layer, key_layer, value_layer), training=self.training, options=options
            )
        return out.reshape(query_layer.shape)

    def _check_heads(self, query: Any, key: Any, value: Any) -> None:
        """Checks shapes and dtypes, for both backends."""
        tensors = {"query_layer": query, "key_layer": key, "value_layer": value}
        check_tensors("DotProductAttention", **tensors)
        shapes = [list(each.shape) for each in tensors.values()]
        channels = self.kv_channels
        keys = [*shapes[0][:1], *shapes[1][1:2], self.num_gqa_groups, channels]
        queries = [*shapes[0][:2], self.num_attention_heads, channels]
        if shapes != [queries, keys, keys]:
            raise _C.ShapeError(
                f"DotProductAttention: query_layer has shape {shapes[0]}, key_layer {shapes[1]} "
                f"and value_layer {shapes[2]}; expected [batch, seq, heads, kv_channels]: [batch, "
                f"seq_q, {self.num_attention_heads}, {channels}] of the query and [batch, seq_kv, "
                f"{self.num_gqa_groups}, {channels}] of key and value"
            )
        dtypes = [each.dtype for each in tensors.values()]
        if len(set(dtypes)) != 1 and autocast_dtype() is None:
            raise _C.ShapeError(
                f"DotProductAttention: query_layer has dtype {dtypes[0]}, key_layer {dtypes[1]} "
                f"and value_layer {dtypes[2]}; outside paddle.amp.auto_cast they must be the same; "
                "convert with astype()"
            )

    def _algorithms(self) -> contextlib.AbstractContextManager:
        return sdpa_kernel(SDPBackend.MATH) if self._deterministic else contextlib.nullcontext()

    def _forward_in_paddle(self, query, key, value, mask):
        repeats = query.shape[2] // key.shape[2]
        if repeats > 1:
            key, value = (each.repeat_interleave(repeats, axis=2) for each in (key, value))
        query, key, value = (each.transpose([0, 2, 1, 3]) for each in (query, key, value))
        scores = paddle.matmul(query / math.sqrt(self.kv_channels), key, transpose_y=True)
        weights = self._softmax(scores, mask)
        weights = F.dropout(weights, self.attention_dropout, training=self.training)
        return paddle.matmul(weights, value).transpose([0, 2, 1, 3])


def _check_mask_shape(mask: paddle.Tensor, query: paddle.Tensor, key: paddle.Tensor) -> None:
    batch, queries, heads, _ = query.shape
    full = [batch, heads, queries, key.shape[1]]
    wanted = full[len(full) - len(mask.shape) :]
    if len(mask.shape) > len(full) or any(
        have not in (1, want) for have, want in zip(mask.shape, wanted, strict=True)
    ):
        raise _C.UsageError(
            f"DotProductAttention: attention_mask has shape {mask.shape}; expected one that "
            f"broadcasts to [batch, heads, seq_q, seq_kv], here {full}; turn a mask of padded "
            f"keys, [batch, seq_kv], into one by unsqueeze([1, 2])"
        )


_SEEDS = 2**31 - 1  # Paddle draws an int32


@contextlib.contextmanager
def torch_draws_from_paddle(active: bool) -> Iterator[None]:
    """Seeds LibTorch's generator inside the block by a draw from Paddle's; restores it afterwards.

    So ``paddle.seed``, fleet's tracker of random states and recomputation control dropout as in
    Paddle's own layers.
    """
    if not active:
        yield
        return
    with paddle.no_grad():
        seed = int(paddle.randint(0, _SEEDS, [1]).item())
    used = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=used):
        torch.manual_seed(seed)
        yield
