# Written by telens._stubs from core/modules; do not edit.
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from telens.pytorch.module import Module

__all__ = [
    "DotProductAttention",
    "GroupedLinear",
    "LayerNorm",
    "LayerNormLinear",
    "LayerNormMLP",
    "Linear",
    "MultiheadAttention",
    "RMSNorm",
    "TransformerLayer",
]

class Linear(Module):
    """Applies y = x A^T + b."""

    in_features: int
    out_features: int
    return_bias: bool
    fuse_wgrad_accumulation: bool
    name: str | None
    parameters_split: Mapping[str, int] | Sequence[str] | None
    tp_group: torch.distributed.ProcessGroup | None
    tp_size: int
    sequence_parallel: bool
    delay_wgrad_compute: bool
    parallel_mode: str | None
    symmetric_ar_type: str | None
    ub_overlap_ag: bool
    ub_overlap_rs: bool
    ub_overlap_rs_dgrad: bool
    ub_bulk_dgrad: bool
    ub_bulk_wgrad: bool
    ub_name: str | None
    use_bias: bool
    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        init_method: Callable[[torch.Tensor], object] | None = None,
        fuse_wgrad_accumulation: bool = False,
        name: str | None = None,
        parameters_split: Mapping[str, int] | Sequence[str] | None = None,
        tp_group: torch.distributed.ProcessGroup | None = None,
        tp_size: int = 1,
        sequence_parallel: bool = False,
        delay_wgrad_compute: bool = False,
        parallel_mode: str | None = None,
        symmetric_ar_type: str | None = None,
        ub_overlap_ag: bool = False,
        ub_overlap_rs: bool = False,
        ub_overlap_rs_dgrad: bool = False,
        ub_bulk_dgrad: bool = False,
        ub_bulk_wgrad: bool = False,
        ub_name: str | None = None,
        get_rng_state_tracker: Any = None,
        rng_tracker_name: Any = None,
        save_original_input: Any = False,
    ) -> None: ...
    def forward(
        self,
        inp: torch.Tensor,
        is_first_microbatch: bool | None = None,
        fp8_output: bool = False,
        fp8_grad: bool = False,
    ) -> Any: ...
    def __call__(
        self,
        inp: torch.Tensor,
        is_first_microbatch: bool | None = None,
        fp8_output: bool = False,
        fp8_grad: bool = False,
    ) -> Any: ...

class GroupedLinear(Module):
    """Applies y_i = x_i A_i^T + b_i to consecutive rows of an input."""

    num_gemms: int
    in_features: int
    out_features: int
    return_bias: bool
    fuse_wgrad_accumulation: bool
    name: str | None
    tp_group: torch.distributed.ProcessGroup | None
    tp_size: int
    sequence_parallel: bool
    delay_wgrad_compute: bool
    parallel_mode: str | None
    first_gemm: int | None
    single_grouped_weight: bool
    single_grouped_bias: bool
    use_bias: bool
    def __init__(
        self,
        num_gemms: int,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        init_method: Callable[[torch.Tensor], object] | None = None,
        fuse_wgrad_accumulation: bool = False,
        name: str | None = None,
        tp_group: torch.distributed.ProcessGroup | None = None,
        tp_size: int = 1,
        sequence_parallel: bool = False,
        delay_wgrad_compute: bool = False,
        parallel_mode: str | None = None,
        first_gemm: int | None = None,
        single_grouped_weight: bool = False,
        single_grouped_bias: bool = False,
        get_rng_state_tracker: Any = None,
        rng_tracker_name: Any = None,
        ub_overlap_ag: Any = False,
        ub_overlap_rs: Any = False,
        ub_name: Any = None,
        save_original_input: Any = False,
        use_grouped_tensor: Any = None,
    ) -> None: ...
    def forward(
        self,
        inp: torch.Tensor,
        m_splits: int | Sequence[int],
        is_first_microbatch: bool | None = None,
        out: torch.Tensor | None = None,
        dgrad_out: torch.Tensor | None = None,
    ) -> Any: ...
    def __call__(
        self,
        inp: torch.Tensor,
        m_splits: int | Sequence[int],
        is_first_microbatch: bool | None = None,
        out: torch.Tensor | None = None,
        dgrad_out: torch.Tensor | None = None,
    ) -> Any: ...

class LayerNorm(Module):
    """Layer normalization (https://arxiv.org/abs/1607.06450)."""

    normalized_shape: int | Sequence[int]
    eps: float
    zero_centered_gamma: bool
    sequence_parallel: bool | None
    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-05,
        *,
        zero_centered_gamma: bool = False,
        params_dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        sequence_parallel: bool | None = None,
        sm_margin: Any = 0,
    ) -> None: ...
    def forward(
        self,
        inp: torch.Tensor,
    ) -> Any: ...
    def __call__(
        self,
        inp: torch.Tensor,
    ) -> Any: ...

class RMSNorm(Module):
    """Root mean square layer normalization (https://arxiv.org/abs/1910.07467)."""

    normalized_shape: int | Sequence[int]
    eps: float
    zero_centered_gamma: bool
    sequence_parallel: bool | None
    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-05,
        *,
        zero_centered_gamma: bool = False,
        params_dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        sequence_parallel: bool | None = None,
        sm_margin: Any = 0,
    ) -> None: ...
    def forward(
        self,
        inp: torch.Tensor,
    ) -> Any: ...
    def __call__(
        self,
        inp: torch.Tensor,
    ) -> Any: ...

class LayerNormLinear(Module):
    """Normalization, then a linear layer."""

    in_features: int
    out_features: int
    eps: float
    normalization: str
    return_bias: bool
    return_layernorm_output: bool
    zero_centered_gamma: bool
    fuse_wgrad_accumulation: bool
    name: str | None
    parameters_split: Mapping[str, int] | Sequence[str] | None
    tp_group: torch.distributed.ProcessGroup | None
    tp_size: int
    sequence_parallel: bool
    delay_wgrad_compute: bool
    parallel_mode: str | None
    return_layernorm_output_gathered: bool
    symmetric_ar_type: str | None
    ub_overlap_ag: bool
    ub_overlap_rs: bool
    ub_overlap_rs_dgrad: bool
    ub_bulk_dgrad: bool
    ub_bulk_wgrad: bool
    ub_name: str | None
    use_bias: bool
    def __init__(
        self,
        in_features: int,
        out_features: int,
        eps: float = 1e-05,
        *,
        normalization: str = "LayerNorm",
        bias: bool = True,
        return_bias: bool = False,
        return_layernorm_output: bool = False,
        zero_centered_gamma: bool = False,
        params_dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        init_method: Callable[[torch.Tensor], object] | None = None,
        fuse_wgrad_accumulation: bool = False,
        name: str | None = None,
        parameters_split: Mapping[str, int] | Sequence[str] | None = None,
        tp_group: torch.distributed.ProcessGroup | None = None,
        tp_size: int = 1,
        sequence_parallel: bool = False,
        delay_wgrad_compute: bool = False,
        parallel_mode: str | None = None,
        return_layernorm_output_gathered: bool = False,
        symmetric_ar_type: str | None = None,
        ub_overlap_ag: bool = False,
        ub_overlap_rs: bool = False,
        ub_overlap_rs_dgrad: bool = False,
        ub_bulk_dgrad: bool = False,
        ub_bulk_wgrad: bool = False,
        ub_name: str | None = None,
        get_rng_state_tracker: Any = None,
    ) -> None: ...
    def forward(
        self,
        inp: torch.Tensor,
        is_first_microbatch: bool | None = None,
        fp8_output: bool = False,
        fp8_grad: bool = False,
    ) -> Any: ...
    def __call__(
        self,
        inp: torch.Tensor,
        is_first_microbatch: bool | None = None,
        fp8_output: bool = False,
        fp8_grad: bool = False,
    ) -> Any: ...

class LayerNormMLP(Module):
    """Normalization, then two linear layers with an activation between them."""

    hidden_size: int
    ffn_hidden_size: int
    eps: float
    return_bias: bool
    normalization: str
    activation: str
    return_layernorm_output: bool
    zero_centered_gamma: bool
    fuse_wgrad_accumulation: bool
    name: str | None
    tp_group: torch.distributed.ProcessGroup | None
    tp_size: int
    sequence_parallel: bool
    delay_wgrad_compute: bool
    set_parallel_mode: bool
    return_layernorm_output_gathered: bool
    activation_params: Mapping[str, float] | None
    symmetric_ar_type: str | None
    ub_overlap_ag: bool
    ub_overlap_rs: bool
    ub_overlap_rs_dgrad: bool
    ub_bulk_dgrad: bool
    ub_bulk_wgrad: bool
    use_bias: bool
    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        eps: float = 1e-05,
        *,
        return_bias: bool = False,
        bias: bool = True,
        normalization: str = "LayerNorm",
        activation: str = "gelu",
        output_layer_init_method: Callable[[torch.Tensor], object] | None = None,
        return_layernorm_output: bool = False,
        zero_centered_gamma: bool = False,
        params_dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        init_method: Callable[[torch.Tensor], object] | None = None,
        fuse_wgrad_accumulation: bool = False,
        name: str | None = None,
        tp_group: torch.distributed.ProcessGroup | None = None,
        tp_size: int = 1,
        sequence_parallel: bool = False,
        delay_wgrad_compute: bool = False,
        set_parallel_mode: bool = False,
        return_layernorm_output_gathered: bool = False,
        activation_params: Mapping[str, float] | None = None,
        symmetric_ar_type: str | None = None,
        ub_overlap_ag: bool = False,
        ub_overlap_rs: bool = False,
        ub_overlap_rs_dgrad: bool = False,
        ub_bulk_dgrad: bool = False,
        ub_bulk_wgrad: bool = False,
        get_rng_state_tracker: Any = None,
        seq_length: Any = None,
        micro_batch_size: Any = None,
        checkpoint: Any = False,
    ) -> None: ...
    def forward(
        self,
        inp: torch.Tensor,
        is_first_microbatch: bool | None = None,
    ) -> Any: ...
    def __call__(
        self,
        inp: torch.Tensor,
        is_first_microbatch: bool | None = None,
    ) -> Any: ...

class DotProductAttention(Module):
    """Scaled dot-product attention (https://arxiv.org/abs/1706.03762), without projections."""

    num_attention_heads: int
    kv_channels: int | Sequence[int]
    num_gqa_groups: int | None
    attention_dropout: float
    qkv_format: str
    attn_mask_type: str
    softmax_scale: float | None
    window_size: Sequence[int] | None
    bottom_right_diagonal: bool | None
    softmax_type: str
    return_max_logit: bool
    def __init__(
        self,
        num_attention_heads: int,
        kv_channels: int | Sequence[int],
        num_gqa_groups: int | None = None,
        attention_dropout: float = 0.0,
        qkv_format: str = "sbhd",
        attn_mask_type: str = "causal",
        *,
        softmax_scale: float | None = None,
        window_size: Sequence[int] | None = None,
        bottom_right_diagonal: bool | None = None,
        softmax_type: str = "vanilla",
        return_max_logit: bool = False,
        device: torch.device | str | None = None,
        get_rng_state_tracker: Any = None,
        sequence_parallel: Any = False,
        tp_size: Any = 1,
        tp_group: Any = None,
        layer_number: Any = None,
        attention_type: Any = "self",
        cp_group: Any = None,
        cp_global_ranks: Any = None,
        cp_stream: Any = None,
        cp_comm_type: Any = "p2p",
        name: Any = None,
    ) -> None: ...
    def forward(
        self,
        query_layer: torch.Tensor | None = None,
        key_layer: torch.Tensor | None = None,
        value_layer: torch.Tensor | None = None,
        attention_mask: torch.Tensor | Sequence[torch.Tensor] | None = None,
        qkv_format: str | None = None,
        *,
        attn_mask_type: str | None = None,
        window_size: Sequence[int] | None = None,
        bottom_right_diagonal: bool | None = None,
        checkpoint_core_attention: bool = False,
        core_attention_bias_type: str = "no_bias",
        core_attention_bias: torch.Tensor | None = None,
        alibi_slopes: torch.Tensor | None = None,
        cu_seqlens_q: torch.Tensor | None = None,
        cu_seqlens_kv: torch.Tensor | None = None,
        cu_seqlens_q_padded: torch.Tensor | None = None,
        cu_seqlens_kv_padded: torch.Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_kv: int | None = None,
        score_mod: Callable[..., torch.Tensor] | None = None,
        score_mod_bprop: Callable[..., torch.Tensor] | None = None,
        fp8_output: bool = False,
        fast_zero_fill: Any = True,
        inference_params: Any = None,
        pad_between_seqs: Any = None,
        bf16_backward: Any = False,
        num_splits: Any = 1,
        score_mod_tensors: Any = None,
        score_mod_bprop_tensors: Any = None,
        qkv_layer: Any = None,
        kv_layer: Any = None,
        qkv_interleave_dim: Any = -3,
    ) -> Any: ...
    def __call__(
        self,
        query_layer: torch.Tensor | None = None,
        key_layer: torch.Tensor | None = None,
        value_layer: torch.Tensor | None = None,
        attention_mask: torch.Tensor | Sequence[torch.Tensor] | None = None,
        qkv_format: str | None = None,
        *,
        attn_mask_type: str | None = None,
        window_size: Sequence[int] | None = None,
        bottom_right_diagonal: bool | None = None,
        checkpoint_core_attention: bool = False,
        core_attention_bias_type: str = "no_bias",
        core_attention_bias: torch.Tensor | None = None,
        alibi_slopes: torch.Tensor | None = None,
        cu_seqlens_q: torch.Tensor | None = None,
        cu_seqlens_kv: torch.Tensor | None = None,
        cu_seqlens_q_padded: torch.Tensor | None = None,
        cu_seqlens_kv_padded: torch.Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_kv: int | None = None,
        score_mod: Callable[..., torch.Tensor] | None = None,
        score_mod_bprop: Callable[..., torch.Tensor] | None = None,
        fp8_output: bool = False,
        fast_zero_fill: Any = True,
        inference_params: Any = None,
        pad_between_seqs: Any = None,
        bf16_backward: Any = False,
        num_splits: Any = 1,
        score_mod_tensors: Any = None,
        score_mod_bprop_tensors: Any = None,
        qkv_layer: Any = None,
        kv_layer: Any = None,
        qkv_interleave_dim: Any = -3,
    ) -> Any: ...

class MultiheadAttention(Module):
    """Attention with its projections for query, key, value and output."""

    hidden_size: int
    num_attention_heads: int
    kv_channels: int | None
    attention_dropout: float
    layernorm_epsilon: float
    layer_number: int | None
    attn_mask_type: str
    num_gqa_groups: int | None
    return_bias: bool
    return_layernorm_output: bool
    input_layernorm: bool
    attention_type: str
    fuse_qkv_params: bool
    zero_centered_gamma: bool
    qkv_weight_interleaved: bool
    normalization: str
    qkv_format: str
    softmax_scale: float | None
    window_size: Sequence[int] | None
    bottom_right_diagonal: bool | None
    softmax_type: str
    qk_norm_type: str | None
    qk_norm_eps: float
    qk_norm_before_rope: bool
    rotary_pos_interleaved: bool
    fuse_wgrad_accumulation: bool
    name: str | None
    tp_group: torch.distributed.ProcessGroup | None
    tp_size: int
    sequence_parallel: bool
    delay_wgrad_compute: bool
    set_parallel_mode: bool
    ub_overlap_ag: bool
    ub_overlap_rs: bool
    ub_overlap_rs_dgrad: bool
    ub_bulk_dgrad: bool
    ub_bulk_wgrad: bool
    use_bias: bool
    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        kv_channels: int | None = None,
        attention_dropout: float = 0.1,
        layernorm_epsilon: float = 1e-05,
        init_method: Callable[[torch.Tensor], object] | None = None,
        output_layer_init_method: Callable[[torch.Tensor], object] | None = None,
        layer_number: int | None = None,
        attn_mask_type: str = "causal",
        *,
        num_gqa_groups: int | None = None,
        return_bias: bool = False,
        return_layernorm_output: bool = False,
        input_layernorm: bool = False,
        attention_type: str = "self",
        fuse_qkv_params: bool = False,
        zero_centered_gamma: bool = False,
        qkv_weight_interleaved: bool = True,
        bias: bool = True,
        normalization: str = "LayerNorm",
        qkv_format: str = "sbhd",
        softmax_scale: float | None = None,
        window_size: Sequence[int] | None = None,
        bottom_right_diagonal: bool | None = None,
        softmax_type: str = "vanilla",
        qk_norm_type: str | None = None,
        qk_norm_eps: float = 1e-06,
        qk_norm_before_rope: bool = False,
        rotary_pos_interleaved: bool = False,
        params_dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        fuse_wgrad_accumulation: bool = False,
        name: str | None = None,
        tp_group: torch.distributed.ProcessGroup | None = None,
        tp_size: int = 1,
        sequence_parallel: bool = False,
        delay_wgrad_compute: bool = False,
        set_parallel_mode: bool = False,
        ub_overlap_ag: bool = False,
        ub_overlap_rs: bool = False,
        ub_overlap_rs_dgrad: bool = False,
        ub_bulk_dgrad: bool = False,
        ub_bulk_wgrad: bool = False,
        get_rng_state_tracker: Any = None,
        seq_length: Any = None,
        micro_batch_size: Any = None,
    ) -> None: ...
    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | Sequence[torch.Tensor] | None = None,
        encoder_output: torch.Tensor | None = None,
        attn_mask_type: str | None = None,
        *,
        is_first_microbatch: bool | None = None,
        rotary_pos_emb: torch.Tensor | Sequence[torch.Tensor] | None = None,
        window_size: Sequence[int] | None = None,
        bottom_right_diagonal: bool | None = None,
        checkpoint_core_attention: bool = False,
        core_attention_bias_type: str = "no_bias",
        core_attention_bias: torch.Tensor | None = None,
        alibi_slopes: torch.Tensor | None = None,
        cu_seqlens_q: torch.Tensor | None = None,
        cu_seqlens_kv: torch.Tensor | None = None,
        cu_seqlens_q_padded: torch.Tensor | None = None,
        cu_seqlens_kv_padded: torch.Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_kv: int | None = None,
        fast_zero_fill: Any = True,
        inference_params: Any = None,
        pad_between_seqs: Any = None,
    ) -> Any: ...
    def __call__(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | Sequence[torch.Tensor] | None = None,
        encoder_output: torch.Tensor | None = None,
        attn_mask_type: str | None = None,
        *,
        is_first_microbatch: bool | None = None,
        rotary_pos_emb: torch.Tensor | Sequence[torch.Tensor] | None = None,
        window_size: Sequence[int] | None = None,
        bottom_right_diagonal: bool | None = None,
        checkpoint_core_attention: bool = False,
        core_attention_bias_type: str = "no_bias",
        core_attention_bias: torch.Tensor | None = None,
        alibi_slopes: torch.Tensor | None = None,
        cu_seqlens_q: torch.Tensor | None = None,
        cu_seqlens_kv: torch.Tensor | None = None,
        cu_seqlens_q_padded: torch.Tensor | None = None,
        cu_seqlens_kv_padded: torch.Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_kv: int | None = None,
        fast_zero_fill: Any = True,
        inference_params: Any = None,
        pad_between_seqs: Any = None,
    ) -> Any: ...

class TransformerLayer(Module):
    """A Transformer layer: attention block and feed-forward block with residuals."""

    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    num_gqa_groups: int | None
    layernorm_epsilon: float
    hidden_dropout: float
    attention_dropout: float
    layer_number: int | None
    kv_channels: int | None
    self_attn_mask_type: str
    enc_dec_attn_mask_type: str
    apply_residual_connection_post_layernorm: bool
    output_layernorm: bool
    parallel_attention_mlp: bool
    layer_type: str
    fuse_qkv_params: bool
    zero_centered_gamma: bool
    qkv_weight_interleaved: bool
    activation: str
    normalization: str
    attn_input_format: str
    softmax_scale: float | None
    window_size: Sequence[int] | None
    bottom_right_diagonal: bool | None
    softmax_type: str
    enc_dec_window_size: Sequence[int] | None
    enc_dec_bottom_right_diagonal: bool | None
    qk_norm_type: str | None
    qk_norm_eps: float
    qk_norm_before_rope: bool
    rotary_pos_interleaved: bool
    drop_path_rate: float
    fuse_wgrad_accumulation: bool
    name: str | None
    tp_group: torch.distributed.ProcessGroup | None
    tp_size: int
    sequence_parallel: bool
    delay_wgrad_compute: bool
    set_parallel_mode: bool
    activation_params: Mapping[str, float] | None
    ub_tp_comm_overlap: bool
    ub_overlap_ag: bool
    ub_overlap_rs: bool
    ub_overlap_rs_dgrad: bool
    ub_bulk_dgrad: bool
    ub_bulk_wgrad: bool
    use_bias: bool
    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        num_attention_heads: int,
        num_gqa_groups: int | None = None,
        layernorm_epsilon: float = 1e-05,
        hidden_dropout: float = 0.1,
        attention_dropout: float = 0.1,
        init_method: Callable[[torch.Tensor], object] | None = None,
        output_layer_init_method: Callable[[torch.Tensor], object] | None = None,
        layer_number: int | None = None,
        kv_channels: int | None = None,
        self_attn_mask_type: str = "causal",
        *,
        enc_dec_attn_mask_type: str = "no_mask",
        apply_residual_connection_post_layernorm: bool = False,
        output_layernorm: bool = False,
        parallel_attention_mlp: bool = False,
        layer_type: str = "encoder",
        fuse_qkv_params: bool = False,
        zero_centered_gamma: bool = False,
        qkv_weight_interleaved: bool = True,
        bias: bool = True,
        activation: str = "gelu",
        normalization: str = "LayerNorm",
        attn_input_format: str = "sbhd",
        softmax_scale: float | None = None,
        window_size: Sequence[int] | None = None,
        bottom_right_diagonal: bool | None = None,
        softmax_type: str = "vanilla",
        enc_dec_window_size: Sequence[int] | None = None,
        enc_dec_bottom_right_diagonal: bool | None = None,
        qk_norm_type: str | None = None,
        qk_norm_eps: float = 1e-06,
        qk_norm_before_rope: bool = False,
        rotary_pos_interleaved: bool = False,
        drop_path_rate: float = 0.0,
        params_dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        fuse_wgrad_accumulation: bool = False,
        name: str | None = None,
        tp_group: torch.distributed.ProcessGroup | None = None,
        tp_size: int = 1,
        sequence_parallel: bool = False,
        delay_wgrad_compute: bool = False,
        set_parallel_mode: bool = False,
        activation_params: Mapping[str, float] | None = None,
        ub_tp_comm_overlap: bool = False,
        ub_overlap_ag: bool = True,
        ub_overlap_rs: bool = True,
        ub_overlap_rs_dgrad: bool = False,
        ub_bulk_dgrad: bool = True,
        ub_bulk_wgrad: bool = True,
        get_rng_state_tracker: Any = None,
        seq_length: Any = None,
        micro_batch_size: Any = None,
    ) -> None: ...
    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | Sequence[torch.Tensor] | None = None,
        self_attn_mask_type: str | None = None,
        *,
        encoder_output: torch.Tensor | None = None,
        enc_dec_attn_mask: torch.Tensor | Sequence[torch.Tensor] | None = None,
        enc_dec_attn_mask_type: str | None = None,
        is_first_microbatch: bool | None = None,
        rotary_pos_emb: torch.Tensor | Sequence[torch.Tensor] | None = None,
        window_size: Sequence[int] | None = None,
        bottom_right_diagonal: bool | None = None,
        checkpoint_core_attention: bool = False,
        core_attention_bias_type: str = "no_bias",
        core_attention_bias: torch.Tensor | None = None,
        alibi_slopes: torch.Tensor | None = None,
        cu_seqlens_q: torch.Tensor | None = None,
        cu_seqlens_kv: torch.Tensor | None = None,
        cu_seqlens_q_padded: torch.Tensor | None = None,
        cu_seqlens_kv_padded: torch.Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_kv: int | None = None,
        enc_dec_window_size: Sequence[int] | None = None,
        enc_dec_bottom_right_diagonal: bool | None = None,
        fast_zero_fill: Any = True,
        inference_params: Any = None,
        pad_between_seqs: Any = None,
    ) -> Any: ...
    def __call__(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | Sequence[torch.Tensor] | None = None,
        self_attn_mask_type: str | None = None,
        *,
        encoder_output: torch.Tensor | None = None,
        enc_dec_attn_mask: torch.Tensor | Sequence[torch.Tensor] | None = None,
        enc_dec_attn_mask_type: str | None = None,
        is_first_microbatch: bool | None = None,
        rotary_pos_emb: torch.Tensor | Sequence[torch.Tensor] | None = None,
        window_size: Sequence[int] | None = None,
        bottom_right_diagonal: bool | None = None,
        checkpoint_core_attention: bool = False,
        core_attention_bias_type: str = "no_bias",
        core_attention_bias: torch.Tensor | None = None,
        alibi_slopes: torch.Tensor | None = None,
        cu_seqlens_q: torch.Tensor | None = None,
        cu_seqlens_kv: torch.Tensor | None = None,
        cu_seqlens_q_padded: torch.Tensor | None = None,
        cu_seqlens_kv_padded: torch.Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_kv: int | None = None,
        enc_dec_window_size: Sequence[int] | None = None,
        enc_dec_bottom_right_diagonal: bool | None = None,
        fast_zero_fill: Any = True,
        inference_params: Any = None,
        pad_between_seqs: Any = None,
    ) -> Any: ...
