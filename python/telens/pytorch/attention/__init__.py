"""Attention, under the names that scripts for Transformer Engine import."""

from telens.pytorch.attention.dot_product_attention import DotProductAttention
from telens.pytorch.attention.inference import InferenceParams
from telens.pytorch.attention.multi_head_attention import MultiheadAttention
from telens.pytorch.attention.rope import RotaryPositionEmbedding, apply_rotary_pos_emb

__all__ = [
    "DotProductAttention",
    "InferenceParams",
    "MultiheadAttention",
    "RotaryPositionEmbedding",
    "apply_rotary_pos_emb",
]
