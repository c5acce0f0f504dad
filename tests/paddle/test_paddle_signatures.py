"""Every argument has the name and default in Transformer Engine 1.13's documentation of Paddle."""

import inspect

import pytest

import telens.paddle as te

NORM = {"normalization": "LayerNorm", "zero_centered_gamma": False}
ATTRIBUTES = {"weight_attr": None, "bias_attr": None}
BACKEND = {"backend": "transformer_engine"}
GROUP = {"tp_group": None, "sequence_parallel": False, "fuse_wgrad_accumulation": False}
BIAS = {"core_attention_bias_type": "no_bias", "core_attention_bias": None, "set_zero": True}
SIGNATURES = {
    "Linear": {**ATTRIBUTES, **BACKEND, **GROUP, "parallel_mode": None},
    "LayerNorm": {
        **ATTRIBUTES,
        **BACKEND,
        "eps": 1e-5,
        "zero_centered_gamma": False,
        "sequence_parallel": False,
    },
    "LayerNormLinear": {
        **ATTRIBUTES,
        **BACKEND,
        **GROUP,
        **NORM,
        "eps": 1e-5,
        "return_layernorm_output": False,
        "parallel_mode": None,
    },
    "LayerNormMLP": {
        **ATTRIBUTES,
        **BACKEND,
        **GROUP,
        **NORM,
        "eps": 1e-5,
        "activation": "gelu",
        "return_layernorm_output": False,
        "set_parallel_mode": False,
    },
    "FusedScaleMaskSoftmax": {
        **BACKEND,
        "attn_mask_type": "causal",
        "softmax_in_fp32": True,
        "layernorm_epsilon": 1e-5,
    },
    "DotProductAttention": {
        **BACKEND,
        "attention_dropout": 0.1,
        "attn_mask_type": "causal",
        "attention_type": "self",
        "tp_group": None,
    },
    "MultiHeadAttention": {
        **ATTRIBUTES,
        **BACKEND,
        **GROUP,
        **NORM,
        "attention_dropout": 0.1,
        "layernorm_epsilon": 1e-5,
        "attn_mask_type": "causal",
        "params_dtype": None,
        "return_layernorm_output": False,
        "input_layernorm": False,
        "attention_type": "self",
        "set_parallel_mode": False,
        "num_gqa_groups": None,
        "rng_state_name": "local_seed",
    },
    "TransformerLayer": {
        **ATTRIBUTES,
        **BACKEND,
        **GROUP,
        **NORM,
        "num_gqa_groups": None,
        "layernorm_epsilon": 1e-5,
        "hidden_dropout": 0.1,
        "attention_dropout": 0.1,
        "self_attn_mask_type": "causal",
        "params_dtype": None,  # stands for paddle.get_default_dtype()
        "apply_residual_connection_post_layernorm": False,
        "output_layernorm": False,
        "layer_type": "encoder",
        "activation": "gelu",
        "set_parallel_mode": False,
        "attention_dropout_rng_state_name": "local_seed",
        "hidden_dropout_rng_state_name": "global_seed",
    },
    "fp8_autocast": {
        "enabled": False,
        "calibrating": False,
        "fp8_recipe": None,
        "fp8_group": None,
    },
}
FORWARDS = {
    "Linear": {"is_first_microbatch": None},
    "LayerNormLinear": {"is_first_microbatch": None},
    "LayerNormMLP": {"is_first_microbatch": None},
    "FusedScaleMaskSoftmax": {"scale": None},
    "DotProductAttention": {"attention_mask": None, **BIAS},
    "MultiHeadAttention": {
        **BIAS,
        "attention_mask": None,
        "encoder_output": None,
        "rotary_pos_emb": None,
        "recompute_core_attention": False,
        "is_first_microbatch": None,
    },
    "TransformerLayer": {
        **BIAS,
        "attention_mask": None,
        "encoder_output": None,
        "enc_dec_attn_mask": None,
        "rotary_pos_emb": None,
        "recompute_core_attention": False,
        "is_first_microbatch": None,
    },
}
FIRST = {
    "Linear": ["in_features", "out_features"],
    "LayerNorm": ["hidden_size", "eps"],
    "LayerNormLinear": ["in_features", "out_features", "eps"],
    "LayerNormMLP": ["hidden_size", "ffn_hidden_size", "eps"],
    "FusedScaleMaskSoftmax": ["attn_mask_type", "mask_func"],
    "DotProductAttention": ["num_attention_heads", "kv_channels"],
    "MultiHeadAttention": ["hidden_size", "num_attention_heads"],
    "TransformerLayer": ["hidden_size", "ffn_hidden_size", "num_attention_heads"],
    "fp8_autocast": ["enabled", "calibrating", "fp8_recipe", "fp8_group"],
    "recompute": ["function"],
}


def defaults(function):
    return {name: each.default for name, each in inspect.signature(function).parameters.items()}


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_have_the_names_and_defaults_of_transformer_engine(name):
    assert defaults(getattr(te, name)).items() >= SIGNATURES[name].items()


@pytest.mark.parametrize("name", FORWARDS)
def test_forwards_have_the_names_and_defaults_of_transformer_engine(name):
    assert defaults(getattr(te, name).forward).items() >= FORWARDS[name].items()


@pytest.mark.parametrize("name", FIRST)
def test_the_first_arguments_may_be_given_by_place(name):
    assert list(defaults(getattr(te, name)))[: len(FIRST[name])] == FIRST[name]
