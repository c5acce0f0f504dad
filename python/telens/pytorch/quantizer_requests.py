"""Requests that a CustomRecipe returns to make the layer keep the quantizer's state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from telens._names import names_fields
from telens.common.custom_recipe import QuantizerRequest
from telens.common.recipe import AmaxFunction, DelayedScaling, Format, ScaleFunction

__all__ = ["DelayedScalingRequest", "QuantizerRequest"]


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
