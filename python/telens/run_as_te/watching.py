"""A debug session around a script that knows of none."""

from __future__ import annotations

import contextlib
import importlib
import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from telens import _C, debug
from telens.debug.layer_names import assign_layer_names
from telens.pytorch.module import Module

__all__ = ["SessionOptions", "watching"]

# Wrappers whose name in a layer's path would tell nothing.
_WRAPPERS = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)


@dataclass(frozen=True)
class SessionOptions:
    """What the command line says of the session."""

    config_file: str
    log_dir: str = "."
    feature_dirs: list[str] = field(default_factory=list)


@contextlib.contextmanager
def watching(options: SessionOptions) -> Iterator[None]:
    """Runs the block in a session that names layers and steps by itself.

    **Names.** A model's first forward names its layers, as ``infer_and_assign_layer_names`` does
    (``model``, a second one ``model_2``), unless some of its layers have names already.

    **Steps.** After each ``step()`` of the first ``torch.optim.Optimizer`` that steps: forwards and
    backwards that accumulate gradients are one iteration, and so are those for several optimizers
    that take turns. From the script's own first ``nvdlfw_inspect.api.step()`` on, that one alone
    ends iterations.
    """
    debug.initialize(
        options.config_file, feature_dirs=options.feature_dirs or None, log_dir=options.log_dir
    )
    steps = _Steps()
    names = _Names()
    api = importlib.import_module("nvdlfw_inspect.api")
    try:
        with contextlib.ExitStack() as hooks:
            hooks.callback(register_optimizer_step_post_hook(steps.note_step).remove)
            hooks.callback(register_module_forward_pre_hook(names.note_forward).remove)
            api.step, api.initialize = steps.step_of_script, _refuse_another
            hooks.callback(api.__dict__.pop, "step")
            hooks.callback(api.__dict__.pop, "initialize")
            yield
    finally:
        if steps.count == 0 and sys.exc_info()[1] is None:
            print(
                "telens.run_as_te: no optimizer of torch.optim stepped, so what was recorded is "
                "one iteration; have the script call nvdlfw_inspect.api.step() once an iteration",
                file=sys.stderr,
            )
        debug.end_debug()


def _refuse_another(*args: Any, **kwargs: Any) -> None:
    raise _C.UsageError(
        "nvdlfw_inspect.api.initialize: run_as_te's --config has begun a session already; leave "
        "out --config, and the script's own configuration is used"
    )


class _Steps:
    """Ends iterations where an optimizer steps."""

    def __init__(self) -> None:
        self.count = 0
        self._leader: weakref.ref[torch.optim.Optimizer] | None = None
        self._script_steps = False

    def note_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Of any optimizer: the first one that steps, while it lives, ends the iteration."""
        if self._script_steps:
            return
        leader = None if self._leader is None else self._leader()
        if leader is None:
            self._leader = weakref.ref(optimizer)
        elif leader is not optimizer:
            return
        self.count += 1
        debug.step()

    def step_of_script(self, *args: Any, **kwargs: Any) -> None:
        """The script's own call, in place of ``telens.debug.step``."""
        # The optimizer's step just before the first call has ended this iteration.
        if self._script_steps or self.count == 0:
            self.count += 1
            debug.step(*args, **kwargs)
        self._script_steps = True


class _Names:
    """Names the layers of models that are called."""

    def __init__(self) -> None:
        self._seen: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._models = 0

    def note_forward(self, module: torch.nn.Module, args: Any) -> None:
        """Before a forward: the outermost one of a model comes first."""
        if module in self._seen:
            return
        self._seen.update(module.modules())
        layers = [each for each in module.modules() if isinstance(each, Module)]
        if not layers or any(each.name for each in layers):
            return
        while isinstance(module, _WRAPPERS):
            module = module.module
        self._models += 1
        number = "" if self._models == 1 else f"_{self._models}"
        assign_layer_names([module], f"model{number}")
