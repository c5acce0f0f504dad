"""Context-parallel groups of modules that contain attention, which are kept in copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from telens import _C
from telens._names import refusal

__all__: list[str] = []

COMM_TYPES = ("p2p", "all_gather", "a2a", "a2a+p2p")
# Attributes of modules without a group, under Transformer Engine's names.
ATTRIBUTES = {
    "cp_group": None,
    "cp_global_ranks": None,
    "cp_stream": None,
    "cp_comm_type": "p2p",
}
_HOLDERS = ("DotProductAttention", "MultiheadAttention", "TransformerLayer")
_LOST = "_telens_lost_context_ranks"


def is_context_group(value: Any) -> bool:
    """A process group, or a list of them."""
    groups = value if isinstance(value, list | tuple) else [value]
    return bool(groups) and all(isinstance(each, torch.distributed.ProcessGroup) for each in groups)


def _ranks(groups: list[torch.distributed.ProcessGroup]) -> int:
    sizes = 1
    for group in groups:
        sizes *= group.size()
    return sizes


class WithContextParallel:
    """The part of ``telens.pytorch.Module`` for context parallelism."""

    def set_context_parallel_group(
        self,
        cp_group: torch.distributed.ProcessGroup | Sequence[torch.distributed.ProcessGroup] | None,
        cp_global_ranks: Sequence[int] | None = None,
        cp_stream: Any = None,
        cp_comm_type: str = "p2p",
    ) -> None:
        """Sets the ranks that share each sequence in the attention of this module and of modules
        inside.

        A rank has two chunks of each sequence (docs/parallel.md): see
        ``telens.pytorch.attention.dot_product_attention.context_parallel``.

        Parameters
        ----------
        cp_group
            the group; for cp_comm_type a2a+p2p a list of two groups, for a2a and for p2p; None:
            sequences are not divided
        cp_global_ranks
            the ranks of the group in the default group; only their number is checked
        cp_stream
            no effect: transfers run on the streams of torch.distributed
        cp_comm_type
            p2p: keys and values travel around a ring; all_gather: they are gathered; a2a: heads are
            exchanged for whole sequences; a2a+p2p: both
        """
        owner = f"{type(self).__name__}.set_context_parallel_group"
        if cp_group is not None and not is_context_group(cp_group):
            raise refusal(owner, "cp_group", "a process group, a list of two, or None", cp_group)
        if cp_comm_type not in COMM_TYPES:
            raise refusal(owner, "cp_comm_type", f"one of {', '.join(COMM_TYPES)}", cp_comm_type)
        groups = _listed(cp_group)
        if cp_global_ranks is not None and groups and len(cp_global_ranks) != _ranks(groups):
            raise _C.UsageError(
                f"{owner}: cp_global_ranks has {len(cp_global_ranks)} ranks and cp_group "
                f"{_ranks(groups)}; give as many"
            )
        values = (cp_group, cp_global_ranks, cp_stream, cp_comm_type)
        for module in self.modules():
            if isinstance(module, WithContextParallel):
                module._telens_adapter.set_context_parallel_group(groups, cp_comm_type, 0)
                module.__dict__.pop(_LOST, None)
                if module._type.name in _HOLDERS:
                    module.__dict__.update(zip(ATTRIBUTES, values, strict=True))

    def _note_context(self) -> None:
        """Sets the attributes of a new module."""
        if self._type.name in _HOLDERS:
            self.__dict__.update(ATTRIBUTES)

    def _reattach_context(self) -> None:
        """Sets the group of a new C++ module, or marks that a pickle has lost it."""
        group, lost = self.__dict__.get("cp_group"), self.__dict__.get(_LOST, 0)
        if group is not None or lost:
            self._telens_adapter.set_context_parallel_group(
                _listed(group), self.__dict__["cp_comm_type"], lost
            )


def without_context(state: dict[str, Any]) -> None:
    """Removes process groups and streams from a module's state for a pickle."""
    group = state.get("cp_group")
    if group is not None:
        state |= {"cp_group": None, "cp_stream": None, _LOST: _ranks(_listed(group))}


def copy_context(module: torch.nn.Module, copied: torch.nn.Module) -> None:
    """Gives a copy the groups of the modules inside, since it stays in the process."""
    for ours, theirs in zip(module.modules(), copied.modules(), strict=False):
        if isinstance(ours, WithContextParallel) and ours.__dict__.get("cp_group") is not None:
            theirs.__dict__.pop(_LOST, None)
            theirs.__dict__.update({name: ours.__dict__[name] for name in ATTRIBUTES})
            theirs._reattach_context()


def _listed(cp_group: Any) -> list[torch.distributed.ProcessGroup]:
    if cp_group is None:
        return []
    return list(cp_group) if isinstance(cp_group, list | tuple) else [cp_group]
