"""Blocks of Hugging Face's T5 as our attention and MLP."""

from __future__ import annotations

from typing import Any

import torch

from telens.pytorch.hugging_face.parts import (
    GATED,
    PLAIN,
    Replacement,
    activation_of,
    arbitrary,
    load,
    refuse_caches,
)
from telens.pytorch.modules import LayerNormMLP, MultiheadAttention

__all__: list[str] = []

# By part of a T5Block: its index in `layer` precedes the names.
_T5_SELF = {
    "layernorm_qkv.layer_norm_weight": ("layer_norm.weight",),
    "layernorm_qkv.query_weight": ("SelfAttention.q.weight",),
    "layernorm_qkv.key_weight": ("SelfAttention.k.weight",),
    "layernorm_qkv.value_weight": ("SelfAttention.v.weight",),
    "proj.weight": ("SelfAttention.o.weight",),
}
_T5_CROSS = {
    "layernorm_query.layer_norm_weight": ("layer_norm.weight",),
    "layernorm_query.query_weight": ("EncDecAttention.q.weight",),
    "key_value.key_weight": ("EncDecAttention.k.weight",),
    "key_value.value_weight": ("EncDecAttention.v.weight",),
    "proj.weight": ("EncDecAttention.o.weight",),
}
_T5_MLP = {
    "layer_norm_weight": ("layer_norm.weight",),
    "fc1_weight": ("DenseReluDense.wi.weight",),
    "fc2_weight": ("DenseReluDense.wo.weight",),
}
_T5_GATED_MLP = _T5_MLP | {
    "fc1_weight": ("DenseReluDense.wi_0.weight", "DenseReluDense.wi_1.weight")
}


class T5Layer(Replacement):
    """Accepts the arguments of a T5Block, and returns its results.

    All blocks add the same bias to the scores of self attention. The first block computes it from
    the original bias table.
    """

    def __init__(
        self, attention: torch.nn.Module, cross: torch.nn.Module | None, mlp: torch.nn.Module
    ) -> None:
        super().__init__()
        self.self_attention = attention
        self.inter_attention = cross
        self.layernorm_mlp = mlp
        self.bias: torch.nn.Module | None = None
        self.dropout = 0.0

    def _replace(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_bias: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        encoder_decoder_position_bias: torch.Tensor | None = None,
        **others: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Maps [batch, seq, hidden] to the same shape, with masks as passed to eager attention;
        also returns two biases."""
        refuse_caches(others.get("past_key_values"), others.get("cache"))
        if position_bias is None and self.bias is not None:
            length = hidden_states.size(1)
            position_bias = self.bias.compute_bias(length, length, device=hidden_states.device)
        mask_type = "no_mask" if self.inter_attention is None else "causal"
        seen = (
            {"attn_mask_type": mask_type} if attention_mask is None else arbitrary(attention_mask)
        )
        if position_bias is not None:
            seen["core_attention_bias_type"] = "post_scale_bias"
            seen["core_attention_bias"] = position_bias
        hidden = self._add(hidden_states, self.self_attention(hidden_states, **seen))
        if self.inter_attention is not None and encoder_hidden_states is not None:
            seen = {"attn_mask_type": "no_mask"}
            if encoder_attention_mask is not None:
                seen = arbitrary(encoder_attention_mask)
            out = self.inter_attention(hidden, encoder_output=encoder_hidden_states, **seen)
            hidden = self._add(hidden, out)
        return self._add(hidden, self.layernorm_mlp(hidden)), position_bias, None

    def _add(self, hidden: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return hidden + torch.nn.functional.dropout(out, self.dropout, self.training)


def from_t5(layer: torch.nn.Module, config: Any) -> T5Layer:
    """Returns our layers with the weights of a T5Block. Moves its bias table to the result."""
    theirs = layer.layer
    dtype = theirs[0].layer_norm.weight.dtype
    norm = {
        "normalization": "RMSNorm",
        "bias": False,
        "params_dtype": dtype,
        "device": "meta",
    }

    def attention(part: torch.nn.Module, names: dict[str, tuple[str, ...]], kind: str) -> Any:
        made = MultiheadAttention(
            config.d_model,
            config.num_heads,
            config.d_kv,
            attention_dropout=config.dropout_rate,
            layernorm_epsilon=config.layer_norm_epsilon,
            input_layernorm=True,
            attention_type=kind,
            softmax_scale=1.0,  # T5 does not divide scores by the root of a head's size
            qkv_format="bshd",
            **norm,
        )
        load(made, names, part)
        return made

    gated = config.is_gated_act
    mlp = LayerNormMLP(
        config.d_model,
        config.d_ff,
        eps=config.layer_norm_epsilon,
        activation=activation_of(config.dense_act_fn, GATED if gated else PLAIN),
        **norm,
    )
    load(mlp, _T5_GATED_MLP if gated else _T5_MLP, theirs[-1])
    mlp.to(dtype)  # transformers may have left wo in FP32
    made = T5Layer(
        attention(theirs[0], _T5_SELF, "self"),
        attention(theirs[1], _T5_CROSS, "cross") if layer.is_decoder else None,
        mlp,
    )
    made.dropout = config.dropout_rate
    own = theirs[0].SelfAttention
    if own.has_relative_attention_bias:
        for projection in ("q", "k", "v", "o"):
            delattr(own, projection)
        made.bias = own
    return made
