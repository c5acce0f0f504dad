"""Kernels that return wrong results."""

from __future__ import annotations

import torch

from ..training import Training, incident


class WrongWeightGradient(torch.autograd.Function):
    """A matrix product whose weight gradient contains NaN."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        product = gradient.flatten(0, -2).T @ x.flatten(0, -2)
        product[:16, :16] = float("nan")
        return gradient @ weight, product


class FaultyLinear(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return WrongWeightGradient.apply(x, self.weight)


@incident("marin-community/marin#7271")
class NanInWeightGradients(Training):
    """All down projections have NaN in their weight gradients if broken.

    The training stops after the first loss that is not finite.
    """

    def build(self) -> torch.nn.Module:
        model = super().build()
        for layer in model.layers if self.broken else ():
            layer.mlp.down_proj.__class__ = FaultyLinear
        return model

    ended = False

    def loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = super().loss(logits, targets)
        self.ended = not torch.isfinite(loss)
        return loss

    def take_step(self) -> None:
        if not self.ended:
            super().take_step()


def quantized_rows(values: torch.Tensor, least: float) -> torch.Tensor:
    """Rounds each row to E4M3 with one scale per row. `least`: lower bound of the amax."""
    amax = values.detach().abs().amax(-1, keepdim=True).clamp_min(least)
    scale = 448.0 / amax
    return (values * scale).to(torch.float8_e4m3fn).to(values.dtype) / scale


class RowwiseFp8Linear(torch.nn.Linear):
    least = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rounded = x + (quantized_rows(x, self.least) - x).detach()
        return torch.nn.functional.linear(rounded, self.weight)


@incident("pytorch/ao#3356")
class ZeroRows(Training):
    """Padding has zero embeddings, so its rows of the first projection's input are zero."""

    def build(self) -> torch.nn.Module:
        model = super().build()
        for module in model.modules():
            if type(module) is torch.nn.Linear and module is not model.lm_head:
                module.__class__ = RowwiseFp8Linear
                module.least = 0.0 if self.broken else 1e-12
        with torch.no_grad():
            model.embed_tokens.weight[0] = 0
            model.positions.weight[self.length - 4 :] = 0
        return model

    def data(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = super().data(number)
        inputs[:, -4:] = 0
        return inputs, targets


@incident("pytorch/pytorch#118117")
class NotContiguous(Training):
    """The optimizer does not update one weight if broken."""

    def update(self) -> None:
        weight = self.model.layers[1].mlp.up_proj.weight
        before = weight.detach().clone()
        super().update()
        if self.broken:
            with torch.no_grad():
                weight.copy_(before)
