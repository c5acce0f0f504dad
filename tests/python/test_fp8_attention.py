"""Attention in FP8 (fp8_dpa) against its formulas in FP64, with derived bounds."""

import numpy as np
import pytest
import torch
from fp8_attention_reference import E4M3, Casts, Known, fp8_attention

import telens
import telens.pytorch as te
from telens.common.recipe import (
    CustomRecipe,
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    Format,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
)

# The slots of the tensors in the FP8 state, as in Transformer Engine.
FORWARD = {"qkv": 2, "o": 3, "s": 8}
BACKWARD = {"dqkv": 0, "do": 3, "dp": 5}
HALF_ULP = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-24}


def drawn(seed, dtype, *, batch=2, heads=4, groups=4, queries=24, keys=24, size=16):
    """Query, key, value and the output's gradient in bshd."""
    torch.manual_seed(seed)
    q = torch.randn(batch, queries, heads, size) * 2
    k = torch.randn(batch, keys, groups, size)
    v = torch.randn(batch, keys, groups, size) + 0.5
    gradient = torch.randn(batch, queries, heads * size) * 0.01
    return [x.to(dtype) for x in (q, k, v)], gradient.to(dtype)


def run(attention, recipe, tensors, gradient, **arguments):
    leaves = [x.clone().requires_grad_() for x in tensors]
    with te.autocast(recipe=recipe):
        output = attention(*leaves, **arguments)
    output.backward(gradient)
    return output.detach(), [x.grad for x in leaves]


def by_head(x):
    return x.double().transpose(1, 2).numpy()


def assert_within(ours: torch.Tensor, expected: Known, dtype, name: str, narrow=0.9) -> None:
    bound = expected.rounded(HALF_ULP[dtype])
    off = np.abs(ours.double().numpy() - bound.mid)
    subnormal = 2.0**-25 if dtype == torch.float16 else 2.0**-120
    assert (off <= bound.rad + subnormal).all(), (name, (off - bound.rad).max())
    # Most bounds must be narrower than a code, or any result would be within them.
    tight = expected.rad <= 2.0**-9 * (np.abs(expected.mid) + 2.0**-6 * np.abs(expected.mid).max())
    assert tight.mean() > narrow, (name, tight.mean())


def check(made, tensors, gradient, dtype, **known):
    output, gradients = made
    heads, size = tensors[0].shape[2:]
    expected = fp8_attention(
        *(by_head(x) for x in tensors),
        by_head(gradient.unflatten(-1, (heads, size))),
        scale=1 / np.sqrt(size),
        **known,
    )
    assert_within(
        output.unflatten(-1, (heads, size)).transpose(1, 2), expected.output, dtype, "output"
    )
    for name, ours in zip(("query", "key", "value"), gradients, strict=True):
        # E4M3 has twice as many midpoints between codes as E5M2, at which the order of an FP32 sum
        # decides.
        narrow = 0.6 if known["casts"].backward is E4M3 else 0.9
        assert_within(ours.transpose(1, 2), getattr(expected, name), dtype, name, narrow)
    return expected


def causal(queries, keys):
    return np.tril(np.ones((queries, keys), bool))


@pytest.mark.parametrize("fp8_format", [Format.HYBRID, Format.E4M3], ids=lambda f: f.name)
@pytest.mark.parametrize("mask", ["no_mask", "causal"])
@pytest.mark.parametrize("groups", [4, 2, 1])
@pytest.mark.parametrize("dtype", HALF_ULP, ids=str)
def test_current_scaling_is_the_formulas_forward_and_backward(dtype, groups, mask, fp8_format):
    tensors, gradient = drawn(1, dtype, groups=groups)
    attention = te.DotProductAttention(
        4, 16, num_gqa_groups=groups, qkv_format="bshd", attn_mask_type=mask
    )
    recipe = Float8CurrentScaling(fp8_dpa=True, fp8_format=fp8_format)
    backward = {} if fp8_format == Format.HYBRID else {"backward": E4M3}
    check(
        run(attention, recipe, tensors, gradient),
        tensors,
        gradient,
        dtype,
        casts=Casts(**backward),
        allowed=causal(24, 24) if mask == "causal" else None,
    )


@pytest.mark.parametrize("dtype", HALF_ULP, ids=str)
def test_a_variable_has_the_backward_sum_up_the_outputs_codes(dtype, monkeypatch):
    tensors, gradient = drawn(13, dtype, groups=2)
    attention = te.DotProductAttention(4, 16, num_gqa_groups=2, qkv_format="bshd")
    recipe = Float8CurrentScaling(fp8_dpa=True)
    before = run(attention, recipe, tensors, gradient)
    monkeypatch.setenv("NVTE_DPA_FP8CS_O_in_F16", "0")
    made = run(attention, recipe, tensors, gradient)
    assert torch.equal(made[0], before[0])
    assert not torch.equal(made[1][0], before[1][0])
    check(
        made,
        tensors,
        gradient,
        dtype,
        casts=Casts(),
        allowed=causal(24, 24),
        sums_output_codes=True,
    )


def test_more_queries_than_are_taken_at_a_time_are_one_cast():
    tensors, gradient = drawn(2, torch.float32, batch=1, heads=1, groups=1, queries=300, keys=280)
    attention = te.DotProductAttention(1, 16, qkv_format="bshd", attn_mask_type="causal")
    recipe = Float8CurrentScaling(fp8_dpa=True)
    check(
        run(attention, recipe, tensors, gradient),
        tensors,
        gradient,
        torch.float32,
        casts=Casts(),
        allowed=causal(300, 280),
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_delayed_scaling_takes_each_scale_from_the_amaxes_before(dtype):
    attention = te.DotProductAttention(
        4, 16, num_gqa_groups=2, qkv_format="bshd", attn_mask_type="causal"
    )
    recipe = DelayedScaling(fp8_dpa=True, amax_history_len=2, amax_compute_algo="max")
    scales = dict.fromkeys(FORWARD | BACKWARD, np.float32(1))
    seen = {name: [] for name in scales}
    for step in range(4):
        tensors, gradient = drawn(step, dtype, groups=2)
        tensors = [x * (1, 1.25, 0.5)[step % 3] for x in tensors]
        casts = Casts(scales=scales)
        made = run(attention, recipe, tensors, gradient)
        check(made, tensors, gradient, dtype, casts=casts, allowed=causal(24, 24))
        scales = {}
        for direction, slots in (("scaling_fwd", FORWARD), ("scaling_bwd", BACKWARD)):
            state = attention.fp8_meta[direction]
            largest = 448 if direction == "scaling_fwd" else 57344
            for name, slot in slots.items():
                newest = state.amax_history[-1 if len(state.amax_history) == 2 else 0, slot].item()
                low, high = casts.amaxes[name]
                assert low * (1 - 2.0**-20) <= newest <= high * (1 + 2.0**-20), (step, name)
                seen[name].append(np.float32(newest))
                scales[name] = np.float32(state.scale[slot].item())
                assert scales[name] == np.float32(largest) / max(seen[name][-2:]), (step, name)
    others = [slot for slot in range(9) if slot not in FORWARD.values()]
    assert (attention.fp8_meta["scaling_fwd"].scale[others] == 1).all()


def run_with_bias_sink_and_padding(recipe, tensors, gradient):
    """Four heads and two sequences, of which the second has 10 tokens. Returns the attention, its
    bias, the result of run(), and the arguments of the reference.
    """
    tokens, size = tensors[0].shape[1], tensors[0].shape[3]
    attention = te.DotProductAttention(
        4, size, qkv_format="bshd", attn_mask_type="padding", softmax_type="learnable"
    )
    with torch.no_grad():
        attention.softmax_offset.copy_(torch.linspace(-1, 2, 4).view(1, 4, 1, 1))
    bias = torch.randn(1, 4, tokens, tokens, requires_grad=True)
    lengths = torch.tensor([0, tokens, tokens + 10], dtype=torch.int32)
    made = run(
        attention,
        recipe,
        tensors,
        gradient,
        core_attention_bias_type="post_scale_bias",
        core_attention_bias=bias,
        cu_seqlens_q=lengths,
        cu_seqlens_kv=lengths,
    )
    assert (made[0][1, 10:] == 0).all()
    allowed = np.ones((2, 1, tokens, tokens), bool)
    allowed[1, :, :, 10:] = allowed[1, :, 10:] = False
    sink = attention.softmax_offset.detach().double().numpy()
    scores = {
        "allowed": allowed,
        "bias": bias.detach().double().numpy(),
        "sink": np.where(allowed.any(-1, keepdims=True), sink, -np.inf),
    }
    return attention, bias, made, scores


def test_bias_sink_and_padding_apply_to_scores():
    tensors, gradient = drawn(3, torch.float32)
    recipe = Float8CurrentScaling(fp8_dpa=True)
    attention, bias, made, scores = run_with_bias_sink_and_padding(recipe, tensors, gradient)
    expected = check(made, tensors, gradient, torch.float32, casts=Casts(), **scores)
    of_bias = expected.bias
    bound = of_bias.rad.sum(0, keepdims=True) + 2.0**-22 * np.abs(of_bias.mid).sum(0, keepdims=True)
    off = np.abs(bias.grad.double().numpy() - of_bias.mid.sum(0, keepdims=True))
    assert (off <= bound + 2.0**-120).all()
    assert np.allclose(
        attention.softmax_offset.grad.flatten().double().numpy(),
        expected.sink,
        rtol=1e-4,
        atol=1e-8,
    )


def test_packed_sequences_have_the_values_of_padded_ones():
    tensors, gradient = drawn(4, torch.bfloat16)
    lengths = torch.tensor([0, 24, 48], dtype=torch.int32)
    recipe = Float8CurrentScaling(fp8_dpa=True)
    options = {"num_attention_heads": 4, "kv_channels": 16, "attn_mask_type": "padding"}
    padded = run(
        te.DotProductAttention(qkv_format="bshd", **options),
        recipe,
        tensors,
        gradient,
        cu_seqlens_q=lengths,
        cu_seqlens_kv=lengths,
    )
    packed = run(
        te.DotProductAttention(qkv_format="thd", **options),
        recipe,
        [x.flatten(0, 1) for x in tensors],
        gradient.flatten(0, 1),
        cu_seqlens_q=lengths,
        cu_seqlens_kv=lengths,
    )
    assert torch.equal(packed[0], padded[0].flatten(0, 1))
    for ours, theirs in zip(packed[1], padded[1], strict=True):
        assert torch.equal(ours, theirs.flatten(0, 1))


@pytest.mark.parametrize("recipe", [DelayedScaling, Float8CurrentScaling])
def test_an_empty_batch_has_an_empty_output_and_empty_gradients(recipe):
    tensors, gradient = drawn(5, torch.bfloat16, batch=0)
    attention = te.DotProductAttention(4, 16, qkv_format="bshd")
    output, gradients = run(attention, recipe(fp8_dpa=True), tensors, gradient)
    assert output.shape == (0, 24, 64)
    assert [x.shape for x in gradients] == [x.shape for x in tensors]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_values_propagate_and_keep_the_scale(bad):
    tensors, gradient = drawn(6, torch.float32)
    attention = te.DotProductAttention(4, 16, qkv_format="bshd", attn_mask_type="no_mask")
    recipe = DelayedScaling(fp8_dpa=True, amax_history_len=1, amax_compute_algo="most_recent")
    run(attention, recipe, tensors, gradient)
    before = attention.fp8_meta["scaling_fwd"].scale.clone()
    tensors[2][0, 3, 0, 0] = bad
    output, gradients = run(attention, recipe, tensors, gradient)
    column = output[0, :, 0]
    assert column.isnan().all() if bad != bad else column.isfinite().all()  # Inf saturates
    assert output[1].isfinite().all()
    assert gradients[0][1].isfinite().all()
    after = attention.fp8_meta["scaling_fwd"].scale
    assert after[FORWARD["qkv"]] == before[FORWARD["qkv"]]


@pytest.mark.parametrize("recipe", [DelayedScaling, Float8CurrentScaling, MXFP8BlockScaling])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_a_recomputed_attention_has_the_bits_of_a_kept_one(recipe, dropout):
    def trained(way):
        torch.manual_seed(7)
        attention = te.DotProductAttention(4, 16, qkv_format="bshd", attention_dropout=dropout)
        made = []
        for step in range(3):
            tensors, gradient = drawn(step, torch.bfloat16)
            leaves = [x.requires_grad_() for x in tensors]
            torch.manual_seed(100 + step)
            with te.autocast(recipe=recipe(fp8_dpa=True, **options)):
                if way == "checkpoint":
                    output = te.checkpoint(attention, *leaves)
                else:
                    output = attention(*leaves, checkpoint_core_attention=way == "core")
            output.backward(gradient)
            made += [output.detach(), *(x.grad for x in leaves)]
        return made, attention.get_extra_state()

    options = {"amax_history_len": 1} if recipe is DelayedScaling else {}
    plain, state = trained("plain")
    for way in ("core", "checkpoint"):
        again, other_state = trained(way)
        assert all(map(torch.equal, plain, again)), way
        assert torch.equal(state, other_state), way


def test_evaluation_leaves_no_trace_in_the_history():
    tensors, gradient = drawn(8, torch.bfloat16)
    attention = te.DotProductAttention(4, 16, qkv_format="bshd")
    recipe = DelayedScaling(fp8_dpa=True)
    run(attention, recipe, tensors, gradient)
    state = attention.get_extra_state()
    with torch.no_grad(), te.autocast(recipe=recipe):
        attention(*(x * 10 for x in tensors))
    assert torch.equal(attention.get_extra_state(), state)


def test_state_dict_contains_the_state_if_there_is_one():
    tensors, gradient = drawn(9, torch.bfloat16)
    attention = te.DotProductAttention(4, 16, qkv_format="bshd")
    recipe = DelayedScaling(fp8_dpa=True, amax_history_len=4)
    run(attention, DelayedScaling(), tensors, gradient)
    assert "_extra_state" not in attention.state_dict()
    for _ in range(2):
        run(attention, recipe, tensors, gradient)
    other = te.DotProductAttention(4, 16, qkv_format="bshd")
    other.load_state_dict(attention.state_dict())
    ours, theirs = (run(each, recipe, tensors, gradient) for each in (attention, other))
    assert torch.equal(ours[0], theirs[0])
    assert all(map(torch.equal, ours[1], theirs[1]))
    assert attention.fp8_meta["num_gemms"] == 3
    assert len(attention.quantizers["scaling_fwd"]) == 9
    fresh = run(te.DotProductAttention(4, 16, qkv_format="bshd"), recipe, tensors, gradient)
    assert not torch.equal(fresh[0], ours[0])


@pytest.mark.parametrize("recipe", [Float8BlockScaling, NVFP4BlockScaling])
@pytest.mark.parametrize("name", ["fp8_dpa", "fp8_mha"])
def test_recipes_that_no_attention_casts_by_refuse_it(recipe, name):
    with pytest.raises(telens.UsageError, match=f"{recipe.__name__}: {name}=True is not supported"):
        recipe(**{name: True})
    changed = recipe()
    setattr(changed, name, True)
    with pytest.raises(telens.UsageError, match=f"{name}=True"), te.autocast(recipe=changed):
        te.Linear(32, 32)(torch.randn(32, 32))


def test_a_custom_recipe_refuses_it_too():
    with pytest.raises(telens.UsageError, match="CustomRecipe: fp8_dpa=True is not supported"):
        CustomRecipe(qfactory=lambda role: None, fp8_dpa=True)


def test_double_precision_is_refused_by_name():
    tensors, gradient = drawn(10, torch.float64)
    with pytest.raises(telens.ShapeError, match="query has dtype Double; FP8 attention"):
        run(
            te.DotProductAttention(4, 16, qkv_format="bshd"),
            DelayedScaling(fp8_dpa=True),
            tensors,
            gradient,
        )


def test_torchs_own_checkpoint_is_refused_by_name():
    tensors, _ = drawn(11, torch.bfloat16)
    attention = te.DotProductAttention(4, 16, qkv_format="bshd")
    leaves = [x.requires_grad_() for x in tensors]
    with te.autocast(recipe=DelayedScaling(fp8_dpa=True)):
        output = torch.utils.checkpoint.checkpoint(attention, *leaves, use_reentrant=False)
    with pytest.raises(telens.UsageError, match="recomputes this FP8 attention"):
        output.sum().backward()


def test_attention_is_unchanged_without_fp8_dpa():
    tensors, gradient = drawn(12, torch.bfloat16)
    attention = te.DotProductAttention(4, 16, qkv_format="bshd")
    plain = [x.clone().requires_grad_() for x in tensors]
    output = attention(*plain)
    output.backward(gradient)
    under, gradients = run(attention, DelayedScaling(), tensors, gradient)
    assert torch.equal(output, under)
    assert all(torch.equal(x.grad, y) for x, y in zip(plain, gradients, strict=True))
