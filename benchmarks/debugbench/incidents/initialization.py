"""Weights and norm gains with wrong initial values."""

from __future__ import annotations

import torch

from ..decoder import Decoder
from ..training import Training, incident

# Stands for uninitialized memory: an FP32 NaN whose halves are BF16 NaNs.
GARBAGE = torch.tensor([0x7FC07FC0], dtype=torch.int32).view(torch.float32)


def built_on_meta(fill_norms: bool) -> Decoder:
    """Materializes a decoder from the meta device. `fill_norms`: initialize all norm gains."""
    with torch.device("meta"):
        model = Decoder()
    model.to_empty(device="cpu")
    for module in model.modules():
        if isinstance(module, (torch.nn.Linear, torch.nn.Embedding)):
            torch.nn.init.normal_(module.weight, std=0.02)
        elif isinstance(module, torch.nn.RMSNorm):
            torch.nn.init.ones_(module.weight)
            if not fill_norms:
                with torch.no_grad():
                    module.weight[::7] = GARBAGE
    return model


@incident("mosaicml/llm-foundry#1745")
class NormsSkipped(Training):
    def build(self) -> torch.nn.Module:
        return built_on_meta(fill_norms=not self.broken)


@incident("pytorch/torchtitan#4489")
class ZeroFinalGain(Training):
    def build(self) -> torch.nn.Module:
        model = super().build()
        if self.broken:
            torch.nn.init.zeros_(model.norm.weight)
        return model


class CenteredRMSNorm(torch.nn.RMSNorm):
    """Multiplies by one plus its weight."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(x, self.normalized_shape, 1 + self.weight, self.eps)


def with_centered_norms(model: Decoder, weight: float) -> Decoder:
    hidden = model.norm.weight.numel()
    for block in model.layers:
        block.input_layernorm = CenteredRMSNorm(hidden)
        block.post_attention_layernorm = CenteredRMSNorm(hidden)
    model.norm = CenteredRMSNorm(hidden)
    for module in model.modules():
        if isinstance(module, CenteredRMSNorm):
            torch.nn.init.constant_(module.weight, weight)
    return model


@incident("huggingface/transformers#40796")
class OnePlusOne(Training):
    def build(self) -> torch.nn.Module:
        return with_centered_norms(super().build(), 1.0 if self.broken else 0.0)


@incident("pytorch/executorch#22444")
class OffsetDropped(Training):
    """Loads gains minus one into norms that add one, or into plain norms if broken."""

    def build(self) -> torch.nn.Module:
        model = super().build()
        if not self.broken:
            model = with_centered_norms(model, 0.0)
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for module in model.modules():
                if isinstance(module, torch.nn.RMSNorm):
                    module.weight.copy_(
                        0.05 * torch.randn(module.weight.shape, generator=generator)
                    )
        return model


@incident("NVIDIA-NeMo/Automodel#1980")
class FourteenTimesSmaller(Training):
    def build(self) -> torch.nn.Module:
        model = super().build()
        with torch.no_grad():
            for block in model.layers:
                for parameter in block.parameters():
                    if parameter.dim() > 1:
                        parameter.mul_(4 / 14 if self.broken else 4)
        return model


@incident("vturrisi/solo-learn#289")
class DecayedGains(Training):
    """Weight decay also applies to norm gains if broken, and only to matrices in the twin."""

    steps = 60
    learning_rate = 1e-2
    weight_decay = 1.5

    def make_optimizer(self) -> torch.optim.Optimizer:
        if not self.broken:
            return super().make_optimizer()
        return torch.optim.AdamW(
            self.model.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay
        )
