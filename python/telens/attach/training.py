"""Recording of a training outside of its layers: losses, optimizer steps, lost updates."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import torch
from torch.autograd.graph import GradientEdge
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from telens import _C

__all__ = ["LossWatch", "OptimizerWatch", "in_backward"]

# Modules that call backward() on losses that a framework has divided by the number of micro-batches
# or of their tokens. The trainers of transformers and TRL call accelerate.
_FRAMEWORKS = (
    "accelerate.accelerator",
    "lightning.pytorch.plugins.precision.precision",
    "pytorch_lightning.plugins.precision.precision",
)
_FRAMES_TO_FRAMEWORK = 8

_KEPT_LOSSES = 64  # more are summed, which waits for the device
_MANY_BACKWARDS = 1000  # backwards without an end of the iteration that are warned of

_OTHER_STEPS = 10  # steps of optimizers without a watched parameter before the warning

# Elements of a parameter that are compared before and after a step. With 16,384 of them a share of
# 1 % has a standard error of 0.08 %.
_SAMPLE = 16384

# Changes by a unit in the last place that stochastic rounding should make, so that the decay is
# measured with a standard error of 18 %.
_MIN_DECAY_CHANGES = 30


def in_backward() -> bool:
    """Returns True while autograd runs a backward on this thread, as in a recomputation."""
    return torch._C._current_graph_task_id() != -1


class LossWatch:
    """Collects the scalars on which the training calls ``backward()``.

    The loss of an iteration is the mean over its backwards. If a framework calls backward() on
    losses that it has divided by the number of micro-batches, it is their sum. A loss scaled by a
    GradScaler is recorded unscaled.

    Parameters
    ----------
    guard
        wraps each hook
    warn_without_steps
        True to warn if backward() runs 1000 times without an optimizer step
    """

    def __init__(
        self, guard: Callable[[Callable], Callable], warn_without_steps: bool = True
    ) -> None:
        self._losses: list[torch.Tensor] = []
        self._summed = 0.0  # losses that are not kept any more
        self._count = 0
        self._warned = not warn_without_steps
        self._loss_scale: torch.Tensor | None = None
        self._divided = False  # True if a framework has divided the losses
        self._note = guard(self._note_loss)
        self._backward = torch.autograd.backward
        self._scale = torch.amp.GradScaler.scale
        torch.autograd.backward = self._watched_backward
        scale = self._scale

        def watched_scale(scaler: Any, outputs: Any) -> Any:
            scaled = scale(scaler, outputs)
            note_scaled(scaler, outputs, scaled)
            return scaled

        def note_scaled(scaler: Any, outputs: Any, scaled: Any) -> None:
            if isinstance(outputs, torch.Tensor) and outputs.numel() == 1:
                scaled._telens_unscaled = outputs.detach().clone()
            factor = getattr(scaler, "_scale", None)
            if isinstance(factor, torch.Tensor):
                self._loss_scale = factor.clone()  # update() changes it in place

        note_scaled = guard(note_scaled)

        torch.amp.GradScaler.scale = watched_scale

    def remove(self) -> None:
        torch.autograd.backward = self._backward
        torch.amp.GradScaler.scale = self._scale

    def has_any(self) -> bool:
        """Returns True if backward() was called since the last call of take()."""
        return bool(self._losses) or self._count > 0

    def take(self) -> float | None:
        """Returns the loss of the backwards since the last call, None if there were none.

        Records the factor of a GradScaler as the scalar ``loss_scale``.
        """
        self._sum_losses()
        total, self._summed = self._summed, 0.0
        count, self._count = self._count, 0
        scale, self._loss_scale = self._loss_scale, None
        if scale is not None and _C.debug.is_initialized():
            _C.debug.record("loss_scale", float(scale))
        if count == 0:
            return None
        return total if self._divided else total / count

    def _watched_backward(self, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(tensors, Iterator):
            tensors = tuple(tensors)  # an iterator can be read only once
        self._note(tensors, sys._getframe(1))
        return self._backward(tensors, *args, **kwargs)

    def _note_loss(self, tensors: Any, caller: FrameType) -> None:
        # A GradientEdge is a tuple, too.
        if isinstance(tensors, Sequence) and not isinstance(tensors, GradientEdge):
            tensors = tensors[0] if len(tensors) == 1 else None
        if not isinstance(tensors, torch.Tensor) or tensors.numel() != 1 or in_backward():
            return
        if tensors.is_cuda and torch.cuda.is_current_stream_capturing():
            return  # a copy in the graph would keep the last replay's value
        # A copy: the program may change the loss in place, or it is a part of a large tensor.
        unscaled = getattr(tensors, "_telens_unscaled", None)
        self._losses.append(tensors.detach().clone() if unscaled is None else unscaled)
        self._divided = _framework_calls(caller)
        if len(self._losses) >= _KEPT_LOSSES:
            self._sum_losses()
        if self._count >= _MANY_BACKWARDS and not self._warned:
            self._warned = True
            warnings.warn(
                f"telens.watch: {self._count} backwards without a step of an optimizer that is "
                "watched; call telens.step(loss) after each step",
                stacklevel=4,
            )

    def _sum_losses(self) -> None:
        losses, self._losses = self._losses, []
        self._summed = math.fsum([self._summed, *(float(each) for each in losses)])
        self._count += len(losses)


def _framework_calls(frame: FrameType | None) -> bool:
    """Returns True if a framework that divides losses has called backward() in this frame."""
    for _ in range(_FRAMES_TO_FRAMEWORK):
        if frame is None:
            break
        if frame.f_globals.get("__name__") in _FRAMEWORKS:
            # With manual optimization, Lightning passes on the losses of the program.
            module = frame.f_locals.get("model")
            return getattr(module, "automatic_optimization", True)
        frame = frame.f_back
    return False


class _Sample:
    """Elements of a parameter, before a step."""

    def __init__(self, parameter: torch.Tensor) -> None:
        self.parameter = parameter
        self.before = _sampled(parameter).clone()


# Optimizers whose first step changes each element by the learning rate: the bias corrections of
# both moments cancel, and the first gradient is divided by its own magnitude.
_ADAM = ("Adam", "AdamW", "FusedAdam", "CPUAdam", "DeepSpeedCPUAdam")


def _begins_as_adam(
    optimizer: torch.optim.Optimizer, parameter: torch.Tensor, is_first_step: bool
) -> bool:
    """Returns True if the next step is the first one of Adam's moments of this parameter.

    Moments that were lost are zero in the first watched step. Later, moments are also zero if the
    gradients were.
    """
    if type(optimizer).__name__ not in _ADAM or parameter.dtype != torch.float32:
        return False
    moment = optimizer.state.get(parameter, {}).get("exp_avg")
    return moment is None or (is_first_step and not bool(_sampled(moment).any()))


def _sampled(tensor: torch.Tensor) -> torch.Tensor:
    """Returns every n-th element of the rank's part of a tensor, about _SAMPLE of them."""
    tensor = tensor.detach()
    flat = (tensor.to_local() if hasattr(tensor, "to_local") else tensor).reshape(-1)
    return flat[:: max(1, flat.numel() // _SAMPLE)]


def _update_of(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> torch.Tensor | None:
    """Returns elements that are zero only if the step's update of that element is zero.

    The momentum if the optimizer has one, else the gradient.
    """
    state = optimizer.state.get(parameter, {})
    for name in ("exp_avg", "momentum_buffer"):
        moment = state.get(name)
        if isinstance(moment, torch.Tensor) and moment.shape == parameter.shape:
            return _sampled(moment)
    gradient = parameter.grad
    if gradient is None or gradient.is_sparse:
        return None
    return _sampled(gradient)


# State that stays zero for an element without gradients. Other state, such as a compensation for
# rounding, may apply the decay later.
_MOMENTS = {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer"}


def _decay_of(optimizer: torch.optim.Optimizer) -> dict[int, float]:
    """Returns by id(parameter) the share of a 16-bit weight that the decay removes in a step.

    Without parameters whose state is unknown.
    """
    decays = {}
    for group in optimizer.param_groups:
        decay = float(group.get("weight_decay") or 0) * float(group.get("lr") or 0)
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            is_known = all(
                name in _MOMENTS
                for name, value in state.items()
                if isinstance(value, torch.Tensor) and value.shape == parameter.shape
            )
            if decay > 0 and is_known and parameter.dtype in (torch.bfloat16, torch.float16):
                decays[id(parameter)] = decay
    return decays


def _measure_decay(
    before: torch.Tensor, after: torch.Tensor, update: torch.Tensor, decay: float
) -> torch.Tensor:
    """Measures the decay of elements with a zero update, which change only by it.

    Returns [sum by which they shrank, sum by which they should have, number of elements that
    should have changed by a unit in the last place].
    """
    idle = (update == 0) & (before != 0) & after.isfinite()
    sizes = torch.where(idle, before, 0).float().abs()
    shrunk = sizes - torch.where(idle, after, 0).float().abs()
    changes = idle.sum() * (decay / torch.finfo(before.dtype).eps)
    return torch.stack([shrunk.sum(), decay * sizes.sum(), changes.float()])


class OptimizerWatch:
    """Measures the steps of optimizers that train parameters of the model.

    Records, as scalars of the run: ``lr`` of the first parameter group in each step; in the steps
    of every ``every``-th iteration also ``grad_norm``, ``update_to_weight`` (norm of the update
    over the norm of the weights, on a sample) and ``lost_updates%``, the share of sampled elements
    that the step did not change although their update is not zero, which is how BF16 weights lose
    small updates. ``lost_decay%`` is the share of the weight decay of 16-bit weights that had no
    effect, measured on elements whose update is zero. These numbers cover all optimizers of the
    iteration; ``lr`` is that of the first one. ``grad_norm`` is not recorded if a gradient is
    sharded, as by FSDP2. A learning rate in a tensor is recorded only in measured steps. The first
    step of Adam also has ``first_update``, the median change of an element in units of the learning
    rate, which is 1. The layers' weights have their own ``lost_updates%``, ``lost_decay%`` and
    ``update_rms``; ``accumulated_norm`` and ``accumulated_mean`` describe the rank's part of the
    gradient that the optimizer received for them. ``missing`` is 1 for a weight that the optimizer
    trains and that has no gradient, while other parameters have one.

    Parameters
    ----------
    on_step
        called after each step, also if a GradScaler has skipped it
    guard
        wraps each hook
    every
        steps from one measurement to the next
    record
        ``record(name, value)`` records a number of the iteration
    had_backward
        returns True if a backward has run in the iteration
    """

    def __init__(
        self,
        on_step: Callable[[], None],
        guard: Callable[[Callable], Callable],
        every: int,
        record: Callable[[str, float], None],
        had_backward: Callable[[], bool],
    ) -> None:
        self.record = record
        self.had_backward = had_backward
        self.models: list[torch.nn.Module] = []
        self.layer_of: dict[int, str] = {}
        self.on_step = on_step
        self.every = every
        self.steps = 0  # iterations with a step
        self._other_steps = 0  # before the first step on a parameter of a model
        # By id(optimizer); with the id of parameters whose moments begin with this step.
        self._samples: dict[int, tuple[list[_Sample], set[int]]] = {}
        self._norms: list[float] = []  # of the gradients of this iteration
        # Of this iteration: lost and all updates, squares of the update and of the weights.
        self._totals = [0.0] * 4
        self._decay = [0.0] * 3  # the sums of _measure_decay
        self._stepped = False
        self._is_sharded = False
        self.handles = [
            register_optimizer_step_pre_hook(guard(self._before)),
            register_optimizer_step_post_hook(guard(self._after)),
        ]
        step = self._scaler_step = torch.amp.GradScaler.step
        note = guard(self._note_attempt)

        def watched_step(
            scaler: Any, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any
        ) -> Any:
            result = step(scaler, optimizer, *args, **kwargs)
            note(optimizer)
            return result

        torch.amp.GradScaler.step = watched_step

    def add(self, model: torch.nn.Module, layer_of: dict[int, str]) -> None:
        """Measures steps on the parameters of this model, too.

        ``layer_of`` maps ``id(weight)`` to the name of the layer. Steps of optimizers without a
        parameter of an added model are ignored.
        """
        self.models.append(model)
        self.layer_of.update(layer_of)

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()
        torch.amp.GradScaler.step = self._scaler_step

    def _note_attempt(self, optimizer: torch.optim.Optimizer) -> None:
        """Ends the iteration of a step that a GradScaler may have skipped without a hook."""
        if self._trained(optimizer):
            self.on_step()

    def is_due(self) -> bool:
        """Returns True if the steps of this iteration are measured."""
        return self.steps % self.every == 0

    def _watched(self, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        # Looked up in each step: FSDP and tensor parallelism replace parameters.
        watched = {id(each) for model in self.models for each in model.parameters()}
        return [p for p in _parameters(optimizer) if id(p) in watched]

    def _trained(self, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        return [p for p in self._watched(optimizer) if p.grad is not None]

    def _note_cleared_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Records gradients of 0 if no parameter has a gradient after a backward.

        ``zero_grad()`` has removed them before the step. The step ends the iteration.
        """
        watched = [p for p in self._watched(optimizer) if p.requires_grad]
        if not watched or self._stepped or not self.had_backward():
            return
        # Some optimizers read the gradients from another attribute.
        if any(_has_other_gradient(p) for p in watched) or not _C.debug.is_initialized():
            return
        if self.is_due():
            now = _C.debug.iteration()
            for layer in filter(None, (self.layer_of.get(id(p)) for p in watched)):
                _C.log_scalar(f"{layer}_wgrad_accumulated_norm", 0, now)
                _C.log_scalar(f"{layer}_wgrad_accumulated_mean", 0, now)
        self._stepped = True
        self.on_step()

    def _note_missing_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        for parameter in _parameters(optimizer):
            layer = self.layer_of.get(id(parameter))
            if layer is not None and parameter.requires_grad and parameter.grad is None:
                _C.log_scalar(f"{layer}_wgrad_missing", 1, _C.debug.iteration())

    @torch.no_grad()
    def _before(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        self._samples.pop(id(optimizer), None)
        trained = self._trained(optimizer)
        # A closure computes the gradients in the step, after this call.
        has_closure = len(args) > 1 or kwargs.get("closure") is not None
        if not trained and not has_closure:
            self._warn_of_other_steps(optimizer)
            self._note_cleared_gradients(optimizer)
        if not trained or not _C.debug.is_initialized():
            return
        is_first, self._stepped = not self._stepped, True
        rate = optimizer.param_groups[0].get("lr")
        due = self.is_due()
        # Reading a tensor would wait for the device in each step.
        if is_first and rate is not None and (due or not isinstance(rate, torch.Tensor)):
            self.record("lr", float(rate))
        # A fused optimizer itself skips the steps in which GradScaler has found an Inf or NaN.
        found_inf = getattr(optimizer, "found_inf", None)
        if not due or (isinstance(found_inf, torch.Tensor) and float(found_inf) > 0):
            return
        if not has_closure:
            self._measure_gradients(optimizer, trained)
            self._note_missing_gradients(optimizer)
        if rate is None or float(rate) != 0:
            self._samples[id(optimizer)] = (
                [_Sample(p) for p in trained if p.is_floating_point()],
                {id(p) for p in trained if _begins_as_adam(optimizer, p, self.steps == 0)},
            )

    def _warn_of_other_steps(self, optimizer: torch.optim.Optimizer) -> None:
        """Warns if the optimizer seems to train parameters that the model does not have any more.

        Requires that the model has gradients, and that no optimizer has used them yet.
        """
        if self.steps > 0 or self._stepped or self._other_steps >= _OTHER_STEPS:
            return
        if not any(p.grad is not None for model in self.models for p in model.parameters()):
            return
        self._other_steps += 1
        if self._other_steps == _OTHER_STEPS:
            warnings.warn(
                f"telens.watch: {type(optimizer).__name__} made {_OTHER_STEPS} steps and does not "
                "train a parameter of the watched model. If it should, create it after the "
                "parameters have been replaced (model.to(), quantization, adapters). If it trains "
                "copies of them, as in DeepSpeed and Megatron, call telens.step(loss) after each "
                "step",
                stacklevel=4,
            )

    def _measure_gradients(
        self, optimizer: torch.optim.Optimizer, trained: list[torch.Tensor]
    ) -> None:
        """Records norm and mean of the gradient that the optimizer receives for each layer.

        Both describe the rank's part of the gradient. ``grad_norm`` is kept until the iteration
        ends, since more optimizers may step.
        """
        # The norm of sharded gradients needs a collective, in which the other ranks hang if an
        # error has ended the watch of one rank.
        if any(hasattr(p.grad, "to_local") for p in trained):
            self._is_sharded = True
        dense = [p for p in trained if _is_dense(p.grad) and _own_part(p.grad).numel() > 0]
        if not dense:
            return
        gradients = [_own_part(p.grad) for p in dense]
        names = [self.layer_of.get(id(p)) for p in dense]
        numbers = [torch.linalg.vector_norm(g, dtype=torch.float32) for g in gradients]
        numbers += [
            g.mean(dtype=torch.float32)
            for g, name in zip(gradients, names, strict=True)
            if name is not None
        ]
        factor = getattr(optimizer, "grad_scale", None)  # of a GradScaler with a fused optimizer
        values = torch.stack([each.to(numbers[0].device) for each in numbers]).double().cpu()
        if isinstance(factor, torch.Tensor):
            values /= float(factor)
        values = values.tolist()
        norms, means = values[: len(dense)], values[len(dense) :]
        self._norms += norms
        now = _C.debug.iteration()
        layers = [(name, norm) for name, norm in zip(names, norms, strict=True) if name is not None]
        for (layer, norm), mean in zip(layers, means, strict=True):
            _C.log_scalar(f"{layer}_wgrad_accumulated_norm", norm, now)
            _C.log_scalar(f"{layer}_wgrad_accumulated_mean", mean, now)

    def end_iteration(self) -> None:
        """Records the numbers of all optimizers that have stepped in the iteration."""
        norms, self._norms = self._norms, []
        if norms and not self._is_sharded and _C.debug.is_initialized():
            self.record("grad_norm", math.sqrt(sum(each * each for each in norms)))
        (lost, due, change, size), self._totals = self._totals, [0.0] * 4
        if due > 0 and _C.debug.is_initialized():
            self.record("lost_updates%", 100 * lost / due)
        if size > 0 and _C.debug.is_initialized():
            self.record("update_to_weight", math.sqrt(change / size))
        (shrunk, expected, changes), self._decay = self._decay, [0.0] * 3
        if changes >= _MIN_DECAY_CHANGES and _C.debug.is_initialized():
            self.record("lost_decay%", 100 * (1 - shrunk / expected))
        self.steps += self._stepped
        self._stepped = self._is_sharded = False

    @torch.no_grad()
    def _after(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        samples, first_steps = self._samples.pop(id(optimizer), ([], set()))
        rows = []
        changes = []
        decays = _decay_of(optimizer) if samples else {}
        decayed = []
        for sample in samples:
            update = _update_of(optimizer, sample.parameter)
            if update is None or update.numel() != sample.before.numel():
                continue
            after = _sampled(sample.parameter)
            due = update != 0
            lost = due & (after == sample.before)
            change = (after.float() - sample.before.float()).square().sum()
            size = sample.before.float().square().sum()
            numbers = torch.stack([lost.sum().float(), due.sum().float(), change, size])
            rows.append((sample.parameter, numbers))
            decay = decays.get(id(sample.parameter))
            if decay is not None:
                sums = _measure_decay(sample.before, after, update, decay)
                decayed.append((sample.parameter, sums))
            if id(sample.parameter) in first_steps:
                changes.append((after - sample.before).abs()[due].float())
        if rows:
            self._record(rows)
        if decayed:
            self._record_decay(decayed)
        rates = {group.get("lr") for group in optimizer.param_groups} if changes else set()
        rate = rates.pop() if len(rates) == 1 else None
        if rate is not None:
            change = torch.cat([each.to(changes[0].device) for each in changes])
            if change.numel() > 0:
                _C.debug.record("first_update", float(change.median()) / float(rate))
        if samples or self._trained(optimizer):
            self.on_step()

    def _record(self, rows: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        device = rows[0][1].device
        table = torch.stack([numbers.to(device) for _, numbers in rows]).double().cpu()
        now = _C.debug.iteration()
        for (parameter, _), (lost, due, change, _) in zip(rows, table.tolist(), strict=True):
            layer = self.layer_of.get(id(parameter))
            if layer is not None and due > 0:
                elements = _sampled(parameter).numel()
                _C.log_scalar(f"{layer}_weight_lost_updates%", 100 * lost / due, now)
                _C.log_scalar(f"{layer}_weight_update_rms", math.sqrt(change / elements), now)
        self._totals = [a + b for a, b in zip(self._totals, table.sum(0).tolist(), strict=True)]

    def _record_decay(self, rows: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        device = rows[0][1].device
        table = torch.stack([sums.to(device) for _, sums in rows]).double().cpu()
        now = _C.debug.iteration()
        for (parameter, _), (shrunk, expected, changes) in zip(rows, table.tolist(), strict=True):
            layer = self.layer_of.get(id(parameter))
            if layer is not None and changes >= _MIN_DECAY_CHANGES:
                _C.log_scalar(f"{layer}_weight_lost_decay%", 100 * (1 - shrunk / expected), now)
        self._decay = [a + b for a, b in zip(self._decay, table.sum(0).tolist(), strict=True)]


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _has_other_gradient(parameter: torch.Tensor) -> bool:
    names = ("main_grad", "decoupled_grad")
    return any(getattr(parameter, name, None) is not None for name in names)


def _is_dense(gradient: torch.Tensor) -> bool:
    return gradient.is_floating_point() and not gradient.is_sparse


def _own_part(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
