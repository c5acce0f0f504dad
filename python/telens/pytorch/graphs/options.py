"""``capture_time_hooks``: hooks around warm-ups and captures of a callable, outside of graphs."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from telens import _C
from telens._names import refusal
from telens.pytorch.graphs.order import Pass, Schedule

__all__: list[str] = [
    "CaptureHooks",
    "check_modules",
    "check_reuse",
    "check_wgrads_in_order",
    "flags_by_module",
    "kwargs_for",
    "make_capture_hooks",
    "samples_of",
    "without_former_names",
]

# Former name -> name, with the default.
_FORMER = {
    "fp8_enabled": ("enabled", False),
    "fp8_calibrating": ("calibrating", False),
    "fp8_recipe": ("recipe", None),
    "fp8_group": ("amax_reduction_group", None),
    "fp8_weight_caching": ("cache_quantized_params", False),
}


def without_former_names(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the values by their present names, with defaults."""
    options = {}
    for old, (new, default) in _FORMER.items():
        if given[old] is not None and given[new] is not None:
            raise _C.UsageError(
                f"make_graphed_callables: {old} is the former name of {new}, and both are "
                f"given; pass only {new}"
            )
        if given[old] is not None:
            warnings.warn(
                f"make_graphed_callables: {old} is now {new}", DeprecationWarning, stacklevel=3
            )
        value = given[new] if given[old] is None else given[old]
        options[new] = default if value is None else value
    return options


def samples_of(sample_args: Any, single: bool, has_order: bool) -> tuple[Any, ...]:
    """Returns the arguments of each sample.

    A single module has one sample; with an ``_order`` it may have one for each of its forwards.
    """
    is_list = has_order and all(isinstance(each, tuple) for each in sample_args)
    return (sample_args,) if single and not is_list else tuple(sample_args)


def kwargs_for(
    sample_kwargs: dict[str, Any] | tuple[dict[str, Any], ...] | None, count: int
) -> tuple[dict[str, Any], ...]:
    """Returns the keyword arguments of each sample."""
    if sample_kwargs is None:
        return ({},) * count
    kwargs = (sample_kwargs,) if isinstance(sample_kwargs, dict) else tuple(sample_kwargs)
    if len(kwargs) != count:
        raise _C.UsageError(
            f"make_graphed_callables: there are {len(kwargs)} sample_kwargs for {count} "
            "sample_args; give as many"
        )
    return kwargs


def flags_by_module(enabled: bool | tuple[bool, ...], count: int) -> tuple[bool, ...]:
    """Returns ``enabled`` for each module."""
    flags = enabled if isinstance(enabled, tuple) else (enabled,) * count
    if len(flags) != count:
        raise _C.UsageError(
            f"make_graphed_callables: enabled has {len(flags)} values for {count} modules; give "
            "one value, or one for each"
        )
    return flags


def check_reuse(reuse: bool, has_order: bool, modules: Sequence[torch.nn.Module]) -> None:
    """Checks the conditions of ``_reuse_graph_input_output_buffers``."""
    if reuse and not has_order:
        raise _C.UsageError(
            "make_graphed_callables: _reuse_graph_input_output_buffers=True needs an _order; give "
            "one, or leave it False"
        )
    if reuse and not all(each.training for each in modules):
        raise _C.UsageError(
            "make_graphed_callables: _reuse_graph_input_output_buffers=True is for modules in "
            "training mode; call train() on them, or leave it False"
        )


def check_modules(modules: tuple[torch.nn.Module, ...]) -> None:
    """Raises an error for modules that cannot be graphed on any device."""
    for module in modules:
        if not isinstance(module, torch.nn.Module):
            raise refusal("make_graphed_callables", "modules", "torch.nn.Modules", module)
        hooks = (
            module._forward_hooks,
            module._forward_pre_hooks,
            module._backward_hooks,
            module._backward_pre_hooks,
        )
        if any(hooks):
            raise _C.UsageError(
                f"make_graphed_callables: {type(module).__name__} has hooks, which a graph would "
                "not call; register them afterwards, or give them as capture_time_hooks"
            )
        for name, buffer in module.named_buffers():
            if buffer.requires_grad:
                raise _C.UsageError(
                    f"make_graphed_callables: the buffer {name} of {type(module).__name__} has "
                    "requires_grad=True, and a call returns gradients of inputs and parameters "
                    "only; register it as a parameter, or set requires_grad to False"
                )
    if len({module.training for module in modules}) > 1:
        raise _C.UsageError(
            "make_graphed_callables: modules must be all in training or all in evaluation mode; "
            "call train() or eval() on all of them"
        )
    if torch.is_autocast_enabled() and torch.is_autocast_cache_enabled():
        raise _C.UsageError(
            "make_graphed_callables: torch.autocast must run with cache_enabled=False: a graph "
            "cannot use casts that another graph has cached"
        )


def check_wgrads_in_order(
    schedule: Schedule, callables: Sequence[tuple[torch.nn.Module, bool]]
) -> None:
    """Raises UsageError for a ``backward_dw`` in an order whose callable has none to make.

    callables: by number, the module and whether its backward leaves weights' gradients.
    """
    for index, what in schedule.events:
        module, leaves_some = callables[index]
        if what is Pass.weight_gradients and not (leaves_some and module.training):
            why = "lacks delay_wgrad_compute=True" if module.training else "is in evaluation mode"
            raise _C.UsageError(
                f"make_graphed_callables: _order has a backward_dw (-k - 0.5) of "
                f"{type(module).__name__}, which {why}; leave those entries out"
            )


_NAMES = ("forward_pre_hooks", "forward_hooks", "backward_pre_hooks", "backward_hooks")

# One of these names -> {any key: hook(module) -> None}
Given = Mapping[str, Mapping[Any, Callable[[torch.nn.Module], None]]]


class CaptureHooks:
    """The hooks of a module."""

    def __init__(self, module: torch.nn.Module, given: Given) -> None:
        self._module, self._given = module, given

    @contextlib.contextmanager
    def around(self, what: str) -> Iterator[None]:
        """Calls the hooks around a pass; ``what`` is "forward" or "backward"."""
        self._call(f"{what}_pre_hooks")
        yield
        self._call(f"{what}_hooks")

    def _call(self, name: str) -> None:
        for hook in self._given.get(name, {}).values():
            if hook(self._module) is not None:
                raise _C.UsageError(
                    f"make_graphed_callables: one of {name} in capture_time_hooks returned a "
                    "value; expected None, because hook(module) cannot change results"
                )


def make_capture_hooks(
    modules: Sequence[torch.nn.Module], given: Sequence[Given | None] | None
) -> list[CaptureHooks]:
    """Returns the hooks by module. Raises UsageError for another number of entries and for invalid
    names."""
    all_given = [None] * len(modules) if given is None else list(given)
    if len(all_given) != len(modules):
        raise _C.UsageError(
            f"make_graphed_callables: capture_time_hooks has {len(all_given)} entries for "
            f"{len(modules)} modules; give one for each, None for no hooks"
        )
    for each in all_given:
        unknown = sorted(set(each or {}) - set(_NAMES))
        if unknown:
            raise _C.UsageError(
                f"make_graphed_callables: capture_time_hooks has {', '.join(map(repr, unknown))}; "
                f"expected {', '.join(_NAMES)}"
            )
    return [CaptureHooks(*pair) for pair in zip(modules, (e or {} for e in all_given), strict=True)]
