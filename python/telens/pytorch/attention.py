"""The attention modules, where scripts for Transformer Engine import them from."""

from telens.pytorch.modules import DotProductAttention, MultiheadAttention
from telens.pytorch.rotary import *  # noqa: F403
from telens.pytorch.rotary import __all__ as _rotary

__all__ = ["DotProductAttention", "MultiheadAttention", *_rotary]
