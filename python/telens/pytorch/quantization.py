"""The autocast region, the state that it sets, and the recipes in use."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal
from weakref import WeakKeyDictionary, ref

import torch

from telens import _C
from telens._names import names_fields
from telens.common.custom_recipe import QuantizerRequest
from telens.common.recipe import (
    AmaxFunction,
    DelayedScaling,
    Format,
    QuantizerRole,
    Recipe,
    ScaleFunction,
)
from telens.pytorch import availability
from telens.pytorch.availability import *  # noqa: F403
from telens.pytorch.compat.missing import missing_function
from telens.pytorch.tensor import model_init

__all__ = [
    "DelayedScalingRequest",
    "FP8GlobalStateManager",
    "QuantizerRequest",
    "QuantizerRole",
    "autocast",
    "fp8_autocast",
    "get_default_fp8_recipe",
    "get_default_recipe",
    *availability.__all__,
]


@names_fields
@dataclass(frozen=True)
class DelayedScalingRequest(QuantizerRequest):
    """Delayed scaling of a tensor, with a history and a scale that the layer keeps.

    They are slots of the layer's ``fp8_meta`` and ``_extra_state``, and are updated and reduced
    together with other layers', as under ``DelayedScaling``, which has the same arguments. All
    requests for the tensors of a layer must be equal, and all requests of a recipe must have the
    same ``amax_history_len``; otherwise UsageError.
    """

    fp8_format: Format = Format.HYBRID
    margin: int = 0
    amax_history_len: int = 1024
    amax_compute_algo: Literal["max", "most_recent"] | AmaxFunction = "max"
    scaling_factor_compute_algo: ScaleFunction | None = None
    reduce_amax: bool = True

    def _recipe(self) -> DelayedScaling:
        return DelayedScaling(
            fp8_format=self.fp8_format,
            margin=self.margin,
            amax_history_len=self.amax_history_len,
            amax_compute_algo=self.amax_compute_algo,
            scaling_factor_compute_algo=self.scaling_factor_compute_algo,
            reduce_amax=self.reduce_amax,
        )


class _Running(threading.local):
    """The autocast regions of a thread, the innermost last."""

    def __init__(self) -> None:
        self.regions: list[tuple[Recipe, torch.distributed.ProcessGroup | None, bool]] = []


running = _Running()

# Equal recipes share one C++ recipe, which maps to the newest of them. A custom recipe owns its C++
# recipe, so a strong reference would keep both alive forever.
_python_recipes: WeakKeyDictionary[_C.Recipe, Callable[[], Recipe | None]] = WeakKeyDictionary()


def remember(recipe: Recipe, native: _C.Recipe) -> None:
    """Stores that the C++ recipe was built from this one."""
    _python_recipes[native] = ref(recipe) if recipe.custom() else lambda: recipe


def recipe_of(native: _C.Recipe | None) -> Recipe | None:
    """Returns the recipe that an autocast was given; None if it no longer exists."""
    known = None if native is None else _python_recipes.get(native)
    return None if known is None else known()


def get_default_recipe() -> Recipe:
    """Returns the default recipe of autocast: delayed scaling."""
    return DelayedScaling()


get_default_fp8_recipe = get_default_recipe


@contextlib.contextmanager
def autocast(
    enabled: bool = True,
    calibrating: bool = False,
    recipe: Recipe | None = None,
    amax_reduction_group: torch.distributed.ProcessGroup | None = None,
    _graph: bool = False,
) -> Iterator[None]:
    """Modules inside the region run their GEMMs in FP8.

    Amaxes and scales of forward tensors are updated when the outermost region ends with gradients
    enabled, scales of gradients when the backward of the region's first module ends. Regions nest:
    the innermost one decides. A region that ends with an exception updates nothing and does not
    wait for other ranks. Also a decorator.

    Parameters
    ----------
    enabled
        False: modules run in high precision
    calibrating
        modules collect amaxes although they run in high precision
    recipe
        default: ``telens.common.recipe.DelayedScaling()``
    amax_reduction_group
        the group over which amaxes are reduced (delayed scaling); None: only this rank
    _graph
        True: the end of an outermost region does not update the scales of forward tensors
    """
    if recipe is not None and not isinstance(recipe, Recipe):
        raise TypeError(
            f"autocast: recipe must be one of telens.common.recipe, not {type(recipe).__name__}"
        )
    recipe = recipe or get_default_recipe()
    native = recipe._native()
    remember(recipe, native)
    region = _C.enter_autocast(enabled, calibrating, native, amax_reduction_group, not _graph)
    running.regions.append((recipe, amax_reduction_group, bool(_graph)))
    try:
        yield
    except BaseException:
        running.regions.pop()
        region.abandon()
        raise
    running.regions.pop()
    region.exit()


def fp8_autocast(
    enabled: bool = True,
    calibrating: bool = False,
    fp8_recipe: Recipe | None = None,
    fp8_group: torch.distributed.ProcessGroup | None = None,
    _graph: bool = False,
) -> contextlib.AbstractContextManager[None]:
    """``autocast`` under its former name, with its former arguments."""
    if fp8_group is not None and not isinstance(fp8_group, torch.distributed.ProcessGroup):
        raise TypeError(
            "fp8_autocast: fp8_group must be a torch.distributed.ProcessGroup or None, not "
            f"{type(fp8_group).__name__}"
        )
    return autocast(enabled, calibrating, fp8_recipe, fp8_group, _graph)


_MANAGER = "transformer_engine.pytorch.fp8.FP8GlobalStateManager"
_GRAPHS = "autocast regions reduce and update; capture graphs with make_graphed_callables"


class FP8GlobalStateManager:
    """Functions that scripts for Transformer Engine call on this class."""

    @staticmethod
    def is_fp8_enabled() -> bool:
        """Whether this thread is inside an enabled autocast."""
        return _C.is_fp8_enabled()

    @staticmethod
    def is_fp8_calibration() -> bool:
        """Whether this thread is inside a calibrating autocast."""
        return _C.is_fp8_calibrating()

    @staticmethod
    def reset() -> None:
        """Does nothing: amax histories belong to their modules and regions end with their block."""

    @staticmethod
    def get_fp8_recipe() -> Recipe:
        """The recipe of this thread's innermost autocast, or the default one."""
        return running.regions[-1][0] if running.regions else get_default_recipe()

    @staticmethod
    def get_fp8_group() -> torch.distributed.ProcessGroup | None:
        """The group over which this thread's innermost autocast reduces amaxes."""
        return running.regions[-1][1] if running.regions else None

    @staticmethod
    def with_fp8_parameters() -> bool:
        """Whether modules that are constructed now store their weights in low precision only."""
        return model_init.recipe is not None

    @staticmethod
    def with_high_precision_init_val() -> bool:
        """Whether they keep the values before quantization too."""
        return model_init.recipe is not None and model_init.preserve

    @staticmethod
    def set_skip_fp8_weight_update_tensor(skip: bool) -> None:
        """Does nothing for False: weights are quantized according to ``is_first_microbatch``.
        Raises UsageError for True."""
        if skip:
            raise _C.UsageError(
                "set_skip_fp8_weight_update_tensor: skip=True is not supported: no graph reads a "
                "flag that skips the quantization of weights; capture with make_graphed_callables, "
                "whose replays accept is_first_microbatch"
            )

    @staticmethod
    def get_skip_fp8_weight_update_tensor() -> None:
        """Returns None: this flag does not exist here."""

    @staticmethod
    def fp8_graph_capturing() -> bool:
        """True if this thread's innermost autocast has ``_graph``."""
        return bool(running.regions) and running.regions[-1][2]

    @staticmethod
    def get_meta_tensor_key(forward: bool = True) -> str:
        """The key of a direction in a module's ``fp8_meta`` and ``quantizers``."""
        return "scaling_fwd" if forward else "scaling_bwd"

    add_fp8_tensors_to_global_buffer = staticmethod(
        missing_function(f"{_MANAGER}.add_fp8_tensors_to_global_buffer", _GRAPHS)
    )
    reduce_and_update_fp8_tensors = staticmethod(
        missing_function(f"{_MANAGER}.reduce_and_update_fp8_tensors", _GRAPHS)
    )

    # Pairs (True, how), as in Transformer Engine.
    is_fp8_available = staticmethod(availability.check_fp8_support)
    is_mxfp8_available = staticmethod(availability.check_mxfp8_support)
    is_nvfp4_available = staticmethod(availability.check_nvfp4_support)
    is_fp8_block_scaling_available = staticmethod(availability.check_fp8_block_scaling_support)


def _default_sf_compute(
    amax: torch.Tensor,
    scale: torch.Tensor,
    fp8_max: float,
    margin: int,
    _fp32_max: float = torch.finfo(torch.float32).max,
) -> torch.Tensor:
    """Writes (fp8_max / amax) / 2^margin into ``scale`` and returns it.

    For feature classes that import it from here: an amax of zero, or one that is not finite, keeps
    the scale; an infinite scale becomes the largest FP32.
    """
    computed = (fp8_max / amax) / 2**margin
    computed = torch.where((amax > 0) & torch.isfinite(amax), computed, scale)
    computed = torch.where(torch.isinf(computed), _fp32_max, computed)
    return scale.copy_(computed)
