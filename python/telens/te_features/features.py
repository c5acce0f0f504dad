"""Feature classes that pass Transformer Engine's hook calls to a TELens session.

nvdlfw_inspect calls a class registered in the namespace ``transformer_engine`` only, and keeps the
first class of each name. The classes therefore have the names of TELens' features with a prefix:
both ``LogTensorStats`` and ``TELensLogTensorStats`` can run in one config.
"""

from __future__ import annotations

import importlib.util
import pathlib
from typing import Any

import torch
from nvdlfw_inspect.base import BaseNamespaceAPI
from nvdlfw_inspect.registry import Registry, api_method
from nvdlfw_inspect.utils import import_and_exec_module

from telens.te_features import session
from telens.te_features.configuration import FEATURES, PREFIX

__all__ = ["register"]

# Namespace of the hooks, and the one that reports step() and end_debug().
_HOOKS = "transformer_engine"
_STEPS = "telens"


class Feature:
    """Base class of the features. The session decides what is read: each class passes all calls.

    The methods have the parameters of Transformer Engine 2.4 and later.
    """

    def parse_config_and_api(self, config: dict, **_: Any) -> tuple[bool, dict]:
        """Accepts the call for the first of the features that a section of the config enables.

        The TELens session selects tensors and iterations. nvdlfw_inspect 0.2 formats the tensors
        of every call that reaches several features, which waits for the GPU.
        """
        return session.current().is_first(config), config

    @api_method
    def inspect_tensor_enabled(
        self, config: dict, layer_name: str, tensor_name: str, iteration: int
    ) -> Any:
        return session.current().inspects(layer_name, tensor_name, iteration)

    @api_method
    def inspect_tensor_postquantize_enabled(
        self, config: dict, layer_name: str, tensor_name: str, gemm: str, iteration: int
    ) -> Any:
        return session.current().inspects_copies(layer_name, tensor_name, iteration)

    @api_method
    def inspect_tensor(
        self,
        config: dict,
        layer_name: str,
        tensor_name: str,
        iteration: int,
        tensor: torch.Tensor | None,
        tp_group: Any = None,
        rowwise_quantized_tensor: Any = None,
        columnwise_quantized_tensor: Any = None,
        quantizer: Any = None,
        tp_size: int | None = None,
    ) -> None:
        session.current().inspect(
            type(self).__name__,
            layer_name,
            session.Shown(
                tensor_name,
                tensor,
                rowwise_quantized_tensor,
                columnwise_quantized_tensor,
                quantizer,
                tp_group,
                tp_size,
            ),
            iteration,
        )

    @api_method
    def inspect_tensor_postquantize(
        self,
        config: dict,
        layer_name: str,
        tensor_name: str,
        iteration: int,
        tensor: Any,
        tp_group: Any = None,
        rowwise: bool = True,
        gemm: str | None = None,
        tp_size: int | None = None,
    ) -> None:
        session.current().inspect_copy(
            type(self).__name__, layer_name, tensor_name, tensor, rowwise, iteration
        )


class StepReports(BaseNamespaceAPI):
    """A namespace without features: nvdlfw_inspect calls step() and end_debug() of each one."""

    def step(self) -> None:
        session.step()

    def end_debug(self) -> None:
        session.end()

    def input_assertions_hook(self, api_name: str, **kwargs: Any) -> None:
        pass

    def routing_condition(self, *_: Any, **kwargs: Any) -> tuple[bool, None]:
        return False, None

    def output_assertions_hook(self, api_name: str, ret: Any, **kwargs: Any) -> None:
        pass

    def is_multiple_feature_invocation_allowed(self, api_name: str) -> bool:
        return True


def register() -> None:
    """Registers the features with nvdlfw_inspect.

    Raises RuntimeError if Transformer Engine is not installed.
    """
    _load_hook_definitions()
    for name, text in FEATURES.items():
        made = type(f"{PREFIX}{name}", (Feature,), {"__doc__": text.doc, "__module__": __name__})
        Registry.register_feature(namespace=_HOOKS)(made)
    Registry.register_namespace_api(namespace=_STEPS)(StepReports)


def _load_hook_definitions() -> None:
    """Runs Transformer Engine's definition of its hooks unless another folder has.

    nvdlfw_inspect refuses features of a namespace without a definition.
    """
    registered = Registry.data.get(_HOOKS)
    if registered is not None and registered.api is not None:
        return
    spec = importlib.util.find_spec("transformer_engine")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        definition = pathlib.Path(folder, "debug", "features", "api.py")
        if definition.is_file():
            import_and_exec_module(str(definition))
            return
    raise RuntimeError(
        "telens.te_features: transformer_engine with debug features is not installed; install "
        "Transformer Engine 2.4 or later"
    )
