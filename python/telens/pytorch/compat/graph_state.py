"""``transformer_engine.pytorch.graph``: FP8 state around CUDA graphs that a framework captures."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from telens import _C
from telens.common.recipe import DelayedScaling, Recipe
from telens.pytorch.checkpoints.extra_state import WithExtraState
from telens.pytorch.fp8_meta import DIRECTIONS

__all__ = [
    "is_graph_capturing",
    "restore_fp8_tensors",
    "save_fp8_tensors",
    "set_capture_end",
    "set_capture_start",
]

_is_capturing = False

Saved = list[dict[str, tuple[torch.Tensor, torch.Tensor]]]


def set_capture_start() -> None:
    """Notes that the framework captures graphs, for ``is_graph_capturing``."""
    global _is_capturing
    _is_capturing = True


def set_capture_end() -> None:
    """Notes that the framework's capture has ended."""
    global _is_capturing
    _is_capturing = False


def is_graph_capturing() -> bool:
    """Returns whether the framework is capturing."""
    return _is_capturing


def _layers(modules: Iterable[torch.nn.Module]) -> list[Any]:
    return [
        each for module in modules for each in module.modules() if isinstance(each, WithExtraState)
    ]


def save_fp8_tensors(modules: Iterable[torch.nn.Module], recipe: Recipe | None) -> Saved | None:
    """Returns copies of the modules' scales and amax histories; None unless scaling is delayed."""
    if not isinstance(recipe, DelayedScaling):
        return None
    saved: Saved = []
    for layer in _layers(modules):
        states = {key: layer.fp8_meta[key] for key in DIRECTIONS if key in layer.fp8_meta}
        saved.append({k: (s.scale.clone(), s.amax_history.clone()) for k, s in states.items()})
    return saved


@torch.no_grad()
def restore_fp8_tensors(modules: Iterable[torch.nn.Module], fp8_tensors: Saved | None) -> None:
    """Writes back what ``save_fp8_tensors`` returned for the same modules.

    A layer without state at that time gets scales of 1 and histories of 0. Raises UsageError for
    another number of layers.
    """
    if fp8_tensors is None:
        return
    layers = _layers(modules)
    if len(layers) != len(fp8_tensors):
        raise _C.UsageError(
            f"restore_fp8_tensors: {len(layers)} layers with the state of {len(fp8_tensors)}; "
            "expected the modules of save_fp8_tensors"
        )
    for layer, states in zip(layers, fp8_tensors, strict=True):
        meta = layer.fp8_meta
        for key in DIRECTIONS:
            if key not in meta:
                continue
            scale, history = states.get(key, (1.0, 0.0))
            meta[key].scale[...] = scale
            meta[key].amax_history[...] = history
