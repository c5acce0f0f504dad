"""MultiheadAttention: norms of query and key, rotary angles."""

import pytest
import torch

import telens
import telens.pytorch as te


def head_norm(kind, eps, weight=None):
    def divided(x):
        if kind == "L2Normalization":
            return x * (x.square().sum(-1, keepdim=True) + eps).rsqrt()
        if kind == "RMSNorm":
            return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)
        return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, None, eps)

    return divided


def rotated(x, angles):
    first, second = x.chunk(2, -1)
    turned = torch.cat([-second, first], -1)
    phase = angles[: x.size(0)]
    return x * phase.cos() + turned * phase.sin()


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("kind", ["L2Normalization", "RMSNorm", "LayerNorm"])
def test_query_and_key_are_normalized_head_by_head(kind, before):
    module = te.MultiheadAttention(
        32, 4, num_gqa_groups=2, attention_dropout=0.0, qk_norm_type=kind,
        qk_norm_before_rope=before, device="cpu",
    )  # fmt: skip
    names = [name for name, _ in module.named_parameters() if "norm" in name]
    assert ("q_norm.weight" in names) == (kind != "L2Normalization")
    norms = []
    for child in ("q_norm", "k_norm"):
        weight = None
        if kind != "L2Normalization":
            weight = getattr(module, child).weight
            torch.nn.init.uniform_(weight, 0.5, 2)
        norms.append(head_norm(kind, 1e-6, weight))
    x = torch.randn(6, 2, 32)
    angles = te.RotaryPositionEmbedding(8)(6)
    qkv = module.qkv(x)
    query, key, value = qkv.unflatten(-1, (8, 8)).split([4, 2, 2], -2)
    for norm in norms[:1] if before else []:
        query = norm(query)
        key = norms[1](key)
    query, key = rotated(query, angles), rotated(key, angles)
    if not before:
        query, key = norms[0](query), norms[1](key)
    expected = module.proj(te.DotProductAttention(4, 8, 2)(query, key, value))
    torch.testing.assert_close(module(x, rotary_pos_emb=angles), expected, rtol=1e-5, atol=1e-5)


def test_angles_that_do_not_fit_are_refused_and_fp64_keeps_its_digits():
    layer = te.MultiheadAttention(
        32, 4, attention_dropout=0.0, device="cpu", params_dtype=torch.float64
    )
    x, angles = torch.randn(6, 2, 32, dtype=torch.float64), te.RotaryPositionEmbedding(8)(6)
    for wrong in (angles[:, 0, 0], angles.expand(6, 3, 1, 8), angles.expand(6, 1, 4, 8)):
        with pytest.raises(telens.ShapeError, match=r"expected \[seq, 1 or 2, 1, channels\]"):
            layer(x, rotary_pos_emb=wrong)
    qkv = layer.qkv(x).unflatten(-1, (12, 8)).split([4, 4, 4], -2)
    query, key = (rotated(each, angles.double()) for each in qkv[:2])
    expected = layer.proj(te.DotProductAttention(4, 8)(query, key, qkv[2]))
    torch.testing.assert_close(layer(x, rotary_pos_emb=angles), expected, rtol=1e-12, atol=1e-13)


def test_rotary_angles_have_the_references_percent_and_interpolation():
    whole = te.RotaryPositionEmbedding(8)(6)
    by_hand = torch.arange(6.0)[:, None] * 10000.0 ** (-torch.arange(0, 8, 2) / 8)
    torch.testing.assert_close(whole[:, 0, 0], by_hand.repeat(1, 2))
    assert torch.equal(te.RotaryPositionEmbedding(16, 0.5)(6), whole)
    assert torch.equal(te.RotaryPositionEmbedding(8)(4, offset=2), whole[2:])
    # A sequence twice as long as in training has positions at half of their distance; a longer one
    # is compressed to 4.
    halved = te.RotaryPositionEmbedding(8, 1.0, 2.0, 4)
    torch.testing.assert_close(halved(8), te.RotaryPositionEmbedding(8)(8) / 2)
    torch.testing.assert_close(halved(12), te.RotaryPositionEmbedding(8)(12) / 3)
    assert torch.equal(te.RotaryPositionEmbedding(8, 1.0, 2.0)(6), whole)
    base = te.RotaryPositionEmbedding(8, 1.0, None, None, 4.0)(6)
    torch.testing.assert_close(base[:, 0, 0, 1], torch.arange(6.0) * 4.0**-0.25)
    neighbors = te.RotaryPositionEmbedding(8, interleaved=True)(6)
    torch.testing.assert_close(neighbors[:, 0, 0], by_hand.repeat_interleave(2, 1))
    with pytest.raises(telens.UsageError, match="rotary_percent must be above 0"):
        te.RotaryPositionEmbedding(8, 10000.0)
