"""FP8 attention whose keys travel around longer rings: its numbers, dropout, a NaN."""

import math

import numpy as np
import pytest
import torch
import torch.distributed as dist
from context_helpers import chunks_of, sums, two_levels
from distributed_workers import run_ranks
from fp8_attention_reference import Known
from fp8_ring_reference import Ring, StepCasts
from test_fp8_context_parallel import (
    HEADS,
    SEQ,
    SIZE,
    SLOTS,
    by_head,
    drawn,
    made,
    parts_of,
    run,
    within,
)  # fmt: skip

import telens
import telens.pytorch as te
from telens.common.recipe import DelayedScaling, Float8CurrentScaling, QParams

RANKS = 4
FIRST_SCALES = dict.fromkeys(SLOTS["scaling_fwd"] | SLOTS["scaling_bwd"], np.float32(1))


def two_levels_of_ranks(rank: int) -> None:
    """Two ranks exchange heads, and the ring has two ranks."""
    here = np.array(chunks_of(rank, RANKS, SEQ))
    tensors = drawn(8)
    ours = run(
        made("a2a+p2p", "causal", HEADS, two_levels(rank)),
        Float8CurrentScaling(fp8_dpa=True), tensors, here,
    )  # fmt: skip
    halves = []
    for first in (0, 2):
        parts = [x[:, first : first + 2] for x in by_head(tensors)]
        halves.append(parts_of(Ring(parts, True, [StepCasts() for _ in range(2)]).run(False)))
    whole = [
        Known(np.concatenate([a.mid, b.mid], 1), np.concatenate([a.rad, b.rad], 1))
        for a, b in zip(*halves, strict=True)
    ]
    within(ours, whole, here, ("a2a+p2p",))


def one_ring(rank: int) -> None:
    """With power_2_scale the scales of softmax and of its gradient are known exactly."""
    here = np.array(chunks_of(rank, RANKS, SEQ))
    power = QParams(power_2_scale=True)
    powers = Float8CurrentScaling(fp8_dpa=True, fp8_quant_fwd_inp=power, fp8_quant_bwd_grad=power)
    delayed_scaling = DelayedScaling(fp8_dpa=True)
    for mask, groups, recipe in (("causal", 2, powers), ("no_mask", HEADS, delayed_scaling)):
        delayed = recipe is delayed_scaling
        tensors = drawn(13, groups)
        tensors[0] /= 2  # the error of exp, and so of dP's codes, grows with the scores
        ours = run(made("p2p", mask, groups), recipe, tensors, here)
        casts = [
            StepCasts(
                scales=FIRST_SCALES if delayed else {}, powers_of_two=("qkv", "s", "do", "dp")
            )
            for _ in range(RANKS)
        ]
        expected = parts_of(Ring(by_head(tensors), mask == "causal", casts).run(delayed))
        within(ours, expected, here, ("ring of 4", mask), least=0.9)


def packed(rank: int) -> None:
    """Each packed sequence has its own ring; scales of 1 are equal in all of them."""
    lengths = (SEQ, SEQ // 2)
    starts = sums(list(lengths))
    places = [np.array(chunks_of(rank, RANKS, length)) for length in lengths]
    here = torch.tensor(np.concatenate([places[0], places[1] + SEQ]))
    whole = [torch.cat([x[0], x[1, : SEQ // 2]]) for x in drawn(21, 2)]  # [tokens, heads, size]
    whole[0] /= 2
    *leaves, gradient = (x[here].clone() for x in whole)
    leaves = [x.requires_grad_() for x in leaves]
    attention = te.DotProductAttention(
        HEADS, SIZE, num_gqa_groups=2, qkv_format="thd", attn_mask_type="padding_causal",
        attention_dropout=0.0, cp_group=dist.group.WORLD,
    )  # fmt: skip
    with te.autocast(recipe=DelayedScaling(fp8_dpa=True)):
        output = attention(*leaves, cu_seqlens_q=starts, cu_seqlens_kv=starts)
    output.backward(gradient.flatten(1))
    ours = [output.detach().unflatten(-1, (HEADS, SIZE)), *(x.grad for x in leaves)]
    first = 0
    for start, length, own in zip(starts.tolist()[:-1], lengths, places, strict=True):
        tensors = by_head([x[None, start : start + length] for x in whole])
        casts = [StepCasts(scales=FIRST_SCALES) for _ in range(RANKS)]
        expected = parts_of(Ring(tensors, True, casts).run(delayed=True))
        parts = [x[None, first : first + len(own)].transpose(1, 2) for x in ours]
        within(parts, expected, own, ("thd", length), least=0.7)
        first += len(own)


def dropout(rank: int) -> None:
    """Keys and values are the identity, so the output shows which weights dropout keeps."""
    probability = 0.25
    here = torch.tensor(chunks_of(rank, RANKS, SEQ))
    identity = torch.eye(SEQ)[here].view(1, -1, 1, SEQ).expand(2, -1, HEADS, -1)
    query, key, value = (
        x.clone().requires_grad_() for x in (torch.zeros_like(identity), identity, identity)
    )
    attention = te.DotProductAttention(
        HEADS, SEQ, qkv_format="bshd", attn_mask_type="no_mask", attention_dropout=probability,
        softmax_scale=0.5, cp_group=dist.group.WORLD,
    )  # fmt: skip
    torch.manual_seed(20 + rank)
    with te.autocast(recipe=Float8CurrentScaling(fp8_dpa=True)):
        output = attention(query, key, value)
    weights = output.detach().unflatten(-1, (HEADS, SEQ))  # [batch, queries, heads, keys]
    kept = weights != 0
    expected = kept / (SEQ * (1 - probability))
    torch.testing.assert_close(weights, expected, rtol=1e-5, atol=0)
    # Dropout chooses differently for the keys of each step.
    chunks = kept.split(SEQ // (2 * RANKS), -1)
    for chunk in chunks:
        bound = 6 * (probability * (1 - probability) / chunk.numel()) ** 0.5
        assert abs(1 - chunk.double().mean().item() - probability) <= bound
    assert not any(map(torch.equal, chunks, (*chunks[1:], chunks[0])))
    # The backward drops the same weights. Powers of two are codes of E5M2.
    generator = torch.Generator().manual_seed(30 + rank)
    gradient = torch.randint(-2, 3, weights.shape, generator=generator).float().exp2()
    output.backward(gradient.flatten(2))
    of_weights = kept * gradient / (1 - probability)
    delta = (weights * gradient).sum(-1, keepdim=True)
    of_query = (of_weights - delta) / SEQ * 0.5  # the keys are the identity
    off = (query.grad - of_query).abs()
    # Half of the distance between two codes of E5M2, and FP32 roundings of terms that cancel.
    assert (off <= of_query.abs() / 8 * (1 + 1e-5) + 1e-6 * of_query.abs().max()).all()
    assert key.grad.eq(0).all()  # the queries are
    of_value = torch.einsum("bqhk,bqhd->bkhd", weights, gradient)
    dist.all_reduce(of_value)
    torch.testing.assert_close(value.grad, of_value[:, here], rtol=1e-5, atol=0)


def one_nan(rank: int) -> None:
    """A NaN in a key of rank 1: on each rank, exactly the queries that see it get a NaN."""
    here = torch.tensor(chunks_of(rank, RANKS, SEQ))
    at = chunks_of(1, RANKS, SEQ)[1]
    for mask in ("causal", "no_mask"):
        for recipe in (Float8CurrentScaling(fp8_dpa=True), DelayedScaling(fp8_dpa=True)):
            tensors = drawn(12)
            tensors[1][0, at, 2, 3] = math.nan
            output, of_query, of_key, _ = run(made("p2p", mask, HEADS), recipe, tensors, here)
            sees = torch.zeros(2, HEADS, len(here), dtype=torch.bool)
            sees[0, 2] = (here >= at) | (mask == "no_mask")
            assert torch.equal(output.isnan().all(-1), sees), (mask, recipe)
            assert torch.equal(output.isnan().any(-1), sees), (mask, recipe)
            assert of_query.isnan().all(-1)[sees].all(), (mask, recipe)
            others = torch.ones(2, HEADS, dtype=torch.bool)
            others[0, 2] = False
            assert of_query[others].isfinite().all(), (mask, recipe)
            if at in here:
                assert of_key[0, 2, here == at].isnan().all()


def bias_of_one_rank(rank: int) -> None:
    """It is refused with FP8, and no rank waits for another."""
    inputs = [x[:, chunks_of(rank, RANKS, SEQ)] for x in drawn(15)[:3]]
    bias = {}
    if rank == 1:
        bias = {"core_attention_bias": torch.zeros(SEQ // RANKS, SEQ)}
        bias["core_attention_bias_type"] = "post_scale_bias"
    match = r"rank 1 .*attends .* core_attention_bias \[8, 32\]"
    with (
        pytest.raises(telens.UsageError, match=match),
        te.autocast(recipe=Float8CurrentScaling(fp8_dpa=True)),
    ):
        made("p2p", "causal", HEADS)(*inputs, **bias)


def four_ranks(rank: int) -> None:
    two_levels_of_ranks(rank)
    one_ring(rank)
    packed(rank)
    dropout(rank)
    one_nan(rank)
    bias_of_one_rank(rank)


def test_fp8_attention_on_4_ranks_matches_its_formulas():
    run_ranks(four_ranks, world_size=RANKS)
