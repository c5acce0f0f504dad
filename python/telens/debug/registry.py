"""Where feature classes are registered.

@Registry.register_feature(namespace="transformer_engine")
class PercentageGreaterThan(TEConfigAPIMapper):
    @api_method
    def inspect_tensor_enabled(self, config, layer_name, tensor_name, iteration):
        return True, iteration + config.get("freq", 1)

    @api_method
    def inspect_tensor(self, config, layer_name, *, tensor_name, tensor, iteration, **kwargs):
        ...
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from telens import _C
from telens.debug.base import BaseNamespaceAPI
from telens.debug.feature_caller import (
    FeatureCaller,
    StatisticCaller,
    build,
    calls_of,
    warn_of_calls_that_never_come,
)
from telens.debug.features.api import TEConfigAPIMapper
from telens.debug.parameters import ConfigCheck, Parameter, described

__all__ = ["Registry", "api_method"]


@dataclass(frozen=True)
class RegisteredFeature:
    """A registered feature class."""

    namespace: str
    name: str
    feature: Any  # its instance
    calls: frozenset[str]
    check: ConfigCheck


@dataclass
class NamespaceData:
    """The entry of a namespace in ``Registry.data``."""

    name: str
    api: BaseNamespaceAPI | None
    features: dict[str, Any] = field(default_factory=dict)  # instances by name
    feat_api_to_features: dict[str, list[str]] = field(default_factory=dict)  # names by call
    deferred_features: list[type] = field(default_factory=list)  # always empty here


class _RegistryType(type):
    @property
    def data(cls) -> dict[str, NamespaceData]:
        """Registered feature classes by namespace."""
        found: dict[str, NamespaceData] = {}
        for api in cls._namespaces.values():
            found[api.name] = NamespaceData(api.name, api)
        for each in cls._features.values():
            data = found.setdefault(each.namespace, NamespaceData(each.namespace, None))
            data.features[each.name] = each.feature
            for call in each.calls:
                data.feat_api_to_features.setdefault(call, []).append(each.name)
        return found


def api_method(function: Callable) -> Callable:
    """Marks a method of a feature class as a call that layers make."""
    function.is_api = True
    return function


class Registry(metaclass=_RegistryType):
    """Where feature classes are registered."""

    # Both by owner.
    _namespaces: dict[str, BaseNamespaceAPI] = {}  # noqa: RUF012
    _features: dict[str, RegisteredFeature] = {}  # noqa: RUF012
    # A script has called a feature class itself in this session.
    was_asked = False

    @classmethod
    def register_feature(
        cls, namespace: str, parameters: Sequence[Parameter] | None = None
    ) -> Callable[[type], type]:
        """Registers a class as a feature under its own name, for later sessions.

        The class is constructed without arguments. A name that is taken is an error; registering
        the same class again replaces it.

        ``parameters``: the keys of its configuration, in addition to ``enabled`` and the selection
        of GEMMs and tensors. Other keys and wrong values are then errors at load time, defaults are
        filled in, and ``explain_features`` lists the keys. None allows any key.
        """

        def register(feature_class: type) -> type:
            owner = _owner_of(feature_class)
            _C.unregister_features(owner)
            feature = build(feature_class, owner)
            if not hasattr(feature, "parse_config_and_api"):
                raise _C.UsageError(
                    f"{owner}: a feature class needs parse_config_and_api; inherit "
                    "TEConfigAPIMapper, or write your own"
                )
            warn_of_calls_that_never_come(feature_class, namespace, calls_of(feature_class))
            documentation = textwrap.dedent(feature_class.__doc__ or "").strip()
            parser = feature_class.parse_config_and_api
            selects_by_name = parser is TEConfigAPIMapper.parse_config_and_api
            check = ConfigCheck(
                f"{namespace}.{feature_class.__name__}", parameters, selects_by_name
            )

            def make_caller(config: dict) -> tuple[FeatureCaller, set[str]]:
                caller = FeatureCaller(feature, check.checked(config))
                return caller, caller.calls

            _C.register_feature(
                feature_namespace=namespace,
                name=feature_class.__name__,
                summary=documentation.split("\n")[0],
                doc=described(documentation, parameters),
                owner=owner,
                make_caller=make_caller,
            )
            cls._features[owner] = RegisteredFeature(
                namespace,
                feature_class.__name__,
                feature,
                frozenset(calls_of(feature_class)),
                check,
            )
            _registered_now.append(owner)
            return feature_class

        return register

    @classmethod
    def register_statistic(cls, name: str) -> Callable[[type], type]:
        """Registers a class as a statistic of this name, for later sessions.

        The class is constructed without arguments. ``size`` is the number of FP64 sums per tensor.

        add(self, tensor)
            returns the sums of a nonempty high-precision tensor: an FP64 tensor, preferably on the
            tensor's device, or a sequence. Called for every micro-batch, possibly from several
            threads at once; must not have side effects or draw random numbers.
        merge(self, a, b)
            returns the merged sums of two FP64 tensors on the host. By default they are added.
        finish(self, sums)
            returns the value: a float, or a tensor with one element.

        A statistic that raises is disabled with a warning. A name that is taken already is an
        error; the same class, registered again, replaces itself.
        """

        def register(statistic_class: type) -> type:
            owner = _owner_of(statistic_class)
            _C.unregister_statistics(owner)
            statistic = build(statistic_class, owner)
            _check_statistic(statistic, owner)
            _C.register_statistic(
                name=name,
                doc=textwrap.dedent(statistic_class.__doc__ or "").strip().split("\n")[0],
                words=statistic.size,
                owner=owner,
                caller=StatisticCaller(statistic),
                merges=hasattr(statistic, "merge"),
            )
            _registered_now.append(owner)
            return statistic_class

        return register

    @classmethod
    def namespace_api(cls, namespace: str) -> BaseNamespaceAPI | None:
        """Returns the API of a user-defined namespace, or None."""
        found = [api for api in cls._namespaces.values() if api.name == namespace]
        return found[-1] if found else None

    @classmethod
    def namespaces(cls) -> list[BaseNamespaceAPI]:
        """The APIs of user-defined namespaces."""
        return list(cls._namespaces.values())

    @classmethod
    def features_of(cls, namespace: str) -> list[RegisteredFeature]:
        """Returns the feature classes of a namespace."""
        return [each for each in cls._features.values() if each.namespace == namespace]

    @classmethod
    def enabled_features(
        cls, namespace: str, layer_name: str
    ) -> list[tuple[RegisteredFeature, dict]]:
        """Returns the feature classes of a namespace that the session enables for a layer.

        Each comes with its own copy of the configuration. Empty without a session.
        """
        if not _C.debug.is_initialized():
            return []
        cls.was_asked = True
        registered = {each.name: each for each in cls.features_of(namespace)}
        return [
            (registered[name], registered[name].check.checked(config))
            for owner, name, config in _C.debug.features_of_layer(layer_name)
            if owner == namespace and name in registered
        ]

    @classmethod
    def validate_and_init(cls) -> None:
        """Does nothing: classes are checked at registration."""

    @classmethod
    def reset(cls) -> None:
        """Removes every feature class and namespace."""
        for owner in [*cls._features, *cls._namespaces]:
            cls.forget(owner)

    @classmethod
    def forget(cls, owner: str) -> None:
        """Removes the registrations of a class."""
        cls._namespaces.pop(owner, None)
        cls._features.pop(owner, None)
        _C.unregister_features(owner)
        _C.unregister_statistics(owner)

    @classmethod
    def register_namespace_api(cls, namespace: str) -> Callable[[type], type]:
        """Registers a namespace for configurations of later sessions.

        The class is constructed without arguments; the instance is ``telens.debug.<namespace>``,
        for code outside this package to call. A name that is taken is an error; registering the
        same class again replaces it.
        """

        def register(api_class: type) -> type:
            api = build(api_class, _owner_of(api_class))
            if not isinstance(api, BaseNamespaceAPI):
                raise TypeError(f"the API of the namespace {namespace} must be a BaseNamespaceAPI")
            api.name = namespace
            owner = _owner_of(api_class)
            _C.unregister_features(owner)
            _C.register_namespace(namespace, owner)
            cls._namespaces[owner] = api
            _registered_now.append(owner)
            return api_class

        return register


def _check_statistic(statistic: object, owner: str) -> None:
    for method in ("add", "finish"):
        if not callable(getattr(statistic, method, None)):
            raise _C.UsageError(f"{owner}: a statistic needs a method '{method}'; add it")
    size = getattr(statistic, "size", None)
    if not isinstance(size, int) or size < 1:
        raise _C.UsageError(
            f"{owner}: a statistic needs 'size', the number of FP64 values of its sums, at least "
            f"1; got {size!r}"
        )


def _owner_of(registered: type) -> str:
    return f"{registered.__module__}.{registered.__qualname__}"


# Owners registered since the last call, for the features of feature_dirs.
_registered_now: list[str] = []


def take_registered() -> list[str]:
    """Returns the owners of registrations since the last call."""
    taken = _registered_now.copy()
    _registered_now.clear()
    return taken
