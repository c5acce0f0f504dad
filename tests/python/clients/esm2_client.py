"""Trains ESM-2 with te.TransformerLayer as encoder, on padded (bshd) and packed (thd) sequences.

Written from the public description of ESM-2 in BioNeMo's recipes: fused and interleaved QKV
weights, rotary embeddings, a vocabulary that is padded, a head in high precision.
"""

import json
from unittest import mock

import torch
import trainings
import transformer_engine.pytorch as te
import transformers
from transformer_engine.pytorch.attention.rope import RotaryPositionEmbedding
from transformers.modeling_outputs import MaskedLMOutput
from transformers.models.esm import modeling_esm

PADDED_VOCABULARY = 64
CONFIG = transformers.EsmConfig(
    vocab_size=33,
    mask_token_id=32,
    pad_token_id=1,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=32,
    position_embedding_type="rotary",
    emb_layer_norm_before=False,
    token_dropout=True,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
# In pretraining 15 % of the tokens are chosen, and 80 % of these become the mask token.
KEPT_IN_PRETRAINING = 1 - 0.15 * 0.8


class Esm2(torch.nn.Module):
    def __init__(self, config: transformers.EsmConfig, qkv_format: str) -> None:
        super().__init__()
        self.config, self.qkv_format = config, qkv_format
        size, heads = config.hidden_size, config.num_attention_heads
        self.embeddings = torch.nn.Embedding(
            PADDED_VOCABULARY, size, padding_idx=config.pad_token_id, device="cuda"
        )
        self.layers = torch.nn.ModuleList(
            te.TransformerLayer(
                hidden_size=size,
                ffn_hidden_size=config.intermediate_size,
                num_attention_heads=heads,
                num_gqa_groups=heads,
                layernorm_epsilon=config.layer_norm_eps,
                hidden_dropout=config.hidden_dropout_prob,
                attention_dropout=config.attention_probs_dropout_prob,
                layer_number=index + 1,
                layer_type="encoder",
                self_attn_mask_type="padding",
                activation="gelu",
                attn_input_format=qkv_format,
                fuse_qkv_params=True,
                qkv_weight_interleaved=True,
                window_size=(-1, -1),
                seq_length=config.max_position_embeddings,
                micro_batch_size=1,
                params_dtype=torch.float32,
                device="cuda",
            )
            for index in range(config.num_hidden_layers)
        )
        self.norm = te.LayerNorm(size, eps=config.layer_norm_eps, device="cuda")
        self.rotary = RotaryPositionEmbedding(size // heads)
        self.dense = te.Linear(size, size, device="cuda")
        self.decoder = te.LayerNormLinear(
            size, PADDED_VOCABULARY, bias=True, eps=config.layer_norm_eps, device="cuda"
        )
        self.decoder.weight = self.embeddings.weight

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> MaskedLMOutput:
        hidden = self.embed(input_ids, attention_mask)
        options = {"rotary_pos_emb": self.rotary(max_seq_len=input_ids.size(1)).cuda()}
        if self.qkv_format == "thd":
            packing = trainings.Packing(attention_mask)
            hidden = packing.pack(hidden)
            options |= {
                "cu_seqlens_q": packing.cu_seqlens,
                "cu_seqlens_kv": packing.cu_seqlens,
                "max_seqlen_q": packing.max_length,
                "max_seqlen_kv": packing.max_length,
            }
        else:
            options["attention_mask"] = (attention_mask == 0)[:, None, None]
        for layer in self.layers:
            hidden = layer(hidden, **options)
        hidden = self.norm(hidden)
        if self.qkv_format == "thd":
            hidden = packing.unpack(hidden)
        with te.fp8_autocast(enabled=False):
            hidden = torch.nn.functional.gelu(self.dense(hidden), approximate="tanh")
            logits = self.decoder(hidden)
        return MaskedLMOutput(logits=logits[..., : self.config.vocab_size])

    def embed(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Zeroes mask tokens and scales the others, because their share in pretraining was
        larger.
        """
        is_mask = input_ids == self.config.mask_token_id
        kept = 1 - is_mask.sum(1) / attention_mask.sum(1)
        embedded = self.embeddings(input_ids).masked_fill(is_mask[..., None], 0.0)
        scaled = embedded * (KEPT_IN_PRETRAINING / kept)[:, None, None]
        return scaled * attention_mask[..., None]


def renamed(source: dict[str, torch.Tensor], config: transformers.EsmConfig) -> dict:
    """Renames the weights of transformers' EsmForMaskedLM."""

    def padded(weight: torch.Tensor) -> torch.Tensor:
        rows = torch.zeros(PADDED_VOCABULARY - weight.size(0), *weight.shape[1:])
        return torch.cat([weight, rows])

    def interleaved(prefix: str, kind: str) -> torch.Tensor:
        # The rows of each head in turn: its query, key and value.
        parts = [
            source[f"{prefix}.attention.self.{each}.{kind}"] for each in ("query", "key", "value")
        ]
        heads = [part.unflatten(0, (config.num_attention_heads, -1)) for part in parts]
        return torch.stack(heads, dim=1).flatten(0, 2)

    found = {
        "embeddings.weight": padded(source["esm.embeddings.word_embeddings.weight"]),
        "decoder.weight": padded(source["esm.embeddings.word_embeddings.weight"]),
        "rotary.inv_freq": source["esm.rotary_embeddings.inv_freq"],
        "decoder.bias": padded(source["lm_head.bias"]),
    }
    for kind in ("weight", "bias"):
        found[f"norm.{kind}"] = source[f"esm.encoder.emb_layer_norm_after.{kind}"]
        found[f"dense.{kind}"] = source[f"lm_head.dense.{kind}"]
        found[f"decoder.layer_norm_{kind}"] = source[f"lm_head.layer_norm.{kind}"]
        for index in range(config.num_hidden_layers):
            theirs, ours = f"esm.encoder.layer.{index}", f"layers.{index}"
            qkv, mlp = f"{ours}.self_attention.layernorm_qkv", f"{ours}.layernorm_mlp"
            found |= {
                f"{qkv}.layer_norm_{kind}": source[f"{theirs}.attention.LayerNorm.{kind}"],
                f"{qkv}.{kind}": interleaved(theirs, kind),
                f"{ours}.self_attention.proj.{kind}": source[
                    f"{theirs}.attention.output.dense.{kind}"
                ],
                f"{mlp}.layer_norm_{kind}": source[f"{theirs}.LayerNorm.{kind}"],
                f"{mlp}.fc1_{kind}": source[f"{theirs}.intermediate.dense.{kind}"],
                f"{mlp}.fc2_{kind}": source[f"{theirs}.output.dense.{kind}"],
            }
    return found


def main() -> None:
    torch.manual_seed(1)
    theirs = trainings.randomize(transformers.EsmForMaskedLM(CONFIG)).cuda()
    weights = {name: each.clone() for name, each in theirs.state_dict().items()}
    # 32 tokens in all: FP8 GEMMs of packed tokens need a multiple of 16.
    mask = (torch.arange(16) < torch.tensor([[16], [9], [7]])).int().cuda()
    tokens = torch.randint(4, 24, mask.shape, device="cuda").masked_fill(mask == 0, 1)
    is_predicted = torch.zeros_like(mask, dtype=torch.bool)
    is_predicted[:, 2::3] = True
    labels = tokens.masked_fill((mask == 0) | ~is_predicted, -100)
    tokens = tokens.masked_fill((mask == 1) & is_predicted, CONFIG.mask_token_id)

    def ours(qkv_format: str) -> torch.nn.Module:
        model = Esm2(CONFIG, qkv_format)
        trainings.load(model, renamed(weights, CONFIG))
        return model

    models = {"bshd": lambda: ours("bshd"), "thd": lambda: ours("thd")}
    # The GELU of te.TransformerLayer is the approximation by tanh.
    tanh = {"new": lambda x: torch.nn.functional.gelu(x, approximate="tanh")}
    with mock.patch.object(modeling_esm, "gelu", **tanh):
        found = trainings.compare(
            theirs, models, lambda model: model(tokens, attention_mask=mask).logits, labels
        )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
