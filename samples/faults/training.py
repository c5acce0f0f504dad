"""A small GPT training whose parts can be reached from outside, to plant faults in it.

The model and the text are those of samples/gpt.py.
"""

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
from gpt import Model, Text

RECIPES: dict[str, Callable[[], Recipe] | None] = {
    "delayed": lambda: DelayedScaling(amax_history_len=16, amax_compute_algo="max"),
    "delayed_recent": lambda: DelayedScaling(amax_history_len=1, amax_compute_algo="most_recent"),
    "current": Float8CurrentScaling,
    "mxfp8": MXFP8BlockScaling,
    "block": Float8BlockScaling,
    "bf16": None,
}
TEXT_BYTES = 200_000
WARM_UP = 5  # steps of a learning rate that rises


@dataclasses.dataclass
class Options:
    """What a healthy training varies."""

    recipe: str = "delayed"
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


class Training:
    """The state of a training; faults take hold of `model`, `adamw` and the callbacks.

    Callbacks get the training: `before_step` before the forward of each iteration, `before_update`
    between backward and optimizer, `after_update` behind it.
    """

    def __init__(self, options: Options, text: Text | None = None) -> None:
        self.options = options
        self.text = text or Text("", TEXT_BYTES)
        torch.manual_seed(options.seed)
        self.step = 0
        self.before_step: list[Callable[[Training], None]] = []
        self.before_update: list[Callable[[Training], None]] = []
        self.after_update: list[Callable[[Training], None]] = []
        self.change_batch: Callable[[Training, Any], Any] | None = None
        self.loss_factor = 1.0
        self.rate_factor = 1.0
        self.recipe = RECIPES[options.recipe]
        self.build()

    def build(self) -> None:
        """Makes model and optimizer anew, as the start of a process does."""
        made = self.options
        self.model = Model(made.layers, made.hidden, made.heads, made.sequence)
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(not name.startswith(made.frozen) if made.frozen else True)
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.adamw = torch.optim.AdamW(trained, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def resume(self, with_histories: bool) -> None:
        """Saves and loads everything; `with_histories`: the amax histories too."""
        model, adamw = self.model.state_dict(), self.adamw.state_dict()
        self.build()
        if not with_histories:
            model = {name: each for name, each in model.items() if "_extra_state" not in name}
        self.model.load_state_dict(model, strict=False)
        self.adamw.load_state_dict(adamw)

    def rate(self) -> float:
        progress = (self.step + 1) / WARM_UP
        phase = math.pi * self.step / self.options.steps
        decay = 0.55 + 0.45 * math.cos(phase)
        return self.options.learning_rate * min(1.0, progress) * decay * self.rate_factor

    def forward_and_backward(self, inputs: torch.Tensor, targets: torch.Tensor) -> float:
        precision = te.autocast(recipe=self.recipe()) if self.recipe else contextlib.nullcontext()
        with torch.autocast("cpu", torch.bfloat16), precision:
            logits = self.model(inputs).float()
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        (loss * self.loss_factor / self.options.micro_batches).backward()
        return loss.item()

    def run(self) -> list[float]:
        losses = []
        made = self.options
        for self.step in range(made.steps):
            if self.step == made.resume_at:
                self.resume(with_histories=True)
            for each in self.before_step:
                each(self)
            loss = 0.0
            for micro in range(made.micro_batches):
                batch = self.text.batch(
                    made.seed + made.rank,
                    self.step * made.micro_batches + micro,
                    made.sequence,
                    made.batch,
                )
                if self.change_batch:
                    batch = self.change_batch(self, batch)
                loss += self.forward_and_backward(*batch) / made.micro_batches
            for each in self.before_update:
                each(self)
            for group in self.adamw.param_groups:
                group["lr"] = self.rate()
            self.adamw.step()
            self.adamw.zero_grad()
            for each in self.after_update:
                each(self)
            debug.step(loss)
            losses.append(loss)
        return losses


def every_iteration(path: str | os.PathLike) -> dict:
    """A configuration of one file without its budgets."""
    import yaml

    config = yaml.safe_load(pathlib.Path(path).read_text())
    for section in config.values():
        section.pop("budget", None)
    return config


def record(training: Training, config: str | os.PathLike | dict, folder: str | os.PathLike) -> str:
    """Runs the training under the configuration; the path of its run."""
    debug.initialize(config, log_dir=folder)
    try:
        training.run()
        return debug.run_path()
    finally:
        debug.end_debug()
