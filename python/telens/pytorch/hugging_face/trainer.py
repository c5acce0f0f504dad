"""Records loss, learning rate and gradient norm of Hugging Face's Trainer; needs transformers.

    import telens.debug as debug
    from telens.pytorch.hugging_face.trainer import RecordingCallback

    debug.initialize("debug.yaml", log_dir="logs")
    trainer = Trainer(..., callbacks=[RecordingCallback()])
    trainer.train()
    debug.end_debug()

Under ``python -m telens.run_as_te --config debug.yaml`` every Trainer has the callback.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from transformers.trainer import Trainer
from transformers.trainer_callback import TrainerCallback

from telens import _C, debug

__all__ = ["RecordingCallback", "add_to_every_trainer", "is_recording"]


class RecordingCallback(TrainerCallback):
    """Records ``loss``, ``lr`` and ``grad_norm`` in each optimizer step, independent of the
    Trainer's logging.

    The loss is the one that the Trainer backpropagates, over all micro-batches of the step on this
    rank. ``lr`` is the learning rate of the optimizer's first group, ``grad_norm`` the norm before
    clipping. The first step of a resumed training has the number that the Trainer resumes with.

    Parameters
    ----------
    ends_iterations
        whether each optimizer step ends an iteration of the debug session, as ``debug.step()`` does
    """

    def __init__(self, ends_iterations: bool = True) -> None:
        self.ends_iterations = ends_iterations
        self._loss: torch.Tensor | float | None = None
        self._grad_norm: Any = None
        self._accelerator: Any = None  # while its clip_grad_norm_ is wrapped

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Starts to receive losses. A resumed training continues with its step number."""
        _patches.add(self)
        if state.global_step > 0 and _C.debug.is_initialized() and _C.debug.iteration() == 0:
            debug.initialize_training_step(state.global_step)

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any
    ) -> None:
        """Records the numbers of the step that comes next."""
        values = {"loss": self._loss, "grad_norm": self._grad_norm}
        self._loss = self._grad_norm = None
        if not _C.debug.is_initialized():
            return
        groups = getattr(optimizer, "param_groups", None)
        values["lr"] = groups[0].get("lr") if groups else None
        for name, value in values.items():
            if value is not None:
                debug.record(name, value)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Ends the iteration."""
        if self.ends_iterations:
            debug.step()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Restores the methods of the Trainer and its accelerator."""
        self.stop()

    def stop(self) -> None:
        """Stops receiving losses and norms."""
        _patches.remove(self)
        if self._accelerator is not None:
            vars(self._accelerator).pop("clip_grad_norm_", None)
            self._accelerator = None

    def watch_clipping(self, trainer: Trainer) -> None:
        """Passes each norm that the Trainer's ``clip_grad_norm_`` returns to its callbacks.

        The first callback of a Trainer does it for all of them, until ``stop``.
        """
        accelerator = trainer.accelerator
        if "clip_grad_norm_" in vars(accelerator):
            return
        clip = accelerator.clip_grad_norm_

        @functools.wraps(clip)
        def noting(*args: Any, **kwargs: Any) -> Any:
            norm = clip(*args, **kwargs)
            for callback in _callbacks_of(trainer):
                callback.note_grad_norm(norm)
            return norm

        accelerator.clip_grad_norm_ = noting
        self._accelerator = accelerator

    def note_loss(self, loss: torch.Tensor) -> None:
        """Adds the loss of a micro-batch, which the Trainer has divided by their number."""
        self._loss = loss if self._loss is None else self._loss + loss

    def note_grad_norm(self, norm: Any) -> None:
        """Notes the norm that clipping returned."""
        self._grad_norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm


def add_to_every_trainer() -> Callable[[], None]:
    """Makes every Trainer that is constructed from now on record; returns a function that undoes
    this."""
    init = Trainer.__init__

    @functools.wraps(init)
    def with_callback(self: Trainer, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        if not _callbacks_of(self):
            self.add_callback(RecordingCallback(ends_iterations=False))

    Trainer.__init__ = with_callback

    def undo() -> None:
        Trainer.__init__ = init

    return undo


def is_recording() -> bool:
    """Returns True while a Trainer with a RecordingCallback is training."""
    return _patches.is_active()


def _callbacks_of(trainer: Trainer) -> list[RecordingCallback]:
    return [each for each in trainer.callback_handler.callbacks if type(each) is RecordingCallback]


class _Patches:
    """``Trainer.training_step`` passes each loss to the callbacks while one of them is training."""

    def __init__(self) -> None:
        self._training: weakref.WeakSet[RecordingCallback] = weakref.WeakSet()
        self._original: Callable | None = None

    def is_active(self) -> bool:
        return bool(self._training)

    def add(self, callback: RecordingCallback) -> None:
        """Patches the class, if it is not patched yet, until ``callback`` ends or is deleted."""
        self._training.add(callback)
        weakref.finalize(callback, self._restore)
        if self._original is None:
            self._original = Trainer.training_step
            Trainer.training_step = _with_losses(self._original)

    def remove(self, callback: RecordingCallback) -> None:
        self._training.discard(callback)
        self._restore()

    def _restore(self) -> None:
        """Restores the class if no callback is training and no one else has patched it since."""
        is_ours = getattr(Trainer.training_step, "__wrapped__", None) is self._original
        if self._original is not None and not self._training and is_ours:
            Trainer.training_step = self._original
            self._original = None


_patches = _Patches()


def _with_losses(training_step: Callable) -> Callable:
    @functools.wraps(training_step)
    def noting(self: Trainer, *args: Any, **kwargs: Any) -> torch.Tensor:
        callbacks = _callbacks_of(self)
        for callback in callbacks:
            callback.watch_clipping(self)
        try:
            loss = training_step(self, *args, **kwargs)
        except BaseException:
            for callback in callbacks:
                callback.stop()  # on_train_end is not called for an interrupted training
            raise
        for callback in callbacks:
            callback.note_loss(loss)
        return loss

    return noting
