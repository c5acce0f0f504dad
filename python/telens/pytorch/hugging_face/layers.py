"""Layers of Hugging Face's transformers as our TransformerLayer, with their weights."""

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
from telens.pytorch.hugging_face.t5 import from_t5
from telens.pytorch.modules import GroupedLinear, MultiheadAttention, TransformerLayer

__all__ = ["use_transformer_layers"]

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
    # A norm after each residual: the one before our MLP, whose output is its residual, and the
    # layer's last one.
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
