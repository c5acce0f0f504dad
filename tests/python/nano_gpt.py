"""A small GPT in the shape of nanoGPT: learned positions, pre-norm blocks, GELU, a tied head.

Written from its public description, with torch's modules only.
"""

import torch


class Block(torch.nn.Module):
    """Causal self-attention and an MLP, each after a norm and with a residual."""

    def __init__(self, width: int, heads: int, bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1 = torch.nn.LayerNorm(width, bias=bias)
        self.c_attn = torch.nn.Linear(width, 3 * width, bias=bias)
        self.c_proj = torch.nn.Linear(width, width, bias=bias)
        self.ln_2 = torch.nn.LayerNorm(width, bias=bias)
        self.mlp_fc = torch.nn.Linear(width, 4 * width, bias=bias)
        self.mlp_out = torch.nn.Linear(4 * width, width, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        split = (batch, tokens, self.heads, width // self.heads)
        q, k, v = (
            part.view(split).transpose(1, 2) for part in self.c_attn(self.ln_1(x)).chunk(3, -1)
        )
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.mlp_out(torch.nn.functional.gelu(self.mlp_fc(self.ln_2(x))))


class NanoGPT(torch.nn.Module):
    """Returns (logits, loss), as the original does. ``tied``: the head uses the embedding's
    weight.
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        tied: bool = True,
        width: int = 32,
        layers: int = 2,
        heads: int = 2,
        block_size: int = 32,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.transformer = torch.nn.ModuleDict(
            {
                "wte": torch.nn.Embedding(vocabulary, width),
                "wpe": torch.nn.Embedding(block_size, width),
                "h": torch.nn.ModuleList(Block(width, heads, bias) for _ in range(layers)),
                "ln_f": torch.nn.LayerNorm(width, bias=bias),
            }
        )
        self.lm_head = torch.nn.Linear(width, vocabulary, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                torch.nn.init.normal_(parameter, std=0.02)
        if tied:
            self.transformer["wte"].weight = self.lm_head.weight

    def forward(
        self, tokens: torch.Tensor, targets: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.transformer["wte"](tokens) + self.transformer["wpe"](places)
        for block in self.transformer["h"]:
            x = block(x)
        logits = self.lm_head(self.transformer["ln_f"](x))
        if targets is None:
            return logits, None
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss
