"""The base class of the incidents' trainings. An incident overrides the faulty part."""

from __future__ import annotations

import copy
import functools
import math
import os
import pathlib
import sys
from collections.abc import Callable

import torch
from torch.nn import functional

import telens

from .decoder import VOCABULARY, Decoder

ROOT = pathlib.Path(__file__).resolve().parents[2]
SAMPLES = str(ROOT / "samples")
PROGRAMS: dict[str, type] = {}  # key: the source of the incident


def incident(source: str) -> Callable[[type], type]:
    """Registers a class as the program of an incident."""

    def register(program: type) -> type:
        PROGRAMS[source] = program
        return program

    return register


@functools.cache
def text():
    if SAMPLES not in sys.path:
        sys.path.insert(0, SAMPLES)
    from gpt import Text

    return Text("", 200_000)


class Training:
    """A training of a plain decoder, recorded by ``telens.watch``.

    Subclasses override methods, which plant a fault if ``broken`` is true. Otherwise the training
    is the healthy twin.
    """

    steps = 40
    learning_rate = 2e-3
    warm_up = 5
    weight_decay = 0.1
    batch, length = 4, 32
    micro_batches = 1
    clip = 0.0
    experts = 0
    resume_at: int | None = None
    seed = 1

    def __init__(self, broken: bool, log_dir: pathlib.Path) -> None:
        self.broken = broken
        self.log_dir = log_dir
        self.step = 0
        torch.manual_seed(self.seed)
        self.model = self.build()
        self.optimizer = self.make_optimizer()
        self.prepare()

    # ------------------------------------------------------------ parts that incidents override

    def build(self) -> torch.nn.Module:
        return Decoder(experts=self.experts)

    def prepare(self) -> None:
        """Runs after model and optimizer exist, before the first step."""

    def make_optimizer(self) -> torch.optim.Optimizer:
        decayed = [p for p in self.model.parameters() if p.requires_grad and p.dim() > 1]
        others = [p for p in self.model.parameters() if p.requires_grad and p.dim() <= 1]
        groups = [
            {"params": decayed, "weight_decay": self.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=self.learning_rate, betas=(0.9, 0.95))

    def rate(self, step: int) -> float:
        progress = min(1.0, (step + 1) / self.warm_up)
        phase = math.pi * step / self.steps
        return self.learning_rate * progress * (0.55 + 0.45 * math.cos(phase))

    def data(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = text().batch(self.seed, number, self.length, self.batch)
        return inputs.T.contiguous(), targets.T.contiguous()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.model(inputs)

    def loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits.float().reshape(-1, VOCABULARY), targets.flatten())

    def backward(self, loss: torch.Tensor) -> None:
        (loss / self.micro_batches).backward()

    def after_micro_batch(self, number: int) -> None:
        pass

    def before_update(self) -> None:
        """Runs between the last backward pass and the optimizer."""
        if self.clip:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)

    def update(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(self.step)
        self.optimizer.step()

    def after_update(self) -> None:
        pass

    def checkpoint(self) -> dict:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, saved: dict) -> None:
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])

    # ------------------------------------------------------------ the loop

    def take_step(self) -> None:
        for micro in range(self.micro_batches):
            inputs, targets = self.data(self.step * self.micro_batches + micro)
            self.backward(self.loss(self.forward(inputs), targets))
            self.after_micro_batch(micro)
        self.before_update()
        self.update()
        self.optimizer.zero_grad()
        self.after_update()

    def resume(self) -> None:
        """Creates everything again, as a new process would, and loads the checkpoint."""
        saved = copy.deepcopy(self.checkpoint())
        torch.manual_seed(self.seed + 1)
        self.model = self.build()
        self.optimizer = self.make_optimizer()
        self.load(saved)

    def watch(self) -> telens.attach.Watch:
        return telens.watch(self.model, log_dir=self.log_dir, init_training_step=self.step)

    def run(self) -> None:
        os.environ["TELENS_RUN_ID"] = "run"
        watch = self.watch()
        for step in range(self.steps):
            self.step = step
            if self.step == self.resume_at:
                watch.stop()
                self.resume()
                watch = self.watch()
            self.take_step()
        watch.stop()
