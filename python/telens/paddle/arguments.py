"""Checks that arguments are Paddle's tensors and groups."""

from __future__ import annotations

from typing import Any

import paddle

from telens import _C
from telens._names import among

__all__ = ["check_bias", "check_group", "check_hidden_states", "check_tensors", "type_name"]


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
