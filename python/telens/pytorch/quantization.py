"""The autocast region, what it can run on, and FP8 weights."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from telens import _C
from telens.common.recipe import DelayedScaling, Recipe

__all__ = [
    "FP8GlobalStateManager",
    "autocast",
    "fp8_autocast",
    "get_default_recipe",
    "is_bf16_available",
    "is_fp8_available",
    "is_fp8_block_scaling_available",
    "is_mxfp8_available",
    "is_nvfp4_available",
]

# Compute capabilities that multiply the format natively.
_HOPPER = (9, 0)
_BLACKWELL = (10, 0)
_ADA = (8, 9)
_AMPERE = (8, 0)


def get_default_recipe() -> Recipe:
    """The recipe of an autocast that names none: delayed scaling."""
    return DelayedScaling()


@contextlib.contextmanager
def autocast(
    enabled: bool = True,
    calibrating: bool = False,
    recipe: Recipe | None = None,
    amax_reduction_group: torch.distributed.ProcessGroup | None = None,
) -> Iterator[None]:
    """Modules inside the region run their GEMMs in FP8.

    Amaxes and scales of forward tensors are updated when the outermost region ends with gradients
    enabled, those of gradients when the backward of the region's first module ends. Regions nest:
    the innermost one decides. Also a decorator.

    Parameters
    ----------
    enabled
        False: modules run in high precision
    calibrating
        modules collect amaxes although they run in high precision
    recipe
        default: ``telens.common.recipe.DelayedScaling()``
    amax_reduction_group
        the group over which amaxes are reduced (delayed scaling); None: this rank alone
    """
    if recipe is not None and not isinstance(recipe, Recipe):
        raise TypeError(
            f"autocast: recipe must be one of telens.common.recipe, not {type(recipe).__name__}"
        )
    native = (recipe or get_default_recipe())._native()
    region = _C.enter_autocast(enabled, calibrating, native, amax_reduction_group)
    try:
        yield
    finally:
        region.exit()


def fp8_autocast(
    enabled: bool = True,
    calibrating: bool = False,
    fp8_recipe: Recipe | None = None,
    fp8_group: torch.distributed.ProcessGroup | None = None,
    _graph: bool = False,
) -> contextlib.AbstractContextManager[None]:
    """``autocast`` under its former name, with its former arguments; ``_graph`` must be False."""
    if _graph:
        raise _C.UsageError(
            "fp8_autocast: _graph must be False: a region can be captured into a CUDA graph as it "
            "is; leave it out"
        )
    return autocast(enabled, calibrating, fp8_recipe, fp8_group)


def _native_from(capability: tuple[int, int], what: str, return_reason: bool) -> Any:
    """Whether the first GPU has at least this compute capability."""
    if not torch.cuda.is_available():
        reason = f"{what} needs a GPU; none is available, so it is emulated exactly"
    elif torch.cuda.get_device_capability() < capability:
        found = ".".join(map(str, torch.cuda.get_device_capability()))
        wanted = ".".join(map(str, capability))
        reason = f"{what} needs compute capability {wanted}, this GPU has {found}; it is emulated"
    else:
        reason = ""
    return (not reason, reason) if return_reason else not reason


def is_fp8_available(return_reason: bool = False) -> bool | tuple[bool, str]:
    """Whether the hardware multiplies FP8 itself; emulation works all the same."""
    return _native_from(_ADA, "FP8", return_reason)


def is_mxfp8_available(return_reason: bool = False) -> bool | tuple[bool, str]:
    """Whether the hardware multiplies MXFP8 itself."""
    return _native_from(_BLACKWELL, "MXFP8", return_reason)


def is_nvfp4_available(return_reason: bool = False) -> bool | tuple[bool, str]:
    """Whether the hardware multiplies NVFP4 itself."""
    return _native_from(_BLACKWELL, "NVFP4", return_reason)


def is_fp8_block_scaling_available(return_reason: bool = False) -> bool | tuple[bool, str]:
    """Whether the hardware multiplies FP8 with scales of 128-blocks itself."""
    return _native_from(_HOPPER, "FP8 block scaling", return_reason)


def is_bf16_available(return_reason: bool = False) -> bool | tuple[bool, str]:
    """Whether the hardware multiplies BF16 itself."""
    return _native_from(_AMPERE, "BF16", return_reason)


class FP8GlobalStateManager:
    """What scripts for Transformer Engine ask and reset by this name."""

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

    is_fp8_available = staticmethod(is_fp8_available)
    is_mxfp8_available = staticmethod(is_mxfp8_available)
    is_nvfp4_available = staticmethod(is_nvfp4_available)
    is_fp8_block_scaling_available = staticmethod(is_fp8_block_scaling_available)


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
