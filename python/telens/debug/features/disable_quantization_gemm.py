"""``DisableQuantizationGEMM`` as a class that feature classes inherit; the configured feature of
this name is built in."""

from __future__ import annotations

from telens.debug.features.api import TEConfigAPIMapper
from telens.debug.registry import api_method

__all__ = ["DisableQuantizationGEMM"]


class DisableQuantizationGEMM(TEConfigAPIMapper):
    """Runs the selected GEMMs in high precision."""

    @api_method
    def fp8_gemm_enabled(
        self, config: dict, layer_name: str, gemm: str, iteration: int
    ) -> tuple[bool, int | None]:
        """Returns (False, the next iteration)."""
        return False, iteration + 1
