"""Sessions that observe, alter and record the tensors and GEMMs of layers.

import telens.debug as debug

debug.initialize("debug.yaml", log_dir="logs")
debug.infer_and_assign_layer_names(model)
for batch in batches:
    ...  # forward, backward, optimizer
    debug.step(loss)
debug.end_debug()
"""

from typing import Any

from telens.debug import (
    base,
    debug_manager,
    diagnosis,
    layer_names,
    logging,
    optimizers,
    parameters,
    planning,
    registry,
    sessions,
    utils,
)
from telens.debug.base import *  # noqa: F403
from telens.debug.debug_features.log_tensor_stats import LogTensorStats
from telens.debug.diagnosis import *  # noqa: F403
from telens.debug.features.api import TEConfigAPIMapper
from telens.debug.features.utils import get_reduction_params, next_enabled_iter
from telens.debug.layer_names import *  # noqa: F403
from telens.debug.logging import *  # noqa: F403
from telens.debug.optimizers import *  # noqa: F403
from telens.debug.parameters import *  # noqa: F403
from telens.debug.planning import *  # noqa: F403
from telens.debug.registry import *  # noqa: F403
from telens.debug.sessions import *  # noqa: F403
from telens.debug.utils import *  # noqa: F403


def __getattr__(name: str) -> Any:
    if name == "DEBUG_MANAGER":  # None outside of a session
        return debug_manager.running()
    api = registry.Registry.namespace_api(name)
    if api is not None:
        return api
    if any(name in each.calls for each in registry.Registry.features_of("base")):
        return getattr(base, name)  # calls of the base namespace are also module functions
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "LogTensorStats",
    "TEConfigAPIMapper",
    "get_reduction_params",
    "next_enabled_iter",
    *base.__all__,
    *diagnosis.__all__,
    *layer_names.__all__,
    *logging.__all__,
    *optimizers.__all__,
    *parameters.__all__,
    *planning.__all__,
    *registry.__all__,
    *sessions.__all__,
    *utils.__all__,
]
