"""``telens.pytorch.quantization`` under the name that older scripts import."""

from telens.pytorch.quantization import *  # noqa: F403
from telens.pytorch.quantization import __all__ as __all__
