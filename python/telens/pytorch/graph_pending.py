"""Backwards of graphed callables that wait for their ``backward_dw``, and what would spoil them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from telens import _C
from telens.pytorch.graph_order import Pass, Schedule
from telens.pytorch.graph_stream import ReplayStream

if TYPE_CHECKING:
    from telens.pytorch.graph_runner import Flag, Passes

__all__ = ["PendingWgrads", "make_pending_wgrads"]


@dataclass(frozen=True)
class _Pending:
    owner: PendingWgrads
    name: str  # messages call the callable so
    module: torch.nn.Module
    flag: Flag
    passes: Passes
    on: ReplayStream


class PendingWgrads:
    """One callable's view of the backwards that left weights' gradients, the oldest first.

    The operands of such gradients lie in memory that graphs share: a pass overwrites them that was
    captured before the backward, or after backward_dw, which has used them. A CPU shares no memory,
    and has the same rules.
    """

    def __init__(self, places: dict[Pass, int], microbatch: int, queue: list[_Pending]) -> None:
        self._places, self._microbatch, self._queue = places, microbatch, queue

    def add(
        self, name: str, module: torch.nn.Module, flag: Flag, passes: Passes, on: ReplayStream
    ) -> None:
        self._queue.append(_Pending(self, name, module, flag, passes, on))

    def is_any(self) -> bool:
        return any(each.owner is self for each in self._queue)

    def take(self, name: str, module: torch.nn.Module) -> tuple[Passes, ReplayStream]:
        """The oldest of the module, which must be this callable's; it waits no more."""
        due = next((each for each in self._queue if each.module is module), None)
        if due is None or due.owner is not self:
            raise _C.UsageError(
                f"{name}: backward_dw makes the gradients that its backward left, and "
                + (
                    "none is left; call it once after each backward"
                    if due is None
                    else "those of another callable of the module are due before; keep the order "
                    "of the backwards"
                )
            )
        self._check(name, Pass.weight_gradients, due.flag, due)
        self._queue.remove(due)
        return due.passes, due.on

    def drop(self) -> None:
        """This callable's are not made any more."""
        for each in [each for each in self._queue if each.owner is self]:
            same = [other for other in self._queue if other.module is each.module]
            each.passes.drop_weight_gradients(same.index(each))
            self._queue.remove(each)

    def check_others(self, name: str, module: torch.nn.Module, some_wait: bool) -> None:
        """Raises UsageError where gradients wait in the module that no callable's backward left:
        backward_dw would make them in the place of this callable's."""
        if some_wait and not any(each.module is module for each in self._queue):
            raise _C.UsageError(
                f"{name}: a backward outside of the callable has left weights' gradients to "
                "backward_dw; call that first"
            )

    def check_pass(self, name: str, what: Pass, flag: Flag) -> None:
        """Raises UsageError where a pass of this callable would overwrite what another needs."""
        self._check(name, what, flag, None)

    def _check(self, name: str, what: Pass, flag: Flag, due: _Pending | None) -> None:
        for each in self._queue:
            if each is due:
                continue
            if each.owner is self or self._overwrites(what, flag, each):
                raise _C.UsageError(
                    f"{name}: called before backward_dw of {each.name} made the weights' gradients "
                    f"that its backward left, of which this {what.value} would overwrite the "
                    "memory; call that backward_dw first"
                )

    def _overwrites(self, what: Pass, flag: Flag, pending: _Pending) -> bool:
        other = pending.owner
        if what is Pass.weight_gradients and (flag is True or what not in self._places):
            return False  # its graph has memory of its own
        if flag is True or pending.flag is True:  # memory of a micro-batch's own
            if flag is not pending.flag or self._microbatch != other._microbatch:
                return False
            # There all forwards are captured first, then all backwards, from the last forward's on.
            return what is Pass.forward or (
                self._places[Pass.forward] > other._places[Pass.forward]
            )
        own, used = self._places[what], other._places.get(Pass.weight_gradients)
        return own < other._places[Pass.backward] or (used is not None and own > used)


def make_pending_wgrads(schedule: Schedule, count: int) -> list[PendingWgrads]:
    """One for each callable; they share the queue."""
    queue: list[Any] = []
    places: Sequence[dict[Pass, int]] = [{} for _ in range(count)]
    for number, (index, what) in enumerate(schedule.events):
        places[index][what] = number
    return [PendingWgrads(places[i], schedule.microbatches[i], queue) for i in range(count)]
