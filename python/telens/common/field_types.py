"""Checks the fields of recipes and parameters against their types."""

from __future__ import annotations

import dataclasses
import numbers
import operator
from collections.abc import Callable, Sequence
from typing import Any

from telens._names import refusal

__all__: list[str] = []


def check_fields(owner: Any) -> None:
    """Raises UsageError that names class and field if a field does not have its plain type.

    Classes check their fields of other types themselves.
    """
    for field in dataclasses.fields(owner):
        # Annotations are strings here (from __future__ import annotations).
        if field.type not in _TYPES or not hasattr(owner, field.name):
            continue
        fits, expected = _TYPES[field.type]
        value = getattr(owner, field.name)
        if not fits(value):
            raise refusal(type(owner).__name__, field.name, expected, value)


def is_boolean(value: Any) -> bool:
    # Accepts 0, 1 and NumPy bools; a nonempty string must not count as True.
    value = value.item() if hasattr(value, "item") else value
    return isinstance(value, bool) or (isinstance(value, int) and value in (0, 1))


def is_integer(value: Any) -> bool:
    try:
        operator.index(value)
    except TypeError:
        return False
    # NumPy bools and boolean tensors with one element also convert to an index.
    return not isinstance(value, bool) and "bool" not in str(getattr(value, "dtype", ""))


def check_sizes(owner: str, **sizes: Any) -> None:
    """Raises UsageError for an argument that is not an integer; a bool is not a size."""
    for name, value in sizes.items():
        if not is_integer(value):
            raise refusal(owner, name, "an integer", value)


def is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _are_three_booleans(value: Any) -> bool:
    is_sequence = isinstance(value, Sequence) and not isinstance(value, str)
    return is_sequence and len(value) == 3 and all(map(is_boolean, value))


_TYPES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "bool": (is_boolean, "a boolean"),
    "int": (is_integer, "an integer"),
    "float": (is_number, "a number"),
    "tuple[bool, bool, bool]": (
        _are_three_booleans,
        "three booleans, of fprop, dgrad and wgrad",
    ),
}
