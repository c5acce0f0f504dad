"""Layers refuse unsuitable arguments when they are made; the error names layer, argument and
value.
"""

import numpy as np
import paddle
import pytest
import torch

import telens
import telens.paddle as te

NAN = float("nan")


def made(layer, **options):
    """Makes a small layer with these options."""
    sizes = {
        "Linear": {"in_features": 32, "out_features": 32},
        "LayerNorm": {"hidden_size": 32},
        "LayerNormLinear": {"in_features": 32, "out_features": 32},
        "LayerNormMLP": {"hidden_size": 32, "ffn_hidden_size": 32},
        "DotProductAttention": {"num_attention_heads": 4, "kv_channels": 8},
        "MultiHeadAttention": {"hidden_size": 32, "num_attention_heads": 4},
        "TransformerLayer": {"hidden_size": 32, "ffn_hidden_size": 64, "num_attention_heads": 4},
        "RotaryPositionEmbedding": {"dim": 8, "max_position_embeddings": 16},
    }
    return getattr(te, layer)(**{**sizes.get(layer, {}), **options})


def refuses(layer, argument, value, expected, **others):
    # The message has a short value itself, of others the type.
    shown = repr(value) if isinstance(value, int | float | str | None) else type(value).__name__
    with pytest.raises(telens.UsageError) as error:
        made(layer, **{argument: value}, **others)
    assert str(error.value).startswith(f"{layer}: {argument} must be {expected}")
    assert shown in str(error.value)


SIZES = [
    ("Linear", "in_features"),
    ("Linear", "out_features"),
    ("LayerNorm", "hidden_size"),
    ("LayerNormLinear", "in_features"),
    ("LayerNormLinear", "out_features"),
    ("LayerNormMLP", "hidden_size"),
    ("LayerNormMLP", "ffn_hidden_size"),
    ("DotProductAttention", "num_attention_heads"),
    ("DotProductAttention", "kv_channels"),
    ("MultiHeadAttention", "hidden_size"),
    ("MultiHeadAttention", "num_attention_heads"),
    ("TransformerLayer", "hidden_size"),
    ("TransformerLayer", "ffn_hidden_size"),
    ("TransformerLayer", "num_attention_heads"),
    ("RotaryPositionEmbedding", "dim"),
    ("RotaryPositionEmbedding", "max_position_embeddings"),
]
OPTIONAL_SIZES = [
    ("DotProductAttention", "num_gqa_groups"),
    ("MultiHeadAttention", "num_gqa_groups"),
    ("MultiHeadAttention", "max_sequence_length"),
    ("TransformerLayer", "num_gqa_groups"),
    ("TransformerLayer", "max_sequence_length"),
]


@pytest.mark.parametrize(("layer", "size"), SIZES + OPTIONAL_SIZES)
def test_sizes_are_integers_from_1_on(layer, size):
    values = ["32", 32.0, -32, 0, True, [32]]
    for value in [*values, None] if (layer, size) in SIZES else values:
        refuses(layer, size, value, "an integer of at least 1")
    made(layer, **{size: np.int64(4)})


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        ("DotProductAttention", "attention_dropout"),
        ("MultiHeadAttention", "attention_dropout"),
        ("TransformerLayer", "attention_dropout"),
        ("TransformerLayer", "hidden_dropout"),
    ],
)
def test_dropout_rates_are_probabilities(layer, name):
    for value in (-0.1, 1.5, NAN, "0.1", None, True):
        refuses(layer, name, value, "a probability, a number from 0 to 1")
    for value in (0, 1.0, np.float32(0.5)):
        made(layer, **{name: value})


@pytest.mark.parametrize("backend", ["transformer_engine", "paddle"])
@pytest.mark.parametrize(
    ("layer", "name"),
    [
        ("LayerNorm", "eps"),
        ("LayerNormLinear", "eps"),
        ("LayerNormMLP", "eps"),
        ("MultiHeadAttention", "layernorm_epsilon"),
        ("TransformerLayer", "layernorm_epsilon"),
    ],
)
def test_an_epsilon_is_finite_and_not_below_0(layer, name, backend):
    for value in (-1.0, NAN, float("inf"), "1e-5", None):
        refuses(layer, name, value, "a finite number, 0 or above", backend=backend)
    made(layer, **{name: 0}, backend=backend)


WITH_WEIGHTS = [
    "Linear",
    "LayerNorm",
    "LayerNormLinear",
    "LayerNormMLP",
    "MultiHeadAttention",
    "TransformerLayer",
]


@pytest.mark.parametrize("layer", WITH_WEIGHTS)
def test_attributes_of_parameters_are_those_that_paddle_takes(layer):
    for value in (False, 3, [paddle.ParamAttr()], torch.ones(3)):
        refuses(layer, "weight_attr", value, "None, a paddle.ParamAttr")
    for value in (1, 0.5, [paddle.ParamAttr()]):
        refuses(layer, "bias_attr", value, "None, a paddle.ParamAttr")
    for value in (None, paddle.ParamAttr(), paddle.nn.initializer.Constant(0.5)):
        made(layer, weight_attr=value, bias_attr=value)
    made(layer, bias_attr=False)


@pytest.mark.parametrize("layer", ["MultiHeadAttention", "TransformerLayer"])
def test_params_dtype_is_one_that_paddle_makes_parameters_of(layer):
    for value in ("int8", "fp32", torch.float32, 16):
        refuses(layer, "params_dtype", value, "None or one of paddle's float16")
    assert paddle.get_default_dtype() == "float32"
    weights = made(layer, params_dtype="bfloat16").parameters()
    assert {each.dtype for each in weights} == {paddle.bfloat16}


@pytest.mark.parametrize("layer", ["Linear", "LayerNormLinear"])
def test_a_parallel_mode_of_no_kind_is_refused_without_a_group_too(layer):
    for value in ("colum", "", 0, "both"):
        with pytest.raises(telens.UsageError, match=rf"^{layer}: parallel_mode must be None or"):
            made(layer, parallel_mode=value)
    # Transformer Engine's documentation writes capitals, its code lower case.
    for value in ("Column", "column"):
        made(layer, parallel_mode=value)


def test_a_softmax_takes_numbers_and_functions():
    refuses("FusedScaleMaskSoftmax", "mask_func", 3, "a function")
    scores = paddle.ones([2, 4, 8, 8])
    softmax = te.FusedScaleMaskSoftmax()
    for scale in ("2", [2.0], True):
        with pytest.raises(telens.UsageError, match=r"^FusedScaleMaskSoftmax: scale must be a num"):
            softmax(scores, scale=scale)
    softmax(scores, scale=np.float32(2))


@pytest.mark.parametrize(
    ("argument", "value", "error"),
    [
        ("enabled", "yes", telens.UsageError),
        ("enabled", None, telens.UsageError),
        ("calibrating", "no", telens.UsageError),
        ("fp8_recipe", "delayed", TypeError),
        ("fp8_recipe", telens.common.recipe.DelayedScaling, TypeError),
    ],
)
def test_an_autocast_names_its_own_arguments(argument, value, error):
    with (
        pytest.raises(error, match=rf"^fp8_autocast: {argument} must be "),
        te.fp8_autocast(**{argument: value}),
    ):
        pass
