"""The FP8 modules, autocast and their tools for PyTorch."""

from telens._C import DType
from telens.pytorch import (
    attention,
    checkpointing,
    conversion,
    conversion_notes,
    distributed,
    fp8,
    modules,
    quantization,
    rotary,
    stored_histories,
    tensor,
    transformer,
    transformer_engine_export,
    transformer_engine_state,
)
from telens.pytorch.checkpointing import *  # noqa: F403
from telens.pytorch.conversion import *  # noqa: F403
from telens.pytorch.conversion_notes import *  # noqa: F403
from telens.pytorch.module import Module
from telens.pytorch.modules import *  # noqa: F403
from telens.pytorch.quantization import *  # noqa: F403
from telens.pytorch.rotary import *  # noqa: F403
from telens.pytorch.stored_histories import *  # noqa: F403
from telens.pytorch.tensor import *  # noqa: F403
from telens.pytorch.transformer_engine_export import *  # noqa: F403
from telens.pytorch.transformer_engine_state import *  # noqa: F403

__all__ = [
    "DType",
    "Module",
    "attention",
    "distributed",
    "fp8",
    "transformer",
    *modules.__all__,
    *checkpointing.__all__,
    *conversion.__all__,
    *conversion_notes.__all__,
    *quantization.__all__,
    *rotary.__all__,
    *stored_histories.__all__,
    *tensor.__all__,
    *transformer_engine_export.__all__,
    *transformer_engine_state.__all__,
]
