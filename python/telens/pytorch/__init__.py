"""The FP8 modules, autocast and their tools for PyTorch."""

from telens._C import DType
from telens.pytorch import checkpointing, conversion, modules, quantization, rotary, tensor
from telens.pytorch.checkpointing import *  # noqa: F403
from telens.pytorch.conversion import *  # noqa: F403
from telens.pytorch.module import Module
from telens.pytorch.modules import *  # noqa: F403
from telens.pytorch.quantization import *  # noqa: F403
from telens.pytorch.rotary import *  # noqa: F403
from telens.pytorch.tensor import *  # noqa: F403

__all__ = [
    "DType",
    "Module",
    *modules.__all__,
    *checkpointing.__all__,
    *conversion.__all__,
    *quantization.__all__,
    *rotary.__all__,
    *tensor.__all__,
]
