"""Amax histories and scales of a module, as attributes and in its ``state_dict``."""

from __future__ import annotations

from typing import Any

import torch

from telens import _C
from telens._names import refusal
from telens.pytorch.checkpoints.transformer_engine_state import (
    is_transformer_engine_state,
    restore_transformer_engine_state,
)
from telens.pytorch.compat.read_attributes import ReadAttributes
from telens.pytorch.fp8_meta import fp8_meta_of, quantizers_of

__all__ = ["EXTRA_STATE", "WithExtraState"]

EXTRA_STATE = "_extra_state"


class WithExtraState(ReadAttributes):
    """Adds FP8 state to modules with amax histories and scales."""

    @property
    def fp8_meta(self) -> dict[str, Any]:
        """The FP8 state as Transformer Engine has it: ``fp8_meta["scaling_fwd"].scale`` and so on.

        ``recipe``, ``num_gemms``, ``fp8_max_fwd``, ``fp8_max_bwd``, and, once there is any state,
        ``scaling_fwd`` and ``scaling_bwd`` (``RecipeState``), whose tensors are the layer's own.
        """
        return fp8_meta_of(self)

    @property
    def quantizers(self) -> dict[str, list[_C.Quantizer | None]]:
        """``quantizers["scaling_fwd"][i]``: input, weight and output of each GEMM, and
        ``["scaling_bwd"]``: the gradients of output and input.

        The layer uses these objects; changing a copy has no effect on it.
        """
        return quantizers_of(self)

    def get_extra_state(self) -> torch.Tensor:
        """Amax histories and scales as plain bytes (uint8, 1-D); empty before any FP8 forward.

        A state_dict has no entry for an empty state, so that a layer which never ran in FP8 has
        the keys of a torch module.
        """
        state = self._telens_adapter.extra_state()
        return torch.empty(0, dtype=torch.uint8) if state is None else state

    def _save_to_state_dict(self, destination, prefix, keep_vars) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if destination[prefix + EXTRA_STATE].numel() == 0:
            del destination[prefix + EXTRA_STATE]

    def _load_from_state_dict(self, state_dict, prefix, *args) -> None:
        # set_extra_state receives no key; its messages name this one.
        self.__dict__["_telens_key"] = prefix + EXTRA_STATE
        try:
            super()._load_from_state_dict(state_dict, prefix, *args)
        finally:
            del self.__dict__["_telens_key"]

    def set_extra_state(self, state: torch.Tensor | None) -> None:
        """Restores the result of ``get_extra_state``; None and an empty state change nothing.

        A state of Transformer Engine is read without executing its pickle; a warning names values
        that could not be restored.
        """
        # torch.distributed.checkpoint passes an object of this type if the state dict does not have
        # the key.
        if state is None or type(state).__name__ == "_EXTRA_STATE":
            return
        key = self.__dict__.get("_telens_key", EXTRA_STATE)
        if is_transformer_engine_state(state):
            restore_transformer_engine_state(self, state, key)
            return
        if not isinstance(state, torch.Tensor):
            expected = "a tensor of uint8, as get_extra_state returns it, or None"
            raise refusal(f"{type(self).__name__}.set_extra_state", "state", expected, state)
        if state.numel() != 0:
            self._telens_adapter.set_extra_state(state.cpu(), key)
