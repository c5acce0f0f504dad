"""Fine-tunes a Gemma of transformers whose decoder layers are te.TransformerLayer.

Written from the public description of Transformer Engine's tutorial on Gemma: heads that are wider
than hidden_size / num_attention_heads, GeGLU, and RMSNorm with weights around zero.
"""

import copy
import json
from collections import OrderedDict
from typing import Any
from unittest import mock

import torch
import trainings
import transformer_engine.pytorch as te
import transformers
from transformer_engine.pytorch.attention import RotaryPositionEmbedding
from transformers.models.gemma import modeling_gemma


class DecoderLayer(te.TransformerLayer):
    def __init__(self, config: transformers.GemmaConfig, layer_idx: int) -> None:
        super().__init__(
            hidden_size=config.hidden_size,
            ffn_hidden_size=config.intermediate_size,
            num_attention_heads=config.num_attention_heads,
            num_gqa_groups=config.num_key_value_heads,
            kv_channels=config.head_dim,
            layer_number=layer_idx + 1,
            bias=False,
            layernorm_epsilon=config.rms_norm_eps,
            hidden_dropout=0,
            attention_dropout=0,
            fuse_qkv_params=False,
            normalization="RMSNorm",
            zero_centered_gamma=True,
            activation="geglu",
            attn_input_format="bshd",
        )
        self.angles = RotaryPositionEmbedding(config.head_dim)(
            max_seq_len=config.max_position_embeddings
        ).cuda()

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return super().forward(
            hidden_states,
            attention_mask=kwargs["attention_mask"],
            rotary_pos_emb=self.angles,
            inference_params=kwargs.get("inference_params"),
        )


CONFIG = transformers.GemmaConfig(
    vocab_size=96,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=1,
    head_dim=32,
    max_position_embeddings=32,
    hidden_act="gelu_pytorch_tanh",
    use_cache=False,
)


GENERATED = 6


class Cached(torch.nn.Module):
    """Predicts the next token with a cache of the keys and values of all earlier tokens."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.decoder = model

    def forward(self, tokens: torch.Tensor, cache: te.InferenceParams) -> torch.Tensor:
        cache.pre_step(OrderedDict.fromkeys(range(tokens.size(0)), tokens.size(1)))
        hidden = self.decoder.model.embed_tokens(tokens)
        for layer in self.decoder.model.layers:
            hidden = layer(hidden, attention_mask=None, inference_params=cache)
        return self.decoder.lm_head(self.decoder.model.norm(hidden[:, -1:])).argmax(dim=-1)


@torch.no_grad()
def generate(model: torch.nn.Module, prompts: torch.Tensor) -> list[list[int]]:
    """Greedy decoding."""
    config, cached = model.config, Cached(model)
    cache = te.InferenceParams(
        max_batch_size=prompts.size(0),
        max_sequence_length=config.max_position_embeddings,
        num_heads_kv=config.num_key_value_heads,
        head_dim_k=config.head_dim,
        dtype=torch.float32,
    )
    found = [cached(prompts, cache)]
    while len(found) < GENERATED:
        found.append(cached(found[-1], cache))
    return torch.cat(found, dim=1).tolist()


@torch.no_grad()
def generate_without_cache(model: torch.nn.Module, prompts: torch.Tensor) -> list[list[int]]:
    tokens = prompts
    for _ in range(GENERATED):
        tokens = torch.cat([tokens, model(tokens).logits[:, -1:].argmax(dim=-1)], dim=1)
    return tokens[:, prompts.size(1) :].tolist()


def replaced(source: torch.nn.Module) -> torch.nn.Module:
    """Returns a model with the same weights and our decoder layers."""
    with mock.patch.object(modeling_gemma, "GemmaDecoderLayer", DecoderLayer):
        model = transformers.GemmaForCausalLM(CONFIG).cuda()
    trainings.load(model, trainings.decoder_weights(source.state_dict()))
    return model


def main() -> None:
    torch.manual_seed(1)
    theirs = trainings.randomize(transformers.GemmaForCausalLM(CONFIG)).cuda()
    untrained = copy.deepcopy(theirs)
    tokens = torch.randint(0, CONFIG.vocab_size, (2, 16), device="cuda")
    models = {"bshd": lambda: replaced(untrained)}
    labels = tokens.roll(-1, dims=1)
    found = trainings.compare(theirs, models, lambda model: model(tokens).logits, labels)

    # With small layers, a tied head repeats the last token.
    varied = trainings.randomize(transformers.GemmaForCausalLM(CONFIG), scale=0.3).cuda().eval()
    expected = generate_without_cache(varied, tokens)
    found["generated"] = [generate(replaced(varied).eval(), tokens), expected]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
