"""The models that samples/faults trains, with their data and losses.

Layers have the names of their modules, so that a fault can find its layer by name.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from gpt import Model, Text
from llama import Llama

import telens.pytorch as te

if TYPE_CHECKING:
    from training import Options

TEXT_BYTES = 200_000
Batch = tuple[torch.Tensor, torch.Tensor]


@functools.cache
def text() -> Text:
    return Text("", TEXT_BYTES)


class Task:
    """A training task: `build` creates the model, `batch` returns data, `loss` computes the
    loss."""

    build: Callable[[Options], torch.nn.Module]

    def batch(self, made: Options, number: int) -> Batch:
        raise NotImplementedError

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class NextByte(Task):
    """Text, byte by byte."""

    def __init__(self, build: Callable[[Options], torch.nn.Module]) -> None:
        self.build = build

    def batch(self, made: Options, number: int) -> Batch:
        return text().batch(made.seed + made.rank, number, made.sequence, made.batch)

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def gpt(made: Options) -> torch.nn.Module:
    model = Model(made.layers, made.hidden, made.heads, made.sequence)
    for layer in model.modules():
        if isinstance(layer, torch.nn.Dropout):
            layer.p = made.dropout
    return model


def llama(made: Options) -> torch.nn.Module:
    options = argparse.Namespace(
        hidden=made.hidden,
        heads=made.heads,
        groups=1,
        layers=made.layers,
        sequence=made.sequence,
        rotary_base=10000.0,
        norm="rms",
        qk_norm=None,
        activation="swiglu",
    )
    return Llama(options)


class Perceptron(torch.nn.Module):
    """Linear layers with ReLU, without norms and residual connections."""

    def __init__(self, inputs: int, hidden: int, depth: int, outputs: int, dropout: float) -> None:
        super().__init__()
        sizes = [inputs, *[hidden] * depth, outputs]
        self.layers = torch.nn.ModuleList(
            te.Linear(sizes[i], sizes[i + 1], name=f"layers.{i}", device="cpu")
            for i in range(depth + 1)
        )
        for layer in self.layers:
            torch.nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        self.dropout = torch.nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:-1]:
            x = self.dropout(layer(x).relu())
        return self.layers[-1](x)


class Regression(Task):
    """Regression: a smooth function of random inputs, with the mean squared error as loss."""

    INPUTS, OUTPUTS = 32, 16

    def build(self, made: Options) -> torch.nn.Module:
        return Perceptron(self.INPUTS, made.hidden, made.layers, self.OUTPUTS, made.dropout)

    def batch(self, made: Options, number: int) -> Batch:
        rows = made.batch * made.sequence
        generator = torch.Generator().manual_seed(1000 * made.seed + number + 7 * made.rank)
        inputs = torch.randn(rows, self.INPUTS, generator=generator)
        teacher = torch.randn(
            self.INPUTS, self.OUTPUTS, generator=torch.Generator().manual_seed(made.seed)
        )
        return inputs, torch.sin(inputs @ teacher / self.INPUTS**0.5)

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.mse_loss(outputs, targets)


class Patches(torch.nn.Module):
    """A small convolutional network: GEMMs of image patches, ReLU, pooling, residual
    connections."""

    def __init__(self, hidden: int, blocks: int, classes: int) -> None:
        super().__init__()
        self.stem = te.Linear(16, hidden, name="stem", device="cpu")  # 4 x 4 pixels
        self.blocks = torch.nn.ModuleList(
            te.Linear(4 * hidden, hidden, name=f"blocks.{i}", device="cpu") for i in range(blocks)
        )
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm1d(hidden) for _ in range(blocks))
        self.classifier = te.Linear(hidden, classes, name="classifier", device="cpu")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        unfold = torch.nn.functional.unfold(images, 4, stride=4)  # [batch, 16, patches]
        x = self.stem(unfold.transpose(1, 2)).relu()
        for block, norm in zip(self.blocks, self.norms, strict=True):
            shifted = torch.cat([x.roll(shift, 1) for shift in (0, 1, 2, 4)], dim=-1)
            x = x + norm(block(shifted).flatten(0, 1).float()).view_as(x).relu()
        return self.classifier(x.mean(1))


class Images(Task):
    """Classification: images of stripes in one of several directions, with noise and mostly black
    pixels."""

    CLASSES = 16

    def build(self, made: Options) -> torch.nn.Module:
        return Patches(made.hidden, made.layers, self.CLASSES)

    def batch(self, made: Options, number: int) -> Batch:
        count = 4 * made.batch
        generator = torch.Generator().manual_seed(2000 * made.seed + number + 7 * made.rank)
        classes = torch.randint(self.CLASSES, (count,), generator=generator)
        at = torch.arange(16.0)
        angle = classes * torch.pi / self.CLASSES
        phase = angle.cos()[:, None, None] * at[:, None] + angle.sin()[:, None, None] * at
        noise = torch.randn(count, 16, 16, generator=generator)
        return (phase.sin() + 0.3 * noise).relu()[:, None], classes

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(outputs, targets)


TASKS: dict[str, Task] = {
    "gpt": NextByte(gpt),
    "llama": NextByte(llama),
    "regression": Regression(),
    "images": Images(),
}
