#!/usr/bin/env python3
"""Trains a byte-level Llama on real text: RMSNorm, SwiGLU, groups of heads, rotary embedding.

    python samples/llama.py --config debug.yaml --log-dir logs --recipe mxfp8 --sample 200

Text, batches, recipes and options match samples/gpt.py.
"""

from __future__ import annotations

import argparse
import sys

import torch
from gpt import make_parser, train

import telens
import telens.pytorch as te

# SwiGLU has a third matrix. With 8/3 x hidden instead of 4 x, the number of parameters is equal.
_MULTIPLE = 32  # MXFP8's blocks


class Llama(torch.nn.Module):
    """A decoder like Llama's. Layers are named layers.<i>.<name> and head in configurations."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        hidden, heads = options.hidden, options.heads
        self.embedding = torch.nn.Parameter(torch.randn(256, hidden) * 0.02)
        angles = te.RotaryPositionEmbedding(hidden // heads, rotary_base=options.rotary_base)
        self.register_buffer("angles", angles(options.sequence), persistent=False)
        ffn = -(-8 * hidden // 3 // _MULTIPLE) * _MULTIPLE
        self.layers = torch.nn.ModuleList(
            te.TransformerLayer(
                hidden,
                ffn,
                heads,
                num_gqa_groups=options.groups or heads,
                hidden_dropout=0,
                attention_dropout=0,
                layernorm_epsilon=1e-5,
                normalization="RMSNorm" if options.norm == "rms" else "LayerNorm",
                activation=options.activation,
                qk_norm_type={"rms": "RMSNorm", "l2": "L2Normalization"}.get(options.qk_norm),
                bias=False,
                layer_number=i + 1,
                name=f"layers.{i}",
                device="cpu",
            )
            for i in range(options.layers)
        )
        self.norm = te.RMSNorm(hidden, device="cpu")
        self.head = te.Linear(hidden, 256, bias=False, name="head", device="cpu")

    def forward(
        self, data: torch.Tensor, inference_params: te.InferenceParams | None = None
    ) -> torch.Tensor:
        """Maps bytes, int64 [seq, batch], to logits [seq, batch, 256].

        With inference_params, the bytes continue the text whose keys and values it caches.
        """
        hidden = torch.nn.functional.embedding(data, self.embedding)
        angles = self.angles if inference_params else self.angles[: data.size(0)]
        for layer in self.layers:
            hidden = layer(hidden, rotary_pos_emb=angles, inference_params=inference_params)
        return self.head(self.norm(hidden))

    def caches(self) -> te.InferenceParams:
        """Creates a cache for keys and values, as long as the training sequences."""
        attention = self.layers[0].self_attention.core_attention
        return te.InferenceParams(
            1,
            self.angles.size(0),
            attention.num_gqa_groups,
            self.angles.size(-1),
            self.embedding.dtype,
        )


@torch.no_grad()
def sample(model: Llama, count: int) -> bytes:
    """Bytes after a line feed, drawn from the model one by one.

    Each byte runs through the model once: keys and values of earlier bytes are cached. If the cache
    is full, the second half of the text is processed again.
    """
    model.eval()
    device = model.embedding.device
    longest = model.angles.size(0)
    generator = torch.Generator().manual_seed(1)
    written = [ord("\n")]
    caches, new = model.caches(), 1
    for _ in range(count):
        if sum(caches.sequences.values()) + new > longest:
            caches, new = model.caches(), max(1, longest // 2)
        caches.pre_step({"text": new})
        logits = model(torch.tensor(written[-new:], device=device)[:, None], caches)[-1, 0]
        drawn = torch.multinomial(logits.float().cpu().softmax(0), 1, generator=generator)
        written.append(drawn.item())
        new = 1
    return bytes(written[1:])


def main() -> None:
    parser = make_parser("Trains a byte-level Llama of TELens modules on real text.")
    parser.add_argument(
        "--groups", type=int, default=2, help="heads of key and value; 0 for as many as query heads"
    )
    parser.add_argument("--norm", default="rms", choices=("rms", "layer"), help="inside the layers")
    parser.add_argument(
        "--activation", default="swiglu", choices=("swiglu", "geglu", "gelu"), help="of the MLP"
    )
    parser.add_argument(
        "--qk-norm", default="none", choices=("none", "rms", "l2"), help="of queries and keys"
    )
    parser.add_argument("--rotary-base", type=float, default=10000.0, help="of rotary periods")
    parser.add_argument("--sample", type=int, default=0, help="bytes to write after training")
    options = parser.parse_args()
    made: list[Llama] = []

    def make_model(options: argparse.Namespace) -> Llama:
        made.append(Llama(options))
        return made[0]

    train(options, make_model)
    if options.sample:
        text = sample(made[0], options.sample)
        print(text.decode("latin-1").encode("unicode_escape").decode())


if __name__ == "__main__":
    try:
        main()
    except telens.UsageError as error:
        print(f"llama: {error}", file=sys.stderr)
        sys.exit(2)
