"""Calls feature classes and statistic classes for the C++ session, and checks their answers."""

from __future__ import annotations

import contextlib
import copy
import inspect
import operator
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from telens import _C
from telens.debug.arguments import nearest
from telens.debug.features.api import TEConfigAPIMapper

__all__: list[str] = []


class _Offered(threading.local):
    statistics: Any = None


# The statistics of the tensor that is being passed to a feature class on this thread.
offered_here = _Offered()


@contextlib.contextmanager
def offered(statistics: Any) -> Iterator[None]:
    """Makes ``LogsStatistics.inspect_tensor`` use these statistics inside the block."""
    before, offered_here.statistics = offered_here.statistics, statistics
    try:
        yield
    finally:
        offered_here.statistics = before


# Calls and the routing calls that enable them.
_SWITCHED_BY = {
    "modify_tensor": "modify_tensor_enabled",
    "inspect_tensor": "inspect_tensor_enabled",
    "inspect_tensor_postquantize": "inspect_tensor_postquantize_enabled",
}
_LAYER_CALLS = ("fp8_gemm_enabled", *_SWITCHED_BY, *_SWITCHED_BY.values())
# These have @api_method in nvdlfw_inspect's features, which users copy and inherit. Scripts call
# the first one; the second one is never called.
_OTHER_CALLS = ("log_tensor_stats", "fp8_gemm")
# Namespaces whose features are called only by layers.
_LAYER_NAMESPACES = ("transformer_engine", "telens")


def build(registered: type, owner: str) -> Any:
    """Returns an instance. An exception of the constructor becomes an error that names class and
    file."""
    try:
        return registered()
    except Exception as error:
        raise _C.UsageError(
            f"{owner} ({_file_of(registered)}): a registered class is built without arguments, and "
            f"its constructor raised {type(error).__name__}: {error}"
        ) from error


def warn_of_calls_that_never_come(feature_class: type, namespace: str, calls: list[str]) -> None:
    """Warns about methods with ``@api_method`` that no layer calls, and about incomplete pairs."""
    name = feature_class.__name__
    for call in calls:
        hint = nearest(call, _LAYER_CALLS)
        known = call in _LAYER_CALLS or call in _OTHER_CALLS
        if not known and (hint or namespace in _LAYER_NAMESPACES):
            _warn(f"{name}: no layer calls '{call}', which has @api_method{hint}")
    for call, switch in _SWITCHED_BY.items():
        if call in calls and switch not in calls:
            _warn(f"{name}: {call} is never called without {switch}; add it with @api_method")
        if switch in calls and call not in calls:
            _warn(f"{name}: {switch} has no {call} to switch on; add it with @api_method")


def checked_answer(answer: Any, feature_class: type, call: str) -> bool | tuple[bool, int | None]:
    """Checks the answer of a routing call: a bool, or (bool, next iteration or None) as tuple or
    list."""
    pair = tuple(answer) if isinstance(answer, tuple | list) else (answer, None)
    if len(pair) == 2 and _is_truth(pair[0]):
        if not isinstance(answer, tuple | list):
            return bool(answer)
        if pair[1] is None:
            return bool(pair[0]), None
        try:
            return bool(pair[0]), operator.index(pair[1])
        except TypeError:
            pass
    raise _C.UsageError(
        f"{feature_class.__name__}: {call} answered {answer!r}; expected a bool, or a pair of a "
        f"bool and the next iteration to query (None for never)"
    )


def _is_truth(value: Any) -> bool:
    # numpy's and torch's booleans count too.
    return isinstance(value.item() if hasattr(value, "item") else value, bool)


def _file_of(registered: type) -> str:
    try:
        return inspect.getfile(registered)
    except (OSError, TypeError):  # defined in an interactive session
        return "no file"


def _warn(message: str) -> None:
    # Points to the line of the class: skips this frame, the check, register() and its decorator.
    warnings.warn(message, UserWarning, stacklevel=4)


# Calls that are configured per GEMM.
_GEMM_CALLS = {"fp8_gemm_enabled", "modify_tensor_enabled", "modify_tensor"}


class FeatureCaller:
    """One configuration entry: matches a call and passes the keywords that the class declares.

    A class that names some of a call's keywords receives those; one with ``**kwargs`` receives all.
    """

    def __init__(self, feature: Any, config: dict) -> None:
        self._feature = feature
        self._config = config
        self._keywords: dict[str, set[str] | None] = {
            name: _declared_keywords(getattr(feature, name)) for name in calls_of(type(feature))
        }
        self._names_statistics = "inspect_tensor" in self._keywords and (
            "statistics" in inspect.signature(feature.inspect_tensor).parameters
        )
        # Classes that inherit from LogsStatistics read them in the base method.
        self.asks_for_statistics = self._names_statistics or (
            "inspect_tensor" in self._keywords and getattr(feature, "reads_statistics", False)
        )

        self.may_watch_wgrad = self._may_watch_wgrad()

    def _may_watch_wgrad(self) -> bool:
        """Returns whether the configuration allows the class to inspect wgrad's result in any
        iteration.

        Only the mapper that matches names gives the same answer in every iteration.
        """
        if not self.calls & {"inspect_tensor_enabled", "modify_tensor_enabled"}:
            return False
        parser = type(self._feature).parse_config_and_api
        if parser is not TEConfigAPIMapper.parse_config_and_api:
            return True
        wgrad = {
            "inspect_tensor_enabled": {"tensor_name": "wgrad"},
            "modify_tensor_enabled": {"gemm": "wgrad", "tensor_name": "wgrad"},
        }
        try:
            return any(
                self._match(call, arguments)[0]
                for call, arguments in wgrad.items()
                if call in self.calls
            )
        except Exception:  # reported when the class is first queried
            return True

    @property
    def calls(self) -> set[str]:
        """Returns the names of the calls that the class implements."""
        return set(self._keywords)

    def route(
        self, call: str, layer_name: str, gemm: str | None, tensor_name: str | None, iteration: int
    ) -> tuple[bool, int | None]:
        """Runs a routing call; returns (enabled, next iteration to query, or None for never)."""
        arguments = {"gemm": gemm, "tensor_name": tensor_name, "iteration": iteration}
        arguments = {name: value for name, value in arguments.items() if value is not None}
        selected, config = self._match(call, arguments)
        if not selected:
            return call == "fp8_gemm_enabled", None
        answer = self._call(call, config, layer_name, arguments)
        answer = checked_answer(answer, type(self._feature), call)
        enabled, next_iteration = answer if isinstance(answer, tuple) else (answer, iteration + 1)
        if enabled and call == "modify_tensor_enabled" and "modify_tensor" not in self._keywords:
            raise _C.UsageError(
                f"{type(self._feature).__name__}: modify_tensor_enabled answered True for the "
                f"{tensor_name} of {gemm} in layer {layer_name}, but the class does not define "
                f"modify_tensor; add one with @api_method, or answer False"
            )
        return bool(enabled), next_iteration

    def modify_tensor(
        self, layer_name, gemm, tensor_name, tensor, default_quantizer, iteration, dtype, out
    ) -> Any:
        """Returns the replacement of the tensor. With ``out``, the feature fills it."""
        arguments = {
            "gemm": gemm,
            "tensor_name": tensor_name,
            "tensor": tensor,
            "default_quantizer": default_quantizer,
            "iteration": iteration,
        }
        if dtype is not None:
            arguments["dtype"] = dtype
        if out is not None:
            arguments["out"] = out
        selected, config = self._match("modify_tensor", arguments)
        if not selected:
            return tensor
        return self._call("modify_tensor", config, layer_name, arguments)

    def inspect_tensor(
        self,
        layer_name,
        tensor_name,
        tensor,
        iteration,
        tp_group,
        tp_size,
        rowwise_quantized_tensor,
        columnwise_quantized_tensor,
        quantizer,
        statistics,
    ) -> None:
        """Passes the tensor before quantization and its two GEMM operands.

        ``statistics`` is passed only to a method that names it, not in ``**kwargs``: those may be
        forwarded to code that accepts only the documented keywords.
        """
        with offered(statistics if self.asks_for_statistics else None):
            self._observe(
                "inspect_tensor",
                layer_name,
                {
                    "tensor_name": tensor_name,
                    "tensor": tensor,
                    "iteration": iteration,
                    "tp_group": tp_group,
                    "tp_size": tp_size,
                    "rowwise_quantized_tensor": rowwise_quantized_tensor,
                    "columnwise_quantized_tensor": columnwise_quantized_tensor,
                    "quantizer": quantizer,
                },
                {"statistics": statistics} if self._names_statistics else {},
            )

    def inspect_tensor_postquantize(
        self, layer_name, gemm, tensor_name, tensor, iteration, tp_group, tp_size, rowwise
    ) -> None:
        """Passes the tensor after quantization or modify_tensor."""
        self._observe(
            "inspect_tensor_postquantize",
            layer_name,
            {
                "gemm": gemm,
                "tensor_name": tensor_name,
                "tensor": tensor,
                "iteration": iteration,
                "tp_group": tp_group,
                "tp_size": tp_size,
                "rowwise": rowwise,
            },
        )

    def _observe(
        self,
        call: str,
        layer_name: str,
        arguments: dict[str, Any],
        ours: dict[str, Any] | None = None,  # keywords that parse_config_and_api need not accept
    ) -> None:
        selected, config = self._match(call, arguments)
        if selected and call in self._keywords:
            self._call(call, config, layer_name, arguments | (ours or {}))

    def _match(self, call: str, arguments: dict[str, Any]) -> tuple[bool, dict | None]:
        selected, config = self._feature.parse_config_and_api(
            copy.deepcopy(self._config),
            gemm_parsing=call in _GEMM_CALLS,
            tensor_parsing="tensor_name" in arguments,
            **arguments,
        )
        if config is not None:
            config.pop("enabled", None)
        return selected, config

    def _call(
        self, call: str, config: dict | None, layer_name: str, arguments: dict[str, Any]
    ) -> Any:
        declared = self._keywords[call]
        if declared is not None:
            arguments = {name: value for name, value in arguments.items() if name in declared}
        return getattr(self._feature, call)(config, layer_name, **arguments)


def calls_of(feature_class: type) -> list[str]:
    """Returns the names of the methods with ``@api_method``."""
    return [
        name
        for name in dir(feature_class)
        if not name.startswith("_") and getattr(getattr(feature_class, name), "is_api", False)
    ]


def _declared_keywords(function: Callable) -> set[str] | None:
    """The keyword names that a method accepts, or None for any."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return {parameter.name for parameter in parameters}


class StatisticCaller:
    """Converts the results of the class to FP64 tensors of ``size`` values."""

    def __init__(self, statistic: Any) -> None:
        self._statistic = statistic
        self._size = statistic.size

    def add(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a tensor's sums, on the device of the class's result."""
        return self._sums("add", self._statistic.add(tensor))

    def merge(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Returns the merged sums on the host."""
        return self._sums("merge", self._statistic.merge(a, b)).cpu()

    def finish(self, sums: torch.Tensor) -> float:
        """Returns the value of the sums."""
        return float(self._statistic.finish(sums))

    def _sums(self, method: str, returned: Any) -> torch.Tensor:
        sums = torch.as_tensor(returned, dtype=torch.float64)
        if sums.numel() != self._size:
            raise ValueError(
                f"{method} returned {sums.numel()} values, and size is {self._size}; return as "
                "many as that"
            )
        return sums.flatten()
