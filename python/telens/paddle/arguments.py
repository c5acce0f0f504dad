"""Checks of layer arguments: an error names layer, argument, expected and given value."""

from __future__ import annotations

import math
from typing import Any

import paddle

from telens import _C
from telens._names import among, refusal
from telens.common.field_types import is_integer, is_number

__all__ = [
    "check_attributes",
    "check_bias",
    "check_epsilon",
    "check_group",
    "check_hidden_states",
    "check_optional_sizes",
    "check_probabilities",
    "check_sizes",
    "check_tensors",
    "type_name",
]


def check_tensors(owner: str, **tensors: Any) -> None:
    """Raises TypeError that names an argument that is not a ``paddle.Tensor``."""
    for name, value in tensors.items():
        if not isinstance(value, paddle.Tensor):
            raise TypeError(
                f"{owner}: {name} must be a paddle.Tensor, not {type_name(value)}"
                f"{_conversion(value)}"
            )


def check_hidden_states(
    owner: str, hidden_size: int, max_sequence_length: int | None, **tensors: Any
) -> None:
    """Raises ShapeError unless each tensor is [batch, seq, hidden_size] or, with a
    ``max_sequence_length``, [batch * seq, hidden_size]."""
    check_tensors(owner, **tensors)
    for name, tensor in tensors.items():
        shape = tensor.shape
        dimensions = (3,) if max_sequence_length is None else (2, 3)
        if len(shape) not in dimensions or shape[-1] != hidden_size:
            raise _C.ShapeError(
                f"{owner}: {name} has shape {list(shape)}; expected [batch, seq, {hidden_size}], "
                f"or [batch * seq, {hidden_size}] if the layer has a max_sequence_length"
            )


def check_group(owner: str, name: str, group: Any) -> None:
    """Raises TypeError unless the group is None or has ``nranks`` and ``rank``."""
    if group is None or (hasattr(group, "nranks") and hasattr(group, "rank")):
        return
    raise TypeError(
        f"{owner}: {name} must be a group of paddle.distributed, such as "
        f"paddle.distributed.new_group() returns, or None, not {type_name(group)}"
    )


def check_bias(owner: str, core_attention_bias_type: str, core_attention_bias: Any) -> None:
    """Raises UsageError for an attention bias, which 'no_bias' would ignore."""
    among(owner, "core_attention_bias_type", core_attention_bias_type, ["no_bias"])
    if core_attention_bias is not None:
        raise _C.UsageError(
            f"{owner}: core_attention_bias must be None with core_attention_bias_type 'no_bias', "
            "the only supported type; it would not be added to the scores"
        )


def type_name(value: Any) -> str:
    """Returns the name of the value's type, with its module unless it is a builtin."""
    kind = type(value)
    is_builtin = kind.__module__ == "builtins"
    return kind.__qualname__ if is_builtin else f"{kind.__module__}.{kind.__qualname__}"


def _conversion(value: Any) -> str:
    return "; make one with paddle.to_tensor()" if hasattr(value, "__array__") else ""


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
