"""Attention with wrong masks or growing inputs."""

from __future__ import annotations

import torch

from ..training import Training, incident


@incident("huggingface/transformers#31673")
class WrongWindow(Training):
    """Attention with a sliding window, whose mask does not hide the future if broken."""

    window = 8

    def build(self) -> torch.nn.Module:
        model = super().build()

        def mask(length: int) -> torch.Tensor:
            seen = torch.ones(length, length, dtype=torch.bool)
            recent = seen.triu(-self.window)
            return recent if self.broken else recent.tril()

        for layer in model.layers:
            layer.self_attn.mask = mask
        return model


@incident("keras-team/keras#23038")
class MaskDropped(Training):
    def build(self) -> torch.nn.Module:
        model = super().build()
        for layer in model.layers if self.broken else ():
            layer.self_attn.mask = lambda length: torch.ones(length, length, dtype=torch.bool)
        return model


class Modulation(torch.nn.Module):
    """A norm whose scale is computed from a condition."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = torch.nn.RMSNorm(hidden, elementwise_affine=False)
        self.modulation = torch.nn.Linear(16, hidden)
        torch.nn.init.normal_(self.modulation.weight, std=0.02)
        self.condition = torch.ones(1, 16)
        self.factor = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x) * (1 + self.factor * self.modulation(self.condition))


@incident("NVlabs/PixelDiT#14")
class GrowingModulation(Training):
    """The modulation of the second block grows by 1.4 in each step from step 12 on if broken."""

    at = 12

    def build(self) -> torch.nn.Module:
        model = super().build()
        for layer in model.layers:
            modulated = Modulation(layer.input_layernorm.weight.numel())
            layer.modulation = modulated.modulation
            layer.input_layernorm = modulated
        return model

    def take_step(self) -> None:
        if self.broken and self.step >= self.at:
            with torch.no_grad():
                self.model.layers[1].modulation.weight.mul_(1.4)
                self.model.layers[1].modulation.bias.mul_(1.4)
        super().take_step()


@incident("huggingface/transformers#48745")
class OnlyPaddingMasked(Training):
    """The mask hides padding, of which there is none, but not later positions if broken."""

    def build(self) -> torch.nn.Module:
        model = super().build()
        for layer in model.layers if self.broken else ():
            layer.self_attn.mask = lambda length: torch.ones(1, 1, 1, length, dtype=torch.bool)
        return model
