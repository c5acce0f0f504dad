"""The schedule that feature classes of Transformer Engine read from their configuration."""

from __future__ import annotations

from telens.debug.features.api import TEConfigAPIMapper
from telens.debug.features.utils import next_enabled_iter
from telens.debug.registry import api_method

__all__ = ["Scheduled"]


class Scheduled(TEConfigAPIMapper):
    """Inspects tensors in the iterations of ``freq``, ``start_step``, ``end_step`` or
    ``start_end_list``."""

    @api_method
    def inspect_tensor_enabled(
        self, config: dict, layer_name: str, tensor_name: str, iteration: int
    ) -> tuple[bool, int | None]:
        """Returns whether the schedule has the iteration, and the next one that it has."""
        return next_enabled_iter(
            config.get("start_step"),
            config.get("end_step"),
            config.get("start_end_list"),
            config.get("freq", 1),
            iteration,
        )
