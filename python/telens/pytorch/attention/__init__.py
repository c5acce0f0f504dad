"""Attention, under the names that scripts for Transformer Engine import."""

from telens.pytorch import modules as _modules
from telens.pytorch.attention.dot_product_attention import DotProductAttention
from telens.pytorch.attention.inference import InferenceParams
from telens.pytorch.attention.rope import (
    RotaryPositionEmbedding,
    apply_fused_qkv_rotary_pos_emb,
    apply_rotary_pos_emb,
)
from telens.pytorch.compat.utils import SplitAlongDim as _SplitAlongDim  # noqa: F401
from telens.pytorch.modules import MultiheadAttention

multi_head_attention = _modules  # Transformer Engine's module of MultiheadAttention

__all__ = [
    "DotProductAttention",
    "InferenceParams",
    "MultiheadAttention",
    "RotaryPositionEmbedding",
    "apply_fused_qkv_rotary_pos_emb",
    "apply_rotary_pos_emb",
]
