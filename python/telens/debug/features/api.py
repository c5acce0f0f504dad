"""Base classes of feature classes, under Transformer Engine's import path."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import torch

from telens import _C
from telens.debug.base import BaseConfigAPIMapper, BaseNamespaceAPI

__all__ = ["TEConfigAPIMapper", "TEDefaultFeatures", "TransformerEngineAPI"]


class TEDefaultFeatures:
    """The seven calls with the answers that apply if no feature implements them.

    A feature class may inherit it in addition to ``TEConfigAPIMapper`` and delegate with
    ``super()``; only methods with ``@api_method`` are called. Routing calls return (enabled, next
    iteration to query); None means never.
    """

    def fp8_gemm_enabled(
        self, config: dict, layer_name: str, gemm: str, iteration: int
    ) -> tuple[bool, int | None]:
        """Whether the GEMM runs in FP8: yes."""
        return True, None

    def modify_tensor_enabled(
        self, config: dict, layer_name: str, gemm: str, tensor_name: str, iteration: int
    ) -> tuple[bool, int | None]:
        """Whether ``modify_tensor`` is called: no."""
        return False, None

    def modify_tensor(
        self,
        config: dict,
        layer_name: str,
        gemm: str,
        tensor_name: str,
        tensor: torch.Tensor,
        default_quantizer: Any,
        iteration: int,
        out: Any = None,
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor | None:
        """Raises an error: a feature that modifies tensors must define this method."""
        raise NotImplementedError(
            f"{type(self).__name__}: modify_tensor_enabled answered True for the {tensor_name} of "
            f"{gemm} in layer {layer_name}, and no modify_tensor handles it; add one"
        )

    def inspect_tensor_enabled(
        self, config: dict, layer_name: str, tensor_name: str, iteration: int
    ) -> tuple[bool, int | None]:
        """Whether ``inspect_tensor`` is called: no."""
        return False, None

    def inspect_tensor(
        self,
        config: dict,
        layer_name: str,
        tensor_name: str,
        tensor: torch.Tensor | None,
        rowwise_quantized_tensor: Any,
        columnwise_quantized_tensor: Any,
        quantizer: Any,
        iteration: int,
        tp_group: torch.distributed.ProcessGroup | None,
        tp_size: int = 1,
    ) -> None:
        """Looks at nothing."""

    def inspect_tensor_postquantize_enabled(
        self, config: dict, layer_name: str, gemm: str, tensor_name: str, iteration: int
    ) -> tuple[bool, int | None]:
        """Whether ``inspect_tensor_postquantize`` is called: no."""
        return False, None

    def inspect_tensor_postquantize(
        self,
        config: dict,
        layer_name: str,
        tensor_name: str,
        tensor: Any,
        iteration: int,
        tp_group: torch.distributed.ProcessGroup | None,
        rowwise: bool,
        gemm: str | None = None,
        tp_size: int = 1,
    ) -> None:
        """Looks at nothing."""


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


class TEConfigAPIMapper(BaseConfigAPIMapper):
    """Reads ``gemms``, ``gemms_struct``, ``tensors`` and ``tensors_struct`` of a YAML config."""

    GEMM_NAMES = ("fprop", "dgrad", "wgrad")

    def parse_config_and_api(self, config: dict, **call: Any) -> tuple[bool, dict | None]:
        gemm = call["gemm"] if call.get("gemm_parsing") else None
        tensor = call["tensor_name"] if call.get("tensor_parsing") else None
        matched = _C.matched_config(config, gemm, tensor)
        return matched is not None, matched
