"""Process groups of torch.distributed as groups of ranks that exchange bytes.

The session reaches its ranks through these two classes if ``telens-core`` is absent: its C++
interfaces RankGroup and RankStore (hooks/rank_group.h) call the methods with the same names. With
``telens-core``, hooks/libtorch/c10d_group.cpp implements the interfaces.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed

__all__ = ["RankGroup", "RankStore", "to_rank_group"]

_CPU = torch.device("cpu")


class RankStore:
    """The store of keys that all ranks of a process group read and write.

    Each call has the store's timeout and raises if it expires. Values are bytes.
    """

    def __init__(self, group: torch.distributed.ProcessGroup, store: Any) -> None:
        self._group = weakref.ref(group)
        self._store = store

    def can_decide(self) -> bool:
        """Returns False if the store lacks ``add`` or ``set_if_missing``.

        The store of torch's backend "fake" lacks them. Raises if the store cannot be reached.
        """
        try:
            self._store.add("telens/begin/tried", 1)
            self._store.compare_set("telens/begin/can_decide", "", "yes")
        except torch.distributed.DistError:
            raise
        except Exception:
            return False
        return True

    def has(self, key: str) -> bool:
        """Returns whether a rank has set the key."""
        return self._store.check([key])

    def get(self, key: str) -> bytes:
        """Returns the value of the key. Waits until a rank has set it."""
        return self._store.get(key)

    def set(self, key: str, value: bytes) -> None:
        """Sets the value of the key."""
        self._store.set(key, value)

    def remove(self, key: str) -> None:
        """Removes the key if it exists."""
        self._store.delete_key(key)

    def add(self, key: str, amount: int) -> int:
        """Adds to a counter that starts at 0, atomically, and returns the sum."""
        return self._store.add(key, amount)

    def set_if_missing(self, key: str, value: bytes) -> None:
        """Sets the value of the key, atomically, unless a rank has set it before."""
        self._store.compare_set(key, "", value)

    def get_weak(self) -> Callable[[], RankStore | None]:
        """Returns a function that returns the store while the process group exists, else None.

        The function does not keep the store alive: a later group may require its port.
        """
        weak = self._group

        def get_store() -> RankStore | None:
            group = weak()
            return None if group is None else RankGroup(group).store()

        return get_store


# {process group: its dict}; see RankGroup.state.
_states: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()


class RankGroup:
    """A process group, as one of its ranks sees it. Shares the ownership of ``process_group``."""

    def __init__(self, group: torch.distributed.ProcessGroup) -> None:
        self.process_group = group

    def rank(self) -> int:
        """Returns this process's rank in the group, from 0."""
        return self.process_group.rank()

    def size(self) -> int:
        """Returns the number of ranks."""
        return self.process_group.size()

    def name(self) -> str:
        """Returns the name under which all ranks know the group.

        Groups split from a larger one may share a name.
        """
        return self.process_group.group_name

    def description(self) -> str:
        """Returns a text for users; "" if the group has none."""
        return self.process_group.group_desc

    def members(self) -> str:
        """Returns the group's ranks in the world, as "0,2"; "-" if they are unknown.

        The text is equal on all ranks: torch.distributed gave all of them the same list.
        """
        for device in self.process_group._device_types:
            ranks = getattr(self._options(device), "global_ranks_in_group", None)
            if ranks:
                return ",".join(map(str, ranks))
        return "-"

    def gather(self, own: bytes) -> bytes:
        """Returns the bytes of every rank, joined in rank order.

        Every rank must call this with equally many bytes. Raises if a rank does not arrive in time.
        """
        device = self._device()
        sent = torch.empty(len(own), dtype=torch.uint8, device=_CPU)
        if own:
            sent.copy_(torch.frombuffer(bytearray(own), dtype=torch.uint8))
        inputs = [sent.to(device)]
        outputs = [[torch.empty_like(inputs[0]) for _ in range(self.size())]]
        self.process_group.allgather(outputs, inputs).wait()
        return b"".join(bytes(each.cpu().untyped_storage()) for each in outputs[0])

    def store(self) -> RankStore | None:
        """Returns the store that the ranks share; None if there is none."""
        store = self._c10d_store()
        return None if store is None else RankStore(self.process_group, store)

    def time_limit(self) -> int:
        """Returns the shorter timeout of ``gather`` and of the store's calls, in ms.

        Returns the longer one if the other is 0, which means no limit or an unknown one.
        """
        store = self._c10d_store()
        calls = 0 if store is None else _milliseconds(store.timeout)
        options = self._options(self._device())
        collectives = _milliseconds(getattr(options, "_timeout", None))
        return min(calls, collectives) if calls and collectives else max(calls, collectives)

    def find(self, name: str) -> RankGroup | None:
        """Returns the group of this process with that name; None if there is none."""
        try:
            return RankGroup(torch.distributed.distributed_c10d._resolve_process_group(name))
        except Exception:  # torch.distributed has no group of this name
            return None

    def state(self) -> dict[str, Any]:
        """Returns a dict that exists as long as the process group.

        The session keeps the sizes of the group's exchanges in it (hooks/rank_group.h,
        ``exchange_sizes``).
        """
        return _states.setdefault(self.process_group, {})

    def _device(self) -> torch.device:
        """Returns the device of the tensors that ``gather`` passes.

        A group with only NCCL rejects CPU tensors.
        """
        devices = self.process_group._device_types
        accepts_cpu = not devices or any(each.type == "cpu" for each in devices)
        return _CPU if accepts_cpu else devices[0]

    def _options(self, device: torch.device) -> Any:
        """Returns the options of the device's backend; None if it has none."""
        try:
            return self.process_group._get_backend(device).options
        except (AttributeError, RuntimeError):  # such as the backend "fake"
            return None

    def _c10d_store(self) -> Any:
        try:
            return self.process_group.get_group_store()
        except RuntimeError:  # created without a store
            return None


def _milliseconds(limit: Any) -> int:
    """Returns a timedelta in ms; 0 for None."""
    return 0 if limit is None else round(1000 * limit.total_seconds())


def to_rank_group(group: Any, argument: str = "group") -> RankGroup | None:
    """Returns the RankGroup of a process group; None for None.

    Raises TypeError that names ``argument`` for any other value.
    """
    if group is None:
        return None
    kind = getattr(torch.distributed, "ProcessGroup", ())  # absent in builds without distributed
    if not isinstance(group, kind):
        raise TypeError(
            f"argument '{argument}' must be a torch.distributed.ProcessGroup or None, not "
            f"{type(group).__name__}"
        )
    return RankGroup(group)
