"""Base classes of feature classes and namespaces."""

from __future__ import annotations

import abc
import functools
import importlib
from typing import Any

from telens import _C
from telens._names import nearest

__all__ = ["BaseConfigAPIMapper", "BaseNamespaceAPI"]


class BaseConfigAPIMapper(abc.ABC):
    """Reads a feature's configuration for a call."""

    @abc.abstractmethod
    def parse_config_and_api(self, config: dict, **call: Any) -> tuple[bool, dict | None]:
        """Returns whether the configuration selects the call, and its part for the call.

        ``call`` has the flags ``gemm_parsing`` and ``tensor_parsing``, which select the keys to
        match, and the call's arguments, of which ``gemm`` and ``tensor_name`` are matched.
        """

    def _process_tensor_config(self, cfg: dict, api_tensor_name: str) -> dict | None:
        """Returns the configuration for one tensor, or None if it is not selected."""
        return _C.matched_config(cfg, None, api_tensor_name)


class BaseNamespaceAPI:
    """Base class of ``telens.debug.<namespace>`` for a user-defined namespace.

    ``telens.debug.<namespace>.<call>(layer_name, ...)`` runs the method ``<call>`` of the feature
    classes of the namespace that the configuration enables for the layer. If there is none, it runs
    the method of ``_default_api_impl``, with ``{}`` as its configuration; without that it returns
    ``{}``. Subclasses set ``_default_api_impl`` in their constructor and override the hooks.
    """

    name: str = ""
    # An object whose public methods are the default answers of calls.
    _default_api_impl: Any = None
    # nvdlfw-inspect caches answers by these keywords. Here each call reads the configuration.
    _cacheable_api_kwargs_map: Any = None

    def __init__(self) -> None:
        self._cacheable_api_kwargs_map = {}

    # ---- hooks for subclasses

    def input_assertions_hook(self, api_name: str, **kwargs: Any) -> None:
        """Checks the arguments of a call."""

    def routing_condition(
        self, api_name: str, config: dict, layer_name: str, feature_obj: Any, **kwargs: Any
    ) -> tuple[bool, dict | None]:
        """Returns whether a feature's configuration selects the call, and its part for the call."""
        return feature_obj.parse_config_and_api(
            config, gemm_parsing="gemm" in kwargs, tensor_parsing="tensor_name" in kwargs, **kwargs
        )

    def output_assertions_hook(self, api_name: str, ret: Any, **kwargs: Any) -> None:
        """Checks a feature's result."""

    def is_multiple_feature_invocation_allowed(self, api_name: str) -> bool:
        """Returns whether several features may answer the same call."""
        return False

    def handle_multi_feature_output(
        self,
        api_name: str,
        multi_feature_outputs: list,
        features_to_invoke: dict[str, dict],
        **kwargs: Any,
    ) -> Any:
        """Returns the common answer of the features. Raises UsageError if they differ."""
        first, *others = multi_feature_outputs
        if any(each != first for each in others):
            raise _C.UsageError(
                f"debug.{self.name}.{api_name}: {', '.join(features_to_invoke)} returned different "
                "answers; enable one of them, or override handle_multi_feature_output"
            )
        return first

    def call_feature(self, call: Any, feat_config: dict, layer_name: str, **kwargs: Any) -> Any:
        """Calls a feature's method."""
        return call(feat_config, layer_name, **kwargs)

    def step(self) -> None:
        """Called in ``debug.step()``."""

    def end_debug(self) -> None:
        """Called in ``debug.end_debug()``."""

    # ---- routing

    @property
    def namespace_features(self) -> dict[str, Any]:
        """Instances of the namespace's feature classes by name."""
        return {each.name: each.feature for each in _registry().features_of(self.name)}

    @property
    def api_to_features_map(self) -> dict[str, list[str]]:
        """{call: names of the features that implement it}."""
        calls: dict[str, list[str]] = {}
        for each in _registry().features_of(self.name):
            for call in each.calls:
                calls.setdefault(call, []).append(each.name)
        return calls

    def set_default_api_impl(self) -> None:
        """Does nothing: ``_default_api_impl`` is read at each call."""

    def set_api_map(self, api_map: Any) -> None:
        """Does nothing: the registry has the calls."""

    def set_features(self, features: Any) -> None:
        """Does nothing: the registry has the features."""

    def route_api(self, layer_name: str, api_name: str, **kwargs: Any) -> Any:
        """Calls the features that the configuration enables for the layer."""
        self.input_assertions_hook(api_name, **kwargs)
        features, selected = {}, {}
        for each, config in _registry().enabled_features(self.name, layer_name):
            if api_name not in each.calls:
                continue
            status, own = self.routing_condition(
                api_name, config, layer_name, each.feature, **kwargs
            )
            if status:
                features[each.name], selected[each.name] = each.feature, own or config
        if not selected:
            default = self._default_of(api_name)
            return {} if default is None else default({}, layer_name, **kwargs)
        if len(selected) > 1 and not self.is_multiple_feature_invocation_allowed(api_name):
            raise _C.UsageError(
                f"debug.{self.name}.{api_name}: layer '{layer_name}' has several features that "
                f"answer it: {', '.join(selected)}; enable one of them"
            )
        answers = []
        for name, config in selected.items():
            method = getattr(features[name], api_name)
            answers.append(self.call_feature(method, config, layer_name, **kwargs))
        for answer in answers:
            self.output_assertions_hook(api_name, answer, **kwargs)
        if len(answers) == 1:
            return answers[0]
        return self.handle_multi_feature_output(api_name, answers, selected, **kwargs)

    def _default_of(self, api_name: str) -> Any:
        method = getattr(self._default_api_impl, api_name, None)
        return method if callable(method) else None

    def __getattr__(self, api_name: str) -> Any:
        if not api_name.startswith("_"):
            calls = self.api_to_features_map
            if api_name in calls or self._default_of(api_name) is not None:
                return functools.partial(self.route_api, api_name=api_name)
            raise AttributeError(
                f"the namespace '{self.name}' lacks the call "
                f"'{api_name}'{nearest(api_name, calls)}; "
                "no feature class has a method of that name with @api_method"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {api_name!r}")


def _registry() -> Any:
    return importlib.import_module("telens.debug.registry").Registry


def __getattr__(name: str) -> Any:
    # api.base is both this module and the namespace "base" of nvdlfw_inspect.
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    generic = importlib.import_module("telens.debug.debug_features.generic_feature_api")
    return getattr(generic.BASE, name)
