"""DotProductAttention's masks, windows, biases and softmaxes against FP64 (attention_cases.py)."""

import pytest
import torch
from attention_cases import Case
from score_blocks import in_blocks

import telens.pytorch as te

CASES = 2000
PAGE = 50


def check(case, expected):
    out, largest, grads = expected
    actual, actual_largest, actual_grads = case.actual()
    # FP32 sums of at most 10 scores of at most 40: an error of 2^-24 * 40 * 10 in weights around 1.
    close = {"rtol": 1e-4, "atol": 1e-4, "check_dtype": False}
    torch.testing.assert_close(actual, out, **close, msg=lambda text: f"{case.of}\n{text}")
    torch.testing.assert_close(actual_largest, largest, **close)
    for name, grad, wanted in zip(
        ["q", "k", "v", "bias", "sink"], actual_grads, grads, strict=True
    ):
        if grad is None:
            assert name in ("bias", "sink")
            continue
        torch.testing.assert_close(
            grad, torch.zeros_like(grad).double() if wanted is None else wanted, **close,
            msg=lambda text, name=name: f"{name} of {case.of}\n{text}",
        )  # fmt: skip


@pytest.mark.parametrize("first", range(0, CASES, PAGE))
def test_random_cases_match_fp64(first):
    for number in range(first, first + PAGE):
        case = Case(number)
        expected = case.expected()
        check(case, expected)
        if number % 2 == 0:  # from one query of one head at a time to all of a case
            with in_blocks(1 + number % 97):
                check(case, expected)


def test_fp32_bias_keeps_its_digits_with_bf16_tensors():
    heads, seq = 4, 600
    query = torch.zeros(seq, 1, heads, 8, dtype=torch.bfloat16)
    value = torch.zeros(seq, 1, heads, 8, dtype=torch.bfloat16)
    value[0] = 1
    module = te.DotProductAttention(heads, 8, attn_mask_type="no_mask")
    slopes = torch.full((heads,), 2.0**-6)
    out = module(query, query, value, core_attention_bias_type="alibi", alibi_slopes=slopes)
    distances = torch.arange(seq).double()
    weights = (-(distances[:, None] - distances).abs() * 2.0**-6).softmax(-1)[:, 0]
    # A distance of 513 has ten bits, BF16 eight: if it were rounded, its weight would be off by 3
    # %.
    torch.testing.assert_close(out[:, 0, 0].double(), weights, rtol=2**-7, atol=1e-6)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_bias_keeps_its_digits_under_autocast(checkpoint):
    heads, seq = 4, 600
    zeros, value = torch.zeros(2, seq, 1, heads, 8)
    value[0] = 1
    module = te.DotProductAttention(heads, 8, attn_mask_type="no_mask", return_max_logit=True)
    slopes = torch.full((heads,), 2.0**-6)
    with torch.autocast("cpu", torch.bfloat16):
        out, _ = module(
            zeros, zeros, value, core_attention_bias_type="alibi", alibi_slopes=slopes,
            checkpoint_core_attention=checkpoint,
        )  # fmt: skip
    assert out.dtype == torch.bfloat16
    distances = torch.arange(seq).double()
    weights = (-(distances[:, None] - distances).abs() * 2.0**-6).softmax(-1)[:, 0]
    torch.testing.assert_close(out[:, 0, 0].double(), weights, rtol=2**-7, atol=1e-6)


def test_checkpointed_attention_repeats_dropout_and_bits():
    module = te.DotProductAttention(4, 8, attention_dropout=0.5)

    def run(checkpoint):
        torch.manual_seed(3)
        qkv = [torch.randn(16, 2, 4, 8, requires_grad=True) for _ in range(3)]
        out = module(*qkv, checkpoint_core_attention=checkpoint)
        torch.rand(1)  # the model draws between the forward and the backward
        out.square().sum().backward()
        return [out, *(t.grad for t in qkv), torch.rand(3)]

    assert all(map(torch.equal, run(False), run(True)))


def test_checkpoint_with_learned_inputs_has_the_same_bits():
    q, k, v = torch.randn(3, 40, 1, 2, 8)
    module = te.DotProductAttention(2, 8, softmax_type="learnable")
    bias = torch.randn(1, 2, 40, 40, requires_grad=True)
    arguments = {"core_attention_bias_type": "post_scale_bias", "core_attention_bias": bias}
    plain = module(q, k, v, **arguments)
    checkpointed = module(q, k, v, checkpoint_core_attention=True, **arguments)
    assert torch.equal(plain, checkpointed)
    q.requires_grad_()
    nothing = module(q, k[:0], v[:0], checkpoint_core_attention=True)
    nothing.sum().backward()
    assert torch.equal(nothing, torch.zeros(40, 1, 16))


def test_largest_score_for_many_queries_and_an_empty_batch():
    torch.manual_seed(7)
    module = te.DotProductAttention(2, 8, return_max_logit=True)
    q, k, v = torch.randn(3, 300, 1, 2, 8)
    q[290, 0, 1] = 20 * k[5, 0, 1]
    scores = torch.einsum("qbhd,kbhd->bhqk", q.double(), k.double()) / 8**0.5
    scores = scores.masked_fill(~torch.ones(300, 300).tril().bool(), -torch.inf)
    largest = module(q, k, v)[1]
    torch.testing.assert_close(largest.double(), scores.amax((0, 2, 3)), rtol=1e-5, atol=1e-5)
    out, largest = module(q[:, :0], k[:, :0], v[:, :0])
    assert out.shape == (300, 0, 16)
    assert (largest == -torch.inf).all()
