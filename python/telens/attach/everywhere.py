"""Attaches to a training that does not call TELens: the program of ``telens run``."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from telens.attach.launch import VARIABLE

__all__ = ["attach", "attach_from_environment"]

_handle: Any = None


def attach_from_environment() -> None:
    """Attaches as the environment variable TELENS_ATTACH says."""
    options = json.loads(os.environ[VARIABLE])
    attach(options["config"], options["log_dir"])


def attach(config: str | None, log_dir: str) -> None:
    """Watches the models of this process from their first training forward on.

    A model is a module that is called outside of any watched module, in training mode, with
    gradients, and that has a module to watch. The first one begins the session; each later one is
    added to it, with its class name in front of its names.
    """
    global _handle

    def before_forward(module: torch.nn.Module, args: Any) -> None:
        if not (module.training and torch.is_grad_enabled()) or torch.compiler.is_compiling():
            return
        from telens.attach import watching  # torch is imported completely by now
        from telens.attach.modules import watched_modules

        current = watching.current()
        if current is not None and current.covers(module):
            return
        if next(watched_modules(module), None) is None:
            return
        try:
            if current is None:
                watching.watch(module, config, log_dir)
            else:
                current.add(module)
        except Exception as error:
            _handle.remove()
            print(f"telens run: not attached: {error}", file=sys.stderr)

    _handle = register_module_forward_pre_hook(before_forward)
