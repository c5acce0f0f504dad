"""Fine-tunes a Llama of transformers whose decoder layers are te.TransformerLayer.

Written from the public description of Transformer Engine's tutorial on Llama: the class of the
decoder layers is replaced while the model is built, and the weights are mapped by name.
"""

import json
from typing import Any
from unittest import mock

import torch
import trainings
import transformer_engine.pytorch as te
import transformers
from transformer_engine.pytorch.attention import RotaryPositionEmbedding
from transformers.models.llama import modeling_llama


class DecoderLayer(te.TransformerLayer):
    def __init__(self, config: transformers.LlamaConfig, layer_idx: int) -> None:
        super().__init__(
            hidden_size=config.hidden_size,
            ffn_hidden_size=config.intermediate_size,
            num_attention_heads=config.num_attention_heads,
            num_gqa_groups=config.num_key_value_heads,
            bias=False,
            layernorm_epsilon=config.rms_norm_eps,
            hidden_dropout=0,
            attention_dropout=0,
            fuse_qkv_params=False,
            normalization="RMSNorm",
            activation="swiglu",
            attn_input_format="bshd",
        )
        rotary = RotaryPositionEmbedding(config.hidden_size // config.num_attention_heads)
        self.angles = rotary(max_seq_len=config.max_position_embeddings).cuda()

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        mask = kwargs["attention_mask"]
        return super().forward(hidden_states, attention_mask=mask, rotary_pos_emb=self.angles)


CONFIG = transformers.LlamaConfig(
    vocab_size=96,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=32,
    use_cache=False,
)


def main() -> None:
    torch.manual_seed(1)
    theirs = trainings.randomize(transformers.LlamaForCausalLM(CONFIG)).cuda()
    weights = {name: each.clone() for name, each in theirs.state_dict().items()}
    tokens = torch.randint(0, CONFIG.vocab_size, (2, 16), device="cuda")

    def ours() -> torch.nn.Module:
        with mock.patch.object(modeling_llama, "LlamaDecoderLayer", DecoderLayer):
            model = transformers.LlamaForCausalLM(CONFIG).cuda()
        trainings.load(model, trainings.decoder_weights(weights))
        return model

    labels = tokens.roll(-1, dims=1)
    found = trainings.compare(theirs, {"bshd": ours}, lambda model: model(tokens).logits, labels)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
