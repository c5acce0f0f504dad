"""The FP8 modules, autocast and their tools for PyTorch."""

from telens.pytorch.module import Module
from telens.pytorch.modules import *  # noqa: F403
from telens.pytorch.modules import __all__ as _modules

__all__ = ["Module", *_modules]
