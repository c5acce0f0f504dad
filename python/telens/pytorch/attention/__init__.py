"""Attention, under the names that scripts for Transformer Engine import."""

from telens.pytorch.attention.dot_product_attention import DotProductAttention
from telens.pytorch.attention.inference import InferenceParams
from telens.pytorch.attention.multi_head_attention import MultiheadAttention
from telens.pytorch.attention.rope import (
    RotaryPositionEmbedding,
    apply_fused_qkv_rotary_pos_emb,
    apply_rotary_pos_emb,
)
from telens.pytorch.compat.utils import SplitAlongDim as _SplitAlongDim  # noqa: F401

__all__ = [
    "DotProductAttention",
    "InferenceParams",
    "MultiheadAttention",
    "RotaryPositionEmbedding",
    "apply_fused_qkv_rotary_pos_emb",
    "apply_rotary_pos_emb",
]
