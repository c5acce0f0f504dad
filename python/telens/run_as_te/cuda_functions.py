"""Replacements for parts of ``torch.cuda`` while "cuda" means the CPU (device.py)."""

from __future__ import annotations

import functools
import os
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.cuda.profiler

__all__ = ["Replacement", "cuda_replacements", "returning"]

# (owner, name, replacement)
Replacement = tuple[Any, str, Any]

# Blackwell, which supports all recipes: all of them also run on the CPU.
_CAPABILITY = (10, 0)


class _CpuEvent:
    """Replaces ``torch.cuda.Event``. Records the time; all work is complete at once."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._seconds = 0.0

    def record(self, stream: Any = None) -> None:
        self._seconds = time.perf_counter()

    def elapsed_time(self, end_event: _CpuEvent) -> float:
        """Returns the milliseconds from this event to ``end_event``."""
        return 1000 * (end_event._seconds - self._seconds)

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def wait(self, stream: Any = None) -> None:
        pass


class _CpuStream:
    """Replaces ``torch.cuda.Stream``; also the context ``torch.cuda.stream(...)``."""

    cuda_stream = 0  # the default stream's handle
    priority = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> _CpuStream:
        return self

    def __exit__(self, *exception: Any) -> None:
        pass

    def record_event(self, event: _CpuEvent | None = None) -> _CpuEvent:
        event = event or _CpuEvent()
        event.record()
        return event

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def wait_stream(self, stream: Any) -> None:
        pass


class _CpuRuntime:
    """Replaces ``torch.cuda.cudart()``. Functions such as cudaProfilerStart do nothing."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        return returning(int)


def returning(make: Callable[[], Any]) -> Callable:
    """Returns a function that accepts any arguments and returns ``make()``.

    Each call returns a new function, because torch.compile distinguishes functions by identity.
    """
    return lambda *args, **kwargs: make()


def _memory() -> tuple[int, int]:
    """Returns (free, total) memory of the machine in bytes."""
    page = os.sysconf("SC_PAGE_SIZE")
    return page * os.sysconf("SC_AVPHYS_PAGES"), page * os.sysconf("SC_PHYS_PAGES")


def _properties() -> types.SimpleNamespace:
    """Returns the attributes of ``torch.cuda.get_device_properties()``."""
    return types.SimpleNamespace(
        name="cpu",
        major=_CAPABILITY[0],
        minor=_CAPABILITY[1],
        total_memory=_memory()[1],
        multi_processor_count=os.cpu_count() or 1,
        warp_size=32,
        is_integrated=True,
        is_multi_gpu_board=False,
    )


def _set_rng_state(new_state: torch.Tensor, device: Any = None) -> None:
    torch.set_rng_state(new_state)


def _set_rng_state_all(new_states: Any) -> None:
    for state in new_states:
        torch.set_rng_state(state)


def _fork_of_cpu(fork_rng: Callable) -> Callable:
    """Wraps ``torch.random.fork_rng``: only the state of the CPU is forked."""

    @functools.wraps(fork_rng)
    def call(devices: Any = None, enabled: bool = True, *args: Any, **kwargs: Any) -> Any:
        return fork_rng((), enabled)

    return call


# Functions that do nothing: the CPU has no queue, and its memory use is not tracked.
_WITHOUT_EFFECT = (
    *("set_device", "synchronize", "init", "empty_cache", "ipc_collect"),
    *("reset_peak_memory_stats", "reset_accumulated_memory_stats", "reset_max_memory_allocated"),
    *("reset_max_memory_cached", "set_per_process_memory_fraction"),
    *("_record_memory_history", "_dump_snapshot"),
)
_RESULTS: dict[str, Callable[[], Any]] = {
    **dict.fromkeys(("memory_allocated", "max_memory_allocated", "current_device"), int),
    **dict.fromkeys(("memory_reserved", "max_memory_reserved"), int),
    **dict.fromkeys(("stream", "current_stream", "default_stream", "device"), _CpuStream),
    "memory_summary": str,
    "device_count": lambda: 1,
    "is_bf16_supported": lambda: True,
    "get_device_capability": lambda: _CAPABILITY,
    "get_device_name": lambda: "cpu",
    "get_device_properties": _properties,
    "mem_get_info": _memory,
    "can_device_access_peer": bool,
    "get_rng_state": torch.get_rng_state,
    "get_rng_state_all": lambda: [torch.get_rng_state()],
    "cudart": _CpuRuntime,
    "initial_seed": torch.initial_seed,
    "is_current_stream_capturing": bool,
}
_TYPES = ("BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")


def cuda_replacements() -> Iterator[Replacement]:
    """Yields (owner, name, replacement) for functions and classes of ``torch.cuda``."""
    functions: dict[str, Callable] = {name: returning(make) for name, make in _RESULTS.items()}
    functions |= {name: returning(lambda: None) for name in _WITHOUT_EFFECT}
    functions |= {"set_rng_state": _set_rng_state, "set_rng_state_all": _set_rng_state_all}
    for owner in (torch.cuda, torch.cuda.memory, torch.cuda.random):
        yield from ((owner, name, made) for name, made in functions.items() if hasattr(owner, name))
    yield torch.random, "fork_rng", _fork_of_cpu(torch.random.fork_rng)
    yield torch.cuda, "Event", _CpuEvent
    yield torch.cuda, "Stream", _CpuStream
    for name in _TYPES:
        yield torch.cuda, f"{name}Tensor", getattr(torch, f"{name}Tensor")
    for name in ("range_push", "range_pop", "mark"):
        yield torch.cuda.nvtx, name, returning(lambda: None)
    for name in ("start", "stop"):
        yield torch.cuda.profiler, name, returning(lambda: None)
