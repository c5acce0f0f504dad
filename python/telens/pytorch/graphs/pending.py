"""Delayed weight gradients of graphed callables (``backward_dw``), and the streams of replays."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from telens import _C
from telens.pytorch.graphs.order import Pass, Schedule

if TYPE_CHECKING:
    from telens.pytorch.graphs.runner import Flag, Passes

__all__ = ["PendingWgrads", "ReplayStream", "make_pending_wgrads"]


@dataclass(frozen=True)
class ReplayStream:
    """The stream that replays a call's graphs, and the event that the caller's stream waits for."""

    stream: Any = None  # None for the caller's stream
    event: Any = None  # recorded in the graph; None to wait for the end of the replay

    @staticmethod
    def take(kwargs: dict[str, Any]) -> ReplayStream:
        """Removes ``cuda_graph_stream`` and ``cuda_graph_event`` from a call's keywords."""
        return ReplayStream(
            kwargs.pop("cuda_graph_stream", None), kwargs.pop("cuda_graph_event", None)
        )

    def without_event(self) -> ReplayStream:
        """Returns the stream for a graph that does not record the event."""
        return ReplayStream(self.stream)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Launches the work inside on the stream, after the work already on the caller's stream."""
        caller = None if self.stream is None else torch.cuda.current_stream(self.stream.device)
        if caller is None or caller == self.stream:
            yield
            return
        self.stream.wait_stream(caller)
        with torch.cuda.stream(self.stream):
            yield
        if self.event is None:
            caller.wait_stream(self.stream)
        else:
            caller.wait_event(self.event)


@dataclass(frozen=True)
class _Pending:
    owner: PendingWgrads
    name: str  # messages call the callable so
    module: torch.nn.Module
    flag: Flag
    passes: Passes
    on: ReplayStream


class PendingWgrads:
    """The backward passes of a graphed callable that still owe their weight gradients.

    The oldest pass comes first. Weight gradients are computed from operands in memory that graphs
    share. Replaying a pass that was captured earlier, or after ``backward_dw``, overwrites those
    operands. The CPU shares no memory but applies the same rules.
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
        """Removes and returns the module's oldest pending pass; it must be this callable's."""
        due = next((each for each in self._queue if each.module is module), None)
        if due is None or due.owner is not self:
            raise _C.UsageError(
                f"{name}: backward_dw makes the gradients that its backward left, and "
                + (
                    "none is left; call it once after each backward"
                    if due is None
                    else "another callable of the module must come first; keep the order of the "
                    "backwards"
                )
            )
        self._check(name, Pass.weight_gradients, due.flag, due)
        self._queue.remove(due)
        return due.passes, due.on

    def drop(self) -> None:
        """Discards this callable's pending passes."""
        for each in [each for each in self._queue if each.owner is self]:
            same = [other for other in self._queue if other.module is each.module]
            each.passes.drop_weight_gradients(same.index(each))
            self._queue.remove(each)

    def check_others(self, name: str, module: torch.nn.Module, some_wait: bool) -> None:
        """Raises UsageError if gradients are pending in the module that no callable's backward
        deferred: backward_dw would compute them instead of this callable's."""
        if some_wait and not any(each.module is module for each in self._queue):
            raise _C.UsageError(
                f"{name}: a backward outside of the callable has left weights' gradients to "
                "backward_dw; call that first"
            )

    def check_pass(self, name: str, what: Pass, flag: Flag) -> None:
        """Raises UsageError if a pass of this callable would overwrite data that another pass
        needs."""
        self._check(name, what, flag, None)

    def _check(self, name: str, what: Pass, flag: Flag, due: _Pending | None) -> None:
        for each in self._queue:
            if each is due:
                continue
            if each.owner is self or self._overwrites(what, flag, each):
                raise _C.UsageError(
                    f"{name}: called before backward_dw of {each.name}, whose pending weight "
                    f"gradients need memory that this {what.value} overwrites; call that "
                    "backward_dw first"
                )

    def _overwrites(self, what: Pass, flag: Flag, pending: _Pending) -> bool:
        other = pending.owner
        if what is Pass.weight_gradients and (flag is True or what not in self._places):
            return False  # its graph has separate memory
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
    """Returns one object per callable; they share the queue."""
    queue: list[Any] = []
    places: Sequence[dict[Pass, int]] = [{} for _ in range(count)]
    for number, (index, what) in enumerate(schedule.events):
        places[index][what] = number
    return [PendingWgrads(places[i], schedule.microbatches[i], queue) for i in range(count)]
