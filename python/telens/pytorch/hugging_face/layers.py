"""Layers of Hugging Face's transformers as our TransformerLayer, with their weights.

Blocks of T5 become an attention and an MLP.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from telens import _C
from telens._names import refusal
from telens.pytorch.hugging_face.parts import (
    GATED,
    PLAIN,
    Replacement,
    activation_of,
    arbitrary,
    load,
    refuse,
    refuse_caches,
)
from telens.pytorch.modules import GroupedLinear, LayerNormMLP, MultiheadAttention, TransformerLayer

__all__ = ["use_transformer_layers"]

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


# Our parameter -> their parameters, concatenated along the first dimension. The two halves of fc1
# are the factors of the gated activation: the activated one first.
_LLAMA_ATTENTION = {
    "layernorm_qkv.layer_norm_weight": ("input_layernorm.weight",),
    "layernorm_qkv.query_weight": ("self_attn.q_proj.weight",),
    "layernorm_qkv.key_weight": ("self_attn.k_proj.weight",),
    "layernorm_qkv.value_weight": ("self_attn.v_proj.weight",),
    "proj.weight": ("self_attn.o_proj.weight",),
}
_LLAMA = {f"self_attention.{name}": source for name, source in _LLAMA_ATTENTION.items()} | {
    "layernorm_mlp.layer_norm_weight": ("post_attention_layernorm.weight",),
    "layernorm_mlp.fc1_weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "layernorm_mlp.fc2_weight": ("mlp.down_proj.weight",),
}
_BERT = {
    f"{name}{of_ours}{kind}": (f"{source}.{kind}",)
    for kind in ("weight", "bias")
    for name, of_ours, source in (
        ("self_attention.qkv.query", "_", "attention.self.query"),
        ("self_attention.qkv.key", "_", "attention.self.key"),
        ("self_attention.qkv.value", "_", "attention.self.value"),
        ("self_attention.proj", ".", "attention.output.dense"),
        ("layernorm_mlp.layer_norm", "_", "attention.output.LayerNorm"),
        ("layernorm_mlp.fc1", "_", "intermediate.dense"),
        ("layernorm_mlp.fc2", "_", "output.dense"),
        ("layernorm", ".", "output.LayerNorm"),
    )
}


def use_transformer_layers(model: torch.nn.Module) -> torch.nn.Module:
    """Replaces each layer of a Hugging Face model by our TransformerLayer with the same weights.

    Supported models of transformers: Llama; BERT as an encoder; Mixtral, whose attention becomes
    our MultiheadAttention and whose experts become two GroupedLinear (router and norm are
    unchanged); and T5, whose blocks become MultiheadAttentions and a LayerNormMLP (its bias table
    is unchanged). Embeddings, final norms and heads are unchanged. Changes the model in place and
    returns it. Set ``model.config.use_cache = False``, since our layers do not cache keys and
    values.

    Frozen parameters stay frozen; ``gradient_checkpointing_enable`` recomputes our layers. Not
    supported are biases of Llama's linear layers, scaled rotary embeddings, activations that our
    modules lack, and, when the model is called, ``output_hidden_states`` and ``output_attentions``.
    """
    if not isinstance(model, torch.nn.Module):
        raise refusal("use_transformer_layers", "model", "a model of transformers", model)
    found = [
        (parent, name, _KINDS[type(child).__name__])
        for parent in list(model.modules())
        for name, child in parent.named_children()
        if type(child).__name__ in _KINDS and type(child).__module__.startswith("transformers.")
    ]
    if not found:
        raise _C.UsageError(
            f"use_transformer_layers: {type(model).__name__} has none of the layers that are "
            f"known: {', '.join(_KINDS)}"
        )
    for parent, name, make in found:
        layer = parent.get_submodule(name)
        made = make(layer, model.config).to(next(layer.parameters()).device)
        setattr(parent, name, made.train(layer.training))
    return model


@dataclass(frozen=True)
class _Angles:
    """The frequencies of a layer's rotary embedding."""

    dim: int
    base: float

    def of(self, positions: torch.Tensor) -> torch.Tensor:
        """Returns angles [seq, 1, 1, dim] for positions [batch or 1, seq], which must be equal in
        all rows."""
        if not (positions == positions[:1]).all():
            raise _C.UsageError(
                "use_transformer_layers: position_ids differ from one sequence to the next; ours "
                "share one set of angles: pad at the right"
            )
        exponents = torch.arange(0, self.dim, 2, device=positions.device).float() / self.dim
        angles = positions[0].float()[:, None] / self.base**exponents
        return torch.cat([angles, angles], dim=-1)[:, None, None]


class _Layer(Replacement):
    """Accepts the arguments of a transformers layer."""

    def __init__(self, layer: torch.nn.Module, mask_type: str, angles: _Angles | None) -> None:
        super().__init__()
        self.layer = layer
        self._mask_type = mask_type
        self._angles = angles

    def _replace(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        *,
        position_ids: torch.Tensor | None = None,
        past_key_values: Any = None,
        **others: Any,
    ) -> torch.Tensor:
        """Maps [batch, seq, hidden] to the same shape; ``attention_mask`` as passed to eager
        attention."""
        refuse_caches(past_key_values, others.get("cache"), encoder_hidden_states)
        return self._call(
            hidden_states, self._attention(hidden_states, attention_mask, position_ids)
        )

    def _call(self, hidden_states: torch.Tensor, attention: dict[str, Any]) -> torch.Tensor:
        attention["self_attn_mask_type"] = attention.pop("attn_mask_type")
        return self.layer(hidden_states, **attention)

    def _attention(
        self, hidden: torch.Tensor, mask: torch.Tensor | None, positions: torch.Tensor | None
    ) -> dict[str, Any]:
        arguments: dict[str, Any] = {"attn_mask_type": self._mask_type}
        if mask is not None:
            arguments |= arbitrary(mask)
        if self._angles is not None:
            if positions is None:
                positions = torch.arange(hidden.size(1), device=hidden.device)[None]
            arguments["rotary_pos_emb"] = self._angles.of(positions)
        return arguments


class _MixtralLayer(_Layer):
    """Our attention and the original mixture of experts, with the experts' products replaced."""

    def __init__(self, attention: torch.nn.Module, angles: _Angles, layer: torch.nn.Module) -> None:
        super().__init__(attention, "causal", angles)
        self.post_attention_layernorm = layer.post_attention_layernorm
        self.mlp = layer.mlp

    def _call(self, hidden_states: torch.Tensor, attention: dict[str, Any]) -> torch.Tensor:
        hidden_states = hidden_states + self.layer(hidden_states, **attention)
        return hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))


class _Experts(torch.nn.Module):
    """The two products of all experts, each as a GroupedLinear."""

    def __init__(self, experts: torch.nn.Module) -> None:
        super().__init__()
        count, double, hidden = experts.gate_up_proj.shape
        options = {"bias": False, "params_dtype": experts.gate_up_proj.dtype, "device": "meta"}
        self.fc1 = GroupedLinear(count, hidden, double, **options)
        self.fc2 = GroupedLinear(count, double // 2, hidden, **options)
        self.act_fn = experts.act_fn
        for linear, weights in ((self.fc1, experts.gate_up_proj), (self.fc2, experts.down_proj)):
            for i, weight in enumerate(weights.detach()):
                parameter = torch.nn.Parameter(weight.clone(), weights.requires_grad)
                setattr(linear, f"weight{i}", parameter)

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Maps [tokens, hidden] to the same shape, given each token's experts [tokens, k] and their
        weights."""
        experts = top_k_index.flatten()
        order = experts.argsort(stable=True)
        tokens = order // top_k_index.size(1)
        splits = experts.bincount(minlength=self.fc1.num_gemms).tolist()
        gate, up = self.fc1(hidden_states[tokens], splits).chunk(2, dim=-1)
        out = self.fc2(self.act_fn(gate) * up, splits)
        out = out * top_k_weights.flatten()[order, None]
        return torch.zeros_like(hidden_states).index_add_(0, tokens, out.to(hidden_states.dtype))


# ---------------------------------------------------------------------- one layer each


def _from_llama(layer: torch.nn.Module, config: Any) -> _Layer:
    refuse(config.attention_bias or config.mlp_bias, "biases of Llama's linear layers")
    made = TransformerLayer(
        config.hidden_size,
        config.intermediate_size,
        config.num_attention_heads,
        hidden_dropout=0,
        activation=activation_of(config.hidden_act, GATED),
        self_attn_mask_type="causal",
        **_attention_options(layer, config),
    )
    load(made, _LLAMA, layer)
    return _Layer(made, "causal", _angles(config))


def _from_mixtral(layer: torch.nn.Module, config: Any) -> _Layer:
    refuse(getattr(config, "sliding_window", None), "sliding windows of attention")
    options = _attention_options(layer, config)
    attention = MultiheadAttention(
        config.hidden_size,
        config.num_attention_heads,
        input_layernorm=True,
        attn_mask_type="causal",
        qkv_format=options.pop("attn_input_format"),
        **options,
    )
    load(attention, _LLAMA_ATTENTION, layer)
    layer.mlp.experts = _Experts(layer.mlp.experts)
    return _MixtralLayer(attention, _angles(config), layer)


def _from_bert(layer: torch.nn.Module, config: Any) -> _Layer:
    refuse(config.is_decoder, "BERT as a decoder")
    # BERT has a norm after each residual connection. Our MLP starts with the first of them and uses
    # its output as the residual; the second one is the layer's output norm.
    made = TransformerLayer(
        config.hidden_size,
        config.intermediate_size,
        config.num_attention_heads,
        layernorm_epsilon=config.layer_norm_eps,
        hidden_dropout=config.hidden_dropout_prob,
        attention_dropout=config.attention_probs_dropout_prob,
        activation=activation_of(config.hidden_act, PLAIN),
        self_attn_mask_type="no_mask",
        output_layernorm=True,
        apply_residual_connection_post_layernorm=True,
        attn_input_format="bshd",
        params_dtype=layer.output.dense.weight.dtype,
        device="meta",
    )
    load(made, _BERT, layer)
    return _Layer(made, "no_mask", None)


_KINDS: dict[str, Callable[[torch.nn.Module, Any], torch.nn.Module]] = {
    "LlamaDecoderLayer": _from_llama,
    "MixtralDecoderLayer": _from_mixtral,
    "BertLayer": _from_bert,
    "T5Block": from_t5,
}


def _attention_options(layer: torch.nn.Module, config: Any) -> dict[str, Any]:
    return {
        "num_gqa_groups": config.num_key_value_heads,
        "kv_channels": _head_dim(config),
        "layernorm_epsilon": config.rms_norm_eps,
        "attention_dropout": config.attention_dropout,
        "normalization": "RMSNorm",
        "bias": False,
        "attn_input_format": "bshd",
        "params_dtype": layer.input_layernorm.weight.dtype,
        "device": "meta",
    }


def _head_dim(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _angles(config: Any) -> _Angles:
    rope = config.rope_parameters
    kind = rope.get("rope_type", "default")
    refuse(kind != "default", f"rotary embeddings of type {kind!r}")
    return _Angles(_head_dim(config), float(rope["rope_theta"]))
