"""Data-parallel trainings on two ranks with unreduced gradients or wrong weights."""

from __future__ import annotations

import torch

from ..training import Training, incident
from .initialization import GARBAGE

RANKS = 2


class Replicated(Training):
    """Every rank trains a replica of the model with different batches."""

    micro_batches = 2
    batch = 2

    def build(self) -> torch.nn.Module:
        self.rank = torch.distributed.get_rank()
        return super().build()

    def data(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        return super().data(number * RANKS + self.rank)

    def is_reduced(self, name: str) -> bool:
        return True

    def reduce(self) -> None:
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None and self.is_reduced(name):
                torch.distributed.all_reduce(parameter.grad)
                parameter.grad /= RANKS

    def before_update(self) -> None:
        self.reduce()


@incident("NVIDIA/Megatron-LM#1446")
class FinalNormUnreduced(Replicated):
    def is_reduced(self, name: str) -> bool:
        return not (self.broken and name == "norm.weight")


@incident("NVIDIA/TransformerEngine#435")
class NormsUnreduced(Replicated):
    def is_reduced(self, name: str) -> bool:
        return not (self.broken and "layernorm" in name)


@incident("modelscope/FunASR#3472")
class FirstMicroBatchReduced(Replicated):
    def after_micro_batch(self, number: int) -> None:
        if self.broken and number == 0:
            self.reduce()

    def before_update(self) -> None:
        if not self.broken:
            self.reduce()


@incident("pytorch/pytorch#109191")
class CheckpointedUnreduced(Replicated):
    def is_reduced(self, name: str) -> bool:
        return not (self.broken and name.startswith("layers."))


@incident("huggingface/transformers#45050")
class ShardNotFilled(Replicated):
    """Rank 1 has uninitialized rows in one weight if broken."""

    def build(self) -> torch.nn.Module:
        model = super().build()
        if self.broken and self.rank == 1:
            with torch.no_grad():
                model.layers[1].mlp.up_proj.weight[::9] = GARBAGE
        return model


@incident("NVIDIA/Megatron-LM#1685")
class NothingReduced(Replicated):
    def is_reduced(self, name: str) -> bool:
        return not self.broken
