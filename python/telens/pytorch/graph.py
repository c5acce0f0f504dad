"""``make_graphed_callables``: CUDA graphs on a GPU; on a CPU what they promise their callers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from telens import _C
from telens._names import refusal
from telens.common.recipe import Recipe
from telens.pytorch.cuda_graphs import CudaGraphs
from telens.pytorch.graph_capture import capture_all, check_can_be_captured
from telens.pytorch.graph_order import callables_by_order, schedule_by_order
from telens.pytorch.graph_runner import CallOptions, Runner
from telens.pytorch.graph_warm_up import warm_up

__all__ = ["make_graphed_callables"]

# Former name -> name, with the default.
_FORMER = {
    "fp8_enabled": ("enabled", False),
    "fp8_calibrating": ("calibrating", False),
    "fp8_recipe": ("recipe", None),
    "fp8_group": ("amax_reduction_group", None),
    "fp8_weight_caching": ("cache_quantized_params", False),
}


def make_graphed_callables(
    modules: torch.nn.Module | tuple[torch.nn.Module, ...],
    sample_args: tuple[Any, ...],
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    sample_kwargs: dict[str, Any] | tuple[dict[str, Any], ...] | None = None,
    fp8_enabled: bool | tuple[bool, ...] | None = None,
    fp8_calibrating: bool | None = None,
    fp8_recipe: Recipe | None = None,
    fp8_group: torch.distributed.ProcessGroup | None = None,
    fp8_weight_caching: bool | None = None,
    enabled: bool | tuple[bool, ...] | None = None,
    calibrating: bool | None = None,
    recipe: Recipe | None = None,
    amax_reduction_group: torch.distributed.ProcessGroup | None = None,
    cache_quantized_params: bool | None = None,
    _order: Sequence[int] | None = None,
    _num_layers_per_chunk: Sequence[int] | None = None,
    pool: Any = None,
    retain_graph_in_backward: bool = False,
    pre_warmup_hook: Callable[[], None] | None = None,
    post_warmup_hook: Callable[[], None] | None = None,
) -> Any:
    """Modules whose calls replay CUDA graphs, as Transformer Engine's graphed ones do.

    Each call copies its inputs into fixed buffers, replays the forward's graph, and returns fixed
    buffers, which the next call overwrites; its backward does the same, so that gradients of inputs
    are such buffers too. On a CPU nothing is captured: a call runs the module as it is on the same
    buffers, so that programs, their order of calls and their results can be tested without a GPU.

    Amaxes are reduced and scales updated outside of the graphs, where the autocast ends that a call
    is in. Parameters must stay where they are, and so must the codes and scales of stored weights,
    which ``quantize_`` and ``copy_`` change in place. A debug session reads what the warm-up runs,
    and wants a step with ``debug.step()`` before it (docs/configuration.md).

    Parameters
    ----------
    modules
        one module or a tuple, all in training or all in evaluation mode; outside of that mode they
        run as they did before
    sample_args, sample_kwargs
        for each module (with ``_order``, for each forward of each layer): inputs of the shapes that
        it will be called with, all on the device of the modules; values that are no tensors stay as
        they are here, and are compared with each call's by ``==``
    num_warmup_iters
        forwards and backwards before, on a GPU at least one, which leave random states, amax
        histories and scales as they were; ``pre_warmup_hook`` and ``post_warmup_hook`` are called
        around them
    allow_unused_input
        inputs, and parameters too, may have no gradient
    enabled, calibrating, recipe, amax_reduction_group
        of the autocast that each call runs in; ``enabled`` may be a tuple, one a module
    cache_quantized_params
        calls must say ``is_first_microbatch``, and modules of this package keep their quantized
        weights by it: a callable then has two pairs of graphs, and True must come first
    _order, _num_layers_per_chunk
        of a pipeline: chunks of layers from 1 on, in the order of their forwards (positive) and
        backwards (negative). Returns one callable for each forward of each layer
    retain_graph_in_backward
        backwards may run twice
    pool
        of ``torch.cuda.graph_pool_handle()``: memory to share; without effect on a CPU

    ``fp8_enabled`` and its like are former names of ``enabled`` and its like.

    Returns
    -------
    what was given, with other forwards; with ``_order`` a tuple of functions
    """
    former = {
        "fp8_enabled": fp8_enabled,
        "fp8_calibrating": fp8_calibrating,
        "fp8_recipe": fp8_recipe,
        "fp8_group": fp8_group,
        "fp8_weight_caching": fp8_weight_caching,
    }
    given = {
        "enabled": enabled,
        "calibrating": calibrating,
        "recipe": recipe,
        "amax_reduction_group": amax_reduction_group,
        "cache_quantized_params": cache_quantized_params,
    }
    options = _without_former_names(former, given)
    single = not isinstance(modules, tuple)
    all_modules = (modules,) if single else modules
    args = (sample_args,) if single and _order is None else tuple(sample_args)
    kwargs = _kwargs_for(sample_kwargs, len(args))
    _check_modules(all_modules)
    owners = callables_by_order(all_modules, len(args), _order, _num_layers_per_chunk)
    flags = options.pop("enabled")
    enabled_by_module = flags if isinstance(flags, tuple) else (flags,) * len(all_modules)
    if len(enabled_by_module) != len(all_modules):
        raise _C.UsageError(
            f"make_graphed_callables: enabled has {len(enabled_by_module)} values for "
            f"{len(all_modules)} modules; give one value, or one for each"
        )
    call = CallOptions(
        allow_unused_input, retain_graph_in_backward, options.pop("cache_quantized_params"), options
    )
    runners = [
        Runner(all_modules[owner], args[i], kwargs[i], enabled_by_module[owner], call)
        for i, owner in enumerate(owners)
    ]
    graphs = _graphs_for(runners)
    if graphs is not None:
        check_can_be_captured(runners, num_warmup_iters)
    warm_up(runners, num_warmup_iters, (pre_warmup_hook, post_warmup_hook), graphs is not None)
    if graphs is not None:
        schedule = schedule_by_order(len(all_modules), _order, _num_layers_per_chunk)
        capture_all(runners, schedule, graphs, pool)
    if _order is not None:
        return tuple(runner.call for runner in runners)
    for runner in runners:
        runner.take_over()
    return modules


def _graphs_for(runners: Sequence[Runner]) -> CudaGraphs | None:
    """What captures on the runners' device; None on the CPU, where the modules are called."""
    devices = {runner.device for runner in runners}
    if len(devices) > 1:
        names = " and ".join(sorted(map(str, devices)))
        raise _C.UsageError(
            f"make_graphed_callables: modules are on {names}; expected one device: make callables "
            "for each device apart"
        )
    device = devices.pop()
    return CudaGraphs(device) if device.type == "cuda" else None


def _without_former_names(former: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The values by their present names, with defaults."""
    options = {}
    for old, (new, default) in _FORMER.items():
        if former[old] is not None and given[new] is not None:
            raise _C.UsageError(
                f"make_graphed_callables: {old} is the former name of {new}, and both are given; "
                f"give {new} alone"
            )
        if former[old] is not None:
            warnings.warn(
                f"make_graphed_callables: {old} is now {new}", DeprecationWarning, stacklevel=3
            )
        value = given[new] if former[old] is None else former[old]
        options[new] = default if value is None else value
    return options


def _kwargs_for(
    sample_kwargs: dict[str, Any] | tuple[dict[str, Any], ...] | None, count: int
) -> tuple[dict[str, Any], ...]:
    if sample_kwargs is None:
        return ({},) * count
    kwargs = (sample_kwargs,) if isinstance(sample_kwargs, dict) else tuple(sample_kwargs)
    if len(kwargs) != count:
        raise _C.UsageError(
            f"make_graphed_callables: there are {len(kwargs)} sample_kwargs for {count} "
            "sample_args; give as many"
        )
    return kwargs


def _check_modules(modules: tuple[torch.nn.Module, ...]) -> None:
    for module in modules:
        if not isinstance(module, torch.nn.Module):
            raise refusal("make_graphed_callables", "modules", "torch.nn.Modules", module)
        hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
        if any(hooks):
            raise _C.UsageError(
                f"make_graphed_callables: {type(module).__name__} has hooks, which a graph would "
                "not call; register them afterwards"
            )
    if len({module.training for module in modules}) > 1:
        raise _C.UsageError(
            "make_graphed_callables: modules must be all in training or all in evaluation mode; "
            "call train() or eval() on all of them"
        )
    if torch.is_autocast_enabled() and torch.is_autocast_cache_enabled():
        raise _C.UsageError(
            "make_graphed_callables: torch.autocast must run with cache_enabled=False: a graph "
            "cannot use casts that another one has kept"
        )
