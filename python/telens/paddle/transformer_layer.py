"""A Transformer layer: attention block and feed-forward block with residuals."""

from __future__ import annotations

import warnings
from typing import Any

import paddle
import paddle.nn.functional as F

from telens._names import among
from telens.paddle import tensor_parallel
from telens.paddle.arguments import (
    check_attributes,
    check_bias,
    check_epsilon,
    check_hidden_states,
    check_optional_sizes,
    check_probabilities,
    check_sizes,
)
from telens.paddle.layer import default_dtype
from telens.paddle.layer_norm import LayerNorm
from telens.paddle.layer_norm_mlp import LayerNormMLP
from telens.paddle.multi_head_attention import MultiHeadAttention

__all__ = ["TransformerLayer"]


class TransformerLayer(paddle.nn.Layer):
    """A Transformer layer (https://arxiv.org/abs/1706.03762).

    Its layers are ``self_attention``, for a decoder ``inter_attention``, ``layernorm_mlp`` and,
    with ``output_layernorm``, ``layernorm``.

    Parameters
    ----------
    hidden_size, ffn_hidden_size, num_attention_heads, num_gqa_groups
        sizes, as for ``LayerNormMLP`` and ``MultiHeadAttention``
    layernorm_epsilon
        added to the norms' variances
    hidden_dropout
        probability of dropping an element of a block's output in training
    attention_dropout
        probability of dropping an attention weight in training
    weight_attr, bias_attr
        ``paddle.ParamAttr`` of the linear layers and of ``layernorm``; ``bias_attr=False`` for no
        biases
    max_sequence_length, params_dtype, normalization, zero_centered_gamma
        as for ``MultiHeadAttention``
    self_attn_mask_type
        'causal', 'padding' or 'no_mask'; a decoder's cross attention has 'padding'
    apply_residual_connection_post_layernorm
        residuals are taken after the norms
    output_layernorm
        the output is normalized instead of the input of self attention
    layer_type
        'encoder', or 'decoder' with cross attention
    activation
        as for ``LayerNormMLP``
    set_parallel_mode, sequence_parallel, tp_group, fuse_wgrad_accumulation, backend
        as for ``LayerNormMLP``
    attention_dropout_rng_state_name, hidden_dropout_rng_state_name
        states of fleet's tracker from which dropout is drawn if ranks are parallel
    """

    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        num_attention_heads: int,
        num_gqa_groups: int | None = None,
        layernorm_epsilon: float = 1e-5,
        hidden_dropout: float = 0.1,
        attention_dropout: float = 0.1,
        weight_attr: paddle.ParamAttr | None = None,
        bias_attr: paddle.ParamAttr | bool | None = None,
        max_sequence_length: int | None = None,
        self_attn_mask_type: str = "causal",
        params_dtype: paddle.dtype | None = None,
        apply_residual_connection_post_layernorm: bool = False,
        output_layernorm: bool = False,
        layer_type: str = "encoder",
        normalization: str = "LayerNorm",
        zero_centered_gamma: bool = False,
        activation: str = "gelu",
        set_parallel_mode: bool = False,
        sequence_parallel: bool = False,
        tp_group: Any = None,
        fuse_wgrad_accumulation: bool = False,
        attention_dropout_rng_state_name: str = "local_seed",
        hidden_dropout_rng_state_name: str = "global_seed",
        backend: str = "transformer_engine",
    ) -> None:
        super().__init__()
        owner = "TransformerLayer"
        check_sizes(
            owner,
            hidden_size=hidden_size,
            ffn_hidden_size=ffn_hidden_size,
            num_attention_heads=num_attention_heads,
        )
        check_optional_sizes(
            owner, num_gqa_groups=num_gqa_groups, max_sequence_length=max_sequence_length
        )
        check_probabilities(
            owner, hidden_dropout=hidden_dropout, attention_dropout=attention_dropout
        )
        check_epsilon(owner, "layernorm_epsilon", layernorm_epsilon)
        check_attributes(owner, weight_attr, bias_attr)
        self.layer_type = among(owner, "layer_type", layer_type, _LAYER_TYPES)
        self.hidden_size = hidden_size
        self.max_sequence_length = max_sequence_length
        self.self_attn_mask_type = self_attn_mask_type
        self.hidden_dropout = hidden_dropout
        self.apply_residual_connection_post_layernorm = apply_residual_connection_post_layernorm
        self.output_layernorm = output_layernorm
        self.tp_group, self.tp_size = tensor_parallel.settle_group(
            owner, tp_group, set_parallel_mode
        )
        self.sequence_parallel = sequence_parallel and self.tp_size > 1
        self.hidden_dropout_rng_state_name = self._hidden_state(hidden_dropout_rng_state_name)
        common = {
            "weight_attr": weight_attr,
            "bias_attr": bias_attr,
            "normalization": normalization,
            "zero_centered_gamma": zero_centered_gamma,
            "return_layernorm_output": apply_residual_connection_post_layernorm,
            "set_parallel_mode": set_parallel_mode,
            "sequence_parallel": sequence_parallel,
            "tp_group": self.tp_group,
            "fuse_wgrad_accumulation": fuse_wgrad_accumulation,
            "backend": backend,
        }
        attention = {
            "hidden_size": hidden_size,
            "num_attention_heads": num_attention_heads,
            "attention_dropout": attention_dropout,
            "layernorm_epsilon": layernorm_epsilon,
            "max_sequence_length": max_sequence_length,
            "num_gqa_groups": num_gqa_groups,
            "rng_state_name": attention_dropout_rng_state_name,
            **common,
        }
        with default_dtype(owner, params_dtype):
            self.self_attention = MultiHeadAttention(
                **attention,
                attn_mask_type=self_attn_mask_type,
                input_layernorm=not output_layernorm,
            )
            if layer_type == "decoder":
                self.inter_attention = MultiHeadAttention(
                    **attention,
                    attn_mask_type="padding",
                    input_layernorm=True,
                    attention_type="cross",
                )
            self.layernorm_mlp = LayerNormMLP(
                hidden_size,
                ffn_hidden_size,
                eps=layernorm_epsilon,
                activation=activation,
                **common,
            )
            if output_layernorm:
                self.layernorm = LayerNorm(
                    hidden_size,
                    layernorm_epsilon,
                    weight_attr,
                    bias_attr,
                    zero_centered_gamma=zero_centered_gamma,
                    sequence_parallel=self.sequence_parallel,
                    backend=backend,
                )

    def _hidden_state(self, name: str) -> str:
        # Ranks have different tokens there.
        if not (self.sequence_parallel and name == "global_seed"):
            return name
        warnings.warn(
            "TransformerLayer: with sequence_parallel ranks drop elements of different tokens; "
            "hidden_dropout_rng_state_name becomes 'local_seed'",
            stacklevel=3,
        )
        return "local_seed"

    def forward(
        self,
        hidden_states: paddle.Tensor,
        attention_mask: paddle.Tensor | None = None,
        encoder_output: paddle.Tensor | None = None,
        enc_dec_attn_mask: paddle.Tensor | None = None,
        rotary_pos_emb: tuple[paddle.Tensor, paddle.Tensor] | None = None,
        core_attention_bias_type: str = "no_bias",
        core_attention_bias: paddle.Tensor | None = None,
        set_zero: bool = True,
        recompute_core_attention: bool = False,
        is_first_microbatch: bool | None = None,
    ) -> paddle.Tensor:
        """[batch, seq, hidden] -> the same shape.

        Parameters
        ----------
        hidden_states, attention_mask, rotary_pos_emb
            for self attention, as for ``MultiHeadAttention``
        encoder_output, enc_dec_attn_mask
            for a decoder's cross attention, which demands both
        core_attention_bias_type, core_attention_bias, set_zero, recompute_core_attention,
        is_first_microbatch
            as for ``MultiHeadAttention``
        """
        check_bias("TransformerLayer", core_attention_bias_type, core_attention_bias)
        check_hidden_states(
            "TransformerLayer",
            self.hidden_size,
            self.max_sequence_length,
            hidden_states=hidden_states,
        )
        both = {
            "recompute_core_attention": recompute_core_attention,
            "is_first_microbatch": is_first_microbatch,
        }
        attended = self.self_attention(
            hidden_states, attention_mask, rotary_pos_emb=rotary_pos_emb, **both
        )
        hidden = self._add(attended, hidden_states)
        if self.layer_type == "decoder":
            attended = self.inter_attention(
                hidden, enc_dec_attn_mask, encoder_output=encoder_output, **both
            )
            hidden = self._add(attended, hidden)
        transformed = self.layernorm_mlp(hidden, is_first_microbatch=is_first_microbatch)
        hidden = self._add(transformed, hidden)
        return self.layernorm(hidden) if self.output_layernorm else hidden

    def _add(self, block: Any, residual: paddle.Tensor) -> paddle.Tensor:
        """Returns the block's output after dropout, and the residual: its input or its normalized
        input."""
        if isinstance(block, tuple):
            block, residual = block
        parallel = self.tp_size > 1
        if self.training and self.hidden_dropout > 0:
            with tensor_parallel.random_state(parallel, self.hidden_dropout_rng_state_name):
                block = F.dropout(block, self.hidden_dropout)
        return _sum(residual, block)


def _sum(a: paddle.Tensor, b: paddle.Tensor) -> paddle.Tensor:
    # Paddle cannot add 16-bit tensors on the CPU; on other devices it gives the same result.
    if a.dtype == paddle.float32 or not a.place.is_cpu_place():
        return a + b
    return (a.astype("float32") + b.astype("float32")).astype(a.dtype)


_LAYER_TYPES = ["encoder", "decoder"]
