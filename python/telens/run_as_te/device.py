"""Runs a script that is written for a GPU on the CPU: "cuda" means the CPU in all that it calls."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

from telens.pytorch.module import Module
from telens.run_as_te.cuda_functions import Replacement, cuda_replacements
from telens.run_as_te.distributed_functions import (
    FSDP,
    distributed_replacements,
    place_shards,
)
from telens.run_as_te.names import after_import

__all__ = ["cuda_is_cpu"]

_CPU = torch.device("cpu")
_TYPE = "torch.cuda."  # how names of tensor classes begin, for example torch.cuda.FloatTensor


@contextlib.contextmanager
def cuda_is_cpu() -> Iterator[None]:
    """Runs the block with every CUDA device replaced by the CPU.

    It covers ``.cuda()`` and ``.to("cuda")`` of tensors and modules, ``device=`` of functions that
    create tensors, ``torch.device`` objects, ``torch.Generator``, ``torch.autocast``, gradient
    scalers, ``torch.load``, streams, events, memory and random states of ``torch.cuda``, device
    meshes, ``DistributedDataParallel``, FSDP, and the backend ``nccl``, which becomes ``gloo``.
    ``torch.cuda.is_available()`` stays False, and ``device_count()`` is 1. It covers the calling
    thread.
    """
    with contextlib.ExitStack() as stack:
        for owner, name, replacement in _replacements():
            stack.enter_context(mock.patch.object(owner, name, replacement))
        stack.enter_context(after_import(FSDP, place_shards))
        stack.enter_context(_OnTheCpu())
        yield


def _is_cuda(value: Any) -> bool:
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, str) and (value.partition(":")[0] == "cuda" or value.startswith(_TYPE))


def _mapped(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(_TYPE):
        return f"torch.{value.removeprefix(_TYPE)}"
    if not _is_cuda(value):
        return value
    return "cpu" if isinstance(value, str) else _CPU


def _mapped_call(args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    if any(_is_cuda(each) for each in args):
        args = tuple(map(_mapped, args))
    if any(_is_cuda(each) or name == "device" for name, each in kwargs.items()):
        kwargs = {name: _mapped_keyword(name, each) for name, each in kwargs.items()}
    return args, kwargs


def _mapped_keyword(name: str, value: Any) -> Any:
    # The number of a GPU is a device, too.
    if name == "device" and isinstance(value, int) and not isinstance(value, bool):
        return _CPU
    return _mapped(value)


class _OnTheCpu(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.device:
            first = next(iter([*args, *kwargs.values()]), "cpu")
            return _CPU if _is_cuda(first) or type(first) is int else func(*args, **kwargs)
        if func is torch.Tensor.cuda:
            # Copies nothing, as for a tensor that is on its GPU.
            memory_format = kwargs.get("memory_format", torch.preserve_format)
            return args[0].to(memory_format=memory_format)
        if func is torch.Tensor.pin_memory:
            return args[0]
        args, kwargs = _mapped_call(args, kwargs)
        if func is torch.Tensor.to and len(args) > 1 and type(args[1]) is int:
            args = (args[0], _CPU, *args[2:])
        return func(*args, **kwargs)


def _mapping(function: Callable) -> Callable:
    """The function with CUDA devices among its arguments replaced."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = _mapped_call(args, kwargs)
        return function(*args, **kwargs)

    return call


class _CpuGenerator(torch.Generator):
    def __new__(cls, device: Any = None) -> torch.Generator:
        return super().__new__(cls, device=_mapped_keyword("device", device))


def _load(load: Callable) -> Callable:
    @functools.wraps(load)
    def call(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        # Tensors that were saved on a GPU must be loaded to another device.
        location = _CPU if map_location is None or _is_cuda(map_location) else map_location
        return load(f, location, *args, **kwargs)

    return call


def _autocast(init: Callable) -> Callable:
    """``torch.autocast.__init__`` that gives the CPU a GPU's default dtype: FP16, not BF16."""

    @functools.wraps(init)
    def call(
        self: torch.amp.autocast,
        device_type: str,
        dtype: torch.dtype | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if _is_cuda(device_type):
            device_type = "cpu"
            dtype = dtype or torch.get_autocast_dtype("cuda")
        init(self, device_type, dtype, *args, **kwargs)

    return call


class _CudaAutocast(torch.amp.autocast):
    """``torch.cuda.amp.autocast``, whose first positional argument is ``enabled``."""

    def __init__(
        self,
        enabled: bool = True,
        dtype: torch.dtype = torch.float16,
        cache_enabled: bool = True,
    ) -> None:
        super().__init__("cpu", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


def _scaler(init: Callable) -> Callable:
    @functools.wraps(init)
    def call(self: torch.amp.GradScaler, device: str = "cuda", *args: Any, **kwargs: Any) -> None:
        init(self, _mapped(device), *args, **kwargs)

    return call


def _replacements() -> Iterator[Replacement]:
    """Returns (owner, name, replacement) for functions that do not pass through a
    TorchFunctionMode."""
    yield torch, "Generator", _CpuGenerator
    yield torch, "load", _load(torch.load)
    for name in ("set_default_device", "set_default_tensor_type"):
        yield torch, name, _mapping(getattr(torch, name))
    yield torch.amp.autocast, "__init__", _autocast(torch.amp.autocast.__init__)
    yield torch.amp.GradScaler, "__init__", _scaler(torch.amp.GradScaler.__init__)
    yield torch.cuda.amp, "autocast", _CudaAutocast
    yield torch.cuda.amp, "GradScaler", functools.partial(torch.amp.GradScaler, "cpu")
    yield Module, "__init__", _mapping(Module.__init__)
    yield from cuda_replacements()
    yield from distributed_replacements()
