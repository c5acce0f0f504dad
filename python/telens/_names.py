"""Errors about what a caller wrote: what was expected, what came, and which name is near."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from telens import _C

__all__: list[str] = []

# Letters that have to agree for a name to be taken for a misspelt one (1: all).
_LIKENESS = 0.6
# Longer lists of names are cut to the first ones.
_MOST_LISTED = 12

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Class = TypeVar("_Class", bound=type)


def nearest(written: Any, names: Iterable[str]) -> str:
    """ " (did you mean 'fprop'?)", or nothing where no name is near."""
    matches = difflib.get_close_matches(str(written), list(names), 1, _LIKENESS)
    return f" (did you mean '{matches[0]}'?)" if matches else ""


def refusal(function: str, argument: str, expected: str, got: Any) -> _C.UsageError:
    """The error of an argument that is something else than expected."""
    shown = f"{got!r} (a {type(got).__name__})" if type(got) in _SHOWN else type(got).__name__
    return _C.UsageError(f"{function}: {argument} must be {expected}, not {shown}")


# Values of other types may be long, and say less than their type.
_SHOWN = (bool, int, float, str, bytes, type(None), tuple)


def among(function: str, argument: str, value: Any, names: list[str], what: str = "one") -> str:
    """One of the names; the error says which is nearest, and what there is."""
    if value in names:
        return value
    more = f", ... ({len(names)} in all)" if len(names) > _MOST_LISTED else ""
    listed = ", ".join(names[:_MOST_LISTED])
    raise _C.UsageError(
        f"{function}: {argument} must be {what} of {listed}{more}, not {value!r}"
        f"{nearest(value, names)}"
    )


def names_arguments(function: _Function) -> _Function:
    """Has a call with a keyword that the function lacks raise TypeError with the nearest one."""
    title = function.__qualname__.removesuffix(".__init__")
    names = [name for name in inspect.signature(function).parameters if name != "self"]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for given in kwargs:
            if given not in names:
                hint = nearest(given, names) or f"; it has {', '.join(names)}"
                raise TypeError(f"{title}: there is no argument {given!r}{hint}")
        return function(*args, **kwargs)

    return call


def names_fields(owner: _Class) -> _Class:
    """`names_arguments` of the constructor of a dataclass."""
    owner.__init__ = names_arguments(owner.__init__)
    return owner
