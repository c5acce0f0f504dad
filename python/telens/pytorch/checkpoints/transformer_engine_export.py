"""Checkpoints for Transformer Engine, with amax histories and scales in its format."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from telens import _C
from telens._names import refusal
from telens.common.recipe import DelayedScaling, Recipe
from telens.pytorch.checkpoints.extra_state import EXTRA_STATE, WithExtraState
from telens.pytorch.checkpoints.transformer_engine_pickle import (
    format_program,
    object_program,
    write_pickle,
)
from telens.pytorch.checkpoints.transformer_engine_state import with_rows_turned
from telens.pytorch.quantization import recipe_of

__all__ = ["to_transformer_engine_state_dict"]


def to_transformer_engine_state_dict(
    model: torch.nn.Module, recipe: Recipe | None = None
) -> dict[str, Any]:
    """Returns the model's ``state_dict`` with every ``_extra_state`` in Transformer Engine's
    format.

    Transformer Engine's modules, whose parameters have the same names, read scales and amax
    histories from it. From 2.20 on it requires ``NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE=1`` for any
    pickle.

    Parameters
    ----------
    model
        any module; layers without FP8 state get an empty ``_extra_state``, as in Transformer Engine
    recipe
        the ``DelayedScaling`` to write for a layer that has not run under one yet; default:
        ``DelayedScaling()``

    A recipe's functions (``amax_compute_algo``, ``scaling_factor_compute_algo``) cannot be written:
    the defaults replace them, with a warning.
    """
    if not isinstance(model, torch.nn.Module):
        raise refusal("to_transformer_engine_state_dict", "model", "a torch.nn.Module", model)
    if recipe is not None and not isinstance(recipe, DelayedScaling):
        expected = "a DelayedScaling: no other recipe keeps anything"
        raise refusal("to_transformer_engine_state_dict", "recipe", expected, recipe)
    state = dict(model.state_dict())
    for name, module in model.named_modules():
        if isinstance(module, WithExtraState):
            key = f"{name}.{EXTRA_STATE}".lstrip(".")
            state[key] = _pickled(module._telens_adapter, recipe)
    return state


def _pickled(adapter: _C.ModuleAdapter, given: Recipe | None) -> torch.Tensor:
    windows = {"fwd": adapter.amax_window(False), "bwd": adapter.amax_window(True)}
    if None in windows.values():
        return torch.empty(0, dtype=torch.uint8)
    values: dict[str, Any] = {"extra_fp8_variables": {"num_gemms": adapter.num_gemms}}
    for direction, (history, scale) in windows.items():
        values[f"scale_{direction}"] = scale.detach().cpu().clone()
        values[f"amax_history_{direction}"] = with_rows_turned(history.detach().cpu())
    used = recipe_of(adapter.newest_recipe())
    recipe = used if isinstance(used, DelayedScaling) else given or DelayedScaling()
    data = write_pickle(values, {"recipe": _recipe_program(recipe, len(windows["fwd"][0]))})
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _recipe_program(recipe: DelayedScaling, length: int) -> bytes:
    algorithm = recipe.amax_compute_algo
    if callable(algorithm) or recipe.scaling_factor_compute_algo is not None:
        warnings.warn(
            "to_transformer_engine_state_dict: the recipe's functions cannot be written; "
            "Transformer Engine's defaults replace them",
            stacklevel=4,
        )
    if recipe.interval != 1:
        warnings.warn(
            f"to_transformer_engine_state_dict: interval={recipe.interval} is not written; "
            "Transformer Engine computes scales in every iteration",
            stacklevel=4,
        )
    fields = {
        "margin": recipe.margin,
        "amax_history_len": length,
        "amax_compute_algo": "max" if callable(algorithm) else algorithm,
        "scaling_factor_compute_algo": None,
        "reduce_amax": recipe.reduce_amax,
        "fp8_dpa": recipe.fp8_dpa,
        "fp8_mha": recipe.fp8_mha,
        "backward_override": None,
    }
    largest = recipe.fp8_format.value
    made = format_program(float(largest.max_fwd), float(largest.max_bwd))
    return object_program("DelayedScaling", fields, {"fp8_format": made})
