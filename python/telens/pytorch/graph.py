"""``make_graphed_callables``: CUDA graphs on a GPU; on a CPU what they promise their callers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from telens import _C
from telens._names import refusal
from telens.common.field_types import is_integer
from telens.common.recipe import Recipe
from telens.pytorch.cuda_graphs import CudaGraphs
from telens.pytorch.graph_capture import capture_all, check_can_be_captured
from telens.pytorch.graph_hooks import Given, make_capture_hooks
from telens.pytorch.graph_options import (
    check_modules,
    check_reuse,
    check_wgrads_in_order,
    flags_by_module,
    kwargs_for,
    samples_of,
    without_former_names,
)
from telens.pytorch.graph_order import callables_by_order, schedule_by_order
from telens.pytorch.graph_pending import make_pending_wgrads
from telens.pytorch.graph_runner import CallOptions, Runner
from telens.pytorch.graph_warm_up import warm_up
from telens.pytorch.graph_wgrads import WeightGradients

__all__ = ["make_graphed_callables"]


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
    _order: Sequence[float] | None = None,
    _num_layers_per_chunk: Sequence[int] | None = None,
    pool: Any = None,
    retain_graph_in_backward: bool = False,
    _reuse_graph_input_output_buffers: bool = False,
    clone_param_grads_on_return: bool = True,
    pre_warmup_hook: Callable[[], None] | None = None,
    post_warmup_hook: Callable[[], None] | None = None,
    capture_time_hooks: Sequence[Given | None] | None = None,
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

    What is returned has two methods more: ``backward_dw()``, which makes the weights' gradients
    that the callable's backward left (``delay_wgrad_compute``), once behind each backward and
    before the next call; and ``reset()``, which lets graphs and buffers go: a module then runs as
    before, a function of an ``_order`` no more. A call may name a ``cuda_graph_stream``, on which
    its graphs are replayed, and a ``cuda_graph_event``, recorded in the graph, for which the
    caller's stream waits in place of the replay's end. Both are without effect on a CPU.

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
        number of forwards and backwards before the capture: 0 or more, on a GPU 1 or more. They
        leave random states, amax histories and scales as they were; ``pre_warmup_hook`` and
        ``post_warmup_hook`` are called around them
    allow_unused_input
        inputs, and parameters too, may have no gradient
    enabled, calibrating, recipe, amax_reduction_group
        of the autocast that each call runs in; ``enabled`` may be a tuple, one a module
    cache_quantized_params
        calls must say ``is_first_microbatch``, and modules of this package keep their quantized
        weights by it: a callable then has two pairs of graphs, and True must come first
    _order, _num_layers_per_chunk
        of a pipeline: chunks of layers from 1 on, in the order of their forwards (positive) and
        backwards (negative), and -k - 0.5 for the ``backward_dw`` behind a backward of chunk k.
        Returns one callable for each forward of each layer
    retain_graph_in_backward
        backwards may run twice
    _reuse_graph_input_output_buffers
        without effect: each callable has buffers of its own. Needs an ``_order``
    clone_param_grads_on_return
        False: gradients of parameters are buffers too, which the next backward overwrites
    capture_time_hooks
        for each module None or ``{name: {key: hook(module)}}``, the name one of
        ``forward_pre_hooks``, ``forward_hooks``, ``backward_pre_hooks`` and ``backward_hooks``:
        called around warm-ups and captures, in no graph; they return None
    pool
        of ``torch.cuda.graph_pool_handle()``: memory to share; without effect on a CPU

    ``fp8_enabled`` and its like are former names of ``enabled`` and its like.

    Returns
    -------
    what was given, with other forwards; with ``_order`` a tuple of functions
    """
    given = dict(locals())
    options = without_former_names(given)
    single = not isinstance(modules, tuple)
    all_modules = (modules,) if single else modules
    check_modules(all_modules)
    check_reuse(_reuse_graph_input_output_buffers, _order is not None, all_modules)
    if not is_integer(num_warmup_iters) or num_warmup_iters < 0:
        expected = "a number of iterations, 0 or more"
        raise refusal("make_graphed_callables", "num_warmup_iters", expected, num_warmup_iters)
    args = samples_of(sample_args, single, _order is not None)
    kwargs = kwargs_for(sample_kwargs, len(args))
    owners = callables_by_order(all_modules, len(args), _order, _num_layers_per_chunk)
    flags = flags_by_module(options.pop("enabled"), len(all_modules))
    hooks = make_capture_hooks(all_modules, capture_time_hooks)
    call = CallOptions(
        allow_unused=allow_unused_input,
        retain_graph=retain_graph_in_backward,
        needs_flag=options.pop("cache_quantized_params"),
        clones_gradients=clone_param_grads_on_return,
        autocast=options,
    )
    schedule = schedule_by_order(len(all_modules), _order, _num_layers_per_chunk)
    pending = make_pending_wgrads(schedule, len(owners))
    runners = [
        Runner(
            all_modules[owner], (args[i], kwargs[i]), flags[owner], hooks[owner], call, pending[i]
        )
        for i, owner in enumerate(owners)
    ]
    check_wgrads_in_order(schedule, [(each.module, bool(each.wgrads)) for each in runners])
    graphs = _graphs_for(runners)
    if graphs is not None:
        check_can_be_captured(runners, num_warmup_iters)
    with _untouched_wgrads(runners):
        with _untouched_main_grads(runners):
            around = (pre_warmup_hook, post_warmup_hook)
            warm_up(runners, num_warmup_iters, around, graphs is not None)
        if graphs is not None:
            capture_all(runners, schedule, graphs, pool)
    if _order is not None:
        functions = tuple(runner.as_function() for runner in runners)
        return functions[0] if single and args[0] is sample_args else functions
    for runner in runners:
        runner.take_over()
    return modules


def _wgrads_by_module(runners: Sequence[Runner]) -> dict[int, tuple[str, WeightGradients]]:
    return {id(each.module): (type(each.module).__name__, each.wgrads) for each in runners}


@contextlib.contextmanager
def _untouched_main_grads(runners: Sequence[Runner]) -> Iterator[None]:
    """A warm-up changes no ``main_grad``; a capture computes nothing and needs no copy of it."""
    with contextlib.ExitStack() as stack:
        for _, wgrads in _wgrads_by_module(runners).values():
            stack.enter_context(wgrads.untouched_main_grads())
        yield


@contextlib.contextmanager
def _untouched_wgrads(runners: Sequence[Runner]) -> Iterator[None]:
    """Warm-ups and captures leave no mark at ``main_grad``, and no later ``backward_dw`` anything,
    also where one raises."""
    by_module = _wgrads_by_module(runners)
    with contextlib.ExitStack() as stack:
        for name, wgrads in by_module.values():
            wgrads.check_none_waits(name)
        for _, wgrads in by_module.values():
            stack.callback(wgrads.drop)
            stack.enter_context(wgrads.untouched_marks())
        yield


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
