"""Helpers for feature classes."""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.distributed

from telens._load import has_core

# The names of nvdlfw_inspect.utils that scripts import; its other names are below.
__all__ = ["append_parent_docstring", "gather_along_first_dim"]


def append_parent_docstring(parent: type) -> Callable[[type], type]:
    """Adds a parent's docstring to a class, for ``explain_features``."""

    def append(cls: type) -> type:
        cls.__doc__ = f"{cls.__doc__ or ''}\n{inspect.getdoc(parent) or ''}".strip()
        return cls

    return append


def get_distributed_world_size(group: torch.distributed.ProcessGroup | None = None) -> int:
    """Returns the number of ranks in a group or in the world; 1 without torch.distributed."""
    if not torch.distributed.is_initialized():
        return 1
    return torch.distributed.get_world_size(group=group)


def get_distributed_rank(group: torch.distributed.ProcessGroup | None = None) -> int:
    """Returns the rank of this process in a group or in the world; 0 without torch.distributed."""
    return torch.distributed.get_rank(group=group) if torch.distributed.is_initialized() else 0


def gather_along_first_dim(
    input_: torch.Tensor,
    process_group: torch.distributed.ProcessGroup | None,
    async_op: bool = False,
) -> tuple[torch.Tensor, Any]:
    """Gathers the ranks' tensors of equal shape along the first dimension; returns (tensor,
    handle).

    The handle is None if there is nothing to wait for.
    """
    if process_group is None:
        return input_, None
    if type(input_) is not torch.Tensor and has_core():
        # May be quantized. Imported on first use: telens.pytorch imports this module.
        ranks = importlib.import_module("telens.pytorch.compat.ranks")
        return ranks.gather_along_first_dim(input_, process_group, async_op)
    size = get_distributed_world_size(process_group)
    if size == 1:
        return input_, None
    whole = input_.new_empty((input_.size(0) * size, *input_.shape[1:]))
    handle = torch.distributed.all_gather_into_tensor(
        whole, input_.contiguous(), group=process_group, async_op=async_op
    )
    return whole, handle


def gather_tensor_on_last_rank(
    input_: torch.Tensor,
    process_group: torch.distributed.ProcessGroup | None = None,
    async_op: bool = False,
) -> tuple[torch.Tensor | None, Any]:
    """Gathers the ranks' tensors of equal shape along the first dimension, on the last rank only.

    Returns (None, handle) on the other ranks, and the tensor itself if there is one rank. Without a
    group it gathers over the world. With ``async_op`` the last rank returns the list of tensors,
    which is complete when the handle is.
    """
    size = get_distributed_world_size(process_group)
    if size == 1:
        return input_, None
    is_last = get_distributed_rank(process_group) == size - 1
    parts = [torch.empty_like(input_) for _ in range(size)] if is_last else None
    handle = torch.distributed.gather(
        input_.contiguous(),
        parts,
        group=process_group,
        group_dst=size - 1,
        async_op=async_op,
    )
    if parts is None or async_op:
        return parts, handle
    return torch.cat(parts), handle


def import_and_exec_module(module_path: str | os.PathLike) -> None:
    """Imports a file of feature classes. Raises UsageError if the file raises."""
    folders = importlib.import_module("telens.debug.feature_folders")
    folders.run_feature_file(pathlib.Path(module_path), "import_and_exec_module")


class APICacheIdentifier:
    """The position of a script's last call, for cache keys."""

    _call_details = ""

    @classmethod
    def save_call_details(cls) -> None:
        """Notes the file and line of the caller's caller."""
        frame = sys._getframe(2)
        cls._call_details = f"{frame.f_code.co_filename}.{frame.f_lineno}"

    @classmethod
    def get_call_details(cls) -> str:
        """Returns the last result of ``save_call_details``."""
        return cls._call_details

    @classmethod
    def get_unique_identifier(
        cls, cacheable_apis: dict[str, list[str]], layer_name: str, api_name: str, **kwargs: Any
    ) -> str | None:
        """Returns a key built from the arguments that ``cacheable_apis`` lists for the call.

        Returns None for other calls.
        """
        if api_name not in cacheable_apis:
            return None
        values = (str(kwargs.get(name, 0)) for name in cacheable_apis[api_name])
        return ".".join([cls._call_details, layer_name, api_name, *values])


class SingleMessageLogger:
    """Logs a message once, as ``telens.debug.log_message`` does."""

    logged_messages: ClassVar[set] = set()  # the session keeps its own

    @classmethod
    def log_message_once(
        cls,
        message: str,
        layer_name: str | None = None,
        level: int | str = logging.INFO,
        extra_cachable_args: Any = None,
    ) -> None:
        """Logs a message once per text, layer and extra arguments."""
        logger = importlib.import_module("telens.debug.logging").get_logger()
        logger.log_message(message, layer_name, level, extra_cachable_args)
