"""Weight gradients that the backward of graphed modules does not return, and streams of replays.

These are gradients deferred to ``backward_dw``, or added to ``main_grad``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from telens import _C
from telens.pytorch.graphs.order import Pass, Schedule
from telens.pytorch.layers.delayed_wgrads import WithDelayedWgrads
from telens.pytorch.module import Module

if TYPE_CHECKING:
    from telens.pytorch.graphs.runner import Flag, Passes

__all__ = [
    "PendingWgrads",
    "ReplayStream",
    "WeightGradients",
    "make_pending_wgrads",
    "without_hooks",
]


class WeightGradients:
    """The gradients that are deferred to ``backward_dw`` (``delay_wgrad_compute``) or added to
    ``main_grad`` (``fuse_wgrad_accumulation``), of a module or of modules inside."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._modules = _find_outermost(module)
        self._layers = [layer for each in self._modules for layer in each._layers_inside()]
        self._delayed = _find_weights(module, "delay_wgrad_compute")
        self.fused = _find_weights(module, "fuse_wgrad_accumulation")

    def __bool__(self) -> bool:
        """Returns whether a backward defers gradients to ``backward_dw``."""
        return bool(self._modules)

    def may_be_left(self, parameter: torch.Tensor) -> bool:
        """Returns whether the backward may return no gradient of this parameter."""
        return any(each is parameter for each in (*self._delayed, *self.fused))

    def make(self) -> None:
        """Computes and accumulates the gradients of the oldest backward (``backward_dw``)."""
        for each in reversed(self._modules):
            each._make_weight_gradients()

    def make_apart(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Returns the (parameter, gradient) pairs that ``make`` would accumulate.

        Changes no ``.grad`` and calls no hook. Excludes gradients added to ``main_grad``.
        """
        made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        for outer in reversed(self._modules):
            for layer in reversed(outer._layers_inside()):
                for weight, gradient in layer._telens_adapter.make_delayed_wgrads() or ():
                    for parameter, own in self._by_parameter(weight, gradient):
                        before = made.get(id(parameter))
                        made[id(parameter)] = (
                            parameter,
                            own if before is None else before[1] + own,
                        )
        return list(made.values())

    def _by_parameter(
        self, weight: torch.Tensor, gradient: torch.Tensor | None
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Splits the gradient of a weight that is computed from parameters."""
        if gradient is None:
            return []
        if weight.is_leaf:
            return [(weight, gradient)]
        trained = [parameter for parameter in self._delayed if parameter.requires_grad]
        with without_hooks(trained):
            found = torch.autograd.grad([weight], trained, [gradient], allow_unused=True)
        pairs = zip(trained, found, strict=True)
        return [(parameter, own) for parameter, own in pairs if own is not None]

    def call_hooks(self) -> None:
        """Calls the hooks of ``register_wgrad_accumulation_and_reduce_hooks``."""
        for each in reversed(self._modules):
            each._call_wgrad_hooks()

    def wait(self) -> bool:
        """Returns whether a backward outside of graphs left gradients."""
        return any(each._telens_adapter.has_delayed_wgrads() for each in self._layers)

    def drop(self, backward: int | None = None) -> None:
        """Discards all delayed gradients, or only the gradients from one backward (0 is the
        oldest)."""
        for each in self._layers:
            each._telens_adapter.drop_delayed_wgrads(backward)

    def check_none_waits(self, name: str) -> None:
        """Raises UsageError if an earlier backward left gradients; a warm-up would take them."""
        if self.wait():
            raise _C.UsageError(
                f"make_graphed_callables: a backward of {name} has left weights' gradients to "
                "backward_dw; call it before the callables are made"
            )

    @contextlib.contextmanager
    def untouched_main_grads(self) -> Iterator[None]:
        """Restores ``main_grad`` of fused weights at the end of the block.

        Skips frozen weights, and all weights in eval mode: no backward adds to them.
        """
        trained = [each for each in self.fused if each.requires_grad and self._module.training]
        buffers = [get_main_grad(each) for each in trained]
        kept = [(each, each.detach().clone()) for each in buffers if each is not None]
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, value in kept:
                    buffer.copy_(value)

    @contextlib.contextmanager
    def untouched_marks(self) -> Iterator[None]:
        """Restores ``grad_added_to_main_grad`` of fused weights at the end of the block."""
        marks = [(w, w.grad_added_to_main_grad) for w in self.fused if _is_marked(w)]
        try:
            yield
        finally:
            for weight, mark in marks:
                weight.grad_added_to_main_grad = mark

    def mark_added(self) -> None:
        """Sets ``grad_added_to_main_grad``, which the replay of a backward does not do."""
        for weight in self.fused:
            if _is_marked(weight):
                weight.grad_added_to_main_grad = True

    def main_grad_places(self) -> list[Any]:
        """Returns address, dtype and mode per ``main_grad``, which are constants of a graph."""
        places = []
        for weight in self.fused:
            buffer = get_main_grad(weight)
            overwrites = bool(getattr(weight, "overwrite_main_grad", False))
            places.append(None if buffer is None else (buffer.data_ptr(), buffer.dtype, overwrites))
        return places


@contextlib.contextmanager
def without_hooks(tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """Disables gradient hooks in the block: only the caller's backward calls them."""
    given = [each._backward_hooks for each in tensors if each._backward_hooks]
    kept = [(hooks, dict(hooks)) for hooks in given]
    for hooks in given:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, own in kept:
            hooks.update(own)


def get_main_grad(weight: torch.Tensor) -> torch.Tensor | None:
    """Returns the buffer that a backward adds to. Megatron-LM's FSDP returns it by a function."""
    if hasattr(weight, "__fsdp_param__"):
        return weight.get_main_grad()
    return getattr(weight, "main_grad", None)


def _is_marked(weight: torch.Tensor) -> bool:
    return hasattr(weight, "grad_added_to_main_grad")


def _find_weights(module: torch.nn.Module, option: str) -> list[torch.nn.Parameter]:
    """Returns the GEMM weights in all layers inside that have the option."""
    return [
        parameter
        for each in module.modules()
        if isinstance(each, Module) and each.__dict__.get(option)
        for name, parameter in each._parameters.items()
        if parameter is not None and each._telens_adapter.is_gemm_weight(name)
    ]


def _find_outermost(module: torch.nn.Module) -> list[WithDelayedWgrads]:
    """Returns the outermost modules with ``backward_dw``, which covers modules inside."""
    if isinstance(module, WithDelayedWgrads) and module.need_backward_dw():
        return [module]
    return [found for each in module.children() for found in _find_outermost(each)]


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
            # Graphs of such a micro-batch are captured in this order: all forwards, then the
            # backwards in reverse.
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
