"""``make_graphed_callables``: CUDA graphs on a GPU, and the same rules for callers on a CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from telens import _C
from telens._names import refusal, rejects_bools
from telens.common.field_types import is_integer
from telens.common.recipe import Recipe
from telens.pytorch.checkpoints.extra_state import WithExtraState
from telens.pytorch.graphs.capture import CudaGraphs, capture_all, check_can_be_captured
from telens.pytorch.graphs.options import (
    Given,
    check_modules,
    check_reuse,
    check_wgrads_in_order,
    flags_by_module,
    kwargs_for,
    make_capture_hooks,
    samples_of,
    without_former_names,
)
from telens.pytorch.graphs.order import callables_by_order, schedule_by_order
from telens.pytorch.graphs.runner import CallOptions, Runner
from telens.pytorch.graphs.wgrads import WeightGradients, make_pending_wgrads
from telens.pytorch.module import Module
from telens.pytorch.parallel.rng_tracker import find_trackers

__all__ = ["make_graphed_callables"]


@rejects_bools
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
    """Returns modules whose calls replay CUDA graphs, as in Transformer Engine.

    Each call copies its inputs into fixed buffers, replays the graph of the forward, and returns
    fixed buffers. The next call overwrites them. The backward uses fixed buffers too, so gradients
    of inputs are overwritten as well. On a CPU nothing is captured: a call runs the module on the
    same buffers, so that programs, their order of calls and their results can be tested there.

    Amaxes are reduced and scales updated outside of the graphs, at the end of the call's autocast.
    Parameters must keep their memory, and stored weights their codes and scales; ``quantize_`` and
    ``copy_`` change them in place. A debug session records the warm-up, and requires a call of
    ``debug.step()`` before it (docs/configuration.md).

    Each returned object has two more methods. ``backward_dw()`` computes the weight gradients that
    the backward deferred (``delay_wgrad_compute``); call it once after each backward and before the
    next call. ``reset()`` releases graphs and buffers: a module then runs as before, and a function
    of an ``_order`` cannot be called again. A call accepts ``cuda_graph_stream``, the stream of its
    replays, and ``cuda_graph_event``, an event recorded in the graph that the caller's stream waits
    for instead of the end of the replay. Both have no effect on a CPU.

    Parameters
    ----------
    modules
        one module or a tuple, all in training mode or all in evaluation mode. In the other mode
        they run without graphs
    sample_args, sample_kwargs
        inputs for each module (with ``_order``, for each forward of each layer), with the shapes of
        later calls, on the device of the modules. Values other than tensors are constants: a call
        must pass equal ones (``==``)
    num_warmup_iters
        number of forwards and backwards before the capture: at least 0, on a GPU at least 1. They
        leave random states, amax histories and scales unchanged; ``pre_warmup_hook`` and
        ``post_warmup_hook`` are called before and after them
    allow_unused_input
        True: inputs and parameters may have no gradient
    enabled, calibrating, recipe, amax_reduction_group
        arguments of the autocast of each call; ``enabled`` may be a tuple with one value per module
    cache_quantized_params
        True: calls must pass ``is_first_microbatch``, which decides whether modules of this package
        quantize their weights again. A callable then has two pairs of graphs, and the first call
        must pass True
    _order, _num_layers_per_chunk
        a pipeline schedule: chunks of layers, counted from 1, in the order of their forwards
        (positive) and backwards (negative); -k - 0.5 is the ``backward_dw`` after a backward of
        chunk k. Returns one callable per forward and layer
    retain_graph_in_backward
        True: a backward may run twice
    _reuse_graph_input_output_buffers
        no effect: callables do not share buffers. Requires ``_order``
    clone_param_grads_on_return
        False: gradients of parameters are buffers too, which the next backward overwrites
    capture_time_hooks
        for each module None or ``{name: {key: hook(module)}}`` with the names
        ``forward_pre_hooks``, ``forward_hooks``, ``backward_pre_hooks`` and ``backward_hooks``.
        Hooks are called around warm-ups and captures, outside of graphs, and return None
    pool
        memory to share, from ``torch.cuda.graph_pool_handle()``; no effect on a CPU
    fp8_enabled, fp8_calibrating, fp8_recipe, fp8_group, fp8_weight_caching
        former names of ``enabled``, ``calibrating``, ``recipe``, ``amax_reduction_group`` and
        ``cache_quantized_params``

    Returns
    -------
    ``modules`` with replaced forwards; with ``_order`` a tuple of functions

    Raises UsageError for arguments that cannot be graphed.
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
    """Restores ``main_grad`` after a warm-up. A capture computes nothing and needs no copy."""
    with contextlib.ExitStack() as stack:
        for _, wgrads in _wgrads_by_module(runners).values():
            stack.enter_context(wgrads.untouched_main_grads())
        yield


@contextlib.contextmanager
def _untouched_wgrads(runners: Sequence[Runner]) -> Iterator[None]:
    """Restores the marks at ``main_grad`` after warm-ups and captures, also after an exception, and
    leaves nothing for a later ``backward_dw``."""
    by_module = _wgrads_by_module(runners)
    with contextlib.ExitStack() as stack:
        for name, wgrads in by_module.values():
            wgrads.check_none_waits(name)
        for _, wgrads in by_module.values():
            stack.callback(wgrads.drop)
            stack.enter_context(wgrads.untouched_marks())
        yield


def _graphs_for(runners: Sequence[Runner]) -> CudaGraphs | None:
    """Returns the object that captures on the runners' device; None on the CPU, where modules are
    called."""
    devices = {runner.device for runner in runners}
    if len(devices) > 1:
        names = " and ".join(sorted(map(str, devices)))
        raise _C.UsageError(
            f"make_graphed_callables: modules are on {names}; expected one device: make callables "
            "for each device apart"
        )
    device = devices.pop()
    return CudaGraphs(device) if device.type == "cuda" else None


Window = tuple[torch.Tensor, torch.Tensor]


def warm_up(
    runners: Sequence[Runner],
    iterations: int,
    hooks: tuple[Callable[[], None] | None, ...],
    captures: bool,
) -> None:
    """Runs each module forward and backward, and restores random states and FP8 states.

    captures: if graphs are captured afterwards, histories and scales keep their memory, and so do
    weights that are kept for later micro-batches.
    """
    before, after = hooks
    devices = {runner.device for runner in runners if runner.device.type == "cuda"}
    with _untouched_state(runners, captures, devices), _side_stream(devices):
        if before is not None:
            before()
        for _ in range(iterations):
            for runner in runners:
                for flag in runner.flags if captures else (None,):
                    _run_once(runner, flag)
        if after is not None:
            after()


def _run_once(runner: Runner, flag: bool | None) -> None:
    with (
        runner.hooks.around("forward"),
        torch.set_grad_enabled(runner.module.training),
        runner.region(),
    ):
        made = runner.run(flag)
    if not runner.module.training:
        return
    with runner.hooks.around("backward"):
        runner.gradients(made, [torch.zeros_like(each) for each in made])
    if runner.wgrads:
        runner.wgrads.make_apart()


@contextlib.contextmanager
def _side_stream(devices: set[torch.device]) -> Iterator[None]:
    """Runs the block on side streams, so that libraries allocate no memory for the caller's."""
    with contextlib.ExitStack() as stack:
        for device in devices:
            stack.enter_context(torch.cuda.stream(torch.cuda.Stream(device)))
        _wait_for(devices)
        try:
            yield
        except BaseException:
            # States are restored next, and kernels may still write to them. The original error
            # is more useful than an error of this wait.
            with contextlib.suppress(RuntimeError):
                _wait_for(devices)
            raise
    _wait_for(devices)


def _wait_for(devices: set[torch.device]) -> None:
    for device in devices:
        torch.cuda.synchronize(device)


@contextlib.contextmanager
def _untouched_state(
    runners: Sequence[Runner], captures: bool, devices: set[torch.device]
) -> Iterator[None]:
    """Restores random states of CPU and GPUs, amax histories and scales."""
    modules = {id(each): each for runner in runners for each in runner.module.modules()}.values()
    ours = [each for each in modules if isinstance(each, Module)]
    layers = [each._telens_adapter for each in ours if isinstance(each, WithExtraState)]
    put_back = _windows_kept(layers) if captures else _states_kept(layers)
    trackers = [each for runner in runners for each in find_trackers(runner.module)]
    named = [(tracker, tracker.get_states()) for tracker in trackers]
    random = torch.get_rng_state()
    random_of_devices = [(torch.cuda.get_rng_state(each), each) for each in devices]
    try:
        yield
    finally:
        torch.set_rng_state(random)
        for state, device in random_of_devices:
            torch.cuda.set_rng_state(state, device)
        for tracker, states in named:
            tracker.set_states(states)
        put_back()


def _states_kept(layers: Sequence[_C.ModuleAdapter]) -> Callable[[], None]:
    states = [(layer, layer.extra_state()) for layer in layers]

    def put_back() -> None:
        for layer, state in states:
            empty = torch.empty(0, dtype=torch.uint8)
            layer.set_extra_state(empty if state is None else state)

    return put_back


def _windows_kept(layers: Sequence[_C.ModuleAdapter]) -> Callable[[], None]:
    """Like _states_kept, but keeps the tensors that graphs will write to, new ones too."""
    before = [(layer, [_copied(layer.amax_window(b)) for b in (False, True)]) for layer in layers]

    def put_back() -> None:
        for layer, kept in before:
            present = [layer.amax_window(backward) for backward in (False, True)]
            if None in present:
                continue
            layer.set_amax_windows(*map(_of_present_length, kept, present))

    return put_back


def _copied(window: Window | None) -> Window | None:
    return None if window is None else (window[0].clone(), window[1].clone())


def _of_present_length(kept: Window | None, present: Window) -> Window:
    """Returns the newest rows of the kept history in its present length, or a fresh one."""
    history, scale = torch.zeros_like(present[0]), torch.ones_like(present[1])
    if kept is not None:
        rows = min(len(kept[0]), len(history))
        history[:rows].copy_(kept[0][:rows])
        scale.copy_(kept[1])
    return history, scale
