"""Softmax of scaled and masked scores."""

from __future__ import annotations

from collections.abc import Callable

import paddle
import paddle.nn.functional as F

from telens import _C
from telens._names import among, refusal
from telens.common.field_types import is_number
from telens.paddle.arguments import check_tensors
from telens.paddle.layer import check_backend

__all__ = ["MASK_TYPES", "FusedScaleMaskSoftmax", "fill_masked"]

MASK_TYPES = ["causal", "padding", "no_mask"]
# Replaces a masked score: its exp relative to any unmasked score is 0 in every precision.
_MASKED_SCORE = -10000.0


def fill_masked(scores: paddle.Tensor, mask: paddle.Tensor) -> paddle.Tensor:
    """The default ``mask_func``: -10000 for True elements of the boolean mask."""
    wide = scores.astype("float32")  # Paddle's CPU kernel of `where` does not support 16-bit types
    filled = paddle.where(mask.expand(scores.shape), paddle.full_like(wide, _MASKED_SCORE), wide)
    return filled.astype(scores.dtype)


class FusedScaleMaskSoftmax(paddle.nn.Layer):
    """Scales and masks scores, then applies softmax over the last dimension.

    Parameters
    ----------
    attn_mask_type
        'causal' (the given mask is ignored), 'padding' or 'no_mask'
    mask_func
        ``mask_func(scores, mask)`` returns the masked scores; default: -10000 for masked elements
    softmax_in_fp32
        16-bit scores are scaled, masked and normalized in FP32
    layernorm_epsilon
        ignored, because this layer has nothing to normalize; Transformer Engine documents it
    backend
        'transformer_engine' or 'paddle'; both run Paddle's operators, since softmax runs in high
        precision and no debug feature observes it
    """

    def __init__(
        self,
        attn_mask_type: str = "causal",
        mask_func: Callable[[paddle.Tensor, paddle.Tensor], paddle.Tensor] | None = None,
        softmax_in_fp32: bool = True,
        layernorm_epsilon: float = 1e-5,
        backend: str = "transformer_engine",
    ) -> None:
        super().__init__()
        owner = "FusedScaleMaskSoftmax"
        self.attn_mask_type = among(owner, "attn_mask_type", attn_mask_type, MASK_TYPES)
        if mask_func is not None and not callable(mask_func):
            raise refusal(owner, "mask_func", "a function mask_func(scores, mask)", mask_func)
        self.mask_func = fill_masked if mask_func is None else mask_func
        self.softmax_in_fp32 = softmax_in_fp32
        self.layernorm_epsilon = layernorm_epsilon
        self.backend = check_backend(owner, backend)

    def forward(
        self, inp: paddle.Tensor, mask: paddle.Tensor | None = None, scale: float | None = None
    ) -> paddle.Tensor:
        """Scores [batch, heads, seq_q, seq_kv] -> probabilities of that shape and dtype.

        ``scale`` multiplies the scores and requires ``softmax_in_fp32``.
        """
        check_tensors("FusedScaleMaskSoftmax", inp=inp)
        if inp.ndim != 4:
            raise _C.ShapeError(
                f"FusedScaleMaskSoftmax: inp has shape {list(inp.shape)}; expected 4 dimensions, "
                "[batch, heads, seq_q, seq_kv]"
            )
        if scale is not None and not is_number(scale) and not isinstance(scale, paddle.Tensor):
            raise refusal("FusedScaleMaskSoftmax", "scale", "a number, or None", scale)
        if scale is not None and not self.softmax_in_fp32:
            raise _C.UsageError(
                "FusedScaleMaskSoftmax: scale needs softmax_in_fp32=True; scores of 16 bits could "
                "overflow"
            )
        is_short = inp.dtype in (paddle.float16, paddle.bfloat16)
        scores = inp.astype("float32") if is_short and self.softmax_in_fp32 else inp
        if scale is not None:
            scores = scores * scale
        if self.attn_mask_type == "causal":
            mask = _causal_mask(inp.shape[2], inp.shape[3])
        elif self.attn_mask_type == "no_mask":
            mask = None
        if mask is not None:
            check_tensors("FusedScaleMaskSoftmax", mask=mask)
            scores = self.mask_func(scores, mask)
        # Paddle's CPU softmax does not support 16-bit types; the result is rounded to 16 bits
        # anyway.
        if scores.place.is_cpu_place() and is_short:
            scores = scores.astype("float32")
        return F.softmax(scores, axis=-1).astype(inp.dtype)


def _causal_mask(queries: int, keys: int) -> paddle.Tensor:
    """Returns booleans [1, 1, queries, keys], True if the key comes after the query."""
    positions = paddle.arange(keys).unsqueeze(0) > paddle.arange(queries).unsqueeze(1)
    return positions.unsqueeze([0, 1])
