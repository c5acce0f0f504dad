"""``make_graphed_callables``: what a captured layer promises its callers, without a GPU."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from telens import _C
from telens._names import refusal
from telens.common.recipe import Recipe
from telens.pytorch.graph_order import callables_by_order
from telens.pytorch.module import Module, WithExtraState
from telens.pytorch.quantization import autocast

__all__ = ["make_graphed_callables"]

# Former name -> name, with the default.
_FORMER = {
    "fp8_enabled": ("enabled", False),
    "fp8_calibrating": ("calibrating", False),
    "fp8_recipe": ("recipe", None),
    "fp8_group": ("amax_reduction_group", None),
    "fp8_weight_caching": ("cache_quantized_params", False),
}
_FLAG = "is_first_microbatch"


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
    """Modules that are called as Transformer Engine's graphed ones are, on a CPU.

    There nothing is captured: each call copies its inputs into fixed buffers, runs the module as it
    is, and returns fixed buffers, which the next call overwrites. So programs, their order of calls
    and their results can be tested where no GPU is. On a GPU it is an error: capture with
    ``torch.cuda.graph`` (docs/gpu.md).

    Parameters
    ----------
    modules
        one module or a tuple, all in training or all in evaluation mode; outside of that mode they
        run as they did before
    sample_args, sample_kwargs
        for each module (with ``_order``, for each forward of each layer): inputs of the shapes that
        it will be called with; values that are no tensors stay as they are here
    num_warmup_iters
        forwards and backwards before, which leave random states, amax histories and scales as they
        were; ``pre_warmup_hook`` and ``post_warmup_hook`` are called around them
    allow_unused_input
        inputs may have no gradient
    enabled, calibrating, recipe, amax_reduction_group
        of the autocast that each call runs in; ``enabled`` may be a tuple, one a module
    cache_quantized_params
        calls must say ``is_first_microbatch``, and modules of this package keep their quantized
        weights by it
    _order, _num_layers_per_chunk
        of a pipeline: chunks of layers from 1 on, in the order of their forwards (positive) and
        backwards (negative). Returns one callable for each forward of each layer
    retain_graph_in_backward
        backwards may run twice
    pool
        without effect: there is no graph to allocate

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
    call = _Options(
        allow_unused_input, retain_graph_in_backward, options.pop("cache_quantized_params"), options
    )
    runners = [
        _Runner(all_modules[owner], args[i], kwargs[i], enabled_by_module[owner], call)
        for i, owner in enumerate(owners)
    ]
    _warm_up(runners, num_warmup_iters, (pre_warmup_hook, post_warmup_hook))
    if _order is not None:
        return tuple(runner.call for runner in runners)
    for runner in runners:
        runner.take_over()
    return modules


@dataclass(frozen=True)
class _Options:
    allow_unused: bool
    retain_graph: bool
    needs_flag: bool
    autocast: dict[str, Any]


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


class _Runner:
    """One module with its buffers."""

    def __init__(
        self,
        module: torch.nn.Module,
        args: Any,
        kwargs: dict[str, Any],
        enabled: bool,
        options: _Options,
    ) -> None:
        if not isinstance(args, tuple):
            raise refusal("make_graphed_callables", "sample_args", "a tuple for each module", args)
        self.module = module
        self._options = options
        self._forward = module.forward
        self._region = functools.partial(autocast, enabled=enabled, **options.autocast)
        self._leaves, self._structure = tree_flatten((args, kwargs))
        tensors = [each for each in self._leaves if isinstance(each, torch.Tensor)]
        self._parameters = [each for each in module.parameters() if each.requires_grad]
        for each in (*tensors, *self._parameters):
            if each.device.type != "cpu":
                raise _C.UsageError(
                    f"make_graphed_callables: a tensor is on {each.device}; expected the CPU: "
                    "graphs are not captured here; on a GPU use torch.cuda.graph (docs/gpu.md)"
                )
        self._inputs = [
            each.detach().clone().requires_grad_(each.requires_grad) for each in tensors
        ]
        self._outputs: list[torch.Tensor] | None = None  # the buffers
        self._graph: list[torch.Tensor] = []  # outputs of the newest forward
        self._newest = 0  # the number of the newest forward

    def take_over(self) -> None:
        """From now on the module's forward is this one, while its mode is the present one."""
        training, forward = self.module.training, self._forward

        def graphed(*args: Any, **kwargs: Any) -> Any:
            if self.module.training != training:
                return forward(*args, **kwargs)
            return self.call(*args, **kwargs)

        self.module.forward = graphed

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the module on these inputs."""
        flag = self._flag(kwargs)
        leaves, structure = tree_flatten((args, kwargs))
        if structure != self._structure:
            raise _C.UsageError(
                f"{self._name()}: called with other arguments than its sample: a graph takes those "
                "alone"
            )
        inputs = []
        for given, sample in zip(leaves, self._leaves, strict=True):
            if isinstance(sample, torch.Tensor):
                if not isinstance(given, torch.Tensor) or given.shape != sample.shape:
                    found = getattr(given, "shape", type(given).__name__)
                    raise _C.UsageError(
                        f"{self._name()}: an input is {found}; expected {tuple(sample.shape)}, as "
                        "its sample"
                    )
                inputs.append(given)
            elif given != sample:
                raise _C.UsageError(
                    f"{self._name()}: an argument is {given!r}; expected {sample!r}, as its "
                    "sample: in a graph it is a constant"
                )
        outputs = _Replay.apply(self, flag, *inputs, *self._parameters)
        return tree_unflatten(list(outputs), self._output_structure)

    def _flag(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        if not self._options.needs_flag:
            return {}
        if not isinstance(kwargs.get(_FLAG), bool):
            raise _C.UsageError(
                f"{self._name()}: {_FLAG} must be True or False in each call: the callable was "
                "made with cache_quantized_params=True"
            )
        flag = kwargs.pop(_FLAG)
        return {_FLAG: flag} if isinstance(self.module, Module) else {}

    def _name(self) -> str:
        return f"a graphed {type(self.module).__name__}"

    def run(self, flag: dict[str, Any], inputs: Sequence[torch.Tensor] = ()) -> list[torch.Tensor]:
        """The module on its input buffers, into which the inputs are copied first."""
        with torch.no_grad():
            for buffer, given in zip(self._inputs, inputs, strict=False):
                buffer.copy_(given)
        tensors = iter(self._inputs)
        leaves = [next(tensors) if isinstance(e, torch.Tensor) else e for e in self._leaves]
        args, kwargs = tree_unflatten(leaves, self._structure)
        with torch.set_grad_enabled(self.module.training), self._region():
            result = self._forward(*args, **kwargs, **flag)
        self._graph, self._output_structure = tree_flatten(result)
        self._newest += 1
        return self._graph

    def fill_outputs(self, made: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The output buffers, which now hold these values."""
        if self._outputs is None:
            self._outputs = [torch.empty_like(each) for each in made]
        with torch.no_grad():
            for buffer, each in zip(self._outputs, made, strict=True):
                buffer.copy_(each)
        return tuple(each.detach() for each in self._outputs)

    def gradients(
        self, number: int, gradients: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor | None]:
        """Of inputs and parameters, from those of the outputs of the numbered forward."""
        if number != self._newest:
            raise _C.UsageError(
                f"{self._name()}: backward of a call after which it was called again, which has "
                "overwritten its buffers; make one callable for each micro-batch (_order)"
            )
        pairs = [
            (made, gradient)
            for made, gradient in zip(self._graph, gradients, strict=True)
            if made.requires_grad and gradient is not None
        ]
        leaves = [*self._inputs, *self._parameters]
        wanted = [each for each in leaves if each.requires_grad]
        if not wanted or not pairs:
            return [None] * len(leaves)
        found = iter(
            torch.autograd.grad(
                [made for made, _ in pairs],
                wanted,
                [gradient for _, gradient in pairs],
                retain_graph=self._options.retain_graph,
                allow_unused=self._options.allow_unused,
            )
        )
        return [next(found) if each.requires_grad else None for each in leaves]


class _Replay(torch.autograd.Function):
    """A call of a runner as one node of the caller's graph."""

    @staticmethod
    def forward(ctx: Any, runner: _Runner, flag: dict[str, Any], *tensors: torch.Tensor) -> Any:
        made = runner.run(flag, tensors)
        ctx.runner, ctx.number = runner, runner._newest
        return runner.fill_outputs(made)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        return None, None, *ctx.runner.gradients(ctx.number, gradients)


def _warm_up(
    runners: list[_Runner], iterations: int, hooks: tuple[Callable[[], None] | None, ...]
) -> None:
    """Forwards and backwards of which nothing remains but what libraries keep for themselves."""
    before, after = hooks
    with _untouched_state([runner.module for runner in runners]):
        if before is not None:
            before()
        for _ in range(iterations):
            for runner in runners:
                made = runner.run({})
                if runner.module.training:
                    gradients = [torch.zeros_like(each) for each in made]
                    runner.gradients(runner._newest, gradients)
        if after is not None:
            after()


@contextlib.contextmanager
def _untouched_state(modules: list[torch.nn.Module]) -> Any:
    """Puts back random states, amax histories and scales."""
    layers = {
        id(each): each._telens_adapter
        for module in modules
        for each in module.modules()
        if isinstance(each, WithExtraState)
    }.values()
    states = [(layer, layer.extra_state()) for layer in layers]
    random = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(random)
        for layer, state in states:
            empty = torch.empty(0, dtype=torch.uint8)
            layer.set_extra_state(empty if state is None else state)
