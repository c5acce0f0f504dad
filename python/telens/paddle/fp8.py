"""The region in which layers run in FP8."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import paddle
import torch

from telens import _C
from telens._names import refusal
from telens.common.field_types import is_boolean
from telens.common.recipe import Recipe
from telens.paddle.arguments import check_group, type_name
from telens.paddle.collectives import to_torch_group
from telens.pytorch.quantization import autocast

__all__ = ["fp8_autocast"]

_CALLABLES = ("amax_compute_algo", "scaling_factor_compute_algo")


@contextlib.contextmanager
def fp8_autocast(
    enabled: bool = False,
    calibrating: bool = False,
    fp8_recipe: Recipe | None = None,
    fp8_group: Any = None,
) -> Iterator[None]:
    """Layers inside the region run their GEMMs in FP8. Also a decorator.

    The features of a layer must be divisible by 16. The number of tokens is arbitrary. With
    ``fp8_recipe.reduce_amax`` amaxes are reduced over ``fp8_group`` when the outermost region ends.

    Parameters
    ----------
    enabled
        whether layers run in FP8; otherwise they run in high precision
    calibrating
        layers collect amaxes although they run in high precision
    fp8_recipe
        any of ``telens.common.recipe``; default: ``DelayedScaling()``. Recipes with user-defined
        functions are rejected, because those would receive torch tensors
    fp8_group
        ``paddle.distributed`` group; None for this rank only
    """
    for name, value in (("enabled", enabled), ("calibrating", calibrating)):
        if not is_boolean(value):
            raise refusal("fp8_autocast", name, "a boolean", value)
    if fp8_recipe is not None and not isinstance(fp8_recipe, Recipe):
        raise TypeError(
            "fp8_autocast: fp8_recipe must be one of telens.common.recipe, such as "
            f"DelayedScaling(), or None, not {type_name(fp8_recipe)}"
        )
    for name in _CALLABLES:
        if callable(getattr(fp8_recipe, name, None)):
            raise _C.UsageError(
                f"fp8_autocast: fp8_recipe has a function for {name}, which telens.paddle does not "
                "call; use 'max' or 'most_recent', or None"
            )
    if not isinstance(fp8_group, torch.distributed.ProcessGroup):
        check_group("fp8_autocast", "fp8_group", fp8_group)
    region = autocast(bool(enabled), bool(calibrating), fp8_recipe, to_torch_group(fp8_group))
    region.__enter__()
    try:
        yield
    except BaseException as error:
        region.__exit__(type(error), error, error.__traceback__)
        raise
    # The core reads torch's grad mode: the end of a region updates scales only if it is on.
    with torch.set_grad_enabled(paddle.is_grad_enabled()):
        region.__exit__(None, None, None)
