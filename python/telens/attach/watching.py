"""``telens.watch``: forward hooks that show a model's tensors to the features of a session."""

from __future__ import annotations

import atexit
import functools
import os
import pathlib
import warnings
from collections.abc import Callable
from typing import Any

import torch

from telens import _C
from telens.attach.modules import find_edge, own_tensors, watched_modules
from telens.attach.training import LossWatch, OptimizerWatch, in_backward
from telens.debug import arguments, sessions

__all__ = ["Watch", "current", "step", "watch"]

CONFIG = pathlib.Path(__file__).with_name("attach.yaml")
_TENSORS = ("activation", "weight", "output", "gradient", "dgrad", "wgrad")

_current: Watch | None = None


class _Layer:
    """One module and its place in the session."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls = _C.WatchedLayer(name)
        self.weight_shown = -1  # the tick in which the weight was shown last

    def show(self, tensor_name: str, tensor: torch.Tensor) -> None:
        """Shows a tensor to the features that asked for it in the newest forward."""
        if not self.calls.inspect_tensor_enabled(tensor_name):
            return
        tensor = tensor.detach()
        if hasattr(tensor, "to_local"):
            tensor = tensor.to_local()
        if tensor.is_floating_point():
            self.calls.inspect_tensor(tensor_name=tensor_name, tensor=tensor)


class Watch:
    """A watched model, as returned by ``telens.watch``. ``stop()`` ends it; so does a ``with``."""

    def __init__(self, model: torch.nn.Module, every: int) -> None:
        self.model = model
        self._layers: list[_Layer] = []
        self._handles: list[Any] = []
        self._covered: set[torch.nn.Module] = set()
        self._steps_itself = True
        self._optimizer_stepped = False
        self._losses = LossWatch()
        self._optimizers = OptimizerWatch(self._on_step, self._guard, every)
        self.add(model, "")
        # Before the session's own handler, which closes the run.
        atexit.register(self.stop)

    def add(self, model: torch.nn.Module, prefix: str | None = None) -> None:
        """Watches another model in the same session.

        Its names begin with ``prefix`` and a dot; None: the name of its class.
        """
        prefix = type(model).__name__ if prefix is None else prefix
        weights: dict[int, str] = {}
        for name, module in watched_modules(model):
            if module in self._covered:
                continue
            own = prefix if module is model else f"{prefix}.{name}"
            layer = _Layer(own if prefix else name)
            self._layers.append(layer)
            weight = getattr(module, "weight", None)
            if isinstance(weight, torch.Tensor):
                weights.setdefault(id(weight), layer.name)
            hook = self._guard(functools.partial(self._forward, layer))
            self._handles.append(module.register_forward_hook(hook, with_kwargs=True))
        self._covered.update(model.modules())
        self._optimizers.add(model, weights)

    def covers(self, module: torch.nn.Module) -> bool:
        """Returns True if the module belongs to a watched model."""
        return module in self._covered

    @property
    def layers(self) -> list[str]:
        """The names of the watched modules, in the order of ``named_modules()``."""
        return [layer.name for layer in self._layers]

    def step(self, loss: float | torch.Tensor | None = None) -> None:
        """Ends an iteration. Optional: without it, a watched forward after a step does."""
        self._steps_itself = False
        self._finish(loss)

    def stop(self) -> None:
        """Removes all hooks and closes the run. Does nothing the second time."""
        global _current
        if _current is not self:
            return
        _current = None
        atexit.unregister(self.stop)
        self._detach()
        if self._optimizer_stepped:
            self._finish(None)
        sessions.end_debug()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._losses.remove()
        self._optimizers.remove()

    def _guard(self, call: Callable) -> Callable:
        """Wraps a hook: an error in it ends the watch with a warning, and never the training."""

        @functools.wraps(call)
        def guarded(*args: Any, **kwargs: Any) -> None:
            try:
                call(*args, **kwargs)
            except _C.RunStopped:  # a feature was configured to stop the run
                raise
            except Exception as error:
                self._detach()
                warnings.warn(
                    f"telens.watch: stopped watching after an error: {error}", stacklevel=2
                )

        return guarded

    def _on_step(self) -> None:
        self._optimizer_stepped = True

    def _finish(self, loss: float | torch.Tensor | None) -> None:
        self._optimizer_stepped = False
        seen = self._losses.take()
        sessions.step(seen if loss is None else loss)

    def _forward(
        self, layer: _Layer, module: torch.nn.Module, args: Any, kwargs: Any, output: Any
    ) -> None:
        if torch.compiler.is_compiling():
            return
        # A recomputation for a checkpoint: its tensors were shown in the first forward. Its graph,
        # if it has one, is the one that the backward uses.
        recomputed = in_backward()
        if not recomputed and self._optimizer_stepped and self._steps_itself:
            self._finish(None)
        if not (module.training or torch.is_grad_enabled()) or layer.calls.sleeps(False):
            return
        if not recomputed:
            layer.calls.begin_forward(under_recipe=False)
        activation = next(own_tensors((args, kwargs)), None)
        result = next(own_tensors(output), None)
        weight = getattr(module, "weight", None)
        if not recomputed:
            self._show_forward(layer, activation, weight, result)
        if result is not None and result.requires_grad:
            self._watch_backward(layer, activation, weight, result)

    def _show_forward(
        self,
        layer: _Layer,
        activation: torch.Tensor | None,
        weight: torch.Tensor | None,
        result: torch.Tensor | None,
    ) -> None:
        if activation is not None:
            layer.show("activation", activation)
        tick = _C.debug.tick()
        if isinstance(weight, torch.Tensor) and layer.weight_shown != tick:
            layer.weight_shown = tick
            layer.show("weight", weight)
        if result is not None:
            layer.show("output", result)

    def _watch_backward(
        self,
        layer: _Layer,
        activation: torch.Tensor | None,
        weight: torch.Tensor | None,
        result: torch.Tensor,
    ) -> None:
        enabled = layer.calls.inspect_tensor_enabled
        if enabled("gradient"):
            result.register_hook(self._guard(functools.partial(layer.show, "gradient")))
        for tensor_name, source in (("dgrad", activation), ("wgrad", weight)):
            if not isinstance(source, torch.Tensor) or not enabled(tensor_name):
                continue
            edge = find_edge(result, source)
            if edge is not None:
                edge.register(self._guard(functools.partial(layer.show, tensor_name)))


def watch(
    model: torch.nn.Module,
    config: str | os.PathLike | dict | None = None,
    log_dir: str | os.PathLike = "telens_run",
    *,
    every: int = 10,
    init_training_step: int = 0,
) -> Watch:
    """Records the tensors of an ordinary torch model. The model is not converted or changed.

    Watches each ``Linear``, ``Embedding``, convolution and norm: input, weight and output, and
    their gradients, as ``activation``, ``weight``, ``output``, ``dgrad``, ``wgrad`` and
    ``gradient``. Iterations are optimizer steps: the first watched forward after the steps of one
    or more optimizers begins the next iteration. The loss is the scalar on which ``backward()`` was
    called, the mean if there were several. ``telens.step(loss)`` states both explicitly.

    Every rank of a distributed training calls it, after ``init_process_group``. A forward that
    ``torch.compile`` compiles is not watched.

    Parameters
    ----------
    model
        before or after it is wrapped in DDP or FSDP; names are the same
    config
        path of a YAML file or a dict; None: statistics of every tensor within a budget of 3 % of
        the step time
    log_dir
        folder of the run file and the logs
    every
        optimizer steps from one measurement of gradient norm and lost updates to the next
    init_training_step
        number of the first iteration of a resumed training

    Returns
    -------
    a ``Watch``; ``stop()`` closes the run, as the end of the program does

    Raises
    ------
    telens.ConfigError
        for an invalid configuration; the error lists every mistake
    telens.UsageError
        if the model does not contain a module to watch, or a session is already active
    """
    global _current
    title = "telens.watch"
    if not isinstance(model, torch.nn.Module):
        raise arguments.refusal(title, "model", "a torch.nn.Module", model)
    if arguments.index(title, "every", every) < 1:
        raise arguments.refusal(title, "every", "a number of steps from 1 on", every)
    if next(watched_modules(model), None) is None:
        raise _C.UsageError(
            f"telens.watch: {type(model).__name__} has no Linear, Embedding, convolution or norm; "
            "pass the model that contains them"
        )
    if _current is not None and not _C.debug.is_initialized():
        _current.stop()  # its session was ended by debug.end_debug()
    sessions.initialize(
        CONFIG if config is None else config,
        log_dir=log_dir,
        init_training_step=init_training_step,
    )
    _current = Watch(model, every)
    if _is_compiled(model):
        warnings.warn(
            "telens.watch: torch.compile compiles this model; compiled forwards are not recorded. "
            "Call telens.watch without torch.compile to record them",
            stacklevel=2,
        )
    return _current


def _is_compiled(model: torch.nn.Module) -> bool:
    if isinstance(model, torch._dynamo.OptimizedModule):
        return True
    return any(each._compiled_call_impl is not None for each in model.modules())


def current() -> Watch | None:
    """Returns the running watch, None if no model is watched."""
    return _current if _C.debug.is_initialized() else None


def step(loss: float | torch.Tensor | None = None) -> None:
    """Ends an iteration of the watched training, with its loss.

    Call it after each optimizer step, or not at all: without it optimizer steps end iterations.
    Does nothing if no model is watched.
    """
    if _current is not None:
        _current.step(loss)
