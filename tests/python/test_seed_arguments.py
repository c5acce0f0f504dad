"""Names and defaults of arguments, typed from Transformer Engine's documentation."""

import inspect

import pytest
import torch
from activation_names import ACTIVATIONS

import telens
import telens.pytorch as te

REQUIRED = inspect.Parameter.empty
# Transformer Engine's default is "cuda"; ours is a device for which kernels are registered.
DEVICE = None

LINEAR = {
    "in_features": REQUIRED,
    "out_features": REQUIRED,
    "bias": True,
    "init_method": None,
    "device": DEVICE,
    "name": None,
    "sequence_parallel": False,
    "tp_group": None,
    "tp_size": 1,
    "parallel_mode": None,
    "fuse_wgrad_accumulation": False,
    "return_bias": False,
    "params_dtype": None,
    "delay_wgrad_compute": False,
}

MODULES = {
    "Linear": LINEAR | {"symmetric_ar_type": None},
    # The documentation's signature has only in_features and out_features; num_gemms comes before
    # them.
    "GroupedLinear": {"num_gemms": REQUIRED} | LINEAR,
    "LayerNorm": {
        "normalized_shape": REQUIRED,
        "eps": 1e-5,
        "zero_centered_gamma": False,
        "sm_margin": 0,
    },
    "RMSNorm": {
        "normalized_shape": REQUIRED,
        "eps": 1e-5,
        "zero_centered_gamma": False,
        "sm_margin": 0,
    },
    "LayerNormLinear": {
        "in_features": REQUIRED,
        "out_features": REQUIRED,
        "eps": 1e-5,
        "bias": True,
        "normalization": "LayerNorm",
        "return_layernorm_output": False,
        "return_layernorm_output_gathered": False,
        "parameters_split": None,
    },
    "LayerNormMLP": {
        "hidden_size": REQUIRED,
        "ffn_hidden_size": REQUIRED,
        "eps": 1e-5,
        "bias": True,
        "activation": "gelu",
        "set_parallel_mode": False,
        "sequence_parallel": False,
    },
    "DotProductAttention": {
        "num_attention_heads": REQUIRED,
        "kv_channels": REQUIRED,
        "num_gqa_groups": None,
        "attention_dropout": 0.0,
        "cp_group": None,
        "cp_comm_type": "p2p",
        "cp_stream": None,
        "softmax_type": "vanilla",
    },
    "MultiheadAttention": {
        "hidden_size": REQUIRED,
        "num_attention_heads": REQUIRED,
        "kv_channels": None,
        "attention_type": "self",
        "input_layernorm": False,
        "fuse_qkv_params": False,
        "qkv_weight_interleaved": True,
        "qk_norm_type": None,
        "qk_norm_eps": 1e-6,
        "qk_norm_before_rope": False,
    },
    "TransformerLayer": {
        "hidden_size": REQUIRED,
        "ffn_hidden_size": REQUIRED,
        "num_attention_heads": REQUIRED,
        "layer_type": "encoder",
        "parallel_attention_mlp": False,
        "output_layernorm": False,
        "apply_residual_connection_post_layernorm": False,
        "hidden_dropout": 0.1,
        "attention_dropout": 0.1,
        "drop_path_rate": 0.0,
    },
}
# The number of arguments that come first, in this order, so that they may be passed by position.
BY_POSITION = {
    "Linear": 3,
    "GroupedLinear": 3,
    "LayerNorm": 2,
    "RMSNorm": 2,
    "LayerNormLinear": 3,
    "LayerNormMLP": 3,
    "DotProductAttention": 2,
    "MultiheadAttention": 2,
    "TransformerLayer": 3,
}
FORWARDS = {
    "Linear": {
        "inp": REQUIRED,
        "is_first_microbatch": None,
        "fp8_output": False,
        "fp8_grad": False,
    },
    "GroupedLinear": {
        "inp": REQUIRED,
        "m_splits": REQUIRED,
        "is_first_microbatch": None,
    },
}
FUNCTIONS = {
    "fp8_autocast": {
        "enabled": True,
        "calibrating": False,
        "fp8_recipe": None,
        "fp8_group": None,
        "_graph": False,
    },
    "fp8_model_init": {
        "enabled": True,
        "recipe": None,
        "preserve_high_precision_init_val": False,
    },
    "get_cpu_offload_context": {
        "enabled": False,
        "num_layers": 1,
        "model_layers": 1,
        "offload_activations": True,
        "offload_weights": False,
        "double_buffering": False,
        "manual_synchronization": False,
        "retain_pinned_cpu_buffers": False,
        "offload_stream": None,
    },
    "moe_permute": {
        "inp": REQUIRED,
        "routing_map": REQUIRED,
        "num_out_tokens": -1,
        "max_token_num": -1,
        "map_type": "mask",
    },
    "moe_permute_with_probs": {
        "inp": REQUIRED,
        "probs": REQUIRED,
        "routing_map": REQUIRED,
        "num_out_tokens": -1,
    },
    "moe_sort_chunks_by_index": {
        "inp": REQUIRED,
        "split_sizes": REQUIRED,
        "sorted_index": REQUIRED,
    },
}

# Other names that are documented for one device.
NAMES = ("CudaRNGStatesTracker", "checkpoint", "make_graphed_callables")

# Inputs of layers with sizes of 16.
FORWARD_VALUES = {"inp": torch.ones(16, 16), "m_splits": [1] * 16}


def required_of(name: str) -> list[str]:
    """The arguments of a module that have no default."""
    return [each for each, default in MODULES[name].items() if default is REQUIRED]


def defaults_of(function) -> dict[str, object]:
    parameters = inspect.signature(function).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_has_the_documented_arguments_and_defaults(name):
    found = defaults_of(getattr(te, name))
    assert {each: found.get(each, "missing") for each in MODULES[name]} == MODULES[name]
    count = BY_POSITION[name]
    assert list(found)[:count] == list(MODULES[name])[:count]


@pytest.mark.parametrize("name", FORWARDS)
def test_a_forward_has_the_documented_arguments_and_defaults(name):
    layer = getattr(te, name)(**dict.fromkeys(required_of(name), 16))
    arguments = FORWARDS[name] | FORWARD_VALUES
    arguments = {each: arguments[each] for each in FORWARDS[name]}
    required = [each for each in arguments if FORWARDS[name][each] is REQUIRED]
    # Once by position, then all by name.
    out = layer(*arguments.values())
    assert torch.equal(layer(**arguments), out)
    assert torch.equal(layer(*(arguments[each] for each in required)), out)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_the_documented_arguments_and_defaults(name):
    assert defaults_of(getattr(te, name)) == FUNCTIONS[name]


def test_the_other_documented_names_are_there():
    assert {name for name in NAMES if not callable(getattr(te, name, None))} == set()


def test_all_documented_activations_are_there():
    x = torch.arange(256.0).reshape(16, 16).sin()
    results = {}
    for activation in ACTIVATIONS:
        torch.manual_seed(1)
        y = te.LayerNormMLP(16, 32, activation=activation, device="cpu")(x)
        assert y.shape == x.shape
        assert y.isfinite().all()
        results[activation] = y.abs().sum().item()
    assert len(set(results.values())) == len(ACTIVATIONS), "each is a function of its own"


@pytest.mark.parametrize("mask", ["no_mask", "padding", "causal", "padding_causal", "arbitrary"])
def test_all_documented_masks_are_there(mask):
    shown = repr(te.DotProductAttention(2, 16, attn_mask_type=mask))
    assert (f"attn_mask_type={mask})" in shown) == (mask != "causal"), "repr leaves defaults out"
    with pytest.raises(telens.UsageError, match="attn_mask_type"):
        te.DotProductAttention(2, 16, attn_mask_type=mask + "s")
