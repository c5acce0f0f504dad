"""Unsuitable arguments of attention: each is refused with a message."""

import pytest
import torch

import telens
import telens.pytorch as te


def sums(*values):
    return torch.tensor(values, dtype=torch.int32)


def test_windows_and_biases_that_do_not_fit_are_refused():
    qkv = [torch.zeros(4, 2, 2, 8)] * 3
    module = te.DotProductAttention(2, 8, attn_mask_type="no_mask")
    with pytest.raises(telens.UsageError, match=r"window_size is \(3, -1\)"):
        module(*qkv, window_size=(3, -1))
    with pytest.raises(telens.UsageError, match="post_scale_bias needs core_attention_bias"):
        module(*qkv, core_attention_bias_type="post_scale_bias")
    with pytest.raises(telens.UsageError, match="'pre' is unknown"):
        module(*qkv, core_attention_bias_type="pre")
    with pytest.raises(telens.UsageError, match="softmax_type 'none' is unknown"):
        te.DotProductAttention(2, 8, softmax_type="none")
    with pytest.raises(telens.UsageError, match="thd needs cu_seqlens_q and a padding mask"):
        module(torch.zeros(4, 2, 8), torch.zeros(4, 2, 8), torch.zeros(4, 2, 8), qkv_format="thd")
    wide = module(*qkv, attn_mask_type="causal", window_size=(2, 5))
    assert torch.equal(wide, module(*qkv, attn_mask_type="causal", window_size=(2, 0)))


def test_lengths_heads_and_biases_that_do_not_fit_are_refused():
    module = te.DotProductAttention(4, 8, 2, attn_mask_type="no_mask")
    q, k = torch.zeros(4, 2, 4, 8), torch.zeros(6, 2, 2, 8)
    with pytest.raises(telens.ShapeError, match="expected as many positions"):
        module(q, k, k[:5])
    with pytest.raises(telens.ShapeError, match="kv_channels"):
        module(q[..., :6], k[..., :6], k)
    for shape in ((3, 4, 6), (6,), (3, 1, 4, 6)):
        with pytest.raises(telens.ShapeError, match=r"broadcasts to .* \[2, 4, 4, 6\]"):
            module(
                q, k, k, core_attention_bias_type="post_scale_bias",
                core_attention_bias=torch.zeros(shape),
            )  # fmt: skip
    mask = torch.zeros(1, 1, 4, 6, dtype=torch.bool)
    with pytest.raises(telens.UsageError, match="arbitrary takes one attention_mask; got 2"):
        module(q, k, k, attn_mask_type="arbitrary", attention_mask=(mask, mask))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cu_seqlens_q": sums(0, 3, 9)}, "end within the 7 tokens; .* ends at 9"),
        ({"cu_seqlens_q": sums(0, 3, 9), "max_seqlen_q": 6}, "end within the 7 tokens"),
        ({"cu_seqlens_q": sums(0, 5, 3)}, "the smallest is -2"),
        ({"cu_seqlens_kv": sums(0, 3)}, "2 sequences and cu_seqlens_kv 1"),
        ({"cu_seqlens_q_padded": sums(0, 3)}, "3 numbers and cu_seqlens_q_padded 2"),
        ({"query_layer": torch.zeros(7, 3, 8)}, "query_layer is .* 4 heads"),
        ({"key_layer": torch.zeros(7, 4, 8)}, "key_layer is .* 2 heads"),
        ({"value_layer": torch.zeros(6, 2, 8)}, "expected as many positions"),
    ],
)
def test_packed_sequences_that_do_not_fit_are_refused(arguments, message):
    module = te.DotProductAttention(4, 8, 2, attn_mask_type="padding", qkv_format="thd")
    given = {"query_layer": torch.zeros(7, 4, 8), "cu_seqlens_q": sums(0, 3, 7)}
    given |= {"key_layer": torch.zeros(7, 2, 8), "value_layer": torch.zeros(7, 2, 8)}
    module(**given)
    with pytest.raises(telens.ShapeError, match=message):
        module(**given | arguments)


@pytest.mark.parametrize("rate", [-0.5, 1.5, float("nan")])
def test_rates_are_probabilities(rate):
    made = {"device": "cpu"}
    for option in ("hidden_dropout", "attention_dropout", "drop_path_rate"):
        with pytest.raises(telens.UsageError, match=f"{option} is .*; expected a probability"):
            te.TransformerLayer(32, 64, 4, **{option: rate}, **made)
    with pytest.raises(telens.UsageError, match="expected a probability"):
        te.MultiheadAttention(32, 4, attention_dropout=rate, **made)
    with pytest.raises(telens.UsageError, match="expected a probability"):
        te.DotProductAttention(4, 8, attention_dropout=rate)


def test_a_padding_mask_may_have_two_dimensions():
    attention = te.DotProductAttention(2, 8, qkv_format="bshd", attn_mask_type="padding_causal")
    x = torch.randn(2, 4, 2, 8)
    mask = torch.tensor([[False, False, True, True], [False, False, False, True]])
    expected = attention(x, x, x, attention_mask=mask[:, None, None])
    assert torch.equal(attention(x, x, x, attention_mask=mask), expected)
    with pytest.raises(telens.ShapeError, match=r"attention_mask of the query is"):
        attention(x, x, x, attention_mask=mask[:, :3])


def test_a_sentinel_in_cu_seqlens_of_a_batch_is_refused():
    attention = te.DotProductAttention(2, 8, qkv_format="bshd", attn_mask_type="padding")
    x = torch.randn(2, 4, 2, 8)
    sums = torch.tensor([0, 4, -1], dtype=torch.int32)
    with pytest.raises(telens.ShapeError, match="cu_seqlens_q: a sequence has -5 tokens"):
        attention(x, x, x, cu_seqlens_q=sums)
