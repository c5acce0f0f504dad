"""Attention with its projections for query, key, value and output."""

from __future__ import annotations

from typing import Any

import paddle

from telens import _C
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
from telens.paddle.dot_product_attention import DotProductAttention
from telens.paddle.layer import check_backend, default_dtype
from telens.paddle.layer_norm_linear import LayerNormLinear
from telens.paddle.linear import Linear
from telens.paddle.recomputation import recompute
from telens.paddle.rotary import rotate

__all__ = ["MultiHeadAttention"]


class MultiHeadAttention(paddle.nn.Layer):
    """Multi-head attention with its projections.

    Its layers are ``layernorm_qkv`` or ``qkv`` (cross attention: ``layernorm_query`` or
    ``query_layer``, and ``key_value``), ``core_attention`` and ``proj``.

    Parameters
    ----------
    hidden_size, num_attention_heads
        size of an input and an output sample; number of heads, which divides it
    attention_dropout
        probability of dropping an attention weight in training
    layernorm_epsilon
        added to the norm's variance
    weight_attr, bias_attr
        ``paddle.ParamAttr`` of the projections; ``bias_attr=False`` for no biases
    max_sequence_length
        the sequence length of inputs [batch * seq, hidden]
    attn_mask_type
        'causal' (``attention_mask`` is ignored), 'padding' or 'no_mask'
    params_dtype
        dtype of the parameters; default: ``paddle.get_default_dtype()``
    return_layernorm_output
        also returns the normalized input; requires ``input_layernorm``
    input_layernorm
        the input is normalized first
    attention_type
        'self' or 'cross', which computes key and value from ``encoder_output``
    normalization, zero_centered_gamma
        as for ``LayerNormLinear``
    set_parallel_mode
        heads are divided among the ranks of ``tp_group``
    sequence_parallel, tp_group, fuse_wgrad_accumulation, backend
        as for ``Linear``
    num_gqa_groups
        heads of key and value; default: the query's number
    rng_state_name
        state of fleet's tracker from which attention's dropout is drawn if ranks are parallel
    """

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        attention_dropout: float = 0.1,
        layernorm_epsilon: float = 1e-5,
        weight_attr: paddle.ParamAttr | None = None,
        bias_attr: paddle.ParamAttr | bool | None = None,
        max_sequence_length: int | None = None,
        attn_mask_type: str = "causal",
        params_dtype: paddle.dtype | None = None,
        return_layernorm_output: bool = False,
        input_layernorm: bool = False,
        attention_type: str = "self",
        normalization: str = "LayerNorm",
        zero_centered_gamma: bool = False,
        set_parallel_mode: bool = False,
        sequence_parallel: bool = False,
        tp_group: Any = None,
        num_gqa_groups: int | None = None,
        fuse_wgrad_accumulation: bool = False,
        rng_state_name: str = "local_seed",
        backend: str = "transformer_engine",
    ) -> None:
        super().__init__()
        owner = "MultiHeadAttention"
        check_sizes(owner, hidden_size=hidden_size, num_attention_heads=num_attention_heads)
        check_optional_sizes(
            owner, num_gqa_groups=num_gqa_groups, max_sequence_length=max_sequence_length
        )
        check_probabilities(owner, attention_dropout=attention_dropout)
        check_epsilon(owner, "layernorm_epsilon", layernorm_epsilon)
        check_attributes(owner, weight_attr, bias_attr)
        self.attention_type = among(owner, "attention_type", attention_type, ["self", "cross"])
        self.backend = check_backend(owner, backend)
        self.tp_group, self.tp_size = tensor_parallel.settle_group(
            owner, tp_group, set_parallel_mode
        )
        groups = num_attention_heads if num_gqa_groups is None else num_gqa_groups
        _check_heads(owner, hidden_size, num_attention_heads, groups)
        self.hidden_size = hidden_size
        self.head_size = hidden_size // num_attention_heads
        self.own_heads = tensor_parallel.divide(
            owner, "num_attention_heads", num_attention_heads, self.tp_size
        )
        self.own_groups = tensor_parallel.divide(owner, "num_gqa_groups", groups, self.tp_size)
        self.input_layernorm = input_layernorm
        self.return_layernorm_output = return_layernorm_output and input_layernorm
        self.max_sequence_length = max_sequence_length
        self.rng_state_name = rng_state_name
        column, row = ("column", "row") if set_parallel_mode else (None, None)
        common = {
            "weight_attr": weight_attr,
            "bias_attr": bias_attr,
            "sequence_parallel": sequence_parallel,
            "tp_group": self.tp_group,
            "fuse_wgrad_accumulation": fuse_wgrad_accumulation,
            "backend": backend,
        }
        norm = {
            "eps": layernorm_epsilon,
            "return_layernorm_output": self.return_layernorm_output,
            "normalization": normalization,
            "zero_centered_gamma": zero_centered_gamma,
        }
        with default_dtype(owner, params_dtype):
            self._make_projections(hidden_size, groups * self.head_size, common, norm, column)
            self.proj = Linear(hidden_size, hidden_size, **common, parallel_mode=row)
        self.core_attention = DotProductAttention(
            num_attention_heads,
            self.head_size,
            groups,
            attention_dropout,
            attn_mask_type=attn_mask_type,
            attention_type=attention_type,
            tp_group=self.tp_group,
            backend=backend,
        )

    def _make_projections(self, hidden, key_value, common, norm, mode) -> None:
        is_self = self.attention_type == "self"
        size = hidden + 2 * key_value if is_self else hidden
        if self.input_layernorm:
            name = "layernorm_qkv" if is_self else "layernorm_query"
            layer = LayerNormLinear(hidden, size, **norm, **common, parallel_mode=mode)
        else:
            name = "qkv" if is_self else "query_layer"
            layer = Linear(hidden, size, **common, parallel_mode=mode)
        self._query_name = name
        setattr(self, name, layer)
        if not is_self:
            self.key_value = Linear(hidden, 2 * key_value, **common, parallel_mode=mode)

    def forward(
        self,
        hidden_states: paddle.Tensor,
        attention_mask: paddle.Tensor | None = None,
        encoder_output: paddle.Tensor | None = None,
        rotary_pos_emb: tuple[paddle.Tensor, paddle.Tensor] | None = None,
        core_attention_bias_type: str = "no_bias",
        core_attention_bias: paddle.Tensor | None = None,
        set_zero: bool = True,
        recompute_core_attention: bool = False,
        is_first_microbatch: bool | None = None,
    ) -> paddle.Tensor | tuple[paddle.Tensor, paddle.Tensor]:
        """Returns [batch, seq, hidden], or a tuple with the normalized input.

        Parameters
        ----------
        hidden_states
            [batch, seq, hidden], or [batch * seq, hidden] with ``max_sequence_length``
        attention_mask, core_attention_bias_type, core_attention_bias, set_zero
            as for ``DotProductAttention``
        encoder_output
            the source of key and value in cross attention
        rotary_pos_emb
            (cosines, sines), each [1, seq, 1, dim], as returned by ``RotaryPositionEmbedding``; or
            (angles of the query, angles of the key), each [seq, 1, 1, dim]
        recompute_core_attention
            attention's activations are computed again in the backward
        is_first_microbatch
            as for ``Linear``
        """
        check_bias("MultiHeadAttention", core_attention_bias_type, core_attention_bias)
        self._check_input(hidden_states=hidden_states)
        query, key, value, normalized = self._project(
            hidden_states, encoder_output, is_first_microbatch
        )
        if rotary_pos_emb is not None:
            query, key = rotate(query, key, rotary_pos_emb)
        arguments = (query, key, value, attention_mask)
        with tensor_parallel.random_state(self.tp_size > 1, self.rng_state_name):
            if recompute_core_attention and paddle.is_grad_enabled():
                attended = recompute(self.core_attention, *arguments)
            else:
                attended = self.core_attention(*arguments)
        flat = [*attended.shape[:2], -1] if hidden_states.ndim == 3 else [-1, self._own_size()]
        out = self.proj(attended.reshape(flat), is_first_microbatch=is_first_microbatch)
        return (out, normalized) if self.return_layernorm_output else out

    def _check_input(self, **tensor: paddle.Tensor) -> None:
        check_hidden_states(
            "MultiHeadAttention", self.hidden_size, self.max_sequence_length, **tensor
        )

    def _own_size(self) -> int:
        return self.own_heads * self.head_size

    def _by_head(self, x: paddle.Tensor, heads: int) -> paddle.Tensor:
        """[batch, seq, heads, channels]."""
        if x.ndim == 3:
            return x.reshape([*x.shape[:2], heads, -1])
        return x.reshape([-1, self.max_sequence_length, heads, x.shape[-1] // heads])

    def _project(self, hidden_states, encoder_output, is_first_microbatch):
        layer = getattr(self, self._query_name)
        projected = layer(hidden_states, is_first_microbatch=is_first_microbatch)
        normalized = None
        if self.return_layernorm_output:
            projected, normalized = projected
        if self.attention_type == "self":
            # Ordered by group: the group's queries, its key, its value.
            queries = self.own_heads // self.own_groups
            mixed = self._by_head(projected, self.own_groups)
            mixed = mixed.reshape([*mixed.shape[:3], queries + 2, self.head_size])
            query, key, value = mixed.split([queries, 1, 1], axis=3)
            query = query.reshape([*query.shape[:2], self.own_heads, self.head_size])
            return query, key.squeeze(3), value.squeeze(3), normalized
        if encoder_output is None:
            raise _C.UsageError("MultiHeadAttention: cross attention needs encoder_output")
        self._check_input(encoder_output=encoder_output)
        mixed = self.key_value(encoder_output, is_first_microbatch=is_first_microbatch)
        key, value = self._by_head(mixed, 2 * self.own_groups).split(2, axis=2)
        return self._by_head(projected, self.own_heads), key, value, normalized


def _check_heads(owner: str, hidden_size: int, heads: int, groups: int) -> None:
    if hidden_size % heads != 0 or heads % groups != 0:
        raise _C.UsageError(
            f"{owner}: hidden_size is {hidden_size}, num_attention_heads {heads} and "
            f"num_gqa_groups {groups}; the heads must divide the size, and the groups the heads"
        )
