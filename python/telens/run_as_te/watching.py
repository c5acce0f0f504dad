"""Runs a script inside a debug session without changes to the script."""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from telens import _C, debug
from telens.attach.training import LossWatch
from telens.debug.layer_names import assign_layer_names, note_plain_layers
from telens.pytorch.module import Module
from telens.run_as_te.names import after_import

__all__ = ["SessionOptions", "watching"]

# Wrappers whose names are dropped from layer paths.
_WRAPPERS = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)


@dataclass(frozen=True)
class SessionOptions:
    """The session options of the command line."""

    config_file: str
    log_dir: str = "."
    feature_dirs: list[str] = field(default_factory=list)


@contextlib.contextmanager
def watching(options: SessionOptions) -> Iterator[None]:
    """Runs the block in a session that names layers and counts steps automatically.

    **Names.** A model's first forward names its layers, as ``infer_and_assign_layer_names`` does
    (``model``, a second one ``model_2``), unless some of its layers have names already.

    **Numbers.** The loss of an iteration is the one on which the script calls ``backward()``, as
    for ``telens.watch``. Each Trainer of Hugging Face's transformers gets a ``RecordingCallback``,
    which records loss, learning rate and gradient norm.

    **Steps.** After each ``step()`` of the first ``torch.optim.Optimizer`` that steps: forwards and
    backwards that accumulate gradients are one iteration, and so are those for several optimizers
    that take turns. After the script's first own ``nvdlfw_inspect.api.step()``, only that call ends
    iterations.
    """
    debug.initialize(
        options.config_file, feature_dirs=options.feature_dirs or None, log_dir=options.log_dir
    )
    losses = LossWatch(_guarded, warn_without_steps=False)
    steps = _Steps(losses)
    names = _Names()
    try:
        with contextlib.ExitStack() as hooks:
            hooks.callback(losses.remove)
            hooks.callback(register_optimizer_step_post_hook(steps.note_step).remove)
            hooks.callback(register_module_forward_pre_hook(names.note_forward).remove)
            hooks.enter_context(after_import("nvdlfw_inspect.api", steps.take_over_api))
            hooks.enter_context(after_import("transformers.trainer", _record_trainers))
            yield
    finally:
        if steps.count == 0 and names.watches and sys.exc_info()[1] is None:
            print(
                "telens.run_as_te: no optimizer of torch.optim stepped, so the records are one "
                "iteration; call nvdlfw_inspect.api.step() once an iteration",
                file=sys.stderr,
            )
        debug.end_debug()


def _refuse_another(*args: Any, **kwargs: Any) -> None:
    raise _C.UsageError(
        "nvdlfw_inspect.api.initialize: run_as_te's --config has begun a session already; leave "
        "out --config, and the script's own configuration is used"
    )


def _guarded(hook: Callable) -> Callable:
    """Wraps a hook: an error in it is a warning, and the training continues."""

    @functools.wraps(hook)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return hook(*args, **kwargs)
        except Exception as error:
            warnings.warn(f"telens.run_as_te: a loss is not recorded: {error}", stacklevel=2)
            return None

    return guarded


class _Steps:
    """Ends iterations when an optimizer steps."""

    def __init__(self, losses: LossWatch) -> None:
        self.count = 0
        self._losses = losses
        self._leader: weakref.ref[torch.optim.Optimizer] | None = None
        self._script_steps = False

    def note_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Observes every optimizer; the first one that steps ends the iteration, as long as it
        exists."""
        if self._script_steps:
            return
        leader = None if self._leader is None else self._leader()
        if leader is None:
            self._leader = weakref.ref(optimizer)
        elif leader is not optimizer:
            return
        self.count += 1
        debug.step(self._take_loss())

    def _take_loss(self) -> float | None:
        """Returns the loss of the iteration, None if there is none or a Trainer records it."""
        loss = _guarded(self._losses.take)()
        trainer = sys.modules.get("telens.pytorch.hugging_face.trainer")
        return None if trainer is not None and trainer.is_recording() else loss

    def take_over_api(self) -> Callable[[], None]:
        """Replaces functions of the API; returns a function that restores them."""
        api = sys.modules["nvdlfw_inspect.api"]
        api.step, api.initialize = self.step_of_script, _refuse_another

        def undo() -> None:
            del api.step, api.initialize

        return undo

    def step_of_script(self, *args: Any, **kwargs: Any) -> None:
        """The script's own call, in place of ``telens.debug.step``."""
        # The optimizer's step before the first call has already ended this iteration.
        if self._script_steps or self.count == 0:
            self.count += 1
            loss = self._take_loss()
            if not args:
                kwargs.setdefault("loss", loss)
            debug.step(*args, **kwargs)
        self._script_steps = True


def _record_trainers() -> Callable[[], None]:
    trainers = importlib.import_module("telens.pytorch.hugging_face_trainer")
    return trainers.add_to_every_trainer()


class _Names:
    """Names the layers of models that are called."""

    def __init__(self) -> None:
        self.watches = False  # a model with layers of TELens ran
        self._seen: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._models = 0

    def note_forward(self, module: torch.nn.Module, args: Any) -> None:
        """Runs before a forward; the outermost forward of a model comes first."""
        if module in self._seen:
            return
        inside = [each for each in module.modules() if each not in self._seen]
        self._seen.update(inside)
        layers = [each for each in module.modules() if isinstance(each, Module)]
        self.watches |= bool(layers)
        note_plain_layers(inside)
        if not layers or any(each.name for each in layers):
            return
        while isinstance(module, _WRAPPERS):
            module = module.module
        self._models += 1
        number = "" if self._models == 1 else f"_{self._models}"
        assign_layer_names([module], f"model{number}")
