"""A small training with accessible parts, in which faults can be planted."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import torch

import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import (
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
    Recipe,
)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from models import TASKS

RECIPES: dict[str, Callable[[], Recipe] | None] = {
    "delayed": lambda: DelayedScaling(amax_history_len=16, amax_compute_algo="max"),
    "delayed_recent": lambda: DelayedScaling(amax_history_len=1, amax_compute_algo="most_recent"),
    "current": Float8CurrentScaling,
    "mxfp8": MXFP8BlockScaling,
    "block": Float8BlockScaling,
    "bf16": None,
}
OPTIMIZERS: dict[str, Callable] = {
    "adamw": lambda trained: torch.optim.AdamW(
        trained, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    ),
    "sgd": lambda trained: torch.optim.SGD(trained, momentum=0.9),
}
WARM_UP = 5  # steps of a learning rate that rises


@dataclasses.dataclass
class Options:
    """The options that vary between healthy trainings."""

    recipe: str = "delayed"
    model: str = "gpt"
    seed: int = 1
    steps: int = 40
    layers: int = 3
    hidden: int = 64
    heads: int = 2
    sequence: int = 32
    batch: int = 8
    learning_rate: float = 2e-3
    micro_batches: int = 1
    frozen: tuple[str, ...] = ()  # names of parameters begin so
    resume_at: int | None = None
    rank: int = 0
    dropout: float = 0.0
    dtype: torch.dtype = torch.bfloat16  # the dtype of autocast
    loss_scaler: bool = False  # torch's GradScaler, which starts too high and adapts
    evaluate_every: int = 0  # steps; a forward of other data without gradients
    clip: float = 0.0  # the largest norm of the gradients; 0 for no clipping
    short_batches: bool = False  # every fifth batch has half of the rows
    optimizer: str = "adamw"
    padding: float = 0.0  # the part of each batch's sequences that is zeros
    larger_batch_at: int | None = None  # from this step on twice as many rows
    frozen_from: int = 0  # the step from which `frozen` holds


class Training:
    """The state of a training; faults modify `model`, `optimizer` and the callbacks.

    Callbacks receive the training: `before_step` before each forward, `before_update` between
    backward and optimizer, `after_update` after the optimizer.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.task = TASKS[options.model]
        torch.manual_seed(options.seed)
        self.step = 0
        self.before_step: list[Callable[[Training], None]] = []
        self.before_update: list[Callable[[Training], None]] = []
        self.after_update: list[Callable[[Training], None]] = []
        self.change_batch: Callable[[Training, Any], Any] | None = None
        self.loss_factor = 1.0
        self.rate_factor = 1.0
        self.sections: dict[str, dict] = {}  # added to the configuration
        self.recipe = RECIPES[options.recipe]
        self.build()

    def build(self) -> None:
        """Creates a new model and optimizer, as at the start of a process."""
        made = self.options
        self.model = self.task.build(made)
        if self.step >= made.frozen_from:
            self.freeze()
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = OPTIMIZERS[made.optimizer](trained)
        # The first gradients are infinite in FP16, and the scale is halved until they are not.
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, enabled=made.loss_scaler)

    def freeze(self) -> None:
        for name, parameter in self.model.named_parameters():
            if name.startswith(self.options.frozen):
                parameter.requires_grad_(False)

    def resume(self, with_histories: bool) -> None:
        """Saves and loads all state. `with_histories`: includes the amax histories."""
        model, optimizer = self.model.state_dict(), self.optimizer.state_dict()
        self.build()
        if not with_histories:
            model = {name: each for name, each in model.items() if "_extra_state" not in name}
        self.model.load_state_dict(model, strict=False)
        self.optimizer.load_state_dict(optimizer)

    def rate(self) -> float:
        progress = (self.step + 1) / WARM_UP
        phase = math.pi * self.step / self.options.steps
        decay = 0.55 + 0.45 * math.cos(phase)
        return self.options.learning_rate * min(1.0, progress) * decay * self.rate_factor

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        precision = te.autocast(recipe=self.recipe()) if self.recipe else contextlib.nullcontext()
        with torch.autocast("cpu", self.options.dtype), precision:
            return self.model(inputs).float()

    def forward_and_backward(self, inputs: torch.Tensor, targets: torch.Tensor) -> float:
        loss = self.task.loss(self.forward(inputs), targets)
        self.scaler.scale(loss * self.loss_factor / self.options.micro_batches).backward()
        return loss.item()

    def batch(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        made = self.options
        if made.short_batches and number % 5 == 4:
            made = dataclasses.replace(made, batch=made.batch // 2)
        if made.larger_batch_at is not None and self.step >= made.larger_batch_at:
            made = dataclasses.replace(made, batch=2 * made.batch)
        batch = self.task.batch(made, number)
        if made.padding:
            padded = int(made.padding * made.sequence)
            batch[0][-padded:], batch[1][-padded:] = 0, 0
        return self.change_batch(self, batch) if self.change_batch else batch

    def update(self) -> None:
        for each in self.before_update:
            each(self)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate()
        self.scaler.unscale_(self.optimizer)
        if self.options.clip:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.options.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        for each in self.after_update:
            each(self)

    @torch.no_grad()
    def evaluate(self) -> None:
        self.model.eval()
        inputs, _ = self.task.batch(self.options, 100_000 + self.step)
        self.forward(inputs)
        self.model.train()

    def run(self) -> list[float]:
        losses = []
        made = self.options
        for self.step in range(made.steps):
            if self.step == made.resume_at:
                self.resume(with_histories=True)
            if made.frozen and self.step == made.frozen_from:
                self.freeze()
            for each in self.before_step:
                each(self)
            loss = 0.0
            for micro in range(made.micro_batches):
                batch = self.batch(self.step * made.micro_batches + micro)
                loss += self.forward_and_backward(*batch) / made.micro_batches
            self.update()
            if made.evaluate_every and self.step % made.evaluate_every == 0:
                self.evaluate()
            debug.step(loss)
            losses.append(loss)
        return losses


def every_iteration(path: str | os.PathLike) -> dict:
    """Returns the configuration in a file without its budgets."""
    import yaml

    config = yaml.safe_load(pathlib.Path(path).read_text())
    for section in config.values():
        section.pop("budget", None)
    return config


def record(training: Training, config: str | os.PathLike | dict, folder: str | os.PathLike) -> str:
    """Runs the training under the configuration and returns the path of its run."""
    if training.sections:
        config = {**config, **training.sections}
    debug.initialize(config, log_dir=folder)
    try:
        training.run()
        return debug.run_path()
    finally:
        debug.end_debug()
