"""The forward and the backward of one callable as graphs that are replayed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch

from telens import _C
from telens.pytorch.cuda_graphs import Graphs
from telens.pytorch.graph_runner import Flag, Runner
from telens.pytorch.graph_stream import ReplayStream
from telens.pytorch.module import Module
from telens.pytorch.rng_tracker import CudaRNGStatesTracker, find_trackers
from telens.pytorch.tensor import QuantizedTensor
from telens.pytorch.tensor.moved_codes import list_tensors

__all__ = ["Captured"]


class Captured:
    """The graphs of one callable for one value of ``is_first_microbatch``."""

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
        """After a warm-up, so that all that outlives the graph is there already."""
        runner = self._runner
        random = torch.get_rng_state()
        generators = [each for tracker in self._trackers for each in tracker.generators()]
        with (
            runner.hooks.around("forward"),
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
        self._main_grads = runner.wgrads.main_grad_places()
        self._given = [torch.zeros_like(each) for each in self._made]
        with (
            runner.hooks.around("backward"),
            _naming(runner, "backward"),
            self._graphs.capture(self._pool, ()) as self._replay_backward,
        ):
            self._gradients = runner.gradients(self._made, self._given)
        # With the graph of autograd goes what it has saved, and later captures may have the memory.
        self._made = []

    def capture_weight_gradients(self, pool: Any) -> None:
        """After the backward, and after all graphs that are replayed between the two."""
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
                f"{runner.name}: its parameters are not where they were captured; change them in "
                "place (stored weights by quantize_ or copy_), or make the callables after what "
                "moves them"
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
        # A parameter's gradient stays with its parameter, while the next replay writes here.
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
        # On the stream of the backward: its end is what an event lets run on.
        with on.without_event().entered():
            self._replay_wgrads()
        self._runner.wgrads.mark_added()
        for parameter, buffer in self._wgrads:
            torch.autograd.backward(parameter, buffer.detach().clone())

    def drop_weight_gradients(self, backward: int) -> None:
        """They lie in graphs, and no other backward's are behind them."""

    def _check_main_grads(self) -> None:
        if self._runner.wgrads.main_grad_places() != self._main_grads:
            raise _C.UsageError(
                f"{self._runner.name}: main_grad or overwrite_main_grad of a weight is another "
                "than when it was captured; fill main_grad in place, or make the callables "
                "afterwards"
            )


def _find_addresses(parameters: Sequence[torch.Tensor]) -> list[Any]:
    """A graph has taken them for constants: the dtype of each, and where its values are."""
    return [(each.dtype, *map(torch.Tensor.data_ptr, _plain_tensors(each))) for each in parameters]


def _plain_tensors(parameter: torch.Tensor) -> list[torch.Tensor]:
    """Those with memory: codes and scales of a weight that is stored so, which has none itself."""
    if not isinstance(parameter, QuantizedTensor):
        return [parameter]
    return list_tensors(parameter._storage)


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
