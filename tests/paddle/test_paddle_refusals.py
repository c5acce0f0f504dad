"""Arguments that would have no effect are refused by name."""

import numpy as np
import paddle
import paddle_helpers as helpers
import pytest
import torch

import telens
import telens.paddle as te
from telens.common.recipe import DelayedScaling

ARRAY = np.ones((2, 8, 32), "float32")
MASK = np.zeros((2, 1, 8, 8), bool)


def hidden(*shape):
    return paddle.ones(shape or [2, 8, 32])


@pytest.mark.parametrize(
    ("owner", "name", "call"),
    [
        ("Linear", "inp", lambda: te.Linear(32, 32)(ARRAY)),
        ("LayerNorm", "inp", lambda: te.LayerNorm(32)(ARRAY)),
        ("LayerNormLinear", "inp", lambda: te.LayerNormLinear(32, 32)(ARRAY)),
        ("LayerNormMLP", "inp", lambda: te.LayerNormMLP(32, 32)(ARRAY)),
        ("FusedScaleMaskSoftmax", "inp", lambda: te.FusedScaleMaskSoftmax("causal")(ARRAY)),
        (
            "FusedScaleMaskSoftmax",
            "mask",
            lambda: te.FusedScaleMaskSoftmax("padding")(hidden(2, 4, 8, 8), MASK),
        ),
        (
            "DotProductAttention",
            "value_layer",
            lambda: te.DotProductAttention(4, 8)(hidden(2, 8, 4, 8), hidden(2, 8, 4, 8), ARRAY),
        ),
        (
            "DotProductAttention",
            "attention_mask",
            lambda: te.DotProductAttention(4, 8, attn_mask_type="padding")(
                *[hidden(2, 8, 4, 8)] * 3, MASK
            ),
        ),
        ("MultiHeadAttention", "hidden_states", lambda: te.MultiHeadAttention(32, 4)(ARRAY)),
        (
            "MultiHeadAttention",
            "encoder_output",
            lambda: te.MultiHeadAttention(32, 4, attention_type="cross")(
                hidden(), encoder_output=ARRAY
            ),
        ),
        ("TransformerLayer", "hidden_states", lambda: te.TransformerLayer(32, 64, 4)(ARRAY)),
    ],
)
def test_non_paddle_tensor_is_rejected(owner, name, call):
    words = rf"^{owner}: {name} must be a paddle.Tensor, not numpy.ndarray; make one with"
    with pytest.raises(TypeError, match=words):
        call()


@pytest.mark.parametrize("given", [None, [1.0], torch.ones(4, 32)], ids=lambda x: type(x).__name__)
def test_other_types_are_refused_too(given):
    with pytest.raises(TypeError, match=r"^Linear: inp must be a paddle.Tensor, not "):
        te.Linear(32, 32)(given)
    with pytest.raises(TypeError, match=r"^Linear: inp must be a paddle.Tensor, not "), in_fp8():
        te.Linear(32, 32)(given)


@pytest.mark.parametrize("group", [3, "tp", [0, 1]])
def test_non_group_argument_is_rejected(group):
    parallel = {"set_parallel_mode": True, "tp_group": group}
    for make in (
        lambda: te.Linear(32, 32, parallel_mode="Column", tp_group=group),
        lambda: te.LayerNormLinear(32, 32, parallel_mode="Column", tp_group=group),
        lambda: te.LayerNormMLP(32, 32, **parallel),
        lambda: te.DotProductAttention(4, 8, tp_group=group),
        lambda: te.MultiHeadAttention(32, 4, **parallel),
        lambda: te.TransformerLayer(32, 64, 4, **parallel),
    ):
        with pytest.raises(TypeError, match=r": tp_group must be a group of paddle.distributed"):
            make()
    with (
        pytest.raises(TypeError, match=r"^fp8_autocast: fp8_group must be a group of paddle"),
        te.fp8_autocast(enabled=True, fp8_group=group),
    ):
        pass


@pytest.mark.parametrize(
    "call",
    [
        lambda **bias: te.DotProductAttention(4, 8)(*[hidden(2, 8, 4, 8)] * 3, **bias),
        lambda **bias: te.MultiHeadAttention(32, 4)(hidden(), **bias),
        lambda **bias: te.TransformerLayer(32, 64, 4)(hidden(), **bias),
    ],
    ids=["core", "heads", "layer"],
)
def test_bias_with_bias_attr_false_is_rejected(call):
    call(core_attention_bias=None)
    with pytest.raises(ValueError, match="core_attention_bias must be None"):
        call(core_attention_bias=paddle.ones([1, 4, 8, 8]))


# ---------------------------------------------------------------------- shapes and dtypes


@pytest.mark.parametrize(
    "layer",
    [
        te.MultiHeadAttention(32, 4),
        te.TransformerLayer(32, 64, 4),
        te.TransformerLayer(32, 64, 4, backend="paddle"),
    ],
    ids=["attention", "layer", "layer of Paddle's operators"],
)
@pytest.mark.parametrize("shape", [[2, 2, 8, 32], [2, 8, 48], [8, 32], [32]])
def test_error_shows_wrong_shape_of_hidden_states(layer, shape):
    name = type(layer).__name__
    with pytest.raises(telens.ShapeError) as error:
        layer(paddle.ones(shape))
    words = f"{name}: hidden_states has shape {shape}; expected [batch, seq, 32], or [batch * seq,"
    assert str(error.value).startswith(words)


def test_error_shows_wrong_shape_of_encoder_output():
    layer = te.MultiHeadAttention(32, 4, attention_type="cross")
    with pytest.raises(telens.ShapeError, match=r"encoder_output has shape \[2, 8, 48\]; expected"):
        layer(hidden(), encoder_output=hidden(2, 8, 48))


@pytest.mark.parametrize("layer", [te.Linear, te.LayerNormLinear, te.LayerNormMLP])
def test_errors_of_unnamed_layers_name_the_class(layer):
    with pytest.raises(telens.ShapeError, match=rf"^{layer.__name__}\b.*has shape \[2, 48\]"):
        layer(32, 32)(hidden(2, 48))
    words = rf"^{layer.__name__}\b.*; outside autocast they must be the same"
    with pytest.raises(telens.ShapeError, match=words):
        layer(32, 32)(hidden(2, 32).astype("float64"))


@pytest.mark.parametrize("backend", ["transformer_engine", "paddle"])
def test_error_for_wrong_heads_shows_the_layout(backend):
    layer = te.DotProductAttention(4, 8, num_gqa_groups=2, backend=backend)
    query, key = hidden(2, 8, 4, 8), hidden(2, 6, 2, 8)
    assert layer(query, key, key).shape == query.shape
    for wrong in (
        (query[0], key[0], key[0]),
        (query.transpose([0, 2, 1, 3]), key, key),
        (query, query, query),
        (query, key, hidden(2, 8, 2, 8)),
        (query, hidden(1, 6, 2, 8), hidden(1, 6, 2, 8)),
        (hidden(2, 8, 4, 16), hidden(2, 6, 2, 16), hidden(2, 6, 2, 16)),
    ):
        with pytest.raises(telens.ShapeError, match=r"expected \[batch, seq, heads, kv_channels\]"):
            layer(*wrong)
    words = "query_layer has dtype paddle.float32, key_layer paddle.float64 and value_layer"
    with pytest.raises(telens.ShapeError, match=words):
        layer(query, key.astype("float64"), key)


# ---------------------------------------------------------------------- states of scaling


def in_fp8(length=4):
    return te.fp8_autocast(enabled=True, fp8_recipe=DelayedScaling(amax_history_len=length))


def trained(layer, length=4):
    for seed in range(3):
        with in_fp8(length):
            layer(helpers.randoms(16, 32, seed=seed)).sum().backward()
    return layer


def state_of(layer):
    return layer.state_dict()["fp8_state"][0]


@pytest.mark.parametrize(
    ("make_state", "words"),
    [
        (lambda: state_of(trained(te.LayerNormMLP(32, 32))), "the states of 2 layers; expected"),
        (
            lambda: state_of(trained(te.Linear(32, 32)))[:-4],
            "of 136 bytes is damaged: it does not match its checksum; copy the checkpoint "
            "again; to begin with fresh scales remove it",
        ),
        (lambda: paddle.ones([3], "float32"), "of 3 bytes is not one"),
    ],
    ids=["of two GEMMs", "cut", "other bytes"],
)
def test_the_state_of_another_layer_is_refused_and_changes_nothing(make_state, words):
    layer = trained(te.Linear(32, 32))
    before = state_of(layer).numpy()
    state = layer.state_dict() | {"fp8_state": [make_state()]}
    with pytest.raises(telens.UsageError, match=rf"^Linear.*fp8_state cannot be set: .*{words}"):
        layer.set_state_dict(state)
    np.testing.assert_array_equal(state_of(layer).numpy(), before)


@pytest.mark.parametrize("value", ["abc", 3, None, [[1, 2]]])
def test_invalid_state_error_uses_paddles_terms(value):
    layer = trained(te.Linear(32, 32))
    words = r"^Linear.set_state_dict: fp8_state must be a list with one tensor of bytes"
    with pytest.raises(telens.UsageError, match=words):
        layer.set_state_dict(layer.state_dict() | {"fp8_state": [value]})
    with pytest.raises(telens.UsageError) as error:
        layer.set_state_dict(layer.state_dict() | {"fp8_state": [paddle.ones([64], "uint8")]})
    assert "_extra_state" not in str(error.value)
    assert "strict" not in str(error.value)
    assert str(error.value).count("to begin with fresh scales") == 1


def test_single_gemm_state_is_rejected_by_two_gemm_layer():
    layer = trained(te.LayerNormMLP(32, 32))
    state = layer.state_dict() | {"fp8_state": [state_of(trained(te.Linear(32, 32)))]}
    with pytest.raises(telens.UsageError, match=r"holds the states of 1 layer; expected 2"):
        layer.set_state_dict(state)


def test_history_of_another_length_is_adapted_to_the_recipe():
    source, target = trained(te.Linear(32, 32), length=2), trained(te.Linear(32, 32), length=8)
    target.set_state_dict(source.state_dict())
    np.testing.assert_array_equal(state_of(target).numpy(), state_of(source).numpy())
    outputs = []
    for layer in (source, target):
        with in_fp8(length=8):
            outputs.append(helpers.bits(layer(helpers.randoms(16, 32))))
    assert outputs[0] == outputs[1]
    assert state_of(target).shape == state_of(trained(te.Linear(32, 32), length=8)).shape
