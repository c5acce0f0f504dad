"""Checks of feature classes at registration and of their answers."""

from __future__ import annotations

import inspect
import operator
import warnings
from typing import Any

from telens import _C
from telens.debug.arguments import nearest

__all__: list[str] = []

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
