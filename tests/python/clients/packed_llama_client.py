"""Trains a Llama of te.TransformerLayer on padded (bshd) and packed (thd) sequences.

Written from the public description of Llama 3 in BioNeMo's recipes: fused QKV weights of grouped
heads, the frequencies of transformers' rotary embedding, all norms and linear layers of te.
"""

import json

import torch
import trainings
import transformer_engine.pytorch as te
import transformers
from transformer_engine.pytorch.attention.rope import RotaryPositionEmbedding
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

CONFIG = transformers.LlamaConfig(
    vocab_size=96,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=32,
    # These values change the angles of all but the highest frequencies within 16 positions.
    rope_parameters={
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    use_cache=False,
)


class PackedLlama(torch.nn.Module):
    def __init__(self, config: transformers.LlamaConfig, qkv_format: str) -> None:
        super().__init__()
        self.config, self.qkv_format = config, qkv_format
        size = config.hidden_size
        self.embeddings = torch.nn.Embedding(config.vocab_size, size, device="cuda")
        self.layers = torch.nn.ModuleList(
            te.TransformerLayer(
                hidden_size=size,
                ffn_hidden_size=config.intermediate_size,
                num_attention_heads=config.num_attention_heads,
                num_gqa_groups=config.num_key_value_heads,
                bias=False,
                layernorm_epsilon=config.rms_norm_eps,
                hidden_dropout=0,
                attention_dropout=0,
                layer_number=index + 1,
                self_attn_mask_type="padding_causal",
                normalization="RMSNorm",
                activation="swiglu",
                attn_input_format=qkv_format,
                fuse_qkv_params=True,
                qkv_weight_interleaved=True,
                params_dtype=torch.float32,
                device="cuda",
            )
            for index in range(config.num_hidden_layers)
        )
        self.norm = te.RMSNorm(size, eps=config.rms_norm_eps, device="cuda")
        self.head = te.Linear(size, config.vocab_size, bias=False, device="cuda")
        self.rotary = RotaryPositionEmbedding(config.head_dim)
        self.rotary.inv_freq = LlamaRotaryEmbedding(config=config).inv_freq

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> CausalLMOutput:
        hidden = self.embeddings(input_ids)
        with torch.autocast(device_type="cuda", enabled=False):
            angles = self.rotary(max_seq_len=self.config.max_position_embeddings).cuda()
        options = {"rotary_pos_emb": angles}
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
        with te.fp8_autocast(enabled=False):
            logits = self.head(hidden)
        return CausalLMOutput(logits=packing.unpack(logits) if self.qkv_format == "thd" else logits)


def renamed(source: dict[str, torch.Tensor], config: transformers.LlamaConfig) -> dict:
    """Renames the weights of transformers' LlamaForCausalLM."""
    split = trainings.decoder_weights(source)
    found = {
        "embeddings.weight": split.pop("model.embed_tokens.weight"),
        "norm.weight": split.pop("model.norm.weight"),
        "head.weight": split.pop("lm_head.weight"),
    }
    for name, weight in split.items():
        ours = name.removeprefix("model.")
        if name.endswith("query_weight"):
            # For each group of heads: its queries, its key, its value.
            parts = [
                split[name.replace("query", each)].unflatten(0, (config.num_key_value_heads, -1))
                for each in ("query", "key", "value")
            ]
            found[ours.replace("query_", "")] = torch.cat(parts, dim=1).flatten(0, 1)
        elif not name.endswith(("key_weight", "value_weight")):
            found[ours] = weight
    return found


def main() -> None:
    torch.manual_seed(1)
    theirs = trainings.randomize(transformers.LlamaForCausalLM(CONFIG)).cuda()
    weights = {name: each.clone() for name, each in theirs.state_dict().items()}
    # 32 tokens in all: FP8 GEMMs of packed tokens need a multiple of 16.
    mask = (torch.arange(16) < torch.tensor([[16], [9], [7]])).int().cuda()
    tokens = torch.randint(0, CONFIG.vocab_size, mask.shape, device="cuda")
    labels = tokens.roll(-1, dims=1).masked_fill(mask.roll(-1, dims=1) * mask == 0, -100)

    def ours(qkv_format: str) -> torch.nn.Module:
        model = PackedLlama(CONFIG, qkv_format)
        trainings.load(model, renamed(weights, CONFIG))
        return model

    found = trainings.compare(
        theirs,
        {"bshd": lambda: ours("bshd"), "thd": lambda: ours("thd")},
        lambda model: model(tokens, attention_mask=mask).logits,
        labels,
    )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
