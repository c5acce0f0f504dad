"""Errors about arguments of the compiled part, in words that name the function and what came."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

from telens import _C

__all__: list[str] = []

# How pybind11 begins, before it lists signatures of C++ and the values that it was given.
_PYBIND11 = "incompatible function arguments"

# Names that users call, where the compiled function has another name.
_TITLES = {
    "enter_autocast": "autocast",
    "rotary_angles": "RotaryPositionEmbedding",
    "ModuleAdapter.set_debug_name": "set_debug_name",
}


def translate_argument_errors() -> None:
    """Has every function and method of the compiled part raise UsageError for wrong arguments."""
    for module, prefix in ((_C, ""), (_C.debug, "debug.")):
        for name, value in list(vars(module).items()):
            if type(value).__name__ == "builtin_function_or_method":
                setattr(module, name, _translated(value, f"{prefix}{name}"))
    for value in list(vars(_C).values()):
        # Enumerations convert nothing; exceptions are Python's.
        is_own = isinstance(value, type) and not issubclass(value, BaseException)
        if is_own and not hasattr(value, "__members__"):
            _translate_methods(value)


def _translate_methods(owner: type) -> None:
    for name, value in list(vars(owner).items()):
        is_method = type(value).__name__ == "instancemethod"
        if is_method and (name == "__call__" or not name.startswith("__")):
            title = owner.__name__ if name == "__call__" else f"{owner.__name__}.{name}"
            setattr(owner, name, _translated(value, title))


def _translated(function: Callable[..., Any], title: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            if not _is_about_arguments_of(function, error):
                raise
            got = [type(each).__name__ for each in args]
            got += [f"{name}: {type(value).__name__}" for name, value in kwargs.items()]
            raise _C.UsageError(
                f"{_TITLES.get(title, title)}: takes ({_parameters_of(function)}), not "
                f"({', '.join(got)})"
            ) from None

    return call


def _is_about_arguments_of(function: Callable[..., Any], error: TypeError) -> bool:
    """Not about those of another library's function, which a callback has called wrongly."""
    return str(error).startswith(f"{function.__name__}(): {_PYBIND11}")


def _parameters_of(function: Callable[..., Any]) -> str:
    """The parameters as pybind11 documents them, without what only C++ has to say."""
    signature = (function.__doc__ or "").partition("\n")[0].rpartition(" -> ")[0]
    text = signature.partition("(")[2].removesuffix(")")
    return re.sub(r"(telens\._C|collections\.abc|typing)\.", "", text)
