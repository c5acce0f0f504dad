"""``DisableQuantizationLayer`` as a class that feature classes inherit; the configured feature of
this name is built in."""

from __future__ import annotations

from typing import Any

from telens.debug.base import BaseConfigAPIMapper
from telens.debug.registry import api_method

__all__ = ["DisableQuantizationLayer"]


class DisableQuantizationLayer(BaseConfigAPIMapper):
    """Runs all GEMMs of the selected layers in high precision."""

    def parse_config_and_api(self, config: dict, **call: Any) -> tuple[bool, dict | None]:
        """Returns (whether the feature is enabled, its configuration): every GEMM is selected."""
        return bool(config.get("enabled", True)), config

    @api_method
    def fp8_gemm_enabled(
        self, config: dict, layer_name: str, gemm: str, iteration: int
    ) -> tuple[bool, int | None]:
        """Returns (False, the next iteration)."""
        return False, iteration + 1
