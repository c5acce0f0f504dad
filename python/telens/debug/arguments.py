"""Checks of user arguments: an error names function, argument, expected and given value."""

from __future__ import annotations

import logging
import operator
import os
from typing import Any

from telens import _C
from telens._names import among, nearest, refusal

_LEVELS = ("CRITICAL", "ERROR", "WARNING", "INFO", "DEBUG", "NOTSET")

# Other modules import nearest and refusal from here.
__all__ = ["nearest", "refusal"]


def text(function: str, argument: str, value: Any, *, empty: bool = False) -> str:
    """Returns a string; an empty one only if allowed."""
    if not isinstance(value, str) or not (value or empty):
        raise refusal(function, argument, "a string" if empty else "a string, not empty", value)
    return value


def integer(function: str, argument: str, value: Any, expected: str) -> int:
    """Returns an integer of at least 0; accepts NumPy integers."""
    try:
        found = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = -1
    if found < 0:
        raise refusal(function, argument, expected, value)
    return found


def index(function: str, argument: str, value: Any) -> int:
    """Returns an integer of any sign; accepts NumPy integers."""
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise refusal(function, argument, "an integer", value)


def path(function: str, argument: str, value: Any) -> str:
    """Returns a path as a string."""
    if not isinstance(value, str | os.PathLike):
        raise refusal(function, argument, "a path", value)
    return os.fspath(value)


def number(function: str, argument: str, value: Any) -> float:
    """Returns a number; accepts a tensor or array with one element."""
    try:
        if not isinstance(value, str | bytes):
            return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        pass
    expected = "a number or a tensor with one element"
    if hasattr(value, "shape"):
        raise _C.UsageError(
            f"{function}: {argument} must be {expected}, not one of shape {tuple(value.shape)}; "
            f"pass its mean or its sum"
        )
    raise refusal(function, argument, expected, value)


def one_of(function: str, argument: str, value: Any, names: tuple[str, ...]) -> str:
    """Returns one of the names; the UsageError suggests the nearest one."""
    return among(function, argument, value, list(names))


def level(function: str, value: Any) -> int:
    """Returns a level of ``logging``, given by number or name."""
    if isinstance(value, str):
        number = logging.getLevelName(value.upper())  # the number of a known name
        if isinstance(number, int):
            return number
        one_of(function, "level", value.upper(), _LEVELS)  # says which is nearest
    if isinstance(value, bool) or not isinstance(value, int):
        raise refusal(function, "level", "a level of logging, such as logging.INFO", value)
    return value


def has_method(function: str, argument: str, value: Any, method: str, expected: str) -> None:
    """Raises UsageError unless the object is None or has the named methods."""
    if value is not None and not callable(getattr(value, method, None)):
        raise _C.UsageError(
            f"{function}: {argument} must be {expected}, with a method {method}, not "
            f"{type(value).__name__}, which has none"
        )
