"""Functions that Megatron-LM calls on several ranks: master weights in parts, gathers, all
heads.
"""

import pytest
import torch
from distributed_workers import run_ranks

import telens
import telens.pytorch as te
from telens.common.recipe import Float8BlockScaling, MXFP8BlockScaling
from telens.pytorch.compat.master_weights import quantize_master_weights
from telens.pytorch.compat.ranks import (
    gather_along_first_dim,
    reduce_scatter_along_first_dim,
    thd_get_partitioned_indices,
)

RECIPES = (None, Float8BlockScaling(), MXFP8BlockScaling())
# The second rank's part begins here: inside a row and inside a block.
CUT = 5000


def _quantize_parts(rank: int) -> None:
    torch.manual_seed(1)
    for dtype in (torch.float32, torch.bfloat16):
        weights, masters, parts, starts = [], [], [], []
        for recipe in RECIPES:
            with te.quantized_model_init(recipe=recipe):
                layer = te.Linear(128, 128, bias=False, device="cpu", params_dtype=dtype)
            weights.append(layer.weight)
            masters.append(torch.randn(128 * 128))
            parts.append(masters[-1][:CUT] if rank == 0 else masters[-1][CUT:])
            starts.append(rank * CUT)
        # Only one rank has the last weight's master.
        parts[-1], starts[-1] = (masters[-1], 0) if rank == 0 else (None, None)
        quantize_master_weights(weights, parts, starts, None)
        for weight, master in zip(weights, masters, strict=True):
            expected = weight._get_quantizer()(master.view(128, 128).to(dtype)).dequantize()
            assert torch.equal(weight.dequantize(), expected)
    count = 128 * 128
    for begin, end, what in (
        (0, CUT, f"several ranks have the elements 0 to {CUT - 1}"),
        (CUT - 1, count, f"several ranks have the elements {CUT - 1} to {CUT - 1}"),
        (CUT + 2, count, f"no rank has the elements {CUT} to {CUT + 1}"),
        (CUT, count - 1, f"no rank has the elements {count - 1} to {count - 1}"),
        # As many elements as the weight has, but some twice and some not.
        (CUT - 8, count - 8, f"several ranks have the elements {CUT - 8} to {CUT - 1}"),
    ):
        first, last = (0, CUT) if rank == 0 else (begin, end)
        with pytest.raises(telens.UsageError, match=f"{what} of weight 0; expected each of its"):
            quantize_master_weights(weights[:1], [masters[0][first:last]], [first], None)


def _gather(rank: int) -> None:
    part = torch.arange(6.0).view(2, 3) + 10 * rank
    whole = torch.cat([torch.arange(6.0).view(2, 3), torch.arange(6.0).view(2, 3) + 10])
    gathered, handle = gather_along_first_dim(part, None)
    assert handle is None
    assert torch.equal(gathered, whole)
    gathered, handle = gather_along_first_dim(part, None, async_op=True)
    handle.wait()
    assert torch.equal(gathered, whole)
    quantizer = te.Float8Quantizer(torch.ones(1), torch.zeros(1), te.DType.kFloat8E4M3)
    gathered, _ = gather_along_first_dim(part, None, quantizer=quantizer)
    assert isinstance(gathered, te.Float8Tensor)
    assert torch.equal(gathered.dequantize(), quantizer(whole).dequantize())
    scattered, _ = reduce_scatter_along_first_dim(whole, None)
    assert torch.equal(scattered, 2 * part)
    with pytest.raises(telens.ShapeError, match="expected a multiple of 2 ranks"):
        reduce_scatter_along_first_dim(whole[:3], None)


def _divide_heads(rank: int) -> None:
    group = torch.distributed.group.WORLD
    torch.manual_seed(1)
    q, k, v = (torch.randn(8, 2, heads, 16) for heads in (8, 4, 4))
    expected = te.DotProductAttention(8, 16, num_gqa_groups=4)(q, k, v).view(8, 2, 8, 16)
    mine = te.DotProductAttention(8, 16, 4, tp_size=2, tp_group=group)
    shown = (mine.tp_size, mine.num_attention_heads, mine.num_gqa_groups_per_partition)
    assert shown == (2, 8, 2)
    parts = [each.chunk(2, dim=2)[rank] for each in (q, k, v)]
    own = expected.chunk(2, dim=2)[rank].reshape(8, 2, -1)
    torch.testing.assert_close(mine(*parts), own)


def _all_on_two_ranks(rank: int) -> None:
    _quantize_parts(rank)
    _gather(rank)
    _divide_heads(rank)


def test_two_ranks_quantize_gather_and_divide_as_one():
    run_ranks(_all_on_two_ranks, world_size=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_attention_heads": 5}, "num_attention_heads is 5 for 2 tensor-parallel ranks"),
        ({"num_attention_heads": 6, "num_gqa_groups": 3}, "num_gqa_groups is 3 for 2"),
    ],
)
def test_heads_that_ranks_cannot_divide_are_refused(arguments, message):
    with pytest.raises(telens.UsageError, match=message):
        te.DotProductAttention(**{"kv_channels": 16, "tp_size": 2} | arguments)


def test_a_size_without_a_group_divides_heads_too():
    module = te.DotProductAttention(4, 16, tp_size=2)
    assert module(*(torch.zeros(4, 1, 2, 16) for _ in range(3))).shape == (4, 1, 32)


def test_packed_tokens_of_a_rank_are_two_chunks_per_sequence():
    sums = torch.tensor([0, 4, 12], dtype=torch.int32)
    mine = [thd_get_partitioned_indices(sums, 12, 2, rank).tolist() for rank in range(2)]
    assert mine == [[0, 3, 4, 5, 10, 11], [1, 2, 6, 7, 8, 9]]
    with pytest.raises(telens.ShapeError, match="expected total_tokens=16"):
        thd_get_partitioned_indices(sums, 16, 2, 0)
