#!/usr/bin/env python3
"""Trains a byte-level mixture of experts on real text. Each byte is routed to two experts.

    python samples/moe.py --config debug.yaml --log-dir logs --recipe delayed
    torchrun --nproc-per-node 2 samples/moe.py --ep 2
    torchrun --nproc-per-node 4 samples/moe.py --ep 2 --tp 2 --sp
    torchrun --nproc-per-node 2 samples/moe.py --cp 2

Each expert is a separate layer in configurations and in `telens stats`, on whichever rank it is:
layers.<i>.experts.fc1.gemm_<expert>. Text, batches, recipes and options match samples/gpt.py.
"""

from __future__ import annotations

import argparse
import sys

import torch
from gpt import make_parser, train
from ranks import Ranks, add_layer_options

import telens
import telens.pytorch as te

# The change per step of the scores of experts that received too many or too few bytes.
BALANCING_RATE = 1e-3


class Experts(torch.nn.Module):
    """Sends each token to `top_k` experts and sums their outputs.

    Each rank has some of the experts and sends its tokens to the ranks of their experts.
    """

    def __init__(self, options: argparse.Namespace, name: str, ranks: Ranks) -> None:
        super().__init__()
        hidden, experts = options.hidden, options.experts
        self.top_k = options.top_k
        self.ranks = ranks
        self.dispatcher = te.MoEDispatcher(experts, ranks.dp_group)
        self.router = torch.nn.Linear(hidden, experts, bias=False)
        # Added to the scores only to choose experts, so that all of them receive tokens. Not
        # trained.
        self.register_buffer("balance", torch.zeros(experts))
        first, own = self.dispatcher.first_expert, self.dispatcher.num_local_experts
        grouped = {"bias": False, "device": "cpu", "first_gemm": first}
        ffn = options.expert_size
        self.fc1 = te.GroupedLinear(own, hidden, 2 * ffn, name=f"{name}.fc1", **grouped)
        self.fc2 = te.GroupedLinear(own, ffn, hidden, name=f"{name}.fc2", **grouped)
        for parameter in (*self.fc1.parameters(), *self.fc2.parameters()):
            parameter.allreduce = ranks.dp * ranks.cp == 1  # no other rank has it

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden] -> the same."""
        with torch.autocast(tokens.device.type, enabled=False):
            scores = self.router(tokens.float()).softmax(-1)
        chosen = (scores + self.balance).topk(self.top_k).indices
        routing = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, chosen, True)
        if self.training:
            counts = self.ranks.total(routing.sum(0))
            self.balance += BALANCING_RATE * (counts.float().mean() - counts).sign()
        rows, probs, m_splits = self.dispatcher.dispatch_with_probs(tokens, routing, scores)
        gate, up = self.fc1(rows, m_splits).chunk(2, -1)
        made = torch.nn.functional.silu(gate) * up * probs.unsqueeze(1).to(up.dtype)
        return self.dispatcher.combine(self.fc2(made, m_splits))

    def copy_own_experts(self, whole: Experts) -> None:
        """Copies the weights of this rank's experts from a layer that has all experts."""
        first = self.dispatcher.first_expert
        for own, every in ((self.fc1, whole.fc1), (self.fc2, whole.fc2)):
            for i in range(self.dispatcher.num_local_experts):
                value = every.get_parameter(f"weight{first + i}")
                own.get_parameter(f"weight{i}").copy_(value)


class Layer(torch.nn.Module):
    """Attention, then a mixture of experts instead of the MLP."""

    def __init__(self, options: argparse.Namespace, number: int, ranks: Ranks) -> None:
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
            **ranks.layer_options(),
        )
        ranks.share_sequences(self.attention)
        self.norm = te.RMSNorm(hidden, device="cpu")
        self.experts = Experts(options, f"{name}.experts", ranks)

    def forward(self, hidden: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        hidden = hidden + self.attention(hidden, rotary_pos_emb=angles)
        made = self.experts(self.norm(hidden).flatten(0, 1))
        return hidden + made.view_as(hidden)


class Mixture(torch.nn.Module):
    """A decoder of such layers."""

    def __init__(self, options: argparse.Namespace, ranks: Ranks) -> None:
        super().__init__()
        self.ranks = ranks
        hidden = options.hidden
        self.embedding = torch.nn.Parameter(torch.randn(256, hidden) * 0.02)
        angles = te.RotaryPositionEmbedding(hidden // options.heads)(options.sequence)
        self.register_buffer("angles", angles, persistent=False)
        self.layers = torch.nn.ModuleList(Layer(options, i, ranks) for i in range(options.layers))
        self.norm = te.RMSNorm(hidden, device="cpu")
        self.head = te.Linear(hidden, 256, bias=False, name="head", device="cpu")

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Maps bytes, int64 [seq, batch], to logits [seq, batch, 256]; with --cp or --sp this
        rank's rows."""
        hidden = self.ranks.own_sequence(torch.nn.functional.embedding(data, self.embedding))
        for layer in self.layers:
            hidden = layer(hidden, self.angles[: data.size(0)])
        return self.head(self.norm(hidden))


def make_mixture(options: argparse.Namespace, ranks: Ranks) -> Mixture:
    """Creates the model with this rank's experts. The weights depend only on the seed."""
    whole = Mixture(options, Ranks.alone())
    if ranks.dp * ranks.cp * ranks.tp == 1:
        return whole
    own = Mixture(options, ranks)
    ranks.copy_own_part(own, whole)
    with torch.no_grad():
        for layer, of_whole in zip(own.layers, whole.layers, strict=True):
            layer.experts.copy_own_experts(of_whole.experts)
    return own


def main() -> None:
    parser = make_parser("Trains a byte-level mixture of experts of TELens modules on real text.")
    parser.add_argument("--experts", type=int, default=8, help="of each layer")
    parser.add_argument("--top-k", type=int, default=2, help="experts that work on a byte")
    parser.add_argument("--expert-size", type=int, default=128, help="width inside an expert")
    parser.add_argument(
        "--ep",
        type=int,
        default=1,
        help="ranks that share the batch; the experts are shared with --cp",
    )
    add_layer_options(parser)
    options = parser.parse_args()
    if not 1 <= options.top_k <= options.experts:
        raise telens.UsageError(
            f"--top-k is {options.top_k}; expected 1 to {options.experts}, the number of experts"
        )
    if options.ep * options.cp * options.tp > 1 and (options.save or options.resume):
        raise telens.UsageError(
            "--save and --resume want one rank (--ep 1 --cp 1 --tp 1): no rank has it all"
        )
    ranks = Ranks(
        tp=options.tp,
        sequence_parallel=options.sp,
        dp=options.ep,
        cp=options.cp,
        cp_comm_type=options.cp_comm_type,
        options=f"--tp {options.tp} --cp {options.cp} --ep {options.ep}",
    )
    train(options, make_mixture, ranks)
    ranks.finish()


if __name__ == "__main__":
    try:
        main()
    except telens.UsageError as error:
        print(f"moe: {error}", file=sys.stderr)
        sys.exit(2)
