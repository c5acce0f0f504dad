"""Captures into CUDA graphs, and what ends a capture that broke."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch

__all__ = ["CudaGraphs", "Graphs"]


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


# Torch's allocator of pinned memory goes on asking these which streams they capture. So the list
# grows by a small object with each capture that breaks, and nothing leaves it.
_broken: list[torch.cuda.CUDAGraph] = []
