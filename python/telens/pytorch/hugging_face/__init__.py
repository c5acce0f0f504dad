"""Layers of Hugging Face models, and what ``convert`` and the Trainer need for them."""

from telens.pytorch.hugging_face.layers import *  # noqa: F403
from telens.pytorch.hugging_face.layers import __all__ as _layers

__all__ = [*_layers]
