"""FP8 attention in blocks (MXFP8BlockScaling(fp8_dpa=True)) against its formulas in FP64."""

import numpy as np
import pytest
import torch
from block_attention_reference import block_attention
from block_references import E4M3, E5M2
from debug_helpers import config_of
from fp8_attention_reference import Known
from score_blocks import in_blocks
from test_fp8_attention import (
    HALF_ULP,
    assert_within,
    by_head,
    causal,
    drawn,
    run,
    run_with_bias_sink_and_padding,
)

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import DelayedScaling, Float8CurrentScaling, Format, MXFP8BlockScaling

RECIPE = MXFP8BlockScaling(fp8_dpa=True)
# Neither a head nor a sequence is a multiple of a block.
RAGGED = {"size": 40, "queries": 72, "keys": 72}


def attention_of(tensors, **options) -> te.DotProductAttention:
    heads, groups = tensors[0].shape[2], tensors[1].shape[2]
    options = {"qkv_format": "bshd", "attn_mask_type": "no_mask"} | options
    return te.DotProductAttention(heads, tensors[0].shape[3], num_gqa_groups=groups, **options)


def check(made, tensors, gradient, dtype, **known):
    output, gradients = made
    heads, size = tensors[0].shape[2:]
    expected, scores = block_attention(
        *(by_head(x) for x in tensors),
        by_head(gradient.unflatten(-1, (heads, size))),
        scale=1 / np.sqrt(size),
        dtype=dtype,
        **known,
    )
    output = output.unflatten(-1, (heads, size)).transpose(1, 2)
    assert_within(output, expected.output, dtype, "output")
    for name, ours in zip(("query", "key", "value"), gradients, strict=True):
        # In a few rows an output may round to either neighbor, which changes its sum with dO.
        narrow = 0.9 if name == "value" else 0.4
        assert_within(ours.transpose(1, 2), getattr(expected, name), dtype, name, narrow)
    return expected, scores


def spread(tensors, gradient):
    """Gives magnitudes that show which elements share a scale: under a power of two, normal codes
    round alike.

    What query has small within a head key has large, as have the output's gradient and value. And
    under a causal mask some queries see small keys alone, and some keys small queries alone.
    """
    query, key, value = (x.clone() for x in tensors)
    of_output = gradient.unflatten(-1, query.shape[2:]).clone()
    for x, power in ((query, 7), (key, -7), (value, 7), (of_output, -7)):
        x[..., :20] *= 2.0**power
        x[..., 20:] *= 2.0**-power
    for x, small in ((key, slice(8)), (value, slice(8)), (query, slice(-4, None)),
                     (of_output, slice(-4, None))):  # fmt: skip
        x[:, small] *= 2.0**-9
    return [query, key, value], of_output.flatten(2)


@pytest.mark.parametrize(
    ("groups", "mask", "fp8_format"),
    [(4, "no_mask", Format.E4M3), (2, "causal", Format.HYBRID), (1, "causal", Format.E4M3)],
)
@pytest.mark.parametrize("dtype", HALF_ULP, ids=str)
def test_products_use_blocks_along_the_summed_dimension(dtype, groups, mask, fp8_format):
    tensors, gradient = spread(*drawn(1, dtype, groups=groups, **RAGGED))
    recipe = MXFP8BlockScaling(fp8_dpa=True, fp8_format=fp8_format)
    made = run(attention_of(tensors, attn_mask_type=mask), recipe, tensors, gradient)
    known = {
        "backward": E5M2 if fp8_format == Format.HYBRID else E4M3,
        "allowed": causal(72, 72) if mask == "causal" else None,
    }
    check(made, tensors, gradient, dtype, **known)


@pytest.mark.parametrize("of_block", [1, 600])
def test_blocks_of_scores_cut_no_block_of_codes(of_block):
    tensors, gradient = drawn(2, torch.float32, groups=2, size=32, queries=40, keys=72)
    with in_blocks(of_block):
        made = run(attention_of(tensors), RECIPE, tensors, gradient)
    check(made, tensors, gradient, torch.float32)


def test_bias_sink_and_padding_apply_to_scores():
    tensors, gradient = drawn(3, torch.float32, size=32, queries=40, keys=40)
    attention, bias, made, scores = run_with_bias_sink_and_padding(RECIPE, tensors, gradient)
    expected, _ = check(made, tensors, gradient, torch.float32, **scores)
    of_bias = Known(
        expected.bias.mid.sum(0, keepdims=True), expected.bias.rad.sum(0, keepdims=True)
    )
    off = np.abs(bias.grad.double().numpy() - of_bias.mid)
    assert (off <= of_bias.rounded(2.0**-22).rad + 2.0**-120).all()
    found = attention.softmax_offset.grad.flatten().double().numpy()
    assert np.allclose(found, expected.sink, rtol=1e-4, atol=1e-8)


def test_dropout_drops_softmax_weights_and_their_gradients():
    tensors, gradient = drawn(4, torch.float32, size=32, queries=32, keys=32)
    attention = attention_of(tensors, attention_dropout=0.25)
    # An output for each key, which is 0 if its weight was dropped.
    one_each = torch.eye(32).expand(2, 4, 32, 32).transpose(1, 2).contiguous()
    torch.manual_seed(5)
    with te.autocast(recipe=RECIPE):
        weights = attention(tensors[0], tensors[1], one_each)
    kept = weights.unflatten(-1, (4, 32)).transpose(1, 2).numpy() != 0
    assert 0.6 < kept.mean() < 0.9
    torch.manual_seed(5)
    made = run(attention, RECIPE, tensors, gradient)
    check(made, tensors, gradient, torch.float32, kept=kept, keep=0.75)


def test_packed_sequences_have_the_values_of_padded_ones():
    tensors, gradient = drawn(6, torch.bfloat16, **RAGGED)
    lengths = torch.tensor([0, 72, 144], dtype=torch.int32)
    sums = {"cu_seqlens_q": lengths, "cu_seqlens_kv": lengths}
    options = {"attn_mask_type": "padding"}
    padded = run(attention_of(tensors, **options), RECIPE, tensors, gradient, **sums)
    packed = run(
        attention_of(tensors, qkv_format="thd", **options),
        RECIPE,
        [x.flatten(0, 1) for x in tensors],
        gradient.flatten(0, 1),
        **sums,
    )
    assert torch.equal(packed[0], padded[0].flatten(0, 1))
    for ours, theirs in zip(packed[1], padded[1], strict=True):
        assert torch.equal(ours, theirs.flatten(0, 1))


@pytest.mark.parametrize("sizes", [{"batch": 0}, {"queries": 0}, {"keys": 0}], ids=str)
def test_nothing_has_an_empty_output_or_none_and_its_gradients(sizes):
    tensors, gradient = drawn(7, torch.bfloat16, size=32, **sizes)
    output, gradients = run(attention_of(tensors), RECIPE, tensors, gradient)
    assert output.shape == gradient.shape
    assert (output == 0).all()
    assert [x.shape for x in gradients] == [x.shape for x in tensors]
    assert all((x == 0).all() for x in gradients)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_values_affect_only_their_blocks(bad):
    tensors, gradient = drawn(8, torch.float32, size=64, keys=64)
    plain = run(attention_of(tensors), RECIPE, tensors, gradient)
    tensors[2][0, 3, 0, 0] = bad
    output, gradients = run(attention_of(tensors), RECIPE, tensors, gradient)
    column = output[0, :, 0]
    assert column.isnan().all() if bad != bad else not torch.equal(column, plain[0][0, :, 0])
    output[0, :, 0] = plain[0][0, :, 0]
    assert torch.equal(output, plain[0])
    for ours, before in zip(gradients, plain[1], strict=True):
        assert torch.equal(ours[1], before[1])


def test_scores_and_their_maximum_use_the_codes():
    tensors, gradient = drawn(9, torch.float32, groups=2, size=32)
    attention = attention_of(tensors, return_max_logit=True)
    with te.autocast(recipe=RECIPE):
        _, largest = attention(*tensors)
    _, scores = block_attention(
        *(by_head(x) for x in tensors),
        by_head(gradient.unflatten(-1, (4, 32))),
        scale=1 / np.sqrt(32),
        dtype=torch.float32,
    )
    off = np.abs(largest.double().numpy() - scores.mid.max((0, 2, 3)))
    assert (off <= scores.rad.max((0, 2, 3))).all()


def test_the_ledger_says_the_scaling(tmp_path):
    tensors, gradient = drawn(10, torch.bfloat16, size=32)
    attention = attention_of(tensors)
    attention.set_debug_name("attn")
    with debug.session(config_of("PrecisionLedger", "telens"), log_dir=tmp_path):
        run(attention, RECIPE, tensors, gradient)
        debug.step()
    rows = telens.open_run(tmp_path).table("ledger").itertuples()
    found = {str(row.entry): str(row.detail) for row in rows}
    assert found["query ran"] == "E4M3 under MXFP8 scaling"


@pytest.mark.parametrize(
    "recipe", [DelayedScaling(fp8_dpa=True), Float8CurrentScaling(fp8_dpa=True)]
)
def test_a_variable_chooses_it_for_attention(recipe, monkeypatch):
    tensors, gradient = drawn(11, torch.bfloat16, size=32)
    expected = run(
        attention_of(tensors),
        MXFP8BlockScaling(fp8_dpa=True, fp8_format=Format.HYBRID),
        tensors,
        gradient,
    )
    before = run(attention_of(tensors), recipe, tensors, gradient)
    monkeypatch.setenv("NVTE_DPA_FP8_RECIPE", "MXFP8BlockScaling")
    found = run(attention_of(tensors), recipe, tensors, gradient)
    assert not torch.equal(before[0], expected[0])
    assert torch.equal(found[0], expected[0])
    assert all(map(torch.equal, found[1], expected[1]))


def test_no_projection_takes_its_blocks_over(monkeypatch):
    with pytest.raises(telens.UsageError, match="fp8_mha=True is not supported; give fp8_dpa=True"):
        MXFP8BlockScaling(fp8_mha=True)
    monkeypatch.setenv("NVTE_DPA_FP8_RECIPE", "MXFP8BlockScaling")
    tensors, gradient = drawn(12, torch.bfloat16, size=32)
    with pytest.raises(telens.UsageError, match="fp8_mha is not supported for attention in blocks"):
        run(attention_of(tensors), DelayedScaling(fp8_mha=True), tensors, gradient)
