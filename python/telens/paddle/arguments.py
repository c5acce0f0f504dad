"""Refusals of arguments that are something else than Paddle's."""

from __future__ import annotations

from typing import Any

import paddle

from telens import _C
from telens._names import among

__all__ = ["check_bias", "check_group", "check_tensors"]


def check_tensors(owner: str, **tensors: Any) -> None:
    """Raises TypeError for an argument that is no ``paddle.Tensor``, by its name."""
    for name, value in tensors.items():
        if not isinstance(value, paddle.Tensor):
            raise TypeError(
                f"{owner}: {name} must be a paddle.Tensor, not {_type_name(value)}"
                f"{_conversion(value)}"
            )


def check_group(owner: str, name: str, group: Any) -> None:
    """Raises TypeError for what is neither None nor a group with ``nranks`` and ``rank``."""
    if group is None or (hasattr(group, "nranks") and hasattr(group, "rank")):
        return
    raise TypeError(
        f"{owner}: {name} must be a group of paddle.distributed, such as "
        f"paddle.distributed.new_group() returns, or None, not {_type_name(group)}"
    )


def check_bias(owner: str, core_attention_bias_type: str, core_attention_bias: Any) -> None:
    """Raises UsageError for a bias of the scores, of which 'no_bias' would make nothing."""
    among(owner, "core_attention_bias_type", core_attention_bias_type, ["no_bias"])
    if core_attention_bias is not None:
        raise _C.UsageError(
            f"{owner}: core_attention_bias must be None with core_attention_bias_type 'no_bias', "
            "the only one that there is; it would not be added to the scores"
        )


def _type_name(value: Any) -> str:
    kind = type(value)
    is_builtin = kind.__module__ == "builtins"
    return kind.__qualname__ if is_builtin else f"{kind.__module__}.{kind.__qualname__}"


def _conversion(value: Any) -> str:
    return "; make one with paddle.to_tensor()" if hasattr(value, "__array__") else ""
