#!/usr/bin/env python3
"""Trains a byte-level mixture of experts on real text: two of its experts work on each byte.

    python samples/moe.py --config debug.yaml --log-dir logs --recipe delayed

Each expert is a layer of its own in configurations and in `telens stats`:
layers.<i>.experts.fc1.gemm_<expert>. Text, batches, recipes and options are those of
samples/gpt.py.
"""

from __future__ import annotations

import argparse
import sys

import torch
from gpt import make_parser, train

import telens
import telens.pytorch as te

# How much a step moves the scores of experts that had too many or too few bytes.
BALANCING_RATE = 1e-3


class Experts(torch.nn.Module):
    """Sends each token to `top_k` of its experts, and adds up what they make of it."""

    def __init__(self, options: argparse.Namespace, name: str) -> None:
        super().__init__()
        hidden, experts = options.hidden, options.experts
        self.top_k = options.top_k
        self.router = torch.nn.Linear(hidden, experts, bias=False)
        # Added to scores where experts are chosen, so that all of them get work; not a weight.
        self.register_buffer("balance", torch.zeros(experts))
        grouped = {"bias": False, "device": "cpu"}
        ffn = options.expert_size
        self.fc1 = te.GroupedLinear(experts, hidden, 2 * ffn, name=f"{name}.fc1", **grouped)
        self.fc2 = te.GroupedLinear(experts, ffn, hidden, name=f"{name}.fc2", **grouped)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden] -> the same."""
        with torch.autocast(tokens.device.type, enabled=False):
            scores = self.router(tokens.float()).softmax(-1)
        chosen = (scores + self.balance).topk(self.top_k).indices
        routing = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, chosen, True)
        counts = routing.sum(0)
        if self.training:
            self.balance += BALANCING_RATE * (counts.float().mean() - counts).sign()
        rows, probs, row_id_map = te.moe_permute_with_probs(
            tokens, scores, routing, num_out_tokens=chosen.numel()
        )
        gate, up = self.fc1(rows, counts).chunk(2, -1)
        made = torch.nn.functional.silu(gate) * up * probs.unsqueeze(1).to(up.dtype)
        return te.moe_unpermute(self.fc2(made, counts), row_id_map)


class Layer(torch.nn.Module):
    """Attention, then a mixture of experts in the place of the MLP."""

    def __init__(self, options: argparse.Namespace, number: int) -> None:
        super().__init__()
        name = f"layers.{number}"
        hidden = options.hidden
        self.attention = te.MultiheadAttention(
            hidden,
            options.heads,
            attention_dropout=0,
            input_layernorm=True,
            normalization="RMSNorm",
            bias=False,
            name=f"{name}.attention",
            device="cpu",
        )
        self.norm = te.RMSNorm(hidden, device="cpu")
        self.experts = Experts(options, f"{name}.experts")

    def forward(self, hidden: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        hidden = hidden + self.attention(hidden, rotary_pos_emb=angles)
        made = self.experts(self.norm(hidden).flatten(0, 1))
        return hidden + made.view_as(hidden)


class Mixture(torch.nn.Module):
    """A decoder of such layers."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        hidden = options.hidden
        self.embedding = torch.nn.Parameter(torch.randn(256, hidden) * 0.02)
        angles = te.RotaryPositionEmbedding(hidden // options.heads)(options.sequence)
        self.register_buffer("angles", angles, persistent=False)
        self.layers = torch.nn.ModuleList(Layer(options, i) for i in range(options.layers))
        self.norm = te.RMSNorm(hidden, device="cpu")
        self.head = te.Linear(hidden, 256, bias=False, name="head", device="cpu")

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Bytes, int64 [seq, batch] -> logits [seq, batch, 256]."""
        hidden = torch.nn.functional.embedding(data, self.embedding)
        for layer in self.layers:
            hidden = layer(hidden, self.angles[: data.size(0)])
        return self.head(self.norm(hidden))


def main() -> None:
    parser = make_parser("Trains a byte-level mixture of experts of TELens modules on real text.")
    parser.add_argument("--experts", type=int, default=8, help="of each layer")
    parser.add_argument("--top-k", type=int, default=2, help="experts that work on a byte")
    parser.add_argument("--expert-size", type=int, default=128, help="width inside an expert")
    options = parser.parse_args()
    if not 1 <= options.top_k <= options.experts:
        raise telens.UsageError(
            f"--top-k is {options.top_k}; expected 1 to {options.experts}, the number of experts"
        )
    train(options, Mixture)


if __name__ == "__main__":
    try:
        main()
    except telens.UsageError as error:
        print(f"moe: {error}", file=sys.stderr)
        sys.exit(2)
