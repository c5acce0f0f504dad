"""Small tools of feature classes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["append_parent_docstring", "gather_along_first_dim"]


def append_parent_docstring(parent: type) -> Callable[[type], type]:
    """Adds a parent's documentation to a class, for ``explain_features``."""

    def append(cls: type) -> type:
        cls.__doc__ = f"{cls.__doc__ or ''}\n{inspect.getdoc(parent) or ''}".strip()
        return cls

    return append


def gather_along_first_dim(
    input_: torch.Tensor,
    process_group: torch.distributed.ProcessGroup | None,
    async_op: bool = False,
) -> tuple[torch.Tensor, Any]:
    """All ranks' tensors of one shape joined along the first dimension, and the work's handle.

    The handle is None where there is nothing to wait for.
    """
    size = 1 if process_group is None else process_group.size()
    if size == 1:
        return input_, None
    joined = input_.new_empty((input_.size(0) * size, *input_.shape[1:]))
    handle = torch.distributed.all_gather_into_tensor(
        joined, input_.contiguous(), group=process_group, async_op=async_op
    )
    return joined, handle
