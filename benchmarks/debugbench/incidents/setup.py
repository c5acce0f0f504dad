"""Models with detached layers or untied weights."""

from __future__ import annotations

import torch
from torch.utils.checkpoint import checkpoint

from ..training import Training, incident


@incident("NVIDIA-NeMo/Automodel#1527")
class OutputCastDetaches(Training):
    """The output of the last block is detached from the graph if broken."""

    def build(self) -> torch.nn.Module:
        model = super().build()
        decode = model.decode

        def cast(hidden: torch.Tensor) -> torch.Tensor:
            hidden = decode(hidden)
            return hidden.detach().to(torch.bfloat16).float() if self.broken else hidden

        model.decode = cast
        return model


class Adapter(torch.nn.Module):
    """A frozen linear layer with a trained low-rank update."""

    def __init__(self, base: torch.nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base
        self.lora_A = torch.nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = torch.nn.Linear(rank, base.out_features, bias=False)
        torch.nn.init.normal_(self.lora_A.weight, std=0.1)
        torch.nn.init.normal_(self.lora_B.weight, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + 2 * self.lora_B(self.lora_A(x))


def with_adapters(model: torch.nn.Module, names: tuple[str, ...]) -> torch.nn.Module:
    """Freezes the model except its head and adds adapters to the named projections."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model.lm_head.weight.requires_grad_(True)
    for layer in model.layers:
        for name in names:
            setattr(layer.mlp, name, Adapter(getattr(layer.mlp, name)))
    return model


@incident("locuslab/open-unlearning#178")
class CheckpointedAdapters(Training):
    """Blocks are checkpointed. Their inputs do not require a gradient if broken."""

    learning_rate = 5e-3

    def build(self) -> torch.nn.Module:
        model = with_adapters(super().build(), ("up_proj", "down_proj"))

        def decode(hidden: torch.Tensor) -> torch.Tensor:
            if not self.broken:
                hidden.requires_grad_(True)
            for layer in model.layers:
                hidden = checkpoint(layer, hidden, use_reentrant=True)
            return hidden

        model.decode = decode
        return model


@incident("kohya-ss/sd-scripts#91")
class DetachedProjection(Training):
    """The outputs of the up projections are detached if broken, which cuts their adapters."""

    learning_rate = 5e-3

    def build(self) -> torch.nn.Module:
        model = with_adapters(super().build(), ("up_proj", "down_proj"))
        for layer in model.layers if self.broken else ():
            projection = layer.mlp.up_proj
            projection.register_forward_hook(lambda module, args, output: output.detach())
        return model


@incident("verl-project/verl#7834")
class Untied(Training):
    """Head and embedding share one weight, or have equal copies of it if broken."""

    def build(self) -> torch.nn.Module:
        model = super().build()
        weight = model.embed_tokens.weight
        model.lm_head.weight = (
            torch.nn.Parameter(weight.detach().clone()) if self.broken else weight
        )
        return model
