"""The FP8 modules, autocast and their tools for PyTorch. They need telens-core."""

# ruff: noqa: E402 (the core is required before other modules are imported)
import importlib
from typing import Any

from telens import _aliases, common
from telens._load import require_core

require_core(__name__)

from telens._C import DType
from telens.pytorch import (
    attention,
    checkpointing,
    conversion,
    cpu_offload,
    distributed,
    fp8,
    graphs,
    hugging_face,
    model_summary,
    modules,
    quantization,
    tensor,
)
from telens.pytorch.checkpointing import *  # noqa: F403
from telens.pytorch.checkpoints import (
    stored_histories,
    transformer_engine_export,
    transformer_engine_state,
)
from telens.pytorch.checkpoints.stored_histories import *  # noqa: F403
from telens.pytorch.checkpoints.transformer_engine_export import *  # noqa: F403
from telens.pytorch.checkpoints.transformer_engine_state import *  # noqa: F403
from telens.pytorch.conversion import *  # noqa: F403
from telens.pytorch.cpu_offload import *  # noqa: F403
from telens.pytorch.graphs.callables import *  # noqa: F403
from telens.pytorch.hugging_face import *  # noqa: F403
from telens.pytorch.layers import inference_params, rotary
from telens.pytorch.layers.inference_params import *  # noqa: F403
from telens.pytorch.layers.rotary import *  # noqa: F403
from telens.pytorch.model_summary import *  # noqa: F403
from telens.pytorch.module import Module
from telens.pytorch.modules import *  # noqa: F403
from telens.pytorch.moe import dispatcher, permutation
from telens.pytorch.moe.dispatcher import *  # noqa: F403
from telens.pytorch.moe.permutation import *  # noqa: F403
from telens.pytorch.parallel import cross_entropy, rng_tracker, userbuffers
from telens.pytorch.parallel.cross_entropy import *  # noqa: F403
from telens.pytorch.parallel.rng_tracker import *  # noqa: F403
from telens.pytorch.parallel.userbuffers import *  # noqa: F403
from telens.pytorch.quantization import *  # noqa: F403
from telens.pytorch.tensor import *  # noqa: F403

# Submodules that are imported on first use.
_LATE = {
    "ops": "telens.pytorch.compat.ops",
    "optimizers": "telens.pytorch.optimizers",
    "router": "telens.pytorch.compat.router",
}


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return importlib.import_module(_LATE[name])
    if f"pytorch.{name}" in _aliases.FORMER_PATHS:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "DType",
    "Module",
    "attention",
    "common",
    "distributed",
    "fp8",
    *modules.__all__,
    *checkpointing.__all__,
    *conversion.__all__,
    *cpu_offload.__all__,
    *cross_entropy.__all__,
    *graphs.__all__,
    *hugging_face.__all__,
    *inference_params.__all__,
    *model_summary.__all__,
    *dispatcher.__all__,
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
