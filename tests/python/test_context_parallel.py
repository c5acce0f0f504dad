"""Attention that ranks share along the sequence (context parallelism) beside the whole one."""

import copy
import itertools
import pickle

import pytest
import torch
import torch.distributed as dist
from context_helpers import (
    HEADS,
    LENGTHS,
    SIZE,
    Case,
    compare,
    make,
    places,
    sums,
    two_levels,
    whole_tensors,
)  # fmt: skip
from distributed_workers import run_ranks

import telens
import telens.pytorch as te
from telens.common.recipe import Float8CurrentScaling

COMMS = ("p2p", "all_gather", "a2a")
DTYPES = (torch.float64, torch.bfloat16)


def cases(comms) -> list[Case]:
    """Masks by layouts by groups, and each thing that only some of the methods have."""
    found = []
    for comm in comms:
        found += [
            Case(comm, mask, layout, groups)
            for mask, layout, groups in itertools.product(
                ("causal", "no_mask"), ("sbhd", "bshd"), (HEADS, 2)
            )
        ]
        found += [Case(comm, mask) for mask in ("padding", "padding_causal")]
        found += [Case(comm, mask, "thd", 2) for mask in ("padding", "padding_causal")]
        found += [Case(comm, dtype=dtype) for dtype in DTYPES]
        found += [Case(comm, call={"checkpoint_core_attention": True})]
    return found


WINDOWS = [
    Case(comm, mask, layout, window=window)
    for comm in ("all_gather", "a2a")
    for mask, layout, window in (
        ("causal", "sbhd", (5, 0)), ("no_mask", "bshd", (5, 3)), ("padding_causal", "thd", (5, 0))
    )
]  # fmt: skip


def two_ranks(rank: int) -> None:
    for case in cases(COMMS):
        compare(case, rank, 2, dist.group.WORLD)
    for case in WINDOWS:
        compare(case, rank, 2, dist.group.WORLD)
    compare(Case("a2a", options={"softmax_type": "off-by-one"}), rank, 2, dist.group.WORLD)
    learnable_softmax(rank)
    copies(rank)
    sums_of_two_dtypes(rank)
    ranks_that_differ(rank)
    refusals(rank)


def learnable_softmax(rank: int) -> None:
    """Each rank has the gradient of its own heads."""
    case = Case("a2a", options={"softmax_type": "learnable"})
    whole, own = make(case), make(case, cp_group=dist.group.WORLD, cp_comm_type="a2a")
    tensors = whole_tensors(case)[:3]
    dim, here = places("sbhd", rank, 2)
    offset = torch.tensor([0.5, -1.0, 2.0, 0.0]).view(1, HEADS, 1, 1)
    for attention in (whole, own):
        with torch.no_grad():
            attention.softmax_offset.copy_(offset)
    expected = whole(*tensors)
    found = own(*(x.index_select(dim, here) for x in tensors))
    torch.testing.assert_close(found, expected.index_select(dim, here))
    expected.square().sum().backward()
    found.square().sum().backward()
    gradient = own.softmax_offset.grad
    assert gradient.view(2, -1)[1 - rank].eq(0).all()
    dist.all_reduce(gradient)
    torch.testing.assert_close(gradient, whole.softmax_offset.grad)


def copies(rank: int) -> None:
    case = Case("p2p")
    inputs = [x[: SIZE * 2] for x in whole_tensors(case)[:3]]
    divided = make(case)
    whole = divided(*inputs)
    divided.set_context_parallel_group(dist.group.WORLD, [0, 1], None, "p2p")
    assert divided.cp_group is dist.group.WORLD
    shared = divided(*inputs)
    assert not torch.equal(shared, whole)
    assert torch.equal(copy.deepcopy(divided)(*inputs), shared)
    unpickled = pickle.loads(pickle.dumps(divided))
    with pytest.raises(telens.UsageError, match="divided among 2 ranks, and a pickle keeps no cp"):
        unpickled(*inputs)
    unpickled.set_context_parallel_group(None)
    assert torch.equal(unpickled(*inputs), whole)


def refused(match: str, case: Case, **more) -> None:
    group = more.pop("group", dist.group.WORLD)
    positions = more.pop("positions", SIZE)
    inputs = [x[:positions] for x in whole_tensors(case)[:3]]
    with pytest.raises(telens.UsageError, match=match):
        make(case, cp_group=group, cp_comm_type=case.comm)(*inputs, **more)


def sums_of_two_dtypes(rank: int) -> None:
    """cu_seqlens_q and cu_seqlens_kv with one content are alike, whatever integers they are."""
    case = Case("p2p", "padding_causal", call={"cu_seqlens_kv": sums(LENGTHS).long()})
    compare(case, rank, 2, dist.group.WORLD)


def ranks_that_differ(rank: int) -> None:
    """Both say so before they exchange anything, and then go on."""
    shared = [x[:SIZE] for x in whole_tensors(Case("p2p"))[:3]]
    wide = [x.double() for x in shared]
    # The case of each rank, and what is said of it.
    cases = [
        (Case("p2p"), Case("all_gather"), shared, "attends by {}", ("p2p", "all_gather")),
        (Case("a2a", "no_mask"), Case("a2a"), shared, "attn_mask_type {}", ("no_mask", "causal")),
        (Case("p2p", layout="bshd"), Case("p2p"), shared, "format {}", ("bshd", "sbhd")),
        (Case("p2p"), Case("p2p"), [shared, wide], r"query \S.*?\] {}", ("Float", "Double")),
    ]
    for *each, inputs, words, names in cases:
        attention = make(each[rank], cp_group=dist.group.WORLD, cp_comm_type=each[rank].comm)
        own = inputs[rank] if inputs is not shared else shared
        match = f"rank {rank} of cp_group .*{words.format(names[rank])}.*rank {1 - rank} "
        with pytest.raises(telens.UsageError, match=match):
            attention(*own)
    compare(Case("p2p"), rank, 2, dist.group.WORLD)


def refusals(rank: int) -> None:
    refused("cp_comm_type='ring' is not supported", Case("ring"))
    refused("cp_group has 1 groups; .* a2a.p2p takes a list of two", Case("a2a+p2p"))
    refused("has 2 groups; cp_comm_type p2p takes one", Case("p2p"), group=[dist.group.WORLD] * 2)
    refused("window_size under p2p does not go with", Case("p2p", window=(4, 0)))
    for comm in ("p2p", "all_gather"):
        refused(
            "softmax_type other than vanilla does not go with .*; use cp_comm_type a2a",
            Case(comm, options={"softmax_type": "off-by-one"}),
        )
    mask = torch.zeros(1, 1, SIZE, SIZE, dtype=torch.bool)
    refused("arbitrary does not go with", Case("a2a", "arbitrary"), attention_mask=mask)
    refused("give cu_seqlens_q, the sums of the whole", Case("a2a", "padding"))
    refused("a bias of the scores does not go with", Case("p2p"), core_attention_bias_type="alibi")
    with te.autocast(recipe=Float8CurrentScaling(fp8_dpa=True)):
        refused("fp8_dpa. does not go with context parallelism", Case("p2p"))
    refused("return_max_logit does not go", Case("a2a", options={"return_max_logit": True}))
    refused("4 heads in 1 groups are not divided by the 2 ranks", Case("a2a", groups=1))
    refused("15 positions on a context-parallel rank; expected an even", Case("p2p"), positions=15)
    odd = torch.tensor([0, 6, 32], dtype=torch.int32)
    thd = Case("p2p", "padding_causal", "thd")
    refused("sequence 0 has 6 places; 2 context-parallel ranks divide", thd, cu_seqlens_q=odd)
    layer = te.TransformerLayer(64, 64, 4, device="cpu")
    with pytest.raises(telens.UsageError, match="cp_global_ranks has 3 ranks and cp_group 2"):
        layer.set_context_parallel_group(dist.group.WORLD, [0, 1, 2])
    with pytest.raises(telens.UsageError, match="cp_comm_type must be one of p2p, all_gather"):
        layer.set_context_parallel_group(dist.group.WORLD, None, None, "nccl")


def test_attention_shared_by_2_ranks_is_the_whole_one():
    run_ranks(two_ranks)


def four_ranks(rank: int) -> None:
    levels = two_levels(rank)
    for case in cases(["a2a+p2p"]):
        compare(case, rank, 4, levels)
    for comm in COMMS:
        for mask, layout in (("causal", "sbhd"), ("no_mask", "bshd"), ("padding_causal", "thd")):
            compare(Case(comm, mask, layout), rank, 4, dist.group.WORLD)
    # One of two levels with one rank: the other method.
    alone = [dist.new_group([each]) for each in range(4)][rank]
    for groups in ([alone, dist.group.WORLD], [dist.group.WORLD, alone]):
        compare(Case("a2a+p2p"), rank, 4, groups)


def test_attention_shared_by_4_ranks_is_the_whole_one():
    run_ranks(four_ranks, world_size=4)
