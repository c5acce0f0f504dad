"""Which layer each graphed callable of a pipeline runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from telens import _C

__all__ = ["Schedule", "callables_by_order", "schedule_by_order"]


def callables_by_order(
    layers: Sequence[Any],
    samples: int,
    order: Sequence[int] | None,
    layers_per_chunk: Sequence[int] | None,
) -> list[int]:
    """The index of the layer that each sample is for.

    Without an order there is one sample a layer. With one, chunk after chunk, micro-batch after
    micro-batch, layer after layer. Raises UsageError for an order that no pipeline has.
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
    """In which order callables run."""

    events: tuple[tuple[int, bool], ...]  # (callable, True for its forward)
    microbatches: tuple[int, ...]  # by callable

    def by_microbatch(self) -> list[list[int]]:
        """The callables of each micro-batch, in the order of their forwards."""
        forwards: dict[int, list[int]] = {}
        for index, is_forward in self.events:
            if is_forward:
                forwards.setdefault(self.microbatches[index], []).append(index)
        return list(forwards.values())


def schedule_by_order(
    layers: int, order: Sequence[int] | None, layers_per_chunk: Sequence[int] | None
) -> Schedule:
    """Of the callables that ``callables_by_order`` tells the layers of, which has checked all."""
    if order is None:
        forwards = tuple((index, True) for index in range(layers))
        backwards = tuple((index, False) for index in reversed(range(layers)))
        return Schedule(forwards + backwards, (0,) * layers)
    chunks, microbatches = _check_order(order)
    sizes = _layers_of_chunks(layers, chunks, layers_per_chunk)
    firsts = [microbatches * sum(sizes[:chunk]) for chunk in range(chunks)]
    done: Counter[int] = Counter()  # by entry of the order
    events: list[tuple[int, bool]] = []
    for each in order:
        size, first = sizes[abs(each) - 1], firsts[abs(each) - 1]
        places = list(range(first + done[each] * size, first + (done[each] + 1) * size))
        if each < 0:
            places.reverse()
        events += [(place, each > 0) for place in places]
        done[each] += 1
    microbatch = [m for size in sizes for m in range(microbatches) for _ in range(size)]
    return Schedule(tuple(events), tuple(microbatch))


def _check_order(order: Sequence[int]) -> tuple[int, int]:
    """(chunks, micro-batches): as many forwards as backwards of each chunk, none too early."""
    if not order or any(type(each) is not int or each == 0 for each in order):
        raise _error(
            "_order must be a list of chunks, k for a forward and -k for a backward; backwards of "
            "weights apart (fractions) are not there yet"
        )
    chunks = max(order)
    counts = Counter(order)
    microbatches = counts[1]
    for chunk in range(1, chunks + 1):
        if counts[chunk] != microbatches or counts[-chunk] != microbatches:
            raise _error(
                f"_order has {counts[chunk]} forwards and {counts[-chunk]} backwards of chunk "
                f"{chunk}; expected {microbatches} of each, as of chunk 1"
            )
    if -min(order) > chunks:
        raise _error(f"_order has a backward of chunk {-min(order)}, which has no forward")
    running: Counter[int] = Counter()
    for place, each in enumerate(order):
        running[abs(each)] += 1 if each > 0 else -1
        if running[abs(each)] < 0:
            raise _error(f"_order[{place}] is a backward of chunk {-each} before its forward")
    return chunks, microbatches


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
    if len(layers_per_chunk) != chunks or sum(layers_per_chunk) != layers:
        raise _error(
            f"_num_layers_per_chunk is {list(layers_per_chunk)}; expected {chunks} numbers whose "
            f"sum is {layers}"
        )
    return list(layers_per_chunk)


def _error(message: str) -> _C.UsageError:
    return _C.UsageError(f"make_graphed_callables: {message}")
