"""Compares attention and Transformer layers with telens.pytorch and with Paddle's operators."""

import functools

import numpy as np
import paddle
import paddle_helpers as helpers
import pytest
import torch

import telens.paddle as te
import telens.pytorch as torch_te
from telens.common.recipe import DelayedScaling

near = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5)


def padding_mask(batch, queries, keys, seed=3):
    """[batch, 1, queries, keys]; every query sees the first key."""
    mask = np.random.default_rng(seed).random((batch, 1, queries, keys)) < 0.3
    mask[..., 0] = False
    return paddle.to_tensor(mask)


def qkv(heads=4, groups=4, queries=8, keys=8):
    return [
        helpers.randoms(2, queries, heads, 16, seed=1),
        helpers.randoms(2, keys, groups, 16, seed=2),
        helpers.randoms(2, keys, groups, 16, seed=3),
    ]


# ---------------------------------------------------------------------- core attention


@pytest.mark.parametrize("groups", [4, 2, 1])
@pytest.mark.parametrize("mask_type", ["causal", "padding", "no_mask"])
def test_both_backends_attend_alike(mask_type, groups):
    mask = padding_mask(2, 8, 8)
    found = []
    for backend in ("transformer_engine", "paddle"):
        layer = te.DotProductAttention(
            4, 16, groups, 0.0, attn_mask_type=mask_type, backend=backend
        )
        tensors = qkv(groups=groups)
        out = layer(*tensors, mask)
        assert out.shape == [2, 8, 4, 16]
        (out * out).sum().backward()
        found.append([out.numpy(), *(each.grad.numpy() for each in tensors)])
    for mine, other in zip(*found, strict=True):
        near(mine, other)


def test_core_attention_has_the_bits_of_telens_pytorch():
    layer = te.DotProductAttention(4, 16, 2, attention_dropout=0.0)
    module = torch_te.DotProductAttention(4, 16, 2, qkv_format="bshd")
    inputs = qkv(groups=2)
    flat = module(*map(helpers.to_torch, inputs))
    assert helpers.bits(layer(*inputs)) == helpers.bits(flat)


def test_causal_attention_ignores_the_mask():
    layer = te.DotProductAttention(4, 16, attention_dropout=0.0)
    assert helpers.bits(layer(*qkv())) == helpers.bits(layer(*qkv(), padding_mask(2, 8, 8)))


def test_a_query_that_sees_no_key_gives_zeros():
    layer = te.DotProductAttention(4, 16, attention_dropout=0.0, attn_mask_type="padding")
    mask = paddle.zeros([2, 1, 8, 8], dtype="bool")
    mask[:, :, 3] = True
    out = layer(*qkv(), mask)
    assert not out[:, 3].any()
    assert out[:, 2].any()


@pytest.mark.parametrize("backend", ["transformer_engine", "paddle"])
def test_a_mask_that_does_not_broadcast_is_refused(backend):
    layer = te.DotProductAttention(4, 16, attn_mask_type="padding", backend=backend)
    for shape in ([2, 8], [2, 1, 8, 7], [1, 2, 1, 8, 8]):
        with pytest.raises(ValueError, match=r"broadcasts to \[batch.*\[2, 4, 8, 8\]"):
            layer(*qkv(), paddle.zeros(shape, dtype="bool"))
    for shape in ([8, 8], [2, 1, 1, 8], [1]):
        layer(*qkv(), paddle.zeros(shape, dtype="bool"))


def test_cross_attention_demands_a_mask():
    layer = te.DotProductAttention(4, 16, attention_type="cross", attn_mask_type="padding")
    with pytest.raises(ValueError, match="attention_mask"):
        layer(*qkv(keys=12))
    layer.eval()
    assert layer(*qkv(keys=12), padding_mask(2, 8, 12)).shape == [2, 8, 4, 16]


@pytest.mark.parametrize("make", ["core", "heads", "layer"])
def test_a_bias_of_scores_is_refused(make):
    layer, arguments = {
        "core": (te.DotProductAttention(4, 16), qkv()),
        "heads": (te.MultiHeadAttention(32, 4), [helpers.randoms(2, 4, 32)]),
        "layer": (te.TransformerLayer(32, 64, 4), [helpers.randoms(2, 4, 32)]),
    }[make]
    with pytest.raises(ValueError, match="no_bias"):
        layer(*arguments, core_attention_bias_type="post_scale_bias")


def test_paddles_seed_decides_dropout():
    layer = te.DotProductAttention(4, 16, attention_dropout=0.5)
    drawn = []
    before = torch.get_rng_state()
    for seed in (7, 7, 8):
        paddle.seed(seed)
        drawn.append(helpers.bits(layer(*qkv())))
    assert drawn[0] == drawn[1] != drawn[2]
    assert torch.equal(torch.get_rng_state(), before)  # torch's own draws are left alone
    layer.eval()
    assert helpers.bits(layer(*qkv())) == helpers.bits(layer(*qkv()))


def test_a_deterministic_algorithm_may_be_asked_for(monkeypatch):
    from torch.nn.attention import SDPBackend

    seen = []
    monkeypatch.setattr(
        "telens.paddle.dot_product_attention.sdpa_kernel",
        lambda backend: seen.append(backend) or torch.nn.attention.sdpa_kernel(backend),
    )
    te.DotProductAttention(4, 16)(*qkv())
    assert seen == []
    monkeypatch.setenv("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "0")
    te.DotProductAttention(4, 16)(*qkv())
    assert seen == [SDPBackend.MATH]


def test_set_zero_changes_nothing():
    layer = te.DotProductAttention(4, 16, attention_dropout=0.0)
    assert helpers.bits(layer(*qkv())) == helpers.bits(layer(*qkv(), set_zero=False))


# ---------------------------------------------------------------------- softmax


@pytest.mark.parametrize("mask_type", ["causal", "padding", "no_mask"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_softmax_is_scaled_masked_and_of_the_inputs_dtype(mask_type, dtype):
    scores = helpers.randoms(2, 4, 8, 8, dtype=dtype)
    mask = padding_mask(2, 8, 8)
    out = te.FusedScaleMaskSoftmax(mask_type, None)(scores, mask, 0.5)
    hidden = {
        "causal": torch.ones(8, 8, dtype=torch.bool).triu(1),
        "padding": helpers.to_torch(mask),
        "no_mask": torch.zeros(8, 8, dtype=torch.bool),
    }[mask_type]
    wide = helpers.to_torch(scores).float() * 0.5
    expected = wide.masked_fill(hidden, -10000.0).softmax(-1)
    assert out.dtype == scores.dtype
    tolerance = {"float32": 1e-6, "bfloat16": 2**-8, "float16": 2**-11}[dtype]
    near(helpers.to_torch(out).float(), expected, rtol=tolerance, atol=1e-6)
    out.sum().backward()
    assert scores.grad is not None


def test_softmax_calls_the_mask_function_that_it_was_given():
    seen = []

    def mask_func(scores, mask):
        seen.append(mask)
        return scores * 0

    mask = padding_mask(1, 4, 4)
    out = te.FusedScaleMaskSoftmax("padding", mask_func)(helpers.randoms(1, 1, 4, 4), mask)
    assert seen[0] is mask
    assert (out.numpy() == 0.25).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("mask_type", ["causal", "no_mask", "padding"])
def test_softmax_of_16_bits_runs_on_a_cpu(dtype, mask_type):
    scores = helpers.randoms(1, 2, 4, 4).astype(dtype)
    mask = padding_mask(1, 4, 4) if mask_type == "padding" else None
    short = te.FusedScaleMaskSoftmax(mask_type, None, softmax_in_fp32=False)(scores, mask)
    assert short.dtype == scores.dtype
    precise = te.FusedScaleMaskSoftmax(mask_type, None)(scores, mask)
    assert helpers.bits(short) == helpers.bits(precise)


def test_softmax_refuses_other_shapes_and_a_scale_in_16_bits():
    with pytest.raises(ValueError, match="4 dimensions"):
        te.FusedScaleMaskSoftmax("causal", None)(helpers.randoms(4, 8, 8), None)
    softmax = te.FusedScaleMaskSoftmax("causal", None, softmax_in_fp32=False)
    with pytest.raises(ValueError, match="softmax_in_fp32"):
        softmax(helpers.randoms(1, 4, 8, 8), None, 0.5)
    scores = helpers.randoms(1, 4, 8, 8)
    assert helpers.bits(softmax(scores, None)) == helpers.bits(
        te.FusedScaleMaskSoftmax("causal", None)(scores, None)
    )


# ---------------------------------------------------------------------- multi-head attention


def heads_in_torch(**options):
    return torch_te.MultiheadAttention(
        32, 4, attention_dropout=0.0, qkv_format="bshd", fuse_qkv_params=True, **options
    )


def in_fp8():
    return (
        lambda: te.fp8_autocast(enabled=True, fp8_recipe=DelayedScaling()),
        lambda: torch_te.autocast(enabled=True, recipe=DelayedScaling()),
    )


def angles_for_both(dim):
    angles = torch_te.RotaryPositionEmbedding(dim)(16)
    return angles, paddle.to_tensor(angles.numpy())


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("groups", [None, 2])
@pytest.mark.parametrize("norm", [False, True])
def test_multi_head_attention_has_the_bits_of_telens_pytorch(norm, groups, fp8):
    options = {"input_layernorm": norm, "num_gqa_groups": groups}
    layer = te.MultiHeadAttention(32, 4, 0.0, **options)
    module = heads_in_torch(**options)
    helpers.copy_weights(layer, module)
    inputs = [helpers.randoms(2, 16, 32)]
    helpers.assert_same_bits(*helpers.run_both(layer, module, inputs, in_fp8() if fp8 else None))


def test_the_normalized_input_is_returned_with_the_output():
    layer = te.MultiHeadAttention(32, 4, 0.0, input_layernorm=True, return_layernorm_output=True)
    module = heads_in_torch(input_layernorm=True, return_layernorm_output=True)
    helpers.copy_weights(layer, module)
    ours, theirs = helpers.run_both(layer, module, [helpers.randoms(2, 16, 32)])
    assert len(ours[0]) == 2
    helpers.assert_same_bits(ours, theirs)


def test_rotary_embedding_takes_cosines_and_sines_or_angles():
    layer, module = te.MultiHeadAttention(32, 4, 0.0), heads_in_torch()
    helpers.copy_weights(layer, module)
    angles, in_paddle = angles_for_both(8)
    x = helpers.randoms(2, 16, 32)
    expected = module(helpers.to_torch(x), rotary_pos_emb=angles).detach().numpy()
    waves = te.RotaryPositionEmbedding(8, 4)(16)
    assert [list(each.shape) for each in waves] == [[1, 16, 1, 8]] * 2
    near(layer(x, rotary_pos_emb=waves).numpy(), expected)
    near(layer(x, rotary_pos_emb=(in_paddle, in_paddle)).numpy(), expected)
    for wrong in (in_paddle, [in_paddle, in_paddle], (in_paddle,)):
        with pytest.raises(ValueError, match="rotary_pos_emb"):
            layer(x, rotary_pos_emb=wrong)


def test_cross_attention_matches_paddles_operators():
    found = []
    paddle.seed(1)
    options = {"attention_type": "cross", "attn_mask_type": "padding", "num_gqa_groups": 2}
    layers = [
        te.MultiHeadAttention(32, 4, 0.0, backend=backend, **options)
        for backend in ("transformer_engine", "paddle")
    ]
    for mine, other in zip(layers[0].parameters(), layers[1].parameters(), strict=True):
        other.set_value(mine.t() if mine.ndim == 2 else mine)
    for layer in layers:
        x, encoded = helpers.randoms(2, 8, 32), helpers.randoms(2, 12, 32, seed=5)
        with pytest.raises(ValueError, match="encoder_output"):
            layer(x, padding_mask(2, 8, 12))
        out = layer(x, padding_mask(2, 8, 12), encoder_output=encoded)
        (out * out).sum().backward()
        found.append([out.numpy(), x.grad.numpy(), encoded.grad.numpy()])
    for mine, other in zip(*found, strict=True):
        near(mine, other, rtol=1e-4, atol=1e-4)


def test_flat_hidden_states_need_the_sequence():
    layer = te.MultiHeadAttention(32, 4, 0.0, max_sequence_length=8)
    x = helpers.randoms(2, 8, 32)
    flat = layer(x.reshape([16, 32]))
    assert helpers.bits(flat.reshape([2, 8, 32])) == helpers.bits(layer(x))
    with pytest.raises(ValueError, match="max_sequence_length"):
        te.MultiHeadAttention(32, 4)(x.reshape([16, 32]))


def test_recomputing_core_attention_changes_no_bit():
    layer = te.MultiHeadAttention(32, 4, attention_dropout=0.5)
    found = []
    for again in (False, True):
        paddle.seed(3)
        layer.clear_gradients(set_to_zero=False)
        x = helpers.randoms(2, 8, 32)
        out = layer(x, recompute_core_attention=again)
        (out * out).sum().backward()
        found.append([helpers.bits(each) for each in (out, x.grad, layer.qkv.weight.grad)])
    assert found[0] == found[1]


# ---------------------------------------------------------------------- Transformer layers


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalization": "RMSNorm", "activation": "swiglu", "num_gqa_groups": 2},
        {"apply_residual_connection_post_layernorm": True},
        {"output_layernorm": True},
        {"zero_centered_gamma": True},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_a_transformer_layer_has_the_bits_of_telens_pytorch(options, fp8):
    layer = te.TransformerLayer(32, 64, 4, hidden_dropout=0.0, attention_dropout=0.0, **options)
    module = torch_te.TransformerLayer(
        *(32, 64, 4),
        hidden_dropout=0.0,
        attention_dropout=0.0,
        attn_input_format="bshd",
        fuse_qkv_params=True,
        **options,
    )
    helpers.copy_weights(layer, module)
    inputs = [helpers.randoms(2, 16, 32)]
    helpers.assert_same_bits(*helpers.run_both(layer, module, inputs, in_fp8() if fp8 else None))


def test_a_decoder_attends_to_the_encoder():
    layers = [
        te.TransformerLayer(
            32, 64, 4, hidden_dropout=0.0, attention_dropout=0.0, layer_type="decoder", backend=each
        )
        for each in ("transformer_engine", "paddle")
    ]
    for mine, other in zip(layers[0].parameters(), layers[1].parameters(), strict=True):
        other.set_value(mine.t() if mine.ndim == 2 else mine)
    x, encoded = helpers.randoms(2, 8, 32), helpers.randoms(2, 12, 32, seed=5)
    outs = [
        layer(x, encoder_output=encoded, enc_dec_attn_mask=padding_mask(2, 8, 12)).numpy()
        for layer in layers
    ]
    near(*outs, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="attention_mask"):
        layers[0](x, encoder_output=encoded)


@pytest.mark.parametrize("backend", ["transformer_engine", "paddle"])
def test_decoder_mask_hides_encoder_positions(backend):
    layer = te.TransformerLayer(
        *(32, 64, 4),
        hidden_dropout=0.0,
        attention_dropout=0.0,
        layer_type="decoder",
        backend=backend,
    )
    mask = paddle.zeros([2, 1, 8, 12], dtype="bool")
    mask[:, :, :, 9:] = True
    x, encoded = helpers.randoms(2, 8, 32), helpers.randoms(2, 12, 32, seed=5).detach()
    out = layer(x, encoder_output=encoded, enc_dec_attn_mask=mask)
    hidden, seen = encoded.clone(), encoded.clone()
    hidden[:, 9:] = 3.0
    seen[:, 8] = 3.0
    assert helpers.bits(layer(x, encoder_output=hidden, enc_dec_attn_mask=mask)) == helpers.bits(
        out
    )
    assert helpers.bits(layer(x, encoder_output=seen, enc_dec_attn_mask=mask)) != helpers.bits(out)


def test_parameters_have_the_dtype_that_is_asked_for():
    layer = te.TransformerLayer(32, 64, 4, params_dtype=paddle.bfloat16)
    assert {parameter.dtype for parameter in layer.parameters()} == {paddle.bfloat16}
    assert paddle.get_default_dtype() == "float32"
    assert layer(helpers.randoms(2, 8, 32, dtype="bfloat16")).dtype == paddle.bfloat16


def test_hidden_dropout_is_drawn_by_paddle():
    layer = te.TransformerLayer(32, 64, 4, hidden_dropout=0.5, attention_dropout=0.0)
    drawn = []
    for seed in (1, 1, 2):
        paddle.seed(seed)
        drawn.append(helpers.bits(layer(helpers.randoms(2, 8, 32))))
    assert drawn[0] == drawn[1] != drawn[2]
    layer.eval()
    assert helpers.bits(layer(helpers.randoms(2, 8, 32))) == helpers.bits(
        layer(helpers.randoms(2, 8, 32))
    )
