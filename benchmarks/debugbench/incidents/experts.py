"""Mixtures of experts with unbalanced or failing routers."""

from __future__ import annotations

import torch

from ..decoder import Experts
from ..training import Training, incident


class Mixture(Training):
    experts = 8
    steps = 60
    learning_rate = 4e-3

    def mixtures(self) -> list[Experts]:
        return [layer.mlp for layer in self.model.layers]


@incident("NVIDIA-NeMo/Automodel#1408")
class BalancingLossDropped(Mixture):
    def loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = super().loss(logits, targets)
        balancing = sum(each.balancing_loss for each in self.mixtures())
        return loss + 0.02 * (balancing.detach() if self.broken else balancing)


@incident("PrimeIntellect-ai/prime-rl#2953")
class BalancingBiasFrozen(Mixture):
    @torch.no_grad()
    def after_update(self) -> None:
        for mixture in () if self.broken else self.mixtures():
            mixture.balance += 5e-3 * (mixture.load.mean() - mixture.load).sign()


class SigmoidExperts(Experts):
    """Scores are sigmoids of shifted logits, and are normalized with an epsilon."""

    shift = 0.0

    def scores(self, tokens: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.router(tokens) + self.shift)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.reshape(-1, x.size(-1))
        scores = self.scores(tokens)
        chosen = (scores + self.balance).topk(self.top_k).indices
        weights = scores.gather(1, chosen)
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        self.load = torch.bincount(chosen.flatten(), minlength=len(self.experts)).float()
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            row, place = (chosen == number).nonzero(as_tuple=True)
            if len(row) > 0:
                out = out.index_add(0, row, weights[row, place, None] * expert(tokens[row]))
        return out.view_as(x)


@incident("NVIDIA/Megatron-LM#1545")
class ScoresBelowEpsilon(Mixture):
    """The initial scores of the second block are near 1e-24 if broken."""

    def build(self) -> torch.nn.Module:
        model = super().build()
        for layer in model.layers:
            layer.mlp.__class__ = SigmoidExperts
        if self.broken:
            model.layers[1].mlp.shift = -55.0
        return model

    @torch.no_grad()
    def after_update(self) -> None:
        for mixture in self.mixtures():
            mixture.balance += 5e-3 * (mixture.load.mean() - mixture.load).sign()
