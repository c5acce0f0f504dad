"""Checks of layer arguments: an error names layer, argument, expected and given value."""

from __future__ import annotations

import math
from typing import Any

import paddle

from telens._names import refusal
from telens.common.field_types import is_integer, is_number

__all__ = [
    "check_attributes",
    "check_epsilon",
    "check_optional_sizes",
    "check_probabilities",
    "check_sizes",
]


def check_sizes(owner: str, **sizes: Any) -> None:
    """Raises UsageError unless the value is an integer of at least 1."""
    for name, size in sizes.items():
        if not is_integer(size) or size < 1:
            raise refusal(owner, name, "an integer of at least 1", size)


def check_optional_sizes(owner: str, **sizes: Any) -> None:
    """Calls ``check_sizes`` for the values that are not None."""
    check_sizes(owner, **{name: size for name, size in sizes.items() if size is not None})


def check_probabilities(owner: str, **rates: Any) -> None:
    """Raises UsageError unless the value is a number from 0 to 1."""
    for name, rate in rates.items():
        if not is_number(rate) or not 0 <= rate <= 1:
            raise refusal(owner, name, "a probability, a number from 0 to 1", rate)


def check_epsilon(owner: str, name: str, value: Any) -> None:
    """Raises UsageError unless the value is a finite number of at least 0."""
    if not is_number(value) or not math.isfinite(value) or value < 0:
        raise refusal(owner, name, "a finite number, 0 or above", value)


def check_attributes(owner: str, weight_attr: Any, bias_attr: Any) -> None:
    """Raises UsageError unless ``paddle.ParamAttr`` accepts the value; False is only for a bias."""
    expected = (
        "None, a paddle.ParamAttr, or a value that Paddle converts to one (an initializer, a name)"
    )
    if weight_attr is False or not _is_attribute(weight_attr):
        raise refusal(owner, "weight_attr", expected, weight_attr)
    if not _is_attribute(bias_attr):
        raise refusal(owner, "bias_attr", f"{expected}, or False for no bias", bias_attr)


def _is_attribute(value: Any) -> bool:
    try:
        # Paddle converts a list to a list, for layers with several weights.
        return not isinstance(paddle.ParamAttr._to_attr(value), list)
    except TypeError:
        return False
