"""The layer that each graphed callable of a pipeline runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from telens import _C
from telens._names import refusal

__all__ = ["Pass", "Schedule", "callables_by_order", "schedule_by_order"]


class Pass(Enum):
    """What a callable does at one place of an order."""

    forward = "forward"
    backward = "backward"
    weight_gradients = "backward_dw"


def callables_by_order(
    layers: Sequence[Any],
    samples: int,
    order: Sequence[float] | None,
    layers_per_chunk: Sequence[int] | None,
) -> list[int]:
    """Returns the index of the layer for each sample.

    Without an order there is one sample per layer. With an order, samples are sorted by chunk,
    micro-batch and layer. Raises UsageError for an order that no pipeline can run.
    """
    if order is None:
        if samples != len(layers):
            raise _error(f"there are {samples} sample_args for {len(layers)} modules; give as many")
        return list(range(len(layers)))
    chunks, microbatches = _check_order(order)
    sizes = _layers_of_chunks(len(layers), chunks, layers_per_chunk)
    owners, first = [], 0
    for size in sizes:
        for _ in range(microbatches):
            owners += range(first, first + size)
        first += size
    if samples != len(owners):
        raise _error(
            f"there are {samples} sample_args; expected {len(owners)}: {len(layers)} layers times "
            f"{microbatches} micro-batches"
        )
    return owners


@dataclass(frozen=True)
class Schedule:
    """The order in which callables run."""

    events: tuple[tuple[int, Pass], ...]  # (callable, pass)
    microbatches: tuple[int, ...]  # by callable

    def by_microbatch(self) -> list[list[int]]:
        """Returns the callables per micro-batch, in the order of their forwards."""
        forwards: dict[int, list[int]] = {}
        for index, what in self.events:
            if what is Pass.forward:
                forwards.setdefault(self.microbatches[index], []).append(index)
        return list(forwards.values())


def schedule_by_order(
    layers: int, order: Sequence[float] | None, layers_per_chunk: Sequence[int] | None
) -> Schedule:
    """Returns the schedule of the callables; ``callables_by_order`` has returned ``layers`` and
    checked all."""
    if order is None:
        forwards = tuple((index, Pass.forward) for index in range(layers))
        backwards = tuple((index, Pass.backward) for index in reversed(range(layers)))
        return Schedule(forwards + backwards, (0,) * layers)
    chunks, microbatches = _check_order(order)
    sizes = _layers_of_chunks(layers, chunks, layers_per_chunk)
    firsts = [microbatches * sum(sizes[:chunk]) for chunk in range(chunks)]
    done: Counter[float] = Counter()  # entry of the order -> count
    events: list[tuple[int, Pass]] = []
    for each in order:
        chunk, what = _read_entry(each)
        size, first = sizes[chunk - 1], firsts[chunk - 1]
        places = list(range(first + done[each] * size, first + (done[each] + 1) * size))
        if what is not Pass.forward:
            places.reverse()
        events += [(place, what) for place in places]
        done[each] += 1
    microbatch = [m for size in sizes for m in range(microbatches) for _ in range(size)]
    return Schedule(tuple(events), tuple(microbatch))


def _read_entry(entry: float) -> tuple[int, Pass]:
    """Returns (chunk, pass): k is a forward of chunk k, -k a backward, -k - 0.5 its weight
    gradients."""
    chunk = abs(math.ceil(entry))
    if entry > 0:
        return chunk, Pass.forward
    return chunk, Pass.backward if entry == -chunk else Pass.weight_gradients


def _check_entries(order: Sequence[float]) -> None:
    def is_entry(each: Any) -> bool:
        is_whole = type(each) is int and each != 0
        return is_whole or (type(each) is float and each <= -1.5 and each % 1 == 0.5)

    if not order or not all(map(is_entry, order)) or max(order) < 1:
        raise _error(
            "_order must be a list of chunks, k for a forward, -k for a backward and -k - 0.5 "
            "for the backward_dw after it"
        )


def _check_order(order: Sequence[float]) -> tuple[int, int]:
    """Returns (chunks, micro-batches). Checks that each chunk has equally many forwards and
    backwards, none too early."""
    _check_entries(order)
    chunks = int(max(order))
    counts = Counter(order)
    microbatches = counts[1]
    for chunk in range(1, chunks + 1):
        if counts[chunk] != microbatches or counts[-chunk] != microbatches:
            raise _error(
                f"_order has {counts[chunk]} forwards and {counts[-chunk]} backwards of chunk "
                f"{chunk}; expected {microbatches} and {microbatches}, as for chunk 1"
            )
        if counts[-chunk - 0.5] not in (0, microbatches):
            raise _error(
                f"_order has {counts[-chunk - 0.5]} backward_dw ({-chunk - 0.5}) of chunk "
                f"{chunk}; expected {microbatches}, one after each of its backwards, or none"
            )
    last = max(_read_entry(each)[0] for each in order)
    if last > chunks:
        raise _error(f"_order has a backward of chunk {last}, which does not have a forward")
    _check_places(order)
    return chunks, microbatches


def _check_places(order: Sequence[float]) -> None:
    """Raises UsageError for a pass before the one that it needs."""
    needs = {Pass.backward: Pass.forward, Pass.weight_gradients: Pass.backward}
    done: Counter[tuple[int, Pass]] = Counter()
    for place, each in enumerate(order):
        chunk, what = _read_entry(each)
        done[chunk, what] += 1
        if what in needs and done[chunk, what] > done[chunk, needs[what]]:
            raise _error(
                f"_order[{place}] is a {what.value} of chunk {chunk} before its {needs[what].value}"
            )


def _layers_of_chunks(
    layers: int, chunks: int, layers_per_chunk: Sequence[int] | None
) -> list[int]:
    if layers_per_chunk is None:
        if layers % chunks != 0:
            raise _error(
                f"{layers} modules are not a multiple of {chunks} chunks; give "
                "_num_layers_per_chunk"
            )
        return [layers // chunks] * chunks
    if isinstance(layers_per_chunk, int) or not all(type(n) is int for n in layers_per_chunk):
        raise refusal(
            "make_graphed_callables",
            "_num_layers_per_chunk",
            "a list of whole numbers, one a chunk",
            layers_per_chunk,
        )
    if len(layers_per_chunk) != chunks or sum(layers_per_chunk) != layers:
        raise _error(
            f"_num_layers_per_chunk is {list(layers_per_chunk)}; expected {chunks} numbers whose "
            f"sum is {layers}"
        )
    return list(layers_per_chunk)


def _error(message: str) -> _C.UsageError:
    return _C.UsageError(f"make_graphed_callables: {message}")
