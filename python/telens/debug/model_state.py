"""Tensors of named models that a session compares over ranks: parameters, gradients, histories."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from telens import _C, RunStopped

__all__ = ["begin", "end", "note_module", "show"]


class NamedModule:
    """Base class of this package's layers for torch, which have ``set_debug_name``.

    ``telens.pytorch.Module`` inherits it. This module does not import ``telens.pytorch``, which
    needs telens-core.
    """


# (kind, module, layer, tensor, value, part) for _C.debug.show_model
_Shown = tuple[str, str, str, str, torch.Tensor, str]

# Named modules by their last name.
_named: dict[str, weakref.ref[torch.nn.Module]] = {}

# The tensors of a GEMM's slots under delayed scaling.
_SLOTS = {"scaling_fwd": ("activation", "weight", None), "scaling_bwd": ("gradient", None)}


def note_module(module: Any, name: str) -> None:
    """Called when a torch module gets a name."""
    if isinstance(module, torch.nn.Module):
        _named[name] = weakref.ref(module)


# While a session compares ranks: the hook that reads gradients before optimizer steps.
_optimizer_hook: Any = None
_gradients_are_shown = False
_has_failed = False


def begin() -> None:
    """Called when a session has begun, with whether it compares ranks."""
    global _optimizer_hook, _gradients_are_shown, _has_failed
    end()
    _gradients_are_shown = False
    _has_failed = False
    if _C.debug.longest_wait_for_ranks() is not None:
        _optimizer_hook = register_optimizer_step_pre_hook(lambda *_: _harmless(_show_gradients))


def end() -> None:
    """The session ends."""
    global _optimizer_hook
    if _optimizer_hook is not None:
        _optimizer_hook.remove()
    _optimizer_hook = None


def show() -> None:
    """Passes the model state that the running session compares at the end of an iteration."""
    if _named and not _has_failed and _C.debug.wants_model():
        _harmless(_show_all)


def _harmless(show_some: Callable[[], None]) -> None:
    """After a failure to read the model, the session stops comparing it; training continues."""
    global _has_failed
    try:
        show_some()
    except RunStopped:
        raise
    except Exception as error:
        _has_failed = True
        end()
        warnings.warn(
            f"ranks compare this model's tensors no more: {type(error).__name__}: {error}",
            stacklevel=2,
        )


def _show_all() -> None:
    global _gradients_are_shown
    _show_gradients()
    _gradients_are_shown = False
    tensors: list[_Shown] = []
    for name, module in _modules():
        tensors += _weights(module, name)
        if isinstance(module, NamedModule):
            tensors += _histories(module, name)
    _C.debug.show_model(tensors)


def _show_gradients() -> None:
    """Runs once per iteration: at the first optimizer step, or else at the end."""
    global _gradients_are_shown
    if _gradients_are_shown or not _C.debug.wants_model():
        return
    _gradients_are_shown = True
    _C.debug.show_model([each for name, module in _modules() for each in _gradients(module, name)])


def _modules() -> Iterator[tuple[str, torch.nn.Module]]:
    for name, ref in list(_named.items()):
        module = ref()
        if module is None:
            del _named[name]
        else:
            yield name, module


def _weights(module: torch.nn.Module, name: str) -> Iterator[_Shown]:
    for key, parameter, part in _parameters(module):
        value = _local(parameter)
        # A layer passes the weight of a GEMM to its features itself.
        if value is not None and not _is_of_gemm(module, parameter):
            yield "weight", name, _layer_of(name, key, False), "weight", value, part


def _gradients(module: torch.nn.Module, name: str) -> Iterator[_Shown]:
    for key, parameter, part in _parameters(module):
        gradient = parameter.grad
        if gradient is None:
            gradient = getattr(parameter, "main_grad", None)
        value = _local(gradient)
        if value is not None:
            layer = _layer_of(name, key, _is_of_gemm(module, parameter))
            yield "gradient", name, layer, "wgrad", value, part


def _parameters(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter, str]]:
    """Yields the tensors that other ranks also have, with this rank's part."""
    for key, parameter in module.named_parameters(recurse=False):
        part = _part_of(module, parameter)
        # Megatron-LM's mark of experts that exist only on this rank.
        if part is not None and getattr(parameter, "allreduce", True) is not False:
            yield key, parameter, part


def _is_of_gemm(module: torch.nn.Module, parameter: torch.Tensor) -> bool:
    return isinstance(module, NamedModule) and parameter.dim() == 2


def _layer_of(module: str, key: str, is_of_gemm: bool) -> str:
    """``weight`` belongs to its module; the GEMMs of a module use the weights of its layers."""
    if key == "weight":
        return module
    if is_of_gemm:
        return f"{module}.{key.removesuffix('_weight')}"
    return f"{module}.{key}"


def _local(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """Returns the plain tensor, or None for a sharded DTensor, which differs between ranks."""
    if tensor is None or not hasattr(tensor, "placements"):
        return tensor
    is_whole = all(placement.is_replicate() for placement in tensor.placements)
    return tensor.to_local() if is_whole else None


def _part_of(module: torch.nn.Module, parameter: torch.Tensor) -> str | None:
    """Returns this rank's part of the whole tensor: "" for all of it, None if unknown."""
    if not getattr(parameter, "tensor_model_parallel", False):
        return ""
    group = getattr(module, "tp_group", None)
    if group is None:
        return "" if getattr(module, "tp_size", 1) == 1 else None
    return f"{group.rank()} of {group.size()}" if group.size() > 1 else ""


def _histories(module: NamedModule, name: str) -> Iterator[_Shown]:
    meta = getattr(module, "fp8_meta", {})  # layers with child layers lack it
    for direction, names in _SLOTS.items():
        if direction not in meta:
            continue
        try:
            history = meta[direction].amax_history
        except AttributeError:  # a recipe without a history
            continue
        gemms = history.shape[1] // len(names)
        for slot, column in enumerate(history.unbind(1)):
            tensor = names[slot % len(names)]
            if tensor is not None:
                layer = name if gemms == 1 else f"{name}.{_gemm_name(module, slot // len(names))}"
                yield "amax_history", name, layer, tensor, column, ""


def _gemm_name(module: NamedModule, gemm: int) -> str:
    if not hasattr(module, "num_gemms"):
        return f"fc{gemm + 1}"
    return f"gemm_{(module.first_gemm or 0) + gemm}"
