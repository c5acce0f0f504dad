"""A small decoder of plain torch modules, named as in common model libraries."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

VOCABULARY = 256  # bytes


class Attention(torch.nn.Module):
    """Causal self-attention. Scripts replace `mask` to break it."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.mask: Callable[[int], torch.Tensor | None] = lambda length: None  # None: causal
        self.q_proj = torch.nn.Linear(hidden, hidden, bias=False)
        self.k_proj = torch.nn.Linear(hidden, hidden, bias=False)
        self.v_proj = torch.nn.Linear(hidden, hidden, bias=False)
        self.o_proj = torch.nn.Linear(hidden, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, length, hidden] -> [batch, length, hidden]."""
        batch, length, hidden = x.shape

        def split(projection: torch.nn.Linear) -> torch.Tensor:
            return projection(x).view(batch, length, self.heads, -1).transpose(1, 2)

        mask = self.mask(length)
        mixed = functional.scaled_dot_product_attention(
            split(self.q_proj),
            split(self.k_proj),
            split(self.v_proj),
            attn_mask=mask,
            is_causal=mask is None,
        )
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, hidden))


class Mlp(torch.nn.Module):
    """A gated feed-forward network."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = torch.nn.Linear(hidden, inner, bias=False)
        self.up_proj = torch.nn.Linear(hidden, inner, bias=False)
        self.down_proj = torch.nn.Linear(inner, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Experts(torch.nn.Module):
    """A mixture of experts; each token uses `top_k` of them."""

    def __init__(self, hidden: int, inner: int, experts: int, top_k: int = 2) -> None:
        super().__init__()
        self.top_k = top_k
        self.router = torch.nn.Linear(hidden, experts, bias=False)
        self.experts = torch.nn.ModuleList(Mlp(hidden, inner) for _ in range(experts))
        self.register_buffer("balance", torch.zeros(experts))
        self.balancing_loss = torch.zeros(())
        self.load = torch.zeros(experts)

    def scores(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns the weight of each expert for each token."""
        return self.router(tokens).softmax(-1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.reshape(-1, x.size(-1))
        scores = self.scores(tokens)
        chosen = (scores.detach() + self.balance).topk(self.top_k).indices
        weights = scores.gather(1, chosen)
        weights = weights / weights.sum(-1, keepdim=True)
        self.load = torch.bincount(chosen.flatten(), minlength=len(self.experts)).float()
        share = self.load / self.load.sum()
        self.balancing_loss = len(self.experts) * (share * scores.mean(0)).sum()
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            row, place = (chosen == number).nonzero(as_tuple=True)
            if len(row) > 0:
                out = out.index_add(0, row, weights[row, place, None] * expert(tokens[row]))
        return out.view_as(x)


class Block(torch.nn.Module):
    def __init__(self, hidden: int, heads: int, inner: int, experts: int) -> None:
        super().__init__()
        self.input_layernorm = torch.nn.RMSNorm(hidden)
        self.self_attn = Attention(hidden, heads)
        self.post_attention_layernorm = torch.nn.RMSNorm(hidden)
        self.mlp = Experts(hidden, inner, experts) if experts else Mlp(hidden, inner)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(torch.nn.Module):
    """Tokens, int64 [batch, length] -> logits [batch, length, 256]."""

    def __init__(
        self,
        hidden: int = 32,
        layers: int = 4,
        heads: int = 2,
        inner: int = 64,
        experts: int = 0,
        length: int = 32,
    ) -> None:
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(VOCABULARY, hidden)
        self.positions = torch.nn.Embedding(length, hidden)
        self.layers = torch.nn.ModuleList(
            Block(hidden, heads, inner, experts) for _ in range(layers)
        )
        self.norm = torch.nn.RMSNorm(hidden)
        self.lm_head = torch.nn.Linear(hidden, VOCABULARY, bias=False)
        self.apply(initialize)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.size(1), device=tokens.device)
        return self.embed_tokens(tokens) + self.positions(places)

    def decode(self, hidden: torch.Tensor) -> torch.Tensor:
        """Runs the blocks. Scripts override it to checkpoint or cut them."""
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.lm_head(self.norm(self.decode(self.embed(tokens))))


def initialize(module: torch.nn.Module) -> None:
    """Draws linear and embedding weights from N(0, 0.02**2), as most language models do."""
    if isinstance(module, (torch.nn.Linear, torch.nn.Embedding)):
        torch.nn.init.normal_(module.weight, std=0.02)
