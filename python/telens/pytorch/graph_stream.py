"""The stream that a call of a graphed callable asks for: ``cuda_graph_stream``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["ReplayStream"]


@dataclass(frozen=True)
class ReplayStream:
    """Where the graphs of one call are replayed, and what the caller's stream waits for."""

    stream: Any = None  # None: the caller's
    event: Any = None  # recorded in the graph; None: the end of the replay

    @staticmethod
    def take(kwargs: dict[str, Any]) -> ReplayStream:
        """Takes the two out of a call's keywords."""
        return ReplayStream(
            kwargs.pop("cuda_graph_stream", None), kwargs.pop("cuda_graph_event", None)
        )

    def without_event(self) -> ReplayStream:
        """For a graph that does not record the event."""
        return ReplayStream(self.stream)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Work that is launched inside runs there, behind what the caller's stream has so far."""
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
