"""Base classes of feature classes, under Transformer Engine's import path."""

from __future__ import annotations

from typing import Any

from telens import _C
from telens.debug.base import BaseConfigAPIMapper
from telens.debug.features.defaults import TEDefaultFeatures
from telens.debug.features.namespace import TransformerEngineAPI

__all__ = ["TEConfigAPIMapper", "TEDefaultFeatures", "TransformerEngineAPI"]


class TEConfigAPIMapper(BaseConfigAPIMapper):
    """Reads ``gemms``, ``gemms_struct``, ``tensors`` and ``tensors_struct``, as YAML has them."""

    GEMM_NAMES = ("fprop", "dgrad", "wgrad")

    def parse_config_and_api(self, config: dict, **call: Any) -> tuple[bool, dict | None]:
        gemm = call["gemm"] if call.get("gemm_parsing") else None
        tensor = call["tensor_name"] if call.get("tensor_parsing") else None
        matched = _C.matched_config(config, gemm, tensor)
        return matched is not None, matched
