"""Attaches to a training that does not call TELens: the program of ``telens run``."""

from __future__ import annotations

import functools
import json
import os
import re
import sys
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from telens.attach.launch import VARIABLE

__all__ = ["attach", "attach_from_environment"]

_handle: Any = None
_steps_before = 0  # step count of the optimizer state that the program has loaded


def attach_from_environment() -> None:
    """Attaches with the options in the environment variable TELENS_ATTACH."""
    options = json.loads(os.environ[VARIABLE])
    attach(options["config"], options["log_dir"], options["feature_dirs"], options["modules"])


def attach(config: str | None, log_dir: str, feature_dirs: list[str], modules: list[str]) -> None:
    """Watches the models of this process from their first training forward on.

    A model is a module that is called outside of any watched module, in training mode, with
    gradients, and that has a module to watch. The first one begins the session; each later one is
    added to it, with its class name in front of its names.
    """
    global _handle
    patterns = [re.compile(each) for each in modules]

    def before_forward(module: torch.nn.Module, args: Any) -> None:
        if not (module.training and torch.is_grad_enabled()) or torch.compiler.is_compiling():
            return
        from telens.attach import watching  # torch is imported completely by now
        from telens.attach.modules import watched_modules

        current = watching.current()
        if current is not None and current.covers(module):
            return
        if next(watched_modules(module, patterns), None) is None:
            return
        try:
            if current is None:
                watching.watch(
                    module,
                    config,
                    log_dir,
                    feature_dirs=feature_dirs,
                    modules=modules,
                    init_training_step=_steps_before,
                )
            else:
                current.add(module)
        except Exception as error:
            _handle.remove()
            print(f"telens run: not attached: {error}", file=sys.stderr)

    _handle = register_module_forward_pre_hook(before_forward)
    _note_loaded_steps()


def _note_loaded_steps() -> None:
    """Lets a training that loads an optimizer state continue at the iteration of that state."""
    load = torch.optim.Optimizer.load_state_dict

    @functools.wraps(load)
    def noting(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        global _steps_before
        result = load(self, *args, **kwargs)
        try:
            steps = [state["step"] for state in self.state.values() if "step" in state]
            _steps_before = max([_steps_before, *(int(step) for step in steps)])
        except Exception as error:  # the state of another optimizer library
            print(f"telens run: step count of an optimizer state: {error}", file=sys.stderr)
        return result

    torch.optim.Optimizer.load_state_dict = noting
