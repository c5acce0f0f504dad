"""Argument errors: the expected value, the given value and the nearest valid name."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from telens import _C

__all__: list[str] = []

# Minimum similarity of a suggested name (difflib ratio, 1 for equal names).
_LIKENESS = 0.6
# Messages list at most this many names.
_MOST_LISTED = 12

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Class = TypeVar("_Class", bound=type)


def nearest(written: Any, names: Iterable[str]) -> str:
    """ " (did you mean 'fprop'?)", or "" if no name is similar."""
    matches = difflib.get_close_matches(str(written), list(names), 1, _LIKENESS)
    return f" (did you mean '{matches[0]}'?)" if matches else ""


def refusal(function: str, argument: str, expected: str, got: Any) -> _C.UsageError:
    """Returns the error for an argument with an unexpected value or type."""
    shown = f"{got!r} (a {type(got).__name__})" if type(got) in _SHOWN else type(got).__name__
    return _C.UsageError(f"{function}: {argument} must be {expected}, not {shown}")


# Types whose values are shown. Other values may be long and less helpful than their type.
_SHOWN = (bool, int, float, str, bytes, type(None), tuple)


def among(function: str, argument: str, value: Any, names: list[str], what: str = "one") -> str:
    """Returns `value` if it is one of `names`. The UsageError suggests the nearest name and lists
    them."""
    if value in names:
        return value
    more = f", ... ({len(names)} in all)" if len(names) > _MOST_LISTED else ""
    listed = ", ".join(names[:_MOST_LISTED])
    raise _C.UsageError(
        f"{function}: {argument} must be {what} of {listed}{more}, not {value!r}"
        f"{nearest(value, names)}"
    )


def rejects_bools(function: _Function) -> _Function:
    """Makes calls with a bool for an argument that is annotated as a number raise UsageError.

    Python counts bools as integers, so a misplaced flag would be taken for 1 or 0.
    """
    title = function.__qualname__.removesuffix(".__init__")
    parameters = inspect.signature(function).parameters
    numbers = {name: _number_in(each.annotation) for name, each in parameters.items()}
    expected = {name: number for name, number in numbers.items() if number}
    places = {place: name for place, name in enumerate(parameters) if name in expected}

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for place, name in places.items():
            value = args[place] if place < len(args) else kwargs.get(name)
            if isinstance(value, bool):
                raise refusal(title, name, expected[name], value)
        return function(*args, **kwargs)

    return call


def _number_in(annotation: Any) -> str:
    """Returns the kind of number that an annotation names; "" if none, or if bools are valid."""
    written = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    kinds = {kind.strip() for kind in written.split("|")}
    if kinds & {"bool", "Any"} or written.startswith("InitVar"):
        return ""
    return "a number" if "float" in kinds else "an integer" if "int" in kinds else ""


def names_arguments(function: _Function) -> _Function:
    """Makes calls with an unknown keyword raise TypeError that suggests the nearest argument.

    Also rejects bools for numbers.
    """
    function = rejects_bools(function)
    title = function.__qualname__.removesuffix(".__init__")
    names = [name for name in inspect.signature(function).parameters if name != "self"]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for given in kwargs:
            if given not in names:
                hint = nearest(given, names) or f"; it has {', '.join(names)}"
                raise TypeError(f"{title}: unknown argument {given!r}{hint}")
        return function(*args, **kwargs)

    return call


def names_fields(owner: _Class) -> _Class:
    """Applies `names_arguments` to a dataclass constructor."""
    owner.__init__ = names_arguments(owner.__init__)
    return owner
