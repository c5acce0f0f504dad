"""``telens.watch``: forward hooks that show a model's tensors to the features of a session."""

from __future__ import annotations

import atexit
import functools
import os
import pathlib
import re
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch

from telens import _C
from telens.attach.attention import (
    AttentionFunction,
    calling_module,
    show_attention,
    watch_attention_backward,
)
from telens.attach.batches import BatchWatch
from telens.attach.compiled import (
    ACTIVATION,
    DGRAD,
    GRADIENT,
    OUTPUT,
    WEIGHT,
    add_marks,
    after_compiled_forward,
    before_compiled_forward,
    remove_marks,
)
from telens.attach.copies import UnwatchedCopies
from telens.attach.experts import Router, is_router, record_routing
from telens.attach.layers import Call, Layer, has_kernels
from telens.attach.modules import (
    Weight,
    count_fp8_layers,
    is_fp8_region_active,
    is_named,
    names_of_modules,
    watched_modules,
)
from telens.attach.torchao_casts import TorchaoCasts
from telens.attach.trackers import Trackers, trackers_of
from telens.attach.training import LossWatch, OptimizerWatch, in_backward
from telens.attach.transforms import is_transforming
from telens.debug import arguments, diagnosis, exits, layer_names, sessions

__all__ = ["Watch", "current", "step", "watch"]

CONFIG = pathlib.Path(__file__).with_name("attach.yaml")

# Features that change GEMMs, or that read what a GEMM ran as.
_NEED_FP8_MODULES = {
    "DisableFP8GEMM",
    "DisableFP8Layer",
    "FakeQuant",
    "GemmError",
    "PerTensorScaling",
    "PrecisionLedger",
}

_current: Watch | None = None
_has_watched = False


class Watch:
    """A watched model, as returned by ``telens.watch``. End it with ``stop()`` or use it in a
    ``with``."""

    def __init__(
        self,
        model: torch.nn.Module,
        every: int,
        patterns: list[re.Pattern],
        trackers: Trackers,
    ) -> None:
        self.model = model
        self._patterns = patterns
        self._trackers = trackers
        self._layer_of: dict[torch.nn.Module, Layer] = {}
        self._handles: list[Any] = []
        self._names: dict[torch.nn.Module, str] = {}  # of all modules of the watched models
        self._routers: list[Router] = []
        self._marked: list[torch.nn.Module] = []  # modules that compiled forwards can show
        self._attentions: dict[torch.nn.Module, Layer] = {}  # by the module that calls it
        self._region_iteration: int | None = None  # in which FP8 regions were looked for
        self._region_was_active = False
        self._steps_itself = True
        self._optimizer_stepped = False
        self._entered = False  # a forward was recorded since the iteration began
        self._losses = LossWatch(self._guard)
        self._optimizers = OptimizerWatch(
            self._on_step, self._guard, every, self._record, self._losses.has_any
        )
        self._batches = BatchWatch(self._guard, self._optimizers.is_due)
        self._casts = TorchaoCasts(self._layer_of.get, self._guard)
        self._copies = UnwatchedCopies()
        self._attention = AttentionFunction(
            self._guard(self._before_attention), self._guard(self._after_attention)
        )
        try:
            self.add(model, "")
        except BaseException:
            self._detach()
            raise
        layer_names.note_watched(model)
        # Before the session's own handler, which closes the run.
        atexit.register(self._stop_at_exit)

    def add(self, model: torch.nn.Module, prefix: str | None = None) -> None:
        """Watches another model in the same session.

        Its names begin with ``prefix`` and a dot; None: the name of its class.
        """
        prefix = type(model).__name__ if prefix is None else prefix
        weights: dict[int, str] = {}
        for name, module, unknown in watched_modules(model, self._patterns):
            if module in self._names:
                continue
            layer = Layer(_joined(prefix, name, module is model))
            self._layer_of[module] = layer
            self._casts.add(module)
            layer.weight = Weight(module)
            if layer.weight.handle is not None:
                self._handles.append(layer.weight.handle)
            parameter = layer.weight.parameter
            if parameter is not None:
                weights.setdefault(id(parameter), layer.name)
            self._hook(layer, module, unknown)
        for name, module in names_of_modules(model):
            if module not in self._names and is_router(module):
                self._watch_router(module, _joined(prefix, name, module is model))
            self._names.setdefault(module, _joined(prefix, name, module is model))
        self._optimizers.add(model, weights)

    def _watch_router(self, module: torch.nn.Module, name: str) -> None:
        router = Router(name or type(module).__name__)
        self._routers.append(router)

        @self._guard
        def add(module: torch.nn.Module, output: Any) -> None:
            if is_transforming() or in_backward():
                return
            if module.training and self._optimizers.is_due():
                router.add(module, output)

        def after(module: torch.nn.Module, args: Any, output: Any) -> None:
            if not torch.compiler.is_compiling() and _C.debug.is_initialized():
                add(module, output)

        self._handles.append(module.register_forward_hook(after))

    def _hook(self, layer: Layer, module: torch.nn.Module, unknown: bool) -> None:
        """Registers the hooks of a module; torch.compile traces their first lines only."""
        before = self._guard(functools.partial(self._before_forward, layer)) if unknown else None
        after = self._guard(
            functools.partial(self._after_forward if unknown else self._forward, layer)
        )

        def before_hook(module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                changed = before_compiled_forward(module, args)
                return None if changed is None else (changed, kwargs)
            if before is not None:
                before(module, args, kwargs)
            return None

        def after_hook(module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            if torch.compiler.is_compiling():
                return after_compiled_forward(module, output)
            after(module, args, kwargs, output)
            return None

        add_marks(module, self._guard(functools.partial(self._show_compiled, layer, module)))
        self._marked.append(module)
        self._handles.append(module.register_forward_pre_hook(before_hook, with_kwargs=True))
        self._handles.append(module.register_forward_hook(after_hook, with_kwargs=True))

    def _show_compiled(
        self, layer: Layer, module: torch.nn.Module, index: int, tensor: torch.Tensor
    ) -> None:
        """Shows a tensor of a compiled forward or its backward, while the graph runs."""
        if index in (GRADIENT, DGRAD):
            layer.show("gradient" if index == GRADIENT else "dgrad", tensor)
            return
        if index == ACTIVATION or (index == WEIGHT and layer.compiled_call is None):
            layer.compiled_call = self._enter(layer, module.training)
            if layer.compiled_call:
                self._watch_weight_gradient(layer)
        if not layer.compiled_call:  # nothing is due, or a recomputation
            return
        if index == WEIGHT:
            layer.show_weight(tensor, _C.debug.tick())
        else:
            layer.show("activation" if index == ACTIVATION else "output", tensor)
        if index == OUTPUT:
            layer.compiled_call = None

    def _watch_weight_gradient(self, layer: Layer) -> None:
        """Shows the gradient of the weight in the next backward.

        A compiled backward passes gradients to parameters only.
        """
        weight = None if layer.weight is None else layer.weight.parameter
        if weight is None or not weight.requires_grad or not layer.asks_for("wgrad"):
            return
        if layer.weight_hook is not None:
            return

        def show(gradient: torch.Tensor) -> None:
            layer.weight_hook.remove()
            layer.weight_hook = None
            layer.show("wgrad", gradient)

        layer.weight_hook = weight.register_hook(self._guard(show))

    def covers(self, module: torch.nn.Module) -> bool:
        """Returns True if the module belongs to a watched model."""
        return module in self._names

    @property
    def layers(self) -> list[str]:
        """The names of the watched modules, in the order of ``named_modules()``.

        Without attentions: they are known when they are called.
        """
        return [layer.name for layer in self._layer_of.values()]

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
        atexit.unregister(self._stop_at_exit)
        self._detach()
        failed = self._entered and bool(exits.leaving_exception())
        if self._optimizer_stepped or self._losses.has_any() or failed:
            self._finish(None)  # also an iteration that ended before the optimizer's step
        sessions.end_debug()

    def _stop_at_exit(self) -> None:
        exits.note_exit()
        self.stop()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for module in self._marked:
            remove_marks(module)
        self._marked.clear()
        self._losses.remove()
        self._optimizers.remove()
        self._attention.remove()
        self._batches.remove()
        self._casts.remove()
        self._copies.remove()

    def _guard(self, call: Callable) -> Callable:
        """Wraps a hook: an error in it ends the watch with a warning, and never the training."""

        @functools.wraps(call)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            try:
                return call(*args, **kwargs)
            except _C.RunStopped:  # a feature was configured to stop the run
                raise
            except Exception as error:
                self._detach()
                warnings.warn(
                    f"telens.watch: stopped watching after an error: {error}", stacklevel=2
                )
                return None

        return guarded

    def _on_step(self) -> None:
        self._optimizer_stepped = True

    def _finish(self, loss: float | torch.Tensor | None) -> None:
        self._optimizer_stepped = self._entered = False
        self._guard(record_routing)(self._routers, self._trackers.note)
        self._guard(self._batches.end_iteration)()
        self._guard(self._optimizers.end_iteration)()
        seen = self._losses.take()
        loss = seen if loss is None else loss
        if loss is not None and self._trackers:
            self._trackers.note("loss", float(loss))
        iteration = _C.debug.iteration() if _C.debug.is_initialized() else 0
        sessions.step(loss)
        self._trackers.log(iteration)

    def _record(self, name: str, value: float) -> None:
        _C.debug.record(name, value)
        self._trackers.note(name, value)

    def _enter(self, layer: Layer, training: bool) -> bool | None:
        """Begins a forward of the layer.

        Returns
        -------
        None if nothing is due. False in a recomputation for a checkpoint: the first forward has
        shown its tensors; its graph, if it has one, is the one that the backward uses. Else True.
        """
        recomputed = in_backward()
        ends_iteration = not recomputed and self._optimizer_stepped and self._steps_itself
        if ends_iteration and not is_transforming():
            self._finish(None)
        if not (training or torch.is_grad_enabled()) or layer.calls.sleeps(False):
            return None
        if is_transforming():
            return None
        if not recomputed:
            self._entered = True
            layer.calls.begin_forward(under_recipe=False)
            self._note_fp8_region()
        return not recomputed

    def _note_fp8_region(self) -> None:
        """Records how many layers follow the recipe of an FP8 region, when the first one begins."""
        iteration = _C.debug.iteration()
        if self._region_was_active or iteration == self._region_iteration:
            return
        self._region_iteration = iteration
        self._region_was_active = is_fp8_region_active()
        if self._region_was_active:
            _C.debug.record("fp8_layers", count_fp8_layers(self._names))

    def _before_attention(self, arguments: dict[str, Any]) -> Any:
        module = calling_module(self.covers)
        if module is None:
            return None
        layer = self._attentions.get(module)
        if layer is None:
            name = ".".join(filter(None, [self._names[module], "core_attention"]))
            layer = self._attentions[module] = Layer(name, attention=True)
        first = self._enter(layer, module.training)
        if first is None:
            return None
        if first:
            show_attention(layer, arguments)
            self._batches.add_attention(arguments)
        return layer, arguments, first

    def _after_attention(self, state: Any, output: torch.Tensor) -> None:
        layer, arguments, first = state
        if first:
            layer.show("attention_output", output)
        watch_attention_backward(layer, arguments, output, self._guard)

    def _before_forward(
        self, layer: Layer, module: torch.nn.Module, args: Any, kwargs: Any
    ) -> None:
        """Begins a forward of a module that may change its arguments in place."""
        layer.call = self._begin_call(layer, module, (args, kwargs))

    def _after_forward(
        self, layer: Layer, module: torch.nn.Module, args: Any, kwargs: Any, output: Any
    ) -> None:
        call, layer.call = layer.call, None
        self._finish_call(layer, call, output)

    def _forward(
        self, layer: Layer, module: torch.nn.Module, args: Any, kwargs: Any, output: Any
    ) -> None:
        self._finish_call(layer, self._begin_call(layer, module, (args, kwargs)), output)

    def _begin_call(self, layer: Layer, module: torch.nn.Module, inputs: Any) -> Call | None:
        first = self._enter(layer, module.training)
        if first and isinstance(module, torch.nn.Embedding):
            args, kwargs = inputs
            self._batches.add_tokens(layer.name, [*args, *kwargs.values()])
        return None if first is None else Call(layer, inputs, first)

    def _finish_call(self, layer: Layer, call: Call | None, output: Any) -> None:
        if call is not None:
            call.finish(output, _C.debug.tick(), self._guard)
        layer.forget_forward()


def _joined(prefix: str, name: str, is_root: bool) -> str:
    """Returns the name of a module below the prefix of its model; the root has the prefix."""
    if not prefix:
        return name
    return prefix if is_root else f"{prefix}.{name}"


def watch(
    model: torch.nn.Module,
    config: str | os.PathLike | dict | None = None,
    log_dir: str | os.PathLike = "telens_run",
    *,
    feature_dirs: str | os.PathLike | Iterable[str | os.PathLike] | None = None,
    modules: Iterable[str] = (),
    logger: Any = None,
    every: int = 10,
    init_training_step: int = 0,
) -> Watch:
    r"""Records the tensors of an ordinary torch model. The model is not converted or changed.

    Watches each ``Linear``, ``Embedding``, convolution and norm: input, weight and output, and
    their gradients, as ``activation``, ``weight``, ``output``, ``dgrad``, ``wgrad`` and
    ``gradient``. A module that calls ``scaled_dot_product_attention`` has a layer
    ``<name>.core_attention`` with the tensors ``query``, ``key``, ``value``, ``attention_output``
    and their gradients, ``query_gradient`` and so on.

    Iterations are optimizer steps: the first watched forward after the steps of one or more
    optimizers begins the next iteration. The loss is the scalar on which ``backward()`` was called,
    the mean if there were several. ``telens.step(loss)`` states both explicitly.

    Every rank of a distributed training calls it, after ``init_process_group``. Under
    ``torch.compile`` it adds operators to the graph; call it before the first compiled forward.

    Parameters
    ----------
    model
        before or after it is wrapped in DDP or FSDP; names are the same
    config
        path of a YAML file or a dict; None: statistics of every tensor within a budget of 3 % of
        the step time
    log_dir
        folder of the run file and the logs
    feature_dirs
        folders of feature classes (.py) and plugins (.so) that the config uses
    modules
        names of more modules to watch, of any class: regular expressions for the whole name or the
        whole class name, such as ``"LlamaDecoderLayer"`` or ``r"layers\.\d+\.mlp"``
    logger
        an experiment tracker, or several in a list, that receive loss, learning rate, gradient
        norm, lost updates and findings: a ``SummaryWriter``, a run of wandb, or the module trackio
        or mlflow
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
    global _current, _has_watched
    title = "telens.watch"
    if not isinstance(model, torch.nn.Module):
        raise arguments.refusal(title, "model", "a torch.nn.Module", model)
    if arguments.index(title, "every", every) < 1:
        raise arguments.refusal(title, "every", "a number of steps from 1 on", every)
    patterns = _compiled(title, modules)
    if next(watched_modules(model, patterns), None) is None:
        raise _C.UsageError(
            f"telens.watch: {type(model).__name__} does not contain a Linear, Embedding, "
            "convolution or norm; pass the model that contains them, or name other modules with "
            "modules="
        )
    for pattern in patterns:
        if not any(is_named(*each, [pattern]) for each in names_of_modules(model)):
            raise _C.UsageError(
                f"telens.watch: modules: no module of {type(model).__name__} has the name or class "
                f"{pattern.pattern!r}; expected a regular expression for a whole name such as "
                f"{_example_name(model)!r}"
            )
    if _current is not None:
        if _C.debug.is_initialized():
            raise _C.UsageError(
                "telens.watch: a model is watched already. To record this model in the same run, "
                "call add(model) of the Watch that the first call returned; to begin another run, "
                "call its stop() first"
            )
        _current.stop()  # its session was ended by debug.end_debug()
    trackers = trackers_of(logger)
    sessions.initialize(
        CONFIG if config is None else config,
        feature_dirs,
        log_dir=log_dir,
        init_training_step=init_training_step,
    )
    try:
        _current = Watch(model, every, patterns, trackers)
        _has_watched = True
    except BaseException:
        sessions.end_debug()
        raise
    if trackers:
        diagnosis.on_finding(trackers.alert)
    _warn_of_devices(model)
    if config is not None:  # the default config has no such features
        _warn_of_features(_current)
    if _is_compiled(model):
        warnings.warn(
            "telens.watch: torch.compile compiles this model. Inside its graphs, attention and "
            "routers are not recorded, and neither are replays of CUDA graphs "
            "(mode='reduce-overhead')",
            stacklevel=2,
        )
    return _current


def _warn_of_features(watch: Watch) -> None:
    """Warns about features of the session that have no effect on watched layers."""
    running = {name for each in watch.layers for _, name, _ in _C.debug.features_of_layer(each)}
    useless = sorted(running & _NEED_FP8_MODULES)
    if useless:
        warnings.warn(
            f"telens.watch: {', '.join(useless)}: no effect here, because torch runs the GEMMs of "
            "this model. Convert the model to FP8 modules to use it: telens.pytorch.convert(model)",
            stacklevel=3,
        )


def _warn_of_devices(model: torch.nn.Module) -> None:
    """Warns if tensors have to be copied to the host to read them."""
    devices = dict.fromkeys(each.device for each in model.parameters() if not each.is_meta)
    slow = [str(device) for device in devices if not has_kernels(device)]
    if slow:
        warnings.warn(
            f"telens.watch: this build has no kernels for {', '.join(slow)}: each recorded tensor "
            "is copied to the host. Raise freq, or install a build with CUDA kernels (cards of "
            "compute capability 8.0 or newer)",
            stacklevel=3,
        )


def _compiled(title: str, modules: Iterable[str]) -> list[re.Pattern]:
    expected = "a list of regular expressions"
    if isinstance(modules, str) or not isinstance(modules, Iterable):
        raise arguments.refusal(title, "modules", expected, modules)
    try:
        return [re.compile(each) for each in modules]
    except (re.error, TypeError) as error:
        raise arguments.refusal(title, "modules", f"{expected} ({error})", modules) from error


def _example_name(model: torch.nn.Module) -> str:
    return next((name for name, _ in names_of_modules(model) if name), type(model).__name__)


def _is_compiled(model: torch.nn.Module) -> bool:
    """Returns True if torch.compile was applied to the model or a module inside it."""
    # Compiling imports torch._dynamo, which takes seconds.
    dynamo = sys.modules.get("torch._dynamo")
    optimized = getattr(dynamo, "OptimizedModule", ())
    return any(
        isinstance(each, optimized) or each._compiled_call_impl is not None
        for each in model.modules()
    )


def current() -> Watch | None:
    """Returns the running watch, None if no model is watched."""
    return _current if _C.debug.is_initialized() else None


def has_watched() -> bool:
    """Returns True if this process has watched a model."""
    return _has_watched


def step(loss: float | torch.Tensor | None = None) -> None:
    """Ends an iteration of the watched training, with its loss.

    Call it after each optimizer step, or not at all: without it optimizer steps end iterations.
    Does nothing if no model is watched.
    """
    if _current is not None:
        _current.step(loss)
