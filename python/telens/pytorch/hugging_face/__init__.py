"""Layers of Hugging Face models, and support code for ``convert`` and the Trainer."""

from telens.pytorch.hugging_face.layers import *  # noqa: F403
from telens.pytorch.hugging_face.layers import __all__ as _layers

__all__ = [*_layers]
