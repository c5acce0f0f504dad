"""Updates that are lost when BF16 weights are rounded."""

from __future__ import annotations

import torch

from ..training import Training, incident


class Bf16Weights(Training):
    """Weights are BF16 if broken, and FP32 under autocast in the twin."""

    warm_up = 1

    def build(self) -> torch.nn.Module:
        model = super().build()
        return model.to(torch.bfloat16) if self.broken else model

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=not self.broken):
            return super().forward(inputs)


@incident("pytorch/ao#1124")
class SmallRate(Bf16Weights):
    learning_rate = 1e-5


@incident("meta-pytorch/torchtune#2254")
class FineTuning(Bf16Weights):
    """Large weights, as in a trained model, and a learning rate for fine-tuning."""

    learning_rate = 6e-7

    def build(self) -> torch.nn.Module:
        model = super().build()
        with torch.no_grad():
            for layer in model.layers:
                for parameter in layer.parameters():
                    if parameter.dim() > 1:
                        parameter.mul_(4)
        return model


def round_stochastically(values: torch.Tensor) -> torch.Tensor:
    """Rounds FP32 to BF16 stochastically.

    The magnitude is rounded up with a probability equal to the fraction that truncation discards.
    """
    bits = values.view(torch.int32)
    noise = torch.randint_like(bits, 1 << 16)
    return (bits + noise).bitwise_and(-65536).view(torch.float32).to(torch.bfloat16)


@incident("Nerogar/OneTrainer#996")
class DecayBeforeRounding(Training):
    """Adam with stochastic rounding. The decay is rounded separately to BF16 if broken."""

    learning_rate = 1e-3
    weight_decay = 0.1
    warm_up = 1

    def build(self) -> torch.nn.Module:
        return super().build().to(torch.bfloat16)

    def make_optimizer(self) -> torch.optim.Optimizer:
        return StochasticAdam(
            self.model.parameters(), self.learning_rate, self.weight_decay, self.broken
        )


class StochasticAdam(torch.optim.Optimizer):
    def __init__(self, parameters, lr: float, decay: float, decay_in_bf16: bool) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": decay})
        self.decay = decay
        self.decay_in_bf16 = decay_in_bf16

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter, group["lr"])

    def update(self, parameter: torch.Tensor, rate: float) -> None:
        state = self.state[parameter]
        gradient = parameter.grad.float()
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(gradient)
            state["exp_avg_sq"] = torch.zeros_like(gradient)
        state["step"] += 1
        state["exp_avg"].lerp_(gradient, 0.1)
        state["exp_avg_sq"].lerp_(gradient.square(), 0.05)
        mean = state["exp_avg"] / (1 - 0.9 ** state["step"])
        square = state["exp_avg_sq"] / (1 - 0.95 ** state["step"])
        factor = 1 - rate * self.decay
        if self.decay_in_bf16:
            parameter.mul_(factor)
            factor = 1
        updated = parameter.float() * factor - rate * mean / (square.sqrt() + 1e-8)
        parameter.copy_(round_stochastically(updated))


@incident("workofart/ml-by-hand#85")
class GainsUnmoved(Bf16Weights):
    """The learning rate is too small for BF16 weights of 1, and large enough for the others."""

    learning_rate = 6e-4
