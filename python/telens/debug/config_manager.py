"""The configuration of the session, under the names of nvdlfw_inspect.config_manager."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NoReturn

from telens import _C

__all__ = ["ConfigManager"]

_READER = "a session reads its own configuration; `telens plan` shows its selection"


class ConfigManager:
    """Looks up the running session's configuration by layer."""

    configs: ClassVar[list] = []
    constraints: ClassVar[dict] = {}
    layer_name_to_config_cache: ClassVar[dict] = {}

    @classmethod
    def get_config_for_layer(cls, layer_name: str) -> dict[str, dict[str, dict]]:
        """Returns {namespace: {feature: configuration}} of the features that observe a layer.

        Throws UsageError without a session.
        """
        found: dict[str, dict[str, dict]] = {}
        for namespace, feature, config in _C.debug.features_of_layer(layer_name):
            found.setdefault(namespace, {})[feature] = config
        return found

    @classmethod
    def reset(cls) -> None:
        """Does nothing: ``debug.end_debug`` ends the session and its configuration."""


class BaseSpec:
    """Raises UsageError: configurations are not read in Python."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise _C.UsageError(f"{type(self).__name__}: {_READER}")


class LayerSpec(BaseSpec):
    """Raises UsageError: configurations are not read in Python."""


class ConfigSpec(BaseSpec):
    """Raises UsageError: configurations are not read in Python."""


def spec_attribute_iterator(spec: Any) -> Iterator[tuple[str, Any]]:
    """Raises UsageError: configurations are not read in Python."""
    _refuse("spec_attribute_iterator")


def set_all_spec_attributes(spec: Any, cfg: Any) -> None:
    """Raises UsageError: configurations are not read in Python."""
    _refuse("set_all_spec_attributes")


def is_layer_in_cfg(layer_name: str, cfg: Any) -> bool:
    """Raises UsageError: configurations are not read in Python."""
    _refuse("is_layer_in_cfg")


def feature_not_found_error(feature_name: str, namespace: str) -> str:
    """Returns a message about an unknown feature of a namespace."""
    return f"the configuration names feature '{feature_name}', which '{namespace}' does not have"


def _refuse(function: str) -> NoReturn:
    raise _C.UsageError(f"{function}: {_READER}")
