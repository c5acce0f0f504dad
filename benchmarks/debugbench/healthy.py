"""Healthy trainings of plain torch models, on which a finding is a false alarm.

  python -m benchmarks.debugbench.healthy [--seeds 1 2 3]

samples/faults/campaign.py runs healthy trainings of modules of telens.pytorch.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pathlib
from collections.abc import Callable

import torch
from torch.nn import functional

from .decoder import VOCABULARY, Decoder
from .incidents.experts import BalancingBiasFrozen, BalancingLossDropped
from .incidents.fp8 import HalfPrecision
from .incidents.initialization import with_centered_norms
from .runner import diagnose, run_in_process, summarize
from .training import PROGRAMS, Training

ROOT = pathlib.Path(__file__).resolve().parents[2]


def model_of(**options) -> Callable[[Training], torch.nn.Module]:
    return lambda self: Decoder(**options)


def torch_initialization(self: Training) -> torch.nn.Module:
    """Uses the default initialization of torch's modules."""
    model = Decoder()
    for module in model.modules():
        if isinstance(module, (torch.nn.Linear, torch.nn.Embedding)):
            module.reset_parameters()
    return model


def scaled_residuals(self: Training) -> torch.nn.Module:
    """Divides projections into the residual stream by the square root of twice the depth."""
    model = Decoder(layers=6)
    for layer in model.layers:
        for projection in (layer.self_attn.o_proj, layer.mlp.down_proj):
            torch.nn.init.normal_(projection.weight, std=0.02 / 12**0.5)
    return model


def zero_residuals(self: Training) -> torch.nn.Module:
    model = Decoder()
    for layer in model.layers:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    return model


def centered(self: Training) -> torch.nn.Module:
    return with_centered_norms(Decoder(), 0.0)


def tied(self: Training) -> torch.nn.Module:
    model = Decoder()
    model.lm_head.weight = model.embed_tokens.weight
    return model


def frozen(self: Training) -> torch.nn.Module:
    model = Decoder()
    for part in (model.embed_tokens, model.positions, model.layers[0]):
        part.requires_grad_(False)
    return model


def trained_weights(self: Training) -> torch.nn.Module:
    """Imitates a trained model: larger weights, and norm gains that differ from one."""
    model = Decoder()
    with torch.no_grad():
        for parameter in model.layers.parameters():
            if parameter.dim() > 1:
                parameter.mul_(3)
            else:
                parameter.mul_(0.5 + torch.rand_like(parameter))
    return model


class Perceptron(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = (32, 64, 64, 64, 16)
        self.layers = torch.nn.ModuleList(
            torch.nn.Linear(a, b) for a, b in itertools.pairwise(sizes)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:-1]:
            x = layer(x).relu()
        return self.layers[-1](x)


class Regression(Training):
    def build(self) -> torch.nn.Module:
        return Perceptron()

    def data(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(1000 * self.seed + number)
        x = torch.randn(256, 32, generator=generator)
        teacher = torch.randn(32, 16, generator=torch.Generator().manual_seed(self.seed))
        return x, torch.sin(x @ teacher / 32**0.5)

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(outputs, targets)


class Convolutions(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(1, 16, 3, stride=2, padding=1)
        self.blocks = torch.nn.ModuleList(
            torch.nn.Conv2d(16, 16, 3, padding=1, bias=False) for _ in range(3)
        )
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm2d(16) for _ in range(3))
        self.classifier = torch.nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block, norm in zip(self.blocks, self.norms, strict=True):
            x = x + norm(block(x)).relu()
        return self.classifier(x.mean((2, 3)))


class Images(Training):
    def build(self) -> torch.nn.Module:
        return Convolutions()

    def data(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(2000 * self.seed + number)
        classes = torch.randint(8, (64,), generator=generator)
        places = torch.arange(16.0)
        angle = classes * torch.pi / 8
        waves = angle.cos()[:, None, None] * places[:, None] + angle.sin()[:, None, None] * places
        noise = torch.randn(64, 16, 16, generator=generator)
        return (waves.sin() + 0.3 * noise)[:, None], classes

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(outputs, targets)


class SomeEmpty(Training):
    """Batches without labels have a loss of 0."""

    def data(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = super().data(number)
        targets = targets.clone()
        targets[:, : self.length // 2] = -100
        if number % 9 == 8:
            targets.fill_(-100)
        return inputs, targets

    def loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        flat = logits.float().reshape(-1, VOCABULARY)
        total = functional.cross_entropy(flat, targets.flatten(), reduction="sum")
        return total / (targets != -100).sum().clamp_min(1)


class Sgd(Training):
    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def rate(self, step: int) -> float:
        return 0.1 * min(1.0, (step + 1) / 5)


class Restarts(Training):
    """A cosine that restarts every 15 steps at its peak."""

    def rate(self, step: int) -> float:
        import math

        phase = math.pi * (step % 15) / 15
        return self.learning_rate * (0.55 + 0.45 * math.cos(phase))


class Bf16LargeRate(Training):
    """BF16 weights with a learning rate that is large enough not to lose updates.

    AdamW would lose a decay of 0.1: 1e-2 * 0.1 is below 2**-9, half a unit in the last place.
    """

    learning_rate = 1e-2
    weight_decay = 0.0

    def build(self) -> torch.nn.Module:
        return super().build().to(torch.bfloat16)


class Dropout(Training):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = functional.dropout(self.model.embed(inputs), 0.1)
        return self.model.lm_head(self.model.norm(self.model.decode(hidden)))


def variation(base: type[Training] = Training, build=None, **values) -> type[Training]:
    if build is not None:
        values["build"] = build
    return type("Healthy", (base,), values)


VARIATIONS: dict[str, type[Training]] = {
    "twin": variation(),
    "slow": variation(learning_rate=1e-4),
    "fast": variation(learning_rate=1e-2),
    "long": variation(steps=100),
    "wide": variation(build=model_of(hidden=96, layers=3, inner=192)),
    "deep": variation(build=model_of(hidden=32, layers=9, inner=64)),
    "shallow": variation(build=model_of(layers=1)),
    "torch_initialization": variation(build=torch_initialization),
    "scaled_residuals": variation(build=scaled_residuals),
    "zero_residuals": variation(build=zero_residuals),
    "centered_gains": variation(build=centered),
    "tied": variation(build=tied),
    "frozen": variation(build=frozen),
    "trained_weights": variation(build=trained_weights, learning_rate=2e-4),
    "accumulated": variation(micro_batches=4, batch=2),
    "clipped": variation(clip=0.5),
    "clipped_and_accumulated": variation(micro_batches=3, batch=2, clip=1.0),
    "sgd": variation(Sgd),
    "sgd_clipped": variation(Sgd, clip=0.3),
    "small_batch": variation(batch=1),
    "resumed": variation(resume_at=20),
    "restarts": variation(Restarts),
    "some_empty": variation(SomeEmpty),
    "dropout": variation(Dropout),
    "half": variation(HalfPrecision),
    "half_too_high": variation(HalfPrecision, scale=2.0**24),
    "bf16_large_rate": variation(Bf16LargeRate),
    "experts_with_loss": variation(BalancingLossDropped),
    "experts_with_bias": variation(BalancingBiasFrozen),
    "regression": variation(Regression),
    "regression_sgd": variation(Regression, make_optimizer=Sgd.make_optimizer, rate=Sgd.rate),
    "images": variation(Images),
    "images_accumulated": variation(Images, micro_batches=2),
    "no_warm_up": variation(warm_up=1),
    "no_decay": variation(weight_decay=0.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/debugbench/healthy")
    parser.add_argument("--only", default="")
    parser.add_argument("--train-only", action="store_true")
    parser.add_argument("--command", default=os.environ.get("TELENS_COMMAND", "build/bin/telens"))
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    alarms, runs = 0, 0
    for name, program in VARIATIONS.items():
        for seed in arguments.seeds:
            if arguments.only not in name:
                continue
            source = f"{name}-{seed}"
            PROGRAMS[source] = type("Seeded", (program,), {"seed": seed})
            folder = arguments.out / source
            state = run_in_process(source, False, folder)
            if arguments.train_only:
                print(source, json.dumps(state), flush=True)
                continue
            found = diagnose(folder, arguments.command)
            runs += 1
            alarms += bool(found)
            for each in found:
                print(source, json.dumps(summarize(each)), flush=True)
    print(f"{alarms} of {runs} healthy trainings with a finding")


if __name__ == "__main__":
    main()
