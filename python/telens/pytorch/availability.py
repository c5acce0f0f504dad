"""Which precisions run here, and how: on the hardware's own products or emulated."""

from __future__ import annotations

import torch

from telens import _C
from telens.common.recipe import Recipe

__all__ = [
    "check_fp8_block_scaling_support",
    "check_fp8_support",
    "check_mxfp8_support",
    "check_nvfp4_support",
    "check_recipe_support",
    "is_bf16_available",
    "is_fp8_available",
    "is_fp8_block_scaling_available",
    "is_mxfp8_available",
    "is_nvfp4_available",
]

# Compute capabilities that multiply the format natively.
_AMPERE = (8, 0)
_ADA = (8, 9)
_HOPPER = (9, 0)
_BLACKWELL = (10, 0)


def _support(what: str, capability: tuple[int, int]) -> tuple[bool, str]:
    """(True, how). GEMMs that the GPU does not support, and all GEMMs on a CPU, are emulated."""
    has_gpu = torch.cuda.is_available()
    if _C.default_device(has_gpu).type != "cuda":
        why = "this build does not contain CUDA kernels" if has_gpu else "no GPU was found"
        return True, f"{what} runs emulated exactly on the CPU: {why}"
    found = torch.cuda.get_device_capability()
    if found >= capability:
        return True, f"{what} runs natively on this GPU, of compute capability {_version(found)}"
    return True, (
        f"{what} runs emulated exactly on this GPU: native products require compute capability "
        f"{_version(capability)}, but it has {_version(found)}"
    )


def _version(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))


def check_fp8_support() -> tuple[bool, str]:
    """(True, how FP8 with one scale a tensor runs here)."""
    return _support("FP8", _ADA)


def check_mxfp8_support() -> tuple[bool, str]:
    """(True, how MXFP8 runs here)."""
    return _support("MXFP8", _BLACKWELL)


def check_nvfp4_support() -> tuple[bool, str]:
    """(True, how NVFP4 runs here)."""
    return _support("NVFP4", _BLACKWELL)


def check_fp8_block_scaling_support() -> tuple[bool, str]:
    """(True, how FP8 with scales of 128-blocks runs here)."""
    return _support("FP8 block scaling", _HOPPER)


def check_recipe_support(recipe: Recipe) -> None:
    """Raises an error if the recipe cannot run here. Every supported recipe runs, possibly
    emulated.

    Raises
    ------
    TypeError
        if ``recipe`` is not a recipe
    UsageError
        if one of its values is not supported
    """
    if not isinstance(recipe, Recipe):
        raise TypeError(
            "check_recipe_support: recipe must be one of telens.common.recipe, not "
            f"{type(recipe).__name__}"
        )
    recipe._native()


def is_fp8_available(return_reason: bool = False) -> bool | tuple[bool, str]:
    """Whether FP8 runs here: natively, or emulated to the same values.

    Parameters
    ----------
    return_reason
        also return a text that says how it runs
    """
    return _answer(check_fp8_support(), return_reason)


def is_mxfp8_available(return_reason: bool = False) -> bool | tuple[bool, str]:
    """Whether MXFP8 runs here, as ``is_fp8_available``."""
    return _answer(check_mxfp8_support(), return_reason)


def is_nvfp4_available(return_reason: bool = False) -> bool | tuple[bool, str]:
    """Whether NVFP4 runs here, as ``is_fp8_available``."""
    return _answer(check_nvfp4_support(), return_reason)


def is_fp8_block_scaling_available(return_reason: bool = False) -> bool | tuple[bool, str]:
    """Whether FP8 with scales of 128-blocks runs here, as ``is_fp8_available``."""
    return _answer(check_fp8_block_scaling_support(), return_reason)


def is_bf16_available(return_reason: bool = False) -> bool | tuple[bool, str]:
    """Returns whether BF16 is supported, like ``is_fp8_available``."""
    return _answer(_support("BF16", _AMPERE), return_reason)


def _answer(support: tuple[bool, str], return_reason: bool) -> bool | tuple[bool, str]:
    return support if return_reason else support[0]
