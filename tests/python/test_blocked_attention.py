"""Attention in blocks of scores: its memory, and results that must not depend on the block size."""

import pytest
import torch
from score_blocks import in_blocks

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import Float8CurrentScaling

SEQ, HEADS, GROUPS, SIZE = 2304, 2, 1, 8
# A boolean matrix of all scores of one head has 5.3 MB, a block of 2^19 scores in FP32 2.1 MB.
MOST_BYTES = 4 << 20


def largest_allocation(call):
    with torch.profiler.profile(profile_memory=True, acc_events=True) as profile:
        call()
    sizes = [e.nbytes() for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    assert sizes
    return max(sizes)


def heads(seq=SEQ, dtype=torch.float32, batch=1, of_query=HEADS):
    torch.manual_seed(29)
    return [
        torch.randn(batch, seq, n, SIZE, dtype=dtype, requires_grad=True)
        for n in (of_query, GROUPS, GROUPS)
    ]


LENGTHS = torch.tensor([0, SEQ - 300], dtype=torch.int32)
MASKED = {
    "everything at once": (
        {"softmax_type": "learnable", "attention_dropout": 0.1, "return_max_logit": True},
        {"attn_mask_type": "padding_causal_bottom_right", "cu_seqlens_q": LENGTHS},
    ),
    "packed": ({"window_size": (900, 0), "qkv_format": "thd"}, {
        "attn_mask_type": "padding_causal", "cu_seqlens_q": torch.tensor([0, 100, SEQ]),
        "max_seqlen_q": SEQ, "max_seqlen_kv": SEQ,
    }),
    "alibi": (
        {"window_size": (700, 300)},
        {"attn_mask_type": "no_mask", "core_attention_bias_type": "alibi"},
    ),
    "arbitrary": (
        {"softmax_type": "off-by-one"},
        {"attn_mask_type": "arbitrary", "core_attention_bias_type": "pre_scale_bias"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", [*MASKED, "fp8", "statistics"])
def test_full_score_matrix_is_never_allocated(way, tmp_path):
    options, arguments = MASKED["everything at once" if way in ("fp8", "statistics") else way]
    options = {"qkv_format": "bshd", **options}
    attention = te.DotProductAttention(GROUPS, SIZE, **options)
    tensors = heads(of_query=GROUPS)
    if way == "arbitrary":  # the caller's, made before
        arguments = arguments | {
            "attention_mask": torch.rand(1, 1, SEQ, SEQ) < 0.3,
            "core_attention_bias": torch.randn(1, 1, 1, SEQ, requires_grad=True),
        }
    if options["qkv_format"] == "thd":
        tensors = [t.detach()[0].requires_grad_() for t in tensors]

    def step():
        with te.autocast(enabled=way == "fp8", recipe=Float8CurrentScaling(fp8_dpa=True)):
            out = attention(*tensors, **arguments)
        (out[0] if options.get("return_max_logit") else out).square().sum().backward()

    if way == "statistics":
        attention.set_debug_name("attn")
        config = {"logged": {
            "enabled": True, "layers": {"layer_name_regex_pattern": ".*"},
            "transformer_engine": {"LogTensorStats": {
                "enabled": True, "tensors": ["scores"], "stats": ["max", "attention_entropy"],
            }},
        }}  # fmt: skip
        with debug.session(config, log_dir=tmp_path):
            assert largest_allocation(step) < MOST_BYTES
            debug.step()
    else:
        assert largest_allocation(step) < MOST_BYTES
    assert all(t.grad.isfinite().all() and t.grad.any() for t in tensors)


def test_a_small_attention_goes_the_whole_way():
    """Checks the measurement of the test above: it sees a matrix of all scores if there is one."""
    attention = te.DotProductAttention(
        HEADS, SIZE, GROUPS, qkv_format="bshd", softmax_type="learnable"
    )
    tensors = heads(512)
    assert largest_allocation(lambda: attention(*tensors)) >= HEADS * 512 * 512 * 4


@pytest.mark.parametrize("probability", [0.0, 0.25, 1.0])
def test_dropout_is_the_same_in_blocks_of_any_size(probability):
    seq = 40
    query = torch.zeros(2, seq, HEADS, SIZE)
    # The values are the identity, so the output shows the weights.
    value = torch.eye(seq).expand(2, GROUPS, seq, seq).transpose(1, 2)
    attention = te.DotProductAttention(
        HEADS, (SIZE, seq), GROUPS, qkv_format="bshd", attn_mask_type="no_mask",
        attention_dropout=probability,
    )  # fmt: skip

    def weights(of_block):
        torch.manual_seed(5)
        with in_blocks(of_block):
            out = attention(query, query[:, :, :GROUPS], value)
        return out, torch.rand(2)

    (whole, after), *others = (weights(n) for n in (1 << 19, 1, 41, 700))
    kept = whole != 0
    for each, then in others:
        assert torch.equal(each, whole)  # one number times one
        assert torch.equal(then, after)
    torch.testing.assert_close(
        whole[kept], torch.full_like(whole[kept], 1 / seq / max(1 - probability, 1e-9))
    )
    # 6400 draws: six standard deviations are 6 * sqrt(p (1 - p) / 6400).
    bound = 6 * (probability * (1 - probability) / whole.numel()) ** 0.5
    assert abs(1 - kept.double().mean().item() - probability) <= bound


def test_dropout_choices_match_philox():
    # Vectors of Random123 (kat_vectors, philox4x32 of 7 rounds): counter and key 0, all bits 1.
    for place, seed, words in [
        ([0, 0, 0, 0], 0, [0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48]),
        ([2**32 - 1] * 3 + [4 * (2**32 - 1)], -1,
         [0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662]),
    ]:  # fmt: skip
        for word in words:
            for keep, kept in ((word, False), (word + 1, True)):
                weights = torch.ones(1, 1, 1, 4, dtype=torch.float64)
                torch.ops.telens.keyed_dropout_(weights, seed, 1 - keep / 2**32, place)
                expected = [(other < keep) for other in words]
                assert (weights != 0).flatten().tolist() == expected
                assert expected[words.index(word)] == kept


def test_gradients_match_finite_differences():
    tensors = [torch.randn(1, 5, n, 3, dtype=torch.float64, requires_grad=True) for n in (4, 2, 2)]
    bias = torch.randn(1, 4, 5, 5, dtype=torch.float64, requires_grad=True)
    slopes = torch.rand(4, requires_grad=True)
    attention = te.DotProductAttention(
        4, 3, 2, qkv_format="bshd", attn_mask_type="causal", attention_dropout=0.3,
        softmax_type="learnable",
    )  # fmt: skip

    def run(query, key, value, bias):
        torch.manual_seed(1)
        return attention(
            query, key, value, core_attention_bias_type="pre_scale_bias", core_attention_bias=bias
        )

    with in_blocks(7):
        assert torch.autograd.gradcheck(run, (*tensors, bias))
        inputs = [t.detach() for t in tensors]
        alibi = {"core_attention_bias_type": "alibi", "alibi_slopes": slopes}
        grads = []
        for of_block in (7, 1 << 19):
            with in_blocks(of_block):
                torch.manual_seed(1)
                attention(*inputs, **alibi).square().sum().backward()
            grads.append((slopes.grad, attention.softmax_offset.grad))
            slopes.grad = attention.softmax_offset.grad = None
    for one, other in zip(*grads, strict=True):
        assert one.any()
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("mask", ["padding", "padding_causal", "padding_causal_bottom_right"])
def test_padding_may_be_anywhere(mask):
    """The range of keys that a block reads depends on the sample's own positions."""
    torch.manual_seed(3)
    hidden = torch.zeros(2, 1, 1, 30, dtype=torch.bool)
    hidden[0, ..., :11] = hidden[0, ..., 20:22] = hidden[1, ..., 25:] = True
    attention = te.DotProductAttention(
        HEADS, SIZE, GROUPS, qkv_format="bshd", attn_mask_type=mask, window_size=(4, 0)
        if "causal" in mask else None,
    )  # fmt: skip
    results = []
    for of_block in (None, 64, 1000):
        tensors = heads(30, batch=2)
        if of_block is None:
            out = attention(*tensors, attention_mask=hidden)
        else:
            with in_blocks(of_block):
                out = attention(*tensors, attention_mask=hidden)
        out.square().sum().backward()
        results.append([out, *(t.grad for t in tensors)])
    for each in results[1:]:
        torch.testing.assert_close(each, results[0], rtol=1e-4, atol=1e-5)


def test_bf16_is_rounded_once():
    tensors = heads(70, torch.bfloat16)
    attention = te.DotProductAttention(HEADS, SIZE, GROUPS, qkv_format="bshd")
    exact = [t.detach().double().requires_grad_() for t in tensors]
    with in_blocks(300):
        out = attention(*tensors)
    expected = attention(*exact)
    out.sum().backward()
    expected.sum().backward()
    assert out.dtype == torch.bfloat16
    # BF16 rounds by 2^-9; the FP32 rounding before it is too small to matter.
    for one, other in zip([out, *(t.grad for t in tensors)],
                          [expected, *(t.grad for t in exact)], strict=True):  # fmt: skip
        torch.testing.assert_close(one.double(), other, rtol=2**-8, atol=2**-12)


def test_a_checkpoint_in_blocks_has_the_same_bits():
    attention = te.DotProductAttention(
        HEADS, SIZE, GROUPS, qkv_format="bshd", attention_dropout=0.5
    )

    def run(checkpoint):
        tensors = heads(30)
        out = attention(*tensors, checkpoint_core_attention=checkpoint)
        torch.rand(1)
        out.square().sum().backward()
        return [out, *(t.grad for t in tensors), torch.rand(1)]

    with in_blocks(100):
        assert all(map(torch.equal, run(False), run(True)))


def test_a_mask_that_was_changed_before_the_backward_is_an_error():
    attention = te.DotProductAttention(
        HEADS, SIZE, GROUPS, qkv_format="bshd", attn_mask_type="arbitrary"
    )
    mask = torch.rand(1, 1, 30, 30) < 0.5
    with in_blocks(100):
        out = attention(*heads(30), attention_mask=mask)
    mask.logical_not_()
    with pytest.raises(telens.UsageError, match="attention_mask was changed in place"):
        out.sum().backward()


def test_a_second_derivative_is_refused():
    attention = te.DotProductAttention(HEADS, SIZE, GROUPS, qkv_format="bshd")
    tensors = heads(30)
    with in_blocks(100):
        out = attention(*tensors)
    with pytest.raises(telens.UsageError, match="second derivative"):
        torch.autograd.grad(out.sum(), tensors[0], create_graph=True)


@pytest.mark.parametrize("shape", [(2, 30), (6, 30, 31), (1, 3, 30, 30)])
def test_a_mask_that_does_not_broadcast_is_an_error(shape):
    attention = te.DotProductAttention(
        HEADS, SIZE, GROUPS, qkv_format="bshd", attn_mask_type="arbitrary"
    )
    with pytest.raises(telens.ShapeError, match=r"attention_mask is .*broadcasts to \[batch"):
        attention(*heads(30), attention_mask=torch.zeros(shape, dtype=torch.bool))
