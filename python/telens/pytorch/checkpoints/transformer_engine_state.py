"""Transformer Engine's ``_extra_state``: amax histories and scales from its checkpoints.

It is a pickle (a tensor of uint8; in versions before 2.0 a BytesIO of ``torch.save``) of a
dictionary: ``scale_fwd`` [slots], ``amax_history_fwd`` [length, slots], the same with ``_bwd``, the
recipe, and other values that each run recomputes. Slots have the same order here. Row 0 of a
history collects the running iteration in both libraries. The following rows run from the oldest to
the newest in Transformer Engine, and from the newest to the oldest here.
"""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch

from telens import _C
from telens._names import refusal
from telens.pytorch.checkpoints.transformer_engine_pickle import (
    Record,
    UnreadablePickle,
    read_pickle,
)

__all__ = ["TransformerEngineState", "read_transformer_engine_state"]

# Values of a running process, which every run recomputes.
_OF_THE_PROCESS = frozenset(
    [
        "num_gemms",
        "fp8_max_fwd",
        "fp8_max_bwd",
        "fp8_checkpoint",
        "update_amax_and_scale_fwd",
        "update_amax_and_scale_bwd",
        "fp8_weights_in_cache",
        "autocast_id_fwd",
        "autocast_id_fwd_stack",
        "autocast_id_bwd",
        "fp8_group",
        "global_fp8_buffer_pos_fwd_recompute",
        "first_module",
        "async_amax_reduction",
        "scaling_fwd",
        "scaling_bwd",
    ]
)
_ROLES = {"fwd": ("input", "weight", "output"), "bwd": ("grad_output", "grad_input")}
_SLOTS_OF_GEMM = {direction: len(roles) for direction, roles in _ROLES.items()}


@dataclass(frozen=True)
class TransformerEngineState:
    """The contents of a module's ``_extra_state``.

    Attributes
    ----------
    recipe
        the class of its recipe; "DelayedScaling" for versions that do not store it
    recipe_values
        the recipe's fields that are plain values
    scale
        by "fwd" and "bwd": FP32, one per slot; {} under a recipe without scales
    amax_history
        by "fwd" and "bwd": FP32 [length, slots], in Transformer Engine's order of rows
    left_out
        values that modules of this package cannot hold
    """

    recipe: str
    recipe_values: dict[str, Any] = field(default_factory=dict)
    scale: dict[str, torch.Tensor] = field(default_factory=dict)
    amax_history: dict[str, torch.Tensor] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def is_transformer_engine_state(state: Any) -> bool:
    """Whether a value of a checkpoint is Transformer Engine's, by its first bytes."""
    return _bytes_of(state).startswith((b"\x80", b"PK"))


def read_transformer_engine_state(state: Any) -> TransformerEngineState:
    """Reads an ``_extra_state`` of Transformer Engine without executing anything that it names.

    ``state``: a tensor of uint8, bytes, or a BytesIO. Raises UsageError if it is not such a state,
    or names anything except tensors, plain values and recipes.
    """
    if not isinstance(state, torch.Tensor | bytes | bytearray | io.BytesIO):
        expected = "a tensor of uint8, bytes or a BytesIO"
        raise refusal("read_transformer_engine_state", "state", expected, state)
    try:
        values = read_pickle(_bytes_of(state))
        if not isinstance(values, dict):
            raise UnreadablePickle(f"a {type(values).__name__} in the place of a dictionary")
        return _state_of(values)
    except UnreadablePickle as error:
        raise _C.UsageError(
            f"read_transformer_engine_state: this is no _extra_state of Transformer Engine: it "
            f"holds {error}; load the checkpoint without it to begin with fresh scales"
        ) from None


def _bytes_of(state: Any) -> bytes:
    if isinstance(state, io.BytesIO):
        return state.getvalue()
    if isinstance(state, torch.Tensor) and state.dtype == torch.uint8:
        return state.detach().cpu().contiguous().numpy().tobytes()
    return bytes(state) if isinstance(state, bytes | bytearray) else b""


def _state_of(values: dict[Any, Any]) -> TransformerEngineState:
    recipe = values.get("recipe")
    if recipe is not None and not isinstance(recipe, Record):
        raise UnreadablePickle(f"a {type(recipe).__name__} in the place of a recipe")
    scale: dict[str, torch.Tensor] = {}
    history: dict[str, torch.Tensor] = {}
    for direction in _SLOTS_OF_GEMM:
        if f"scale_{direction}" in values:
            scale[direction] = _floats(values, f"scale_{direction}", 1)
            history[direction] = _floats(values, f"amax_history_{direction}", 2)
            if history[direction].shape[1:] != scale[direction].shape:
                raise UnreadablePickle("histories of other slots than scales")
    if recipe is None and not scale:
        raise UnreadablePickle("neither a recipe nor scales")
    extra = values.get("extra_fp8_variables")
    return TransformerEngineState(
        "DelayedScaling" if recipe is None else type(recipe).__name__,
        {} if recipe is None else _plain_values(recipe),
        scale,
        history,
        sorted(set(map(str, extra or ())) - _OF_THE_PROCESS) if isinstance(extra, dict) else [],
    )


def _floats(values: dict[Any, Any], name: str, dimensions: int) -> torch.Tensor:
    tensor = values.get(name)
    if not isinstance(tensor, torch.Tensor) or tensor.dim() != dimensions or tensor.numel() == 0:
        raise UnreadablePickle(f"no tensor {name} of {dimensions} dimensions")
    if tensor.dtype != torch.float32:
        raise UnreadablePickle(f"{name} of {tensor.dtype}, not torch.float32")
    return tensor


def _plain_values(recipe: Record) -> dict[str, Any]:
    plain = (bool, int, float, str, type(None))
    return {
        name: value
        for name, value in vars(recipe).items()
        if type(value) in plain and name[0] != "_" and name != "args"
    }


# ---------------------------------------------------------------------- into a module


def restore_transformer_engine_state(module: torch.nn.Module, state: Any, key: str) -> None:
    """Restores scales and histories; a warning lists values that could not be restored and stay
    fresh.

    ``key``: the checkpoint's entry, which warnings name with the module's class.
    """
    owner = f"{key} ({type(module).__name__})"
    try:
        found = read_transformer_engine_state(state)
    except _C.UsageError as error:
        _warn(f"{owner}: {error}; amax histories and scales start from their initial values")
        return
    if found.left_out:
        _warn(
            f"{owner}: Transformer Engine's checkpoint has {', '.join(found.left_out)}, which have "
            "no place here"
        )
    if not found.scale:
        return  # its recipe keeps nothing from one iteration to the next
    adapter = module._telens_adapter
    wanted = {each: slots * adapter.num_gemms for each, slots in _SLOTS_OF_GEMM.items()}
    slots = {each: len(values) for each, values in found.scale.items()}
    if slots != wanted:
        _warn(
            f"{owner}: Transformer Engine's checkpoint has {slots} scales, and this module has "
            f"{wanted}; amax histories and scales start from their initial values"
        )
        return
    windows = [_window(found, each, adapter.num_gemms) for each in wanted]
    try:
        adapter.set_amax_windows(*windows, key)
    except _C.UsageError as error:
        _warn(
            f"{owner}: Transformer Engine's amax histories and scales are not restored and start "
            f"from their initial values; {error}"
        )
        return
    for direction, (history, _) in zip(wanted, windows, strict=True):
        _warn_of_nan(owner, direction, history, adapter.num_gemms)


def _warn_of_nan(owner: str, direction: str, history: torch.Tensor, gemms: int) -> None:
    roles = _ROLES[direction]
    for slot in history.isnan().any(dim=0).nonzero().flatten().tolist():
        of_gemm = f" of GEMM {slot // len(roles)}" if gemms > 1 else ""
        _warn(
            f"{owner}: in Transformer Engine's checkpoint the amax history of "
            f"{roles[slot % len(roles)]}{of_gemm} contains NaN; the scale is not updated until the "
            "NaN has left the history"
        )


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=4)


def _window(
    state: TransformerEngineState, direction: str, gemms: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(amax_history, scale) in our order of rows and slots."""
    history, scale = with_rows_turned(state.amax_history[direction]), state.scale[direction]
    if not _is_ordered_by_role(state, gemms):
        return history, scale
    order = torch.arange(len(scale)).view(-1, gemms).t().flatten()
    return history[:, order], scale[order]


def with_rows_turned(history: torch.Tensor) -> torch.Tensor:
    """Rows after the first in the opposite order: from one library's to the other's."""
    return torch.cat([history[:1], history[1:].flip(0)])


def _is_ordered_by_role(state: TransformerEngineState, gemms: int) -> bool:
    """Whether inputs of all GEMMs come first, then weights, then outputs.

    A GroupedLinear of Transformer Engine before 2.4 has this order, but does not store it. Outputs
    are never cast there: their columns are the only ones without any amax.
    """
    used = state.amax_history["fwd"].abs().sum(dim=0) != 0
    by_role, by_gemm = used.view(-1, gemms)[2], used.view(gemms, -1)[:, 2]
    return gemms > 1 and not by_role.any().item() and by_gemm.any().item()
