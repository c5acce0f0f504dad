"""FP8 attention whose sequence is divided among ranks, against its formulas in FP64."""

import itertools
import os

import numpy as np
import pytest
import torch
import torch.distributed as dist
from block_attention_reference import block_attention
from context_helpers import chunks_of
from distributed_workers import run_ranks
from fp8_attention_reference import ULP, Casts, Known, fp8_attention
from fp8_ring_reference import Ring, StepCasts

import telens
import telens.pytorch as te
from telens import _C
from telens.common.recipe import DelayedScaling, Float8CurrentScaling, MXFP8BlockScaling

HEADS, SIZE, SEQ = 4, 16, 32
OUTPUT_IN_F16 = "NVTE_DPA_FP8CS_O_in_F16"
# The slots of the tensors in the FP8 state, as in Transformer Engine.
SLOTS = {"scaling_fwd": {"qkv": 2, "o": 3, "s": 8}, "scaling_bwd": {"dqkv": 0, "do": 3, "dp": 5}}


def drawn(seed: int, groups: int = HEADS) -> list[torch.Tensor]:
    """Query, key, value and the output's gradient of whole sequences in bshd, the same on all
    ranks.

    The second half is larger: ranks have other amaxes.
    """
    generator = torch.Generator().manual_seed(seed)
    sizes = ((HEADS, 2.0), (groups, 1.0), (groups, 1.0), (HEADS, 0.01))
    drawn = [torch.randn(2, SEQ, n, SIZE, generator=generator) * size for n, size in sizes]
    for x in drawn:
        x[:, SEQ // 4 : SEQ // 2] *= 1.5
    return drawn


def run(attention, recipe, tensors, here) -> list[torch.Tensor]:
    """Output and gradients at a rank's positions, [batch, heads, seq, size]."""
    *leaves, gradient = (x[:, here].clone() for x in tensors)
    leaves = [x.requires_grad_() for x in leaves]
    with te.autocast(recipe=recipe):
        output = attention(*leaves)
    output.backward(gradient.flatten(2))
    made = [output.detach().unflatten(-1, (HEADS, -1)), *(x.grad for x in leaves)]
    return [x.transpose(1, 2) for x in made]


def by_head(tensors: list[torch.Tensor]) -> list[np.ndarray]:
    return [x.double().transpose(1, 2).numpy() for x in tensors]


def within(
    ours: list[torch.Tensor],
    expected: list[Known],
    here: np.ndarray,
    what: tuple,
    least: float | None = None,
) -> None:
    """least: the share of values in each tensor whose bound must be narrower than a code."""
    for name, actual, whole in zip(("output", "dq", "dk", "dv"), ours, expected, strict=True):
        mid = whole.mid[:, :, here]
        rad = whole.rad[:, :, here] + ULP * np.abs(mid)
        off = np.abs(actual.double().numpy() - mid)
        assert (off <= rad + 2.0**-120).all(), (*what, name, (off - rad).max())
        # Bounds must be narrower than a code, or any result would be within them. That of dP's
        # scale, which comes from its own amax, is not, so more values derived from its codes may
        # lie between two codes.
        tight = rad <= 2.0**-9 * (np.abs(mid) + 2.0**-6 * np.abs(mid).max())
        share = least or (0.4 if name in ("dq", "dk") else 0.9)
        assert tight.mean() > share, (*what, name, tight.mean())


def parts_of(expected) -> list[Known]:
    return [expected.output, expected.query, expected.key, expected.value]


def made(comm: str, mask: str, groups: int, group=None, **more) -> te.DotProductAttention:
    return te.DotProductAttention(
        HEADS, SIZE, num_gqa_groups=groups, qkv_format="bshd", attn_mask_type=mask,
        attention_dropout=0.0, cp_group=group or dist.group.WORLD, cp_comm_type=comm, **more,
    )  # fmt: skip


def ring_in_current_scaling(rank: int) -> None:
    """Ranks have different scales, which are sent with the codes."""
    here = np.array(chunks_of(rank, 2, SEQ))
    for mask, groups, sums in (
        ("causal", HEADS, False),
        ("no_mask", 2, False),
        ("causal", 2, True),
    ):
        tensors = drawn(1, groups)
        os.environ[OUTPUT_IN_F16] = str(int(not sums))
        ours = run(made("p2p", mask, groups), Float8CurrentScaling(fp8_dpa=True), tensors, here)
        del os.environ[OUTPUT_IN_F16]
        ring = Ring(by_head(tensors), mask == "causal", [StepCasts() for _ in range(2)], sums)
        assert ring.coded[0].inverse != ring.coded[1].inverse
        within(ours, parts_of(ring.run(delayed=False)), here, (mask, groups, sums))


def ring_in_delayed_scaling(rank: int) -> None:
    """Each rank follows its own amaxes: they are not reduced."""
    here = np.array(chunks_of(rank, 2, SEQ))
    attention = made("p2p", "causal", 2)
    recipe = DelayedScaling(
        fp8_dpa=True, amax_history_len=2, amax_compute_algo="max", reduce_amax=False
    )
    scales = [dict.fromkeys(SLOTS["scaling_fwd"] | SLOTS["scaling_bwd"], np.float32(1))] * 2
    for step in range(3):
        tensors = drawn(step, 2)
        ours = run(attention, recipe, tensors, here)
        casts = [StepCasts(scales=each) for each in scales]
        ring = Ring(by_head(tensors), True, casts)
        within(ours, parts_of(ring.run(delayed=True)), here, ("delayed", step))
        own = {}
        for direction, slots in SLOTS.items():
            state = attention.fp8_meta[direction]
            for name, slot in slots.items():
                low, high = casts[rank].amaxes[name]
                newest = state.amax_history[-1, slot].item()
                assert low * (1 - 2.0**-20) <= newest <= high * (1 + 2.0**-20), (step, name)
                own[name] = np.float32(state.scale[slot].item())
        scales = [None, None]
        dist.all_gather_object(scales, own)
        assert scales[0] != scales[1]


def heads_exchanged(rank: int) -> None:
    """With a2a each rank computes attention of two heads over whole sequences."""
    here = np.array(chunks_of(rank, 2, SEQ))
    tensors = drawn(3)
    for recipe in (Float8CurrentScaling(fp8_dpa=True), DelayedScaling(fp8_dpa=True)):
        ours = run(made("a2a", "causal", HEADS), recipe, tensors, here)
        scales = {} if isinstance(recipe, Float8CurrentScaling) else dict.fromkeys(
            SLOTS["scaling_fwd"] | SLOTS["scaling_bwd"], np.float32(1)
        )  # fmt: skip
        halves = []
        for first in (0, 2):
            parts = [x[:, first : first + 2] for x in by_head(tensors)]
            allowed = np.tril(np.ones((SEQ, SEQ), bool))
            half = fp8_attention(*parts, scale=1 / 4, casts=Casts(scales=scales), allowed=allowed)
            halves.append(parts_of(half))
        whole = [
            Known(np.concatenate([a.mid, b.mid], 1), np.concatenate([a.rad, b.rad], 1))
            for a, b in zip(*halves, strict=True)
        ]
        within(ours, whole, here, ("a2a", type(recipe).__name__))


def keys_gathered(rank: int) -> None:
    """Each of a rank's two chunks is an attention to the keys up to the end of the chunk."""
    here = np.array(chunks_of(rank, 2, SEQ))
    tensors = drawn(4)
    q, k, v, gradient = by_head(tensors)
    for recipe in (Float8CurrentScaling(fp8_dpa=True), DelayedScaling(fp8_dpa=True)):
        scales = {} if isinstance(recipe, Float8CurrentScaling) else dict.fromkeys(
            SLOTS["scaling_fwd"] | SLOTS["scaling_bwd"], np.float32(1)
        )  # fmt: skip
        ours = run(made("all_gather", "causal", HEADS), recipe, tensors, here)
        found = [Known(np.zeros(q.shape), np.zeros(q.shape)) for _ in range(4)]
        for first in range(0, SEQ, SEQ // 4):
            rows, end = slice(first, first + SEQ // 4), first + SEQ // 4
            places = np.arange(SEQ)
            part = fp8_attention(
                q[:, :, rows], k[:, :, :end], v[:, :, :end], gradient[:, :, rows], scale=1 / 4,
                casts=Casts(scales=scales), allowed=places[rows, None] >= places[None, :end],
            )  # fmt: skip
            for into, each, at in zip(
                found, parts_of(part), (rows, rows, slice(end), slice(end)), strict=True
            ):
                into = into.mid[:, :, at], into.rad[:, :, at]
                into[0][...] += each.mid
                into[1][...] += each.rad + 4 * ULP * (np.abs(into[0]) + np.abs(each.mid))
        within(ours, found, here, ("all_gather", type(recipe).__name__))


def in_blocks(rank: int) -> None:
    """Chunks begin at a block boundary, so each method has the same blocks as one process."""
    sequence = 128
    here = np.array(chunks_of(rank, 2, sequence))
    for mask, groups in (("causal", HEADS), ("no_mask", 2)):
        generator = torch.Generator().manual_seed(10)
        tensors = [
            torch.randn(2, sequence, heads, 32, generator=generator)
            for heads in (4, groups, groups, 4)
        ]
        allowed = np.tril(np.ones((sequence, sequence), bool)) if mask == "causal" else None
        expected, _ = block_attention(
            *by_head(tensors), scale=32**-0.5, dtype=torch.float32, allowed=allowed,
            merged=2,
        )  # fmt: skip
        for comm in ("p2p", "all_gather", "a2a"):
            attention = te.DotProductAttention(
                HEADS, 32, num_gqa_groups=groups, qkv_format="bshd", attn_mask_type=mask,
                cp_group=dist.group.WORLD, cp_comm_type=comm,
            )  # fmt: skip
            ours = run(attention, MXFP8BlockScaling(fp8_dpa=True), tensors, here)
            within(ours, parts_of(expected), here, ("blocks", comm, mask), least=0.3)


def codes_travel(rank: int) -> None:
    """A quarter of FP32's bytes, and the scale; gradients are sent in FP32."""
    here = np.array(chunks_of(rank, 2, SEQ))
    tensors = drawn(5)
    sent = []
    for recipe in (None, Float8CurrentScaling(fp8_dpa=True)):
        attention = made("p2p", "causal", HEADS)
        inputs = [x[:, here] for x in tensors[:3]]
        before = _C.collective_counts()[1]
        with torch.no_grad(), te.autocast(enabled=recipe is not None, recipe=recipe):
            attention(*inputs)
        sent.append(_C.collective_counts()[1] - before)
    assert sent[1] == sent[0] // 4 + 4


def casts_taken_over(rank: int) -> None:
    """With fp8_mha output and gradients are values of codes; with fp8_dpa only, they are sums of
    such values.
    """
    here = np.array(chunks_of(rank, 2, SEQ))
    for comm in ("p2p", "all_gather"):
        for name in ("fp8_dpa", "fp8_mha"):
            recipe = DelayedScaling(**{name: True})  # whose first scales are 1
            made_of = run(made(comm, "causal", HEADS), recipe, drawn(9), here)
            for i, x in enumerate(made_of):
                dtype = torch.float8_e5m2 if i else torch.float8_e4m3fn
                # all_gather casts the output of each chunk and does not sum them.
                is_cast = name == "fp8_mha" or (comm == "all_gather" and i < 2)
                assert torch.equal(x.to(dtype).float(), x) == is_cast, (comm, name, i)


def output_handed(rank: int) -> None:
    """The codes (fp8_output) are those of the whole output; gradients are as without it."""
    here = np.array(chunks_of(rank, 2, SEQ))
    *inputs, gradient = (x[:, here] for x in drawn(12))
    form = te.DType.kFloat8E4M3
    recipes = {
        DelayedScaling: te.Float8Quantizer(torch.ones(1), torch.zeros(1), form),
        Float8CurrentScaling: te.Float8CurrentScalingQuantizer(form),
    }
    for recipe, comm in itertools.product(recipes, ("p2p", "all_gather", "a2a")):
        runs = []
        for options in ({}, {"fp8_output": True}):
            leaves = [x.clone().requires_grad_() for x in inputs]
            with te.autocast(recipe=recipe(fp8_dpa=True)):
                output = made(comm, "causal", HEADS)(*leaves, **options)
            output.backward(gradient.flatten(2))
            runs.append((output, [x.grad for x in leaves]))
        (plain, expected), (handed, found) = runs
        assert isinstance(handed, te.QuantizedTensor), (recipe, comm)
        assert torch.equal(handed._data, recipes[recipe](plain.detach())._data), (recipe, comm)
        assert all(map(torch.equal, found, expected)), (recipe, comm)


def multihead(rank: int) -> None:
    """The projections around attention use its codes (fp8_mha), and results stay near high
    precision.
    """
    here = torch.tensor(chunks_of(rank, 2, SEQ))
    torch.manual_seed(1)
    options = {"attention_dropout": 0.0, "device": "cpu", "qkv_format": "bshd"}
    whole = te.MultiheadAttention(64, 4, **options)
    generator = torch.Generator().manual_seed(2)
    x, gradient = (torch.randn(2, SEQ, 64, generator=generator) for _ in range(2))
    expected_input = x.clone().requires_grad_()
    expected = whole(expected_input)
    expected.backward(gradient)
    for comm in ("p2p", "all_gather", "a2a"):
        for recipe in (DelayedScaling(fp8_mha=True), Float8CurrentScaling(fp8_mha=True)):
            own = te.MultiheadAttention(64, 4, **options)
            own.load_state_dict(whole.state_dict())
            own.set_context_parallel_group(dist.group.WORLD, None, None, comm)
            for _ in range(2):  # delayed scaling learns its scales
                inputs = x[:, here].clone().requires_grad_()
                with te.autocast(recipe=recipe, amax_reduction_group=dist.group.WORLD):
                    out = own(inputs)
                out.backward(gradient[:, here])
            for actual, right in ((out, expected), (inputs.grad, expected_input.grad)):
                off = (actual - right[:, here]).norm() / right[:, here].norm()
                assert off < 0.15, (comm, recipe, off)  # E5M2 rounds by 1 / 8 at the most


def recomputed(rank: int) -> None:
    """A checkpoint does not change a bit, even with dropout. Histories count its forward once."""
    here = np.array(chunks_of(rank, 2, SEQ))
    found = []
    for way in ("kept", "recomputed"):
        attention = te.DotProductAttention(
            HEADS, SIZE, qkv_format="bshd", attention_dropout=0.2, cp_group=dist.group.WORLD
        )
        for step in range(2):
            *leaves, gradient = (x[:, here].clone() for x in drawn(step))
            leaves = [x.requires_grad_() for x in leaves]
            torch.manual_seed(100 + step)
            with te.autocast(recipe=DelayedScaling(fp8_dpa=True)):
                call = te.checkpoint if way == "recomputed" else (lambda module, *x: module(*x))
                output = call(attention, *leaves)
            output.backward(gradient.flatten(2))
        found.append([output.detach(), *(x.grad for x in leaves), attention.get_extra_state()])
    assert all(map(torch.equal, *found))


def padded_and_empty(rank: int) -> None:
    """Values after a sequence's end have no effect and get no gradient; an empty batch runs."""
    here = np.array(chunks_of(rank, 2, SEQ))
    lengths = torch.tensor([0, 20, 20], dtype=torch.int32)
    for comm in ("p2p", "all_gather", "a2a"):
        for recipe in (Float8CurrentScaling(fp8_dpa=True), DelayedScaling(fp8_dpa=True)):
            *leaves, gradient = (x[:, here].clone() for x in drawn(6))
            leaves = [x.requires_grad_() for x in leaves]
            attention = made(comm, "padding_causal", HEADS)
            with te.autocast(recipe=recipe):
                out = attention(*leaves, cu_seqlens_q=lengths)
            out.backward(gradient.flatten(2))
            for x in (out, *(x.grad for x in leaves)):
                assert x.isfinite().all(), comm
                assert x[1].eq(0).all(), comm
                assert x[0, here >= 20].eq(0).all(), comm
                assert x[0, here < 20].ne(0).any(), comm
            nothing = [x.detach()[:0].requires_grad_() for x in leaves]
            with te.autocast(recipe=recipe):
                made(comm, "causal", HEADS)(*nothing).sum().backward()
            assert nothing[0].grad.shape == (0, SEQ // 2, HEADS, SIZE)


def refusals(rank: int) -> None:
    here = torch.tensor(chunks_of(rank, 2, SEQ))
    inputs = [x[:, here] for x in drawn(7)[:3]]
    recipe = Float8CurrentScaling(fp8_dpa=True)
    with te.autocast(recipe=recipe):
        with pytest.raises(telens.UsageError, match="core_attention_bias does not go with FP8"):
            made("p2p", "causal", HEADS)(
                *inputs,
                core_attention_bias_type="post_scale_bias",
                core_attention_bias=torch.zeros(16, 32),
            )
        os.environ["NVTE_FP8_DPA_BWD"] = "0"
        with pytest.raises(telens.UsageError, match="NVTE_FP8_DPA_BWD=0 does not go with context"):
            made("all_gather", "causal", HEADS)(*inputs)
        del os.environ["NVTE_FP8_DPA_BWD"]
        for comm in ("p2p", "a2a"):
            with pytest.raises(telens.ShapeError, match="has dtype Double; FP8 attention"):
                made(comm, "causal", HEADS)(*(x.double() for x in inputs))
    with (
        pytest.raises(telens.UsageError, match=f"attends by p2p{' in FP8' * rank} in the format"),
        te.autocast(enabled=rank == 1, recipe=recipe),
    ):
        made("p2p", "causal", HEADS)(*inputs)


def two_ranks(rank: int) -> None:
    ring_in_current_scaling(rank)
    ring_in_delayed_scaling(rank)
    heads_exchanged(rank)
    keys_gathered(rank)
    in_blocks(rank)
    codes_travel(rank)
    casts_taken_over(rank)
    output_handed(rank)
    multihead(rank)
    recomputed(rank)
    padded_and_empty(rank)
    refusals(rank)


def test_fp8_attention_on_2_ranks_matches_its_formulas():
    run_ranks(two_ranks)
