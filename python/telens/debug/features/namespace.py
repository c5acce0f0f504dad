"""How the namespace ``transformer_engine`` treats a call of a feature."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from telens import _C
from telens.debug.base import BaseNamespaceAPI
from telens.debug.features.defaults import TEDefaultFeatures

__all__ = ["TransformerEngineAPI"]


class TransformerEngineAPI(BaseNamespaceAPI):
    """The checks of calls in the namespace ``transformer_engine``, for tests of feature classes.

    The session answers layers by the same rules.
    """

    name = "transformer_engine"

    _needs = {  # noqa: RUF012
        "fp8_gemm_enabled": ("gemm",),
        "modify_tensor_enabled": ("tensor_name", "gemm"),
        "modify_tensor": ("tensor_name", "gemm"),
        "inspect_tensor_enabled": ("tensor_name",),
        "inspect_tensor": ("tensor_name",),
        "inspect_tensor_postquantize_enabled": ("tensor_name",),
        "inspect_tensor_postquantize": ("tensor_name",),
    }

    def __init__(self) -> None:
        self._default_api_impl = TEDefaultFeatures()

    def route_api(self, layer_name: str, api_name: str, **kwargs: Any) -> Any:
        """Answers a call as ``debug.transformer_engine`` does, also of built-in features."""
        sessions = importlib.import_module("telens.debug.sessions")
        return getattr(sessions.transformer_engine, api_name)(layer_name, **kwargs)

    def is_multiple_feature_invocation_allowed(self, api_name: str) -> bool:
        """Whether several features may answer one call: all but those that modify."""
        return api_name in self._needs and not api_name.startswith("modify_tensor")

    def input_assertions_hook(self, api_name: str, **call: Any) -> None:
        """Raises UsageError if a call does not name its GEMM or tensor."""
        for name in self._needs.get(api_name, ("tensor_name", "gemm")):
            if name not in call:
                raise _C.UsageError(f"{api_name}: argument '{name}' is missing; name it")

    def routing_condition(
        self, api_name: str, config: dict, layer_name: str, feature_obj: Any, **call: Any
    ) -> tuple[bool, dict | None]:
        """Whether a feature's configuration selects the call, and the part that is for it."""
        needs = self._needs[api_name]
        return feature_obj.parse_config_and_api(
            config, gemm_parsing="gemm" in needs, tensor_parsing="tensor_name" in needs, **call
        )

    def call_feature(self, call: Any, feat_config: dict, layer_name: str, **arguments: Any) -> Any:
        """Calls a feature's method with the arguments that it declares."""
        parameters = inspect.signature(call).parameters.values()
        if not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
            declared = {each.name for each in parameters}
            arguments = {name: each for name, each in arguments.items() if name in declared}
        return call(feat_config, layer_name, **arguments)
