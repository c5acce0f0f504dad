"""The namespace ``base``: features for tensors that a script passes itself."""

from __future__ import annotations

from typing import Any

from telens.debug import sessions
from telens.debug.base import BaseConfigAPIMapper, BaseNamespaceAPI

__all__ = ["GenericConfigAPIMapper", "GenericFrameworkAPI"]


class GenericConfigAPIMapper(BaseConfigAPIMapper):
    """Reads ``tensors`` and ``tensors_struct`` of a feature's configuration."""

    tensor_config_docstring = (
        "tensors: [name, ...] with keys for all of them, or tensors_struct: a list of mappings, "
        "each with 'tensor: name' and its own keys"
    )

    def parse_config_and_api(self, config: dict, **call: Any) -> tuple[bool, dict | None]:
        if "tensor_name" not in call:
            return False, None
        matched = self._process_tensor_config(config, call["tensor_name"])
        if matched is None:
            return False, None
        matched.pop("enabled", None)
        return True, matched


class GenericFrameworkAPI(BaseNamespaceAPI):
    """``telens.debug.base``: the built-in ``log_tensor_stats``, and calls of feature classes."""

    name = "base"

    def input_assertions_hook(self, api_name: str, **kwargs: Any) -> None:
        """Raises AssertionError if ``log_tensor_stats`` lacks its tensor or its name."""
        if api_name == "log_tensor_stats":
            for argument in ("tensor", "tensor_name"):
                assert argument in kwargs, f"log_tensor_stats: argument '{argument}' is missing"

    def log_tensor_stats(self, layer_name: str, **kwargs: Any) -> dict[str, Any]:
        """See ``telens.debug.log_tensor_stats``."""
        self.input_assertions_hook("log_tensor_stats", **kwargs)
        return sessions.log_tensor_stats(layer_name, **kwargs)


BASE = GenericFrameworkAPI()
