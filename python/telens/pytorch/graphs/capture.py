"""Captures the forward and backward of a callable into CUDA graphs, and replays them."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch

from telens import _C
from telens.pytorch.graphs.order import Pass, Schedule
from telens.pytorch.graphs.runner import Flag, Runner
from telens.pytorch.graphs.wgrads import ReplayStream
from telens.pytorch.module import Module
from telens.pytorch.parallel.rng_tracker import CudaRNGStatesTracker, find_trackers
from telens.pytorch.quantization import running
from telens.pytorch.tensor import QuantizedTensor
from telens.pytorch.tensor.data import list_tensors

__all__: list[str] = ["Captured", "CudaGraphs", "Graphs", "capture_all", "check_can_be_captured"]


class Graphs(Protocol):
    """Captures and replays graphs: ``CudaGraphs``, or a fake in tests."""

    def new_pool(self) -> Any:
        """Returns a memory pool for graphs that are replayed in the order of their captures."""

    def capture(self, pool: Any, generators: Sequence[Any]) -> Any:
        """Returns a context manager that captures the work inside and yields its replay."""


class CudaGraphs:
    """Captures into ``torch.cuda.CUDAGraph``, on a separate stream."""

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
            # A capture that fails does not restore the current stream; this context does.
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
        """Removes generators and memory from a failed capture, so that training can continue."""
        with contextlib.suppress(RuntimeError):
            graph.pool()
            return  # the capture has ended as it should
        _broken.append(graph)
        with contextlib.suppress(RuntimeError, AttributeError):
            torch._C._cuda_endAllocateToPool(self._device.index, pool)
            torch._C._cuda_releasePool(self._device.index, pool)
        with contextlib.suppress(RuntimeError):
            word = torch.zeros(1, device=self._device)
            # A successful capture into the same graph releases its generators, so that other graphs
            # that use them can be replayed again.
            with torch.cuda.graph(graph, stream=self._stream):
                word.zero_()
            graph.reset()


# Torch's allocator of pinned memory keeps querying these graphs for their streams. So each failed
# capture adds a small object to this list, and none is removed.
_broken: list[torch.cuda.CUDAGraph] = []


class Captured:
    """The graphs of a callable for a value of ``is_first_microbatch``."""

    def __init__(self, runner: Runner, flag: Flag, graphs: Graphs, pool: Any) -> None:
        self._runner, self._flag, self._graphs, self._pool = runner, flag, graphs, pool
        self._trackers = _trackers_in(runner.module)
        self._addresses = _find_addresses(runner.weights)
        self._replay_backward: Callable[[], None] | None = None
        self._gradients: list[torch.Tensor | None] = []
        self._region: _C.Region | None = None
        self._replay_wgrads: Callable[[], None] | None = None
        self._wgrads: list[tuple[torch.Tensor, torch.Tensor]] = []  # (parameter, its buffer)
        self._main_grads: list[Any] = []

    # ------------------------------------------------------------------ capture

    def capture_forward(self) -> None:
        """Captures the forward. A warm-up has already allocated all that outlives the graph."""
        runner = self._runner
        random = torch.get_rng_state()
        generators = [each for tracker in self._trackers for each in tracker.generators()]
        with (
            runner.hooks.around("forward"),
            _naming(runner, "forward"),
            torch.set_grad_enabled(runner.module.training),
            runner.region(_graph=True),
        ):
            # The region of each replay updates the scales, so the graph must not update them.
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
        """Captures the backward, after the forwards whose backwards come later."""
        runner = self._runner
        if not any(each.requires_grad for each in self._made):
            self._made = []
            return
        self._main_grads = runner.wgrads.main_grad_places()
        self._given = [torch.zeros_like(each) for each in self._made]
        with (
            runner.hooks.around("backward"),
            _naming(runner, "backward"),
            self._graphs.capture(self._pool, ()) as self._replay_backward,
        ):
            self._gradients = runner.gradients(self._made, self._given)
        # This releases the autograd graph and its saved tensors for later captures.
        self._made = []

    def capture_weight_gradients(self, pool: Any) -> None:
        """Captures ``backward_dw``, after the backward and all graphs replayed between the two."""
        runner = self._runner
        if not runner.wgrads or self._replay_backward is None:
            return
        with (
            _naming(runner, "backward_dw"),
            self._graphs.capture(pool, ()) as self._replay_wgrads,
        ):
            self._wgrads = runner.wgrads.make_apart()

    # ------------------------------------------------------------------ replays

    def forward(self, on: ReplayStream) -> tuple[torch.Tensor, ...]:
        runner = self._runner
        if _find_addresses(runner.weights) != self._addresses:
            raise _C.UsageError(
                f"{runner.name}: its parameters have moved since the capture; change them in "
                "place (stored weights by quantize_ or copy_), or create the callables after "
                "the code that moves them"
            )
        training = runner.module.training
        with torch.set_grad_enabled(training), runner.region():
            for layer in self._layers:
                layer.join_region()
            self._region = _C.claim_region() if training and self._layers else None
            for tracker in self._trackers:
                tracker.load_generators()
            with on.entered():
                self._replay_forward()
            for tracker in self._trackers:
                tracker.store_generators()
        return tuple(each.detach() for each in self._outputs)

    def backward(
        self, gradients: Sequence[torch.Tensor | None], on: ReplayStream
    ) -> Sequence[torch.Tensor | None]:
        count = len(self._runner.inputs)
        if self._replay_backward is None:
            return [None] * (count + len(self._runner.parameters))
        self._check_main_grads()
        for buffer, gradient in zip(self._given, gradients, strict=True):
            if gradient is None:
                buffer.zero_()
            elif gradient.data_ptr() != buffer.data_ptr():
                buffer.copy_(gradient)
        with on.entered():
            self._replay_backward()
        if self._replay_wgrads is None:
            self._runner.wgrads.mark_added()
        region, self._region = self._region, None
        if region is not None:
            region.update_backward()
        # Parameters keep their gradients, but the next replay overwrites these buffers.
        clones = self._runner.options.clones_gradients
        return [
            each
            if each is None
            else each.detach().clone()
            if clones and i >= count
            else each.detach()
            for i, each in enumerate(self._gradients)
        ]

    def make_weight_gradients(self, on: ReplayStream) -> None:
        if self._replay_wgrads is None:
            return
        self._check_main_grads()
        # Run on the backward's stream, because the event is recorded before this work.
        with on.without_event().entered():
            self._replay_wgrads()
        self._runner.wgrads.mark_added()
        for parameter, buffer in self._wgrads:
            torch.autograd.backward(parameter, buffer.detach().clone())

    def drop_weight_gradients(self, backward: int) -> None:
        """Does nothing: the operands are in graph memory, and there is no queue to remove them
        from."""

    def _check_main_grads(self) -> None:
        if self._runner.wgrads.main_grad_places() != self._main_grads:
            raise _C.UsageError(
                f"{self._runner.name}: main_grad or overwrite_main_grad of a weight is another "
                "than when it was captured; fill main_grad in place, or make the callables "
                "afterwards"
            )


def _find_addresses(parameters: Sequence[torch.Tensor]) -> list[Any]:
    """Returns dtypes and addresses of the parameters, which a graph treats as constants."""
    return [(each.dtype, *map(torch.Tensor.data_ptr, _plain_tensors(each))) for each in parameters]


def _plain_tensors(parameter: torch.Tensor) -> list[torch.Tensor]:
    """Returns the tensors that have memory: of a quantized weight its codes and scales."""
    if not isinstance(parameter, QuantizedTensor):
        return [parameter]
    return list_tensors(parameter._storage)


@contextlib.contextmanager
def _naming(runner: Runner, what: str) -> Iterator[None]:
    """Adds the captured step to errors that torch or CUDA raise."""
    try:
        yield
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError as error:
        first: BaseException = error  # the end of a failed capture hides the cause
        while first.__context__ is not None and not isinstance(first, _C.Error):
            first = first.__context__
        if isinstance(first, _C.Error):
            raise first from None
        raise _C.UsageError(f"{runner.name}: its {what} cannot be captured: {first}") from error


# The layers of the newest graph by module. All graphs of a module share them, so that a region
# updates a layer once.
_newest: WeakKeyDictionary[_C.ModuleAdapter, _C.GraphedLayers] = WeakKeyDictionary()


def _graphed_layers(module: torch.nn.Module) -> list[_C.GraphedLayers]:
    """Returns the captured layers that have amax histories."""
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
    """Returns the trackers of GPU generators from which the module draws."""
    found = find_trackers(module)
    return [each for each in found if isinstance(each, CudaRNGStatesTracker) and each.is_of_gpu]


def capture_all(runners: Sequence[Runner], schedule: Schedule, graphs: Graphs, pool: Any) -> None:
    """Replaces the runners' passes by graphs.

    Graphs that share memory are captured in the order of their replays. If micro-batches keep
    quantized weights, the first micro-batch's graphs write what the others' read. Writing between
    another forward and its backward would be an autograd error, so those graphs are captured per
    micro-batch, each in separate memory.
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
        _capture_weight_gradients([passes[index] for index in reversed(firsts)], graphs)
    others: dict[int, Captured] = {}
    without_place = []
    in_order = {index for index, what in schedule.events if what is Pass.weight_gradients}
    for index, what in schedule.events:
        if what is Pass.forward:
            flag = runners[index].flags[-1]
            others[index] = Captured(runners[index], flag, graphs, pool)
            others[index].capture_forward()
        elif what is Pass.backward:
            others[index].capture_backward()
            if index not in in_order:
                without_place.append(others[index])
        else:
            others[index].capture_weight_gradients(pool)
    _capture_weight_gradients(without_place, graphs)
    for index, made in others.items():
        runners[index].passes[runners[index].flags[-1]] = made


def _capture_weight_gradients(passes: Sequence[Captured], graphs: Graphs) -> None:
    """Captures weight gradients after all backwards, each in separate memory: the order of their
    replays is unknown, and their operands stay in the graphs' memory until the next forward."""
    for each in passes:
        each.capture_weight_gradients(graphs.new_pool())


def check_can_be_captured(runners: Sequence[Runner], iterations: int) -> None:
    """Raises UsageError for modules and options that cannot be captured, before anything runs."""
    if iterations < 1:
        raise _C.UsageError(
            f"make_graphed_callables: num_warmup_iters is {iterations}; expected at least 1 on "
            "a GPU: tensors that outlive the capture must be created before it"
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
    if isinstance(module, Module) and module.__dict__.get("checkpoint"):
        raise _C.UsageError(
            f"make_graphed_callables: {type(module).__name__} has checkpoint=True, which sets "
            "random states in its backward, and no graph can hold that; leave it out"
        )
