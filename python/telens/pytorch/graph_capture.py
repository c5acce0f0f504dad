"""CUDA graphs of the callables of ``make_graphed_callables``: one forward, one backward each."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch

from telens import _C
from telens.pytorch.graph_order import Schedule
from telens.pytorch.graph_runner import Flag, Runner
from telens.pytorch.module import Module
from telens.pytorch.recipes_in_use import running
from telens.pytorch.rng_tracker import CudaRNGStatesTracker, find_trackers

__all__ = ["CudaGraphs", "capture_all", "check_can_be_captured"]


class Graphs(Protocol):
    """What captures and replays: ``CudaGraphs``, or a test's stand-in."""

    def new_pool(self) -> Any:
        """Memory that graphs share which are replayed in the order of their captures."""

    def capture(self, pool: Any, generators: Sequence[Any]) -> Any:
        """A context manager that captures what is run inside, and yields its replay."""


class CudaGraphs:
    """Captures into ``torch.cuda.CUDAGraph``, on a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def new_pool(self) -> Any:
        return torch.cuda.graph_pool_handle()

    @contextlib.contextmanager
    def capture(
        self, pool: Any, generators: Sequence[torch.Generator]
    ) -> Iterator[Callable[[], None]]:
        graph = torch.cuda.CUDAGraph()
        for generator in generators:
            graph.register_generator_state(generator)
        collects = gc.isenabled()
        gc.disable()  # a collection that frees a graph would break the capture
        try:
            # A capture that breaks leaves its stream the current one, so this puts it back.
            with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
                try:
                    with torch.cuda.graph(graph, pool=pool, stream=self._stream):
                        yield graph.replay
                except BaseException:
                    self._end_broken(graph, pool)
                    raise
        finally:
            if collects:
                gc.enable()

    def _end_broken(self, graph: torch.cuda.CUDAGraph, pool: Any) -> None:
        """Torch leaves generators and memory in a capture that broke, and training must go on."""
        with contextlib.suppress(RuntimeError):
            graph.pool()
            return  # the capture has ended as it should
        _broken.append(graph)
        with contextlib.suppress(RuntimeError, AttributeError):
            torch._C._cuda_endAllocateToPool(self._device.index, pool)
            torch._C._cuda_releasePool(self._device.index, pool)
        with contextlib.suppress(RuntimeError):
            word = torch.zeros(1, device=self._device)
            # The end of a capture that succeeds takes the graph's generators out of it, and the
            # graphs that know them can be replayed again.
            with torch.cuda.graph(graph, stream=self._stream):
                word.zero_()
            graph.reset()


# Torch's allocator of pinned memory goes on asking these which streams they capture.
_broken: list[torch.cuda.CUDAGraph] = []


class Captured:
    """The graphs of one callable for one value of ``is_first_microbatch``."""

    def __init__(self, runner: Runner, flag: Flag, graphs: Graphs, pool: Any) -> None:
        self._runner, self._flag, self._graphs, self._pool = runner, flag, graphs, pool
        self._trackers = _trackers_in(runner.module)
        self._addresses = [each.data_ptr() for each in runner.parameters]
        self._replay_backward: Callable[[], None] | None = None
        self._gradients: list[torch.Tensor | None] = []
        self._region: _C.Region | None = None

    # ------------------------------------------------------------------ capture

    def capture_forward(self) -> None:
        """After a warm-up, so that all that outlives the graph is there already."""
        runner = self._runner
        random = torch.get_rng_state()
        generators = [each for tracker in self._trackers for each in tracker.generators()]
        with (
            _naming(runner, "forward"),
            torch.set_grad_enabled(runner.module.training),
            runner.region(_graph=True),
        ):
            # Scales are updated by the replays' regions: no layer is to do so in the graph.
            _C.claim_region()
            with self._graphs.capture(self._pool, generators) as self._replay_forward:
                self._made = runner.run(self._flag)
        if not torch.equal(torch.get_rng_state(), random):
            raise _C.UsageError(
                f"{runner.name}: its forward draws random numbers on the host (dropout of "
                "attention in blocks does), which each replay would draw again; leave the dropout "
                "or the graph out"
            )
        self._outputs = [each.detach() for each in self._made]
        self._layers = _graphed_layers(runner.module)

    def capture_backward(self) -> None:
        """After the forwards whose backwards come later."""
        runner = self._runner
        if not any(each.requires_grad for each in self._made):
            self._made = []
            return
        self._given = [torch.zeros_like(each) for each in self._made]
        with (
            _naming(runner, "backward"),
            self._graphs.capture(self._pool, ()) as self._replay_backward,
        ):
            self._gradients = runner.gradients(self._made, self._given)
        # With the graph of autograd goes what it has saved, and later captures may have the memory.
        self._made = []

    # ------------------------------------------------------------------ replays

    def forward(self) -> tuple[torch.Tensor, ...]:
        runner = self._runner
        if [each.data_ptr() for each in runner.parameters] != self._addresses:
            raise _C.UsageError(
                f"{runner.name}: its parameters are not where they were captured; change them in "
                "place, or make the callables after what moves them"
            )
        training = runner.module.training
        with torch.set_grad_enabled(training), runner.region():
            for layer in self._layers:
                layer.join_region()
            self._region = _C.claim_region() if training and self._layers else None
            for tracker in self._trackers:
                tracker.load_generators()
            self._replay_forward()
            for tracker in self._trackers:
                tracker.store_generators()
        return tuple(each.detach() for each in self._outputs)

    def backward(self, gradients: Sequence[torch.Tensor | None]) -> Sequence[torch.Tensor | None]:
        count = len(self._runner.inputs)
        if self._replay_backward is None:
            return [None] * (count + len(self._runner.parameters))
        for buffer, gradient in zip(self._given, gradients, strict=True):
            if gradient is None:
                buffer.zero_()
            elif gradient.data_ptr() != buffer.data_ptr():
                buffer.copy_(gradient)
        self._replay_backward()
        region, self._region = self._region, None
        if region is not None:
            region.update_backward()
        # A parameter's gradient stays with its parameter, while the next replay writes here.
        return [
            each if each is None else each.detach() if i < count else each.detach().clone()
            for i, each in enumerate(self._gradients)
        ]


def capture_all(runners: Sequence[Runner], schedule: Schedule, graphs: Graphs, pool: Any) -> None:
    """Replaces the runners' passes by graphs.

    Graphs that share memory are captured in the order of their replays. Where micro-batches keep
    quantized weights, the first one's graphs fill what the others' read. A fill between another
    forward and its backward would be an error of autograd, so those graphs are captured micro-batch
    by micro-batch, each in memory of its own.
    """
    pool = graphs.new_pool() if pool is None else pool
    for forwards in schedule.by_microbatch():
        firsts = [index for index in forwards if True in runners[index].flags]
        own = graphs.new_pool() if firsts else None
        passes = {index: Captured(runners[index], True, graphs, own) for index in firsts}
        for index in firsts:
            passes[index].capture_forward()
        for index in reversed(firsts):
            passes[index].capture_backward()
            runners[index].passes[True] = passes[index]
    others: dict[int, Captured] = {}
    for index, is_forward in schedule.events:
        if is_forward:
            flag = runners[index].flags[-1]
            others[index] = Captured(runners[index], flag, graphs, pool)
            others[index].capture_forward()
        else:
            others[index].capture_backward()
    for index, made in others.items():
        runners[index].passes[runners[index].flags[-1]] = made


def check_can_be_captured(runners: Sequence[Runner], iterations: int) -> None:
    """Raises UsageError for what no graph can hold, before anything runs."""
    if iterations < 1:
        raise _C.UsageError(
            f"make_graphed_callables: num_warmup_iters is {iterations}; expected at least 1 on a "
            "GPU: what is made in a capture has no value, so all that stays must be there before"
        )
    if running.regions:
        raise _C.UsageError(
            "make_graphed_callables: an autocast is open, to whose region the warm-up would "
            "belong; call it outside, with the recipe as an argument"
        )
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise _C.UsageError(
            "make_graphed_callables: a capture is under way; call it outside of torch.cuda.graph"
        )
    for runner in runners:
        for module in runner.module.modules():
            _check_module(module)


def _check_module(module: torch.nn.Module) -> None:
    waits = getattr(module, "need_backward_dw", None)
    if waits is not None and waits():
        raise _C.UsageError(
            f"make_graphed_callables: {type(module).__name__} has delay_wgrad_compute=True, whose "
            "backward_dw no graph would hold; leave it out"
        )
    if isinstance(module, Module) and module.__dict__.get("checkpoint"):
        raise _C.UsageError(
            f"make_graphed_callables: {type(module).__name__} has checkpoint=True, which sets "
            "random states in its backward, and no graph can hold that; leave it out"
        )


@contextlib.contextmanager
def _naming(runner: Runner, what: str) -> Iterator[None]:
    """Errors that are not ours say what was captured."""
    try:
        yield
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError as error:
        first: BaseException = error  # the end of a broken capture hides what broke it
        while first.__context__ is not None and not isinstance(first, _C.Error):
            first = first.__context__
        if isinstance(first, _C.Error):
            raise first from None
        raise _C.UsageError(f"{runner.name}: its {what} cannot be captured: {first}") from error


# {a module: what its newest graph holds}; a region updates a layer of several graphs once.
_newest: WeakKeyDictionary[_C.ModuleAdapter, _C.GraphedLayers] = WeakKeyDictionary()


def _graphed_layers(module: torch.nn.Module) -> list[_C.GraphedLayers]:
    """Those that have histories, after a capture."""
    found = []
    for each in module.modules():
        if isinstance(each, Module):
            adapter = each._telens_adapter
            layers = _C.GraphedLayers(adapter, _newest.get(adapter))
            if len(layers) > 0:
                _newest[adapter] = layers
                found.append(layers)
    return found


def _trackers_in(module: torch.nn.Module) -> list[CudaRNGStatesTracker]:
    """Those of a GPU's generator, from whose states the module's forks draw."""
    found = find_trackers(module)
    return [each for each in found if isinstance(each, CudaRNGStatesTracker) and each.is_of_gpu]
