"""The FP8 modules, autocast and their tools for PyTorch."""

import importlib
from typing import Any

from telens import common
from telens._C import DType
from telens.pytorch import (
    attention,
    checkpointing,
    conversion,
    conversion_notes,
    cpu_offload,
    cross_entropy,
    distributed,
    fp8,
    graph,
    hugging_face,
    inference_params,
    model_summary,
    modules,
    moe_dispatcher,
    permutation,
    quantization,
    rng_tracker,
    rotary,
    stored_histories,
    tensor,
    transformer,
    transformer_engine_export,
    transformer_engine_state,
    userbuffers,
)
from telens.pytorch.checkpointing import *  # noqa: F403
from telens.pytorch.conversion import *  # noqa: F403
from telens.pytorch.conversion_notes import *  # noqa: F403
from telens.pytorch.cpu_offload import *  # noqa: F403
from telens.pytorch.cross_entropy import *  # noqa: F403
from telens.pytorch.graph import *  # noqa: F403
from telens.pytorch.hugging_face import *  # noqa: F403
from telens.pytorch.inference_params import *  # noqa: F403
from telens.pytorch.model_summary import *  # noqa: F403
from telens.pytorch.module import Module
from telens.pytorch.modules import *  # noqa: F403
from telens.pytorch.moe_dispatcher import *  # noqa: F403
from telens.pytorch.permutation import *  # noqa: F403
from telens.pytorch.quantization import *  # noqa: F403
from telens.pytorch.rng_tracker import *  # noqa: F403
from telens.pytorch.rotary import *  # noqa: F403
from telens.pytorch.stored_histories import *  # noqa: F403
from telens.pytorch.tensor import *  # noqa: F403
from telens.pytorch.transformer_engine_export import *  # noqa: F403
from telens.pytorch.transformer_engine_state import *  # noqa: F403
from telens.pytorch.userbuffers import *  # noqa: F403

# Submodules that are imported when they are asked for.
_LATE = {
    "ops": "telens.pytorch.compat.ops",
    "optimizers": "telens.pytorch.optimizers",
    "router": "telens.pytorch.compat.router",
}


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return importlib.import_module(_LATE[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "DType",
    "Module",
    "attention",
    "common",
    "distributed",
    "fp8",
    "transformer",
    *modules.__all__,
    *checkpointing.__all__,
    *conversion.__all__,
    *conversion_notes.__all__,
    *cpu_offload.__all__,
    *cross_entropy.__all__,
    *graph.__all__,
    *hugging_face.__all__,
    *inference_params.__all__,
    *model_summary.__all__,
    *moe_dispatcher.__all__,
    *permutation.__all__,
    *quantization.__all__,
    *rng_tracker.__all__,
    *rotary.__all__,
    *stored_histories.__all__,
    *tensor.__all__,
    *transformer_engine_export.__all__,
    *transformer_engine_state.__all__,
    *userbuffers.__all__,
]
