"""Wrong batches, labels and losses."""

from __future__ import annotations

import torch
from torch.nn import functional

from ..decoder import VOCABULARY
from ..training import Training, incident

IGNORED = -100


class Masked(Training):
    """Masks a quarter of the labels, and all labels of one batch if broken."""

    empty_at = 15

    def data(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = super().data(number)
        targets = targets.clone()
        targets[:, : self.length // 4] = IGNORED
        if self.broken and number == self.empty_at:
            targets.fill_(IGNORED)
        return inputs, targets


@incident("NVIDIA-NeMo/Automodel#3796")
class FullyMasked(Masked):
    def loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        flat = logits.float().reshape(-1, VOCABULARY)
        total = functional.cross_entropy(flat, targets.flatten(), reduction="sum")
        return total / (targets != IGNORED).sum()


@incident("meta-pytorch/torchtune#2341")
class ChunkedAndEmpty(Masked):
    empty_at = 9

    def loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(())
        for chunk, labels in zip(logits.chunk(4, 1), targets.chunk(4, 1), strict=True):
            flat = chunk.float().reshape(-1, VOCABULARY)
            total = total + functional.cross_entropy(flat, labels.flatten(), reduction="sum")
        return total / (targets != IGNORED).sum()


@incident("pytorch/pytorch#5059")
class RepeatedSamples(Training):
    """Four consecutive batches are equal if broken."""

    def data(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        return super().data(number // 4 if self.broken else number)


@incident("huggingface/transformers#46898")
class ShiftedTwice(Training):
    def loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if self.broken:
            logits, targets = logits[:, :-1], targets[:, 1:]
        return super().loss(logits, targets)


@incident("SonyCSLParis/pesto-full#4")
class SoftmaxTwice(Training):
    def loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return super().loss(logits.softmax(-1) if self.broken else logits, targets)


@incident("huggingface/transformers#27517")
class NotShifted(Training):
    """The labels are the inputs if broken."""

    def data(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = super().data(number)
        return (inputs, inputs) if self.broken else (inputs, targets)


@incident("TorchDSP/torchsig#343")
class TwoEqualWorkers(Training):
    """Two workers with equal seeds return each batch twice if broken."""

    def data(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        return super().data(number // 2 if self.broken else number)
