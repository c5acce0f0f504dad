"""Records loss, learning rate and gradient norm of Hugging Face's Trainer; needs transformers.

    import telens.debug as debug
    from telens.pytorch.hugging_face_trainer import RecordingCallback

    debug.initialize("debug.yaml", log_dir="logs")
    trainer = Trainer(..., callbacks=[RecordingCallback()])
    trainer.train()
    debug.end_debug()

Under ``python -m telens.run_as_te --config debug.yaml`` every Trainer has the callback.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from transformers.trainer import Trainer
from transformers.trainer_callback import TrainerCallback

from telens import _C, debug

__all__ = ["RecordingCallback", "add_to_every_trainer"]


class RecordingCallback(TrainerCallback):
    """Records ``loss``, ``lr`` and ``grad_norm`` of each optimizer step, whatever is logged.

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

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begins to count where a resumed training begins."""
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

    def note_loss(self, loss: torch.Tensor) -> None:
        """Adds the loss of a micro-batch, which the Trainer has divided by their number."""
        self._loss = loss if self._loss is None else self._loss + loss

    def note_grad_norm(self, norm: Any) -> None:
        """Notes the norm that clipping returned."""
        self._grad_norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm


def add_to_every_trainer() -> Callable[[], None]:
    """Has every Trainer that is built from here on record; returns what undoes that."""
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


def _callbacks_of(trainer: Trainer) -> list[RecordingCallback]:
    return [each for each in trainer.callback_handler.callbacks if type(each) is RecordingCallback]


def _note_losses() -> None:
    """Wraps training_step to pass the loss of each micro-batch to the callbacks."""
    training_step = Trainer.training_step

    @functools.wraps(training_step)
    def noting(self: Trainer, *args: Any, **kwargs: Any) -> torch.Tensor:
        callbacks = _callbacks_of(self)
        if callbacks:
            _note_grad_norms(self)
        loss = training_step(self, *args, **kwargs)
        for callback in callbacks:
            callback.note_loss(loss)
        return loss

    Trainer.training_step = noting


def _note_grad_norms(trainer: Trainer) -> None:
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


_note_losses()
