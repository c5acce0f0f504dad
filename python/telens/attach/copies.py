"""Copies of watched modules: pickled, sent to a process, deep-copied, or scripted."""

from __future__ import annotations

import copy
from typing import Any

import torch

from telens.attach.compiled import ATTRIBUTE

__all__ = ["UnwatchedCopies"]

_PACKAGE = __package__ + "."
_HOOKS = (
    ("_forward_hooks", ("_forward_hooks_with_kwargs", "_forward_hooks_always_called")),
    ("_forward_pre_hooks", ("_forward_pre_hooks_with_kwargs",)),
)


class UnwatchedCopies:
    """Removes the hooks of the watch from copies of modules until ``remove()``.

    ``torch.save(model)`` and processes that receive the model cannot pickle the hooks,
    ``torch.jit.script`` cannot compile them, and a deep copy, such as an average of the weights,
    would be recorded as the layers of the model itself.
    """

    def __init__(self) -> None:
        original = torch.nn.Module.__reduce_ex__

        def reduce_without_hooks(module: torch.nn.Module, protocol: Any) -> Any:
            reduced = original(module, protocol)
            if isinstance(reduced, tuple) and len(reduced) > 2 and isinstance(reduced[2], dict):
                return (*reduced[:2], _without_hooks(reduced[2]), *reduced[3:])
            return reduced

        self._methods = {
            "__reduce_ex__": reduce_without_hooks,
            "__prepare_scriptable__": _copy_to_script,
        }
        self._replaced = {name: torch.nn.Module.__dict__.get(name) for name in self._methods}
        for name, method in self._methods.items():
            setattr(torch.nn.Module, name, method)

    def remove(self) -> None:
        for name, method in self._methods.items():
            # Another library may have replaced the method after the watch.
            if torch.nn.Module.__dict__.get(name) is not method:
                continue
            if self._replaced[name] is None:
                delattr(torch.nn.Module, name)
            else:
                setattr(torch.nn.Module, name, self._replaced[name])


def _copy_to_script(module: torch.nn.Module) -> torch.nn.Module:
    """Returns a module with the same parameters that ``torch.jit.script`` compiles instead.

    Returns the module itself if neither it nor its children are watched.
    """
    if isinstance(module, torch.jit.ScriptModule) or not _is_watched(module):
        return module
    copied = type(module).__new__(type(module))
    copied.__dict__.update(_without_hooks(module.__dict__))
    # torch.jit.script replaces the entries by the copies of the children.
    copied.__dict__["_modules"] = copy.copy(module._modules)
    return copied


def _is_watched(module: torch.nn.Module) -> bool:
    return any(
        _is_own(hook)
        for each in module.modules()
        for name, _ in _HOOKS
        for hook in getattr(each, name).values()
    )


def _without_hooks(state: dict[str, Any]) -> dict[str, Any]:
    """Returns the state of a module without hooks and attributes of the watch."""
    state = {name: value for name, value in state.items() if name != ATTRIBUTE}
    for name, options in _HOOKS:
        hooks = state.get(name)
        if not hooks:
            continue
        own = {key for key, hook in hooks.items() if _is_own(hook)}
        for each in (name, *options):
            if own and isinstance(state.get(each), dict):
                kept = [(key, value) for key, value in state[each].items() if key not in own]
                state[each] = type(state[each])(kept)
    return state


def _is_own(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith(_PACKAGE)
