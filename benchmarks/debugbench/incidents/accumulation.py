"""Gradient accumulation that adds or scales the gradients of micro-batches incorrectly."""

from __future__ import annotations

import torch

from ..training import Training, incident


@incident("huggingface/transformers#37766")
class NotDivided(Training):
    micro_batches = 4
    batch = 2

    def backward(self, loss: torch.Tensor) -> None:
        (loss if self.broken else loss / self.micro_batches).backward()


@incident("huggingface/transformers#35203")
class DividedTwice(Training):
    micro_batches = 4
    batch = 2

    def backward(self, loss: torch.Tensor) -> None:
        divisor = self.micro_batches**2 if self.broken else self.micro_batches
        (loss / divisor).backward()


@incident("NVIDIA/Megatron-LM#6660")
class Doubled(Training):
    """The gradients of the experts double before each micro-batch after the first if broken."""

    micro_batches = 4
    batch = 2
    experts = 4

    def after_micro_batch(self, number: int) -> None:
        if self.broken and number + 1 < self.micro_batches:
            for name, parameter in self.model.named_parameters():
                if ".experts." in name and parameter.grad is not None:
                    parameter.grad.mul_(2)


@incident("AMD-AGI/Primus#1046")
class OnlyTheFirst(Training):
    """The up projections ignore all micro-batches after the first if broken."""

    micro_batches = 4
    batch = 2

    def after_micro_batch(self, number: int) -> None:
        for layer in self.model.layers if self.broken else ():
            weight = layer.mlp.up_proj.weight
            if number == 0:
                weight.first = weight.grad.clone()
            else:
                weight.grad.copy_(weight.first)


@incident("meta-pytorch/torchforge#71")
class NeverZeroed(Training):
    """Gradients are never set to zero if broken, so all earlier steps are added."""

    def prepare(self) -> None:
        if self.broken:
            self.optimizer.zero_grad = lambda: None


@incident("bytetriper/RAE#67")
class OnlyTheLast(Training):
    """Gradients are set to zero before each micro-batch if broken."""

    micro_batches = 4
    batch = 2

    def after_micro_batch(self, number: int) -> None:
        if self.broken and number + 1 < self.micro_batches:
            self.optimizer.zero_grad()
