"""Attention and Transformer layers that are divided among ranks against the whole ones."""

import itertools

import pytest
import torch
import torch.distributed as dist
from distributed_workers import DEVICES, rank_device, run_ranks
from parallel_helpers import Part, normal, region, sum_over_ranks

import telens
import telens.pytorch as te

HIDDEN, FFN, HEADS, SEQ, BATCH = 64, 128, 4, 16, 2


def own_rows(name: str, whole: torch.Tensor, part: Part, heads: int, groups: int) -> torch.Tensor:
    """This rank's part of a parameter of a layer with separate or interleaved query, key, value."""
    leaf = name.rsplit(".", 1)[-1]
    if leaf.startswith("fc1"):  # gated: both halves of this rank's share
        return torch.cat([part.of(each, 0) for each in whole.chunk(2)])
    if leaf == "fc2_weight" or "proj.weight" in name:
        return part.of(whole, 1)
    divided = leaf.startswith(("query", "key", "value")) or ("qkv" in name and "norm_" not in leaf)
    return part.of(whole, 0) if divided else whole


def close(actual: torch.Tensor, expected: torch.Tensor, what: object) -> None:
    """Within 64 FP32 roundings of the largest number, because sums have another order."""
    bound = 64 * 2.0**-24 * max(expected.abs().max().item(), 1e-3)
    torch.testing.assert_close(actual, expected, rtol=0, atol=bound, msg=f"{what}: {{}}".format)


def compare(case, whole, own, part: Part, sequence: bool, precision: str, groups: int) -> None:
    with torch.no_grad():
        for name, parameter in own.named_parameters():
            parameter.copy_(own_rows(name, whole.get_parameter(name), part, HEADS, groups))
    x, gradient = (normal(SEQ, BATCH, HIDDEN, seed=seed) for seed in (1, 2))
    angles = te.RotaryPositionEmbedding(HIDDEN // HEADS)(SEQ).to(rank_device())
    rows = 0 if sequence else None
    own_x = part.of(x, rows).clone().requires_grad_()
    x.requires_grad_()
    with region(precision, dist.group.WORLD):
        expected = whole(x, rotary_pos_emb=angles)
        found = own(own_x, rotary_pos_emb=angles)
    expected.backward(gradient)
    found.backward(part.of(gradient, rows))
    close(found, part.of(expected, rows), (*case, "output"))
    close(own_x.grad, part.of(x.grad, rows), (*case, "dgrad"))
    for name, parameter in own.named_parameters():
        grad = parameter.grad
        if getattr(parameter, "sequence_parallel", False):
            grad = sum_over_ranks(grad, dist.group.WORLD)
        expected_grad = own_rows(name, whole.get_parameter(name).grad, part, HEADS, groups)
        close(grad, expected_grad, (*case, name))


def attention(rank, size, precision, sequence, groups, fused) -> None:
    torch.manual_seed(1)
    made = {"attention_dropout": 0.0, "num_gqa_groups": groups, "fuse_qkv_params": fused}
    made |= {"input_layernorm": True, "device": rank_device()}
    whole = te.MultiheadAttention(HIDDEN, HEADS, **made)
    own = te.MultiheadAttention(
        HIDDEN, HEADS, tp_group=dist.group.WORLD, set_parallel_mode=True,
        sequence_parallel=sequence, **made,
    )  # fmt: skip
    case = ("MultiheadAttention", precision, sequence, groups, fused)
    compare(case, whole, own, Part(rank, size), sequence, precision, groups)


def own_heads(rank, slopes, norm) -> None:
    """ALiBi's slopes and the gradients of the heads' norms are for all heads."""
    torch.manual_seed(1)
    made = {"attention_dropout": 0.0, "qk_norm_type": norm, "device": rank_device()}
    made |= {"attn_mask_type": "causal", "fuse_qkv_params": True}
    whole = te.MultiheadAttention(HIDDEN, HEADS, **made)
    own = te.MultiheadAttention(
        HIDDEN, HEADS, tp_group=dist.group.WORLD, set_parallel_mode=True, **made
    )
    part = Part(rank, 2)
    with torch.no_grad():
        for name, parameter in own.named_parameters():
            is_norm = name.startswith(("q_norm", "k_norm"))
            value = whole.get_parameter(name)
            parameter.copy_(value if is_norm else own_rows(name, value, part, HEADS, HEADS))
    x = normal(SEQ, BATCH, HIDDEN)
    arguments = {"core_attention_bias_type": "alibi", "alibi_slopes": slopes}
    expected, found = whole(x, **arguments), own(x, **arguments)
    close(found, expected, "ALiBi")
    expected.square().sum().backward()
    found.square().sum().backward()
    for child in ("q_norm", "k_norm"):
        weight = getattr(own, child).weight
        assert weight.sequence_parallel
        close(
            sum_over_ranks(weight.grad, dist.group.WORLD), getattr(whole, child).weight.grad, child
        )


def transformer(rank, size, precision, sequence, groups, post_norm=False) -> None:
    torch.manual_seed(1)
    made = {"attention_dropout": 0.0, "hidden_dropout": 0.0, "num_gqa_groups": groups}
    made |= {"activation": "swiglu", "fuse_qkv_params": True, "device": rank_device()}
    made |= {"apply_residual_connection_post_layernorm": post_norm}
    whole = te.TransformerLayer(HIDDEN, FFN, HEADS, **made)
    own = te.TransformerLayer(
        HIDDEN, FFN, HEADS, tp_size=size, set_parallel_mode=True, sequence_parallel=sequence,
        seq_length=SEQ, **made,
    )  # fmt: skip
    own.set_tensor_parallel_group(dist.group.WORLD)
    case = ("TransformerLayer", precision, sequence, groups, post_norm)
    compare(case, whole, own, Part(rank, size), sequence, precision, groups)


def refusals(rank: int) -> None:
    divided = {"tp_size": 2, "set_parallel_mode": True, "device": "cpu"}
    with pytest.raises(telens.UsageError, match="num_attention_heads is 3, which 2 tensor-paral"):
        te.MultiheadAttention(48, 3, **divided)
    with pytest.raises(telens.UsageError, match="num_gqa_groups is 1, which 2 tensor-parallel"):
        te.TransformerLayer(64, 64, 4, num_gqa_groups=1, **divided)
    layer = te.TransformerLayer(64, 64, 4, **divided)
    with pytest.raises(telens.UsageError, match="tp_size is 2, but tp_group is missing"):
        layer(torch.ones(16, 1, 64))
    with pytest.raises(telens.UsageError, match="num_attention_heads is 3 for 2 tensor-parallel"):
        te.DotProductAttention(3, 16, tp_size=2)


def two_ranks(rank: int) -> None:
    refusals(rank)
    for precision, sequence in itertools.product(["FP32", "MXFP8"], [False, True]):
        for groups, fused in ((4, True), (2, True), (2, False)):
            attention(rank, 2, precision, sequence, groups, fused)
        transformer(rank, 2, precision, sequence, 2)
    transformer(rank, 2, "FP32", True, 4, post_norm=True)
    own_heads(rank, None, "RMSNorm")
    slopes = torch.tensor([0.1, 0.5, 0.2, 0.7], device=rank_device())
    own_heads(rank, slopes, "LayerNorm")


@pytest.mark.parametrize("device", DEVICES)
def test_divided_transformer_layers_match_whole_ones_on_2_ranks(device):
    run_ranks(two_ranks, device=device)


def four_ranks(rank: int) -> None:
    for sequence in (False, True):
        transformer(rank, 4, "FP32", sequence, 4)


@pytest.mark.parametrize("device", DEVICES)
def test_a_divided_transformer_layer_is_the_whole_one_on_4_ranks(device):
    run_ranks(four_ranks, world_size=4, device=device)
