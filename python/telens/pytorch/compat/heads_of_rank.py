"""Heads of DotProductAttention under tensor parallelism: the caller gives all, the module gets its
rank's."""

from __future__ import annotations

from typing import Any

import torch

from telens import _C

__all__ = ["heads_of_rank", "is_tensor_parallel_group", "note_all_heads"]

_OWNER = "DotProductAttention"
_HEADS = ("num_attention_heads", "num_gqa_groups")


def is_tensor_parallel_group(value: Any) -> bool:
    """Returns whether a value is a process group."""
    return isinstance(value, torch.distributed.ProcessGroup)


def _ranks(given: dict[str, Any]) -> int:
    """Returns the group's size if there is a group, else ``tp_size``."""
    group = given.get("tp_group")
    return given.get("tp_size", 1) if group is None else group.size()


def heads_of_rank(
    names: list[str], args: tuple[Any, ...], kwargs: dict[str, Any], given: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns a constructor's arguments with the heads and groups of this rank.

    Parameters
    ----------
    names
        of positions
    kwargs
        keywords of the C++ class
    given
        all keywords, of which ``tp_size`` and ``tp_group`` are read

    Raises UsageError for heads or groups that the ranks cannot divide.
    """
    ranks = _ranks(given)
    if ranks == 1:
        return args, kwargs
    args, kwargs = list(args), dict(kwargs)
    for name in _HEADS:
        place = names.index(name)
        where, key = (args, place) if place < len(args) else (kwargs, name)
        total = args[place] if place < len(args) else kwargs.get(name)
        if isinstance(total, int) and not isinstance(total, bool):
            if total % ranks != 0:
                raise _C.UsageError(
                    f"{_OWNER}: {name} is {total} for {ranks} tensor-parallel ranks; expected a "
                    "multiple: it is the total number over all ranks"
                )
            where[key] = total // ranks
    return tuple(args), kwargs


def note_all_heads(module: torch.nn.Module, given: dict[str, Any]) -> None:
    """Sets the attributes for the whole tensor-parallel group, under Transformer Engine's names."""
    ranks = _ranks(given)
    options = module._telens_adapter.options()
    heads = options["num_attention_heads"]
    groups = options["num_gqa_groups"] or heads
    module.__dict__ |= {
        "tp_size": ranks,
        "tp_group": given.get("tp_group"),
        "num_attention_heads": heads * ranks,
        "num_gqa_groups": groups * ranks,
        "num_gqa_groups_per_partition": groups,
    }
