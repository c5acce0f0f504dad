"""Attention whose sequence is divided among ranks (context parallelism) against whole attention."""

import copy
import dataclasses
import itertools
import pickle

import pytest
import torch
import torch.distributed as dist
from context_helpers import (
    BATCH,
    HEADS,
    LENGTHS,
    SEQ,
    SIZE,
    Case,
    attend,
    close,
    compare,
    make,
    places,
    plain_kernels,
    sums,
    two_levels,
    whole_tensors,
)  # fmt: skip
from distributed_workers import DEVICES, rank_device, run_ranks
from torch.utils._python_dispatch import TorchDispatchMode

import telens
import telens.pytorch as te

COMMS = ("p2p", "all_gather", "a2a")
DTYPES = (torch.float64, torch.bfloat16)


def cases(comms) -> list[Case]:
    """Masks, layouts and groups in combination, and each option that only some methods have."""
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


def matrix(rank: int) -> None:
    with plain_kernels():
        for case in (*cases(COMMS), *WINDOWS):
            compare(case, rank, 2, dist.group.WORLD)
        compare(Case("a2a", options={"softmax_type": "off-by-one"}), rank, 2, dist.group.WORLD)


def two_ranks(rank: int) -> None:
    matrix(rank)
    learnable_softmax(rank)
    copies(rank)
    biases(rank, 2)
    bias_without_gradient(rank)
    sums_of_two_dtypes(rank)
    ranks_that_differ(rank)
    bias_of_one_rank(rank)
    refusal_of_one_rank(rank)
    other_lengths(rank)
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


# Mask, layout, groups, type and sizes of a bias: by batch and head, by head, by neither, by key
# only.
BIASES = [
    ("causal", "sbhd", HEADS, "post_scale_bias", (BATCH, HEADS, SEQ, SEQ)),
    ("no_mask", "bshd", 2, "post_scale_bias", (1, HEADS, SEQ, SEQ)),
    ("padding_causal", "sbhd", HEADS, "pre_scale_bias", (SEQ, SEQ)),
    ("causal", "bshd", 2, "post_scale_bias", (1, 1, 1, SEQ)),
]


def biases(rank: int, size: int) -> None:
    """A rank has the rows of its own queries; a gradient that all rows share is summed over the
    ranks.
    """
    generator = torch.Generator().manual_seed(3)
    for mask, layout, groups, kind, sizes in BIASES:
        case = Case("p2p", mask, layout, groups)
        whole, (dim, here) = whole_tensors(case), places(layout, rank, size)
        bias = torch.randn(sizes, generator=generator)
        rows = here if sizes[-2] > 1 else torch.tensor([0])
        found = []
        for parts, own_bias, more in (
            (whole, bias.clone(), {}),
            ([x.index_select(dim, here) for x in whole], bias.index_select(-2, rows),
             {"cp_group": dist.group.WORLD}),
        ):  # fmt: skip
            own_bias.requires_grad_()
            call = {"core_attention_bias_type": kind, "core_attention_bias": own_bias}
            biased = dataclasses.replace(case, call=call)
            found.append([*attend(biased, make(biased, **more), parts), own_bias.grad])
        (*expected, of_whole), (*actual, of_own) = found
        for name, own, right in zip(("output", "dq", "dk", "dv"), actual, expected, strict=True):
            close(own, right.index_select(dim, here), (mask, kind, name))
        if sizes[-2] == 1:
            dist.all_reduce(of_own)
        close(of_own, of_whole.index_select(-2, rows), (mask, kind, "gradient of the bias"))


class CountedZeros(TorchDispatchMode):
    """Counts the calls of zeros_like."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket is torch.ops.aten.zeros_like
        return func(*args, **(kwargs or {}))


def bias_without_gradient(rank: int) -> None:
    """No gradient is made for a bias that needs none, which saves one tensor of zeros."""
    dim, here = places("sbhd", rank, 2)
    counts = []
    for wants in (True, False):
        bias = torch.ones(1, 1, 1, SEQ).requires_grad_(wants)
        call = {"core_attention_bias_type": "post_scale_bias", "core_attention_bias": bias}
        case = Case("p2p", call=call)
        inputs = [x.index_select(dim, here) for x in whole_tensors(case)]
        with CountedZeros() as counted:
            attend(case, make(case, cp_group=dist.group.WORLD), inputs)
        counts.append(counted.count)
    assert counts[0] - counts[1] == 1, counts


def other_lengths(rank: int) -> None:
    """The contents of cu_seqlens are compared in an attention's first call, like everything
    else.
    """
    x = [each[:SIZE] for each in whole_tensors(Case("p2p"))[:3]]
    mine, theirs = [30, 17 - rank], [30, 16 + rank]
    attention = make(Case("p2p", "padding"), cp_group=dist.group.WORLD)
    match = rf"cu_seqlens_q \[0, 30, {sum(mine)}\], rank {1 - rank} .* \[0, 30, {sum(theirs)}\];"
    with pytest.raises(telens.UsageError, match=match):
        attention(*x, cu_seqlens_q=sums(mine))
    packed = torch.zeros(40, HEADS, SIZE), torch.zeros(40, HEADS, SIZE), torch.zeros(40, HEADS, 24)
    lengths = [4] * 19 + [3 + rank]
    attention = make(Case("p2p", "padding", "thd"), cp_group=dist.group.WORLD)
    match = r"\[0, 4, .*, \.\.\.\] of 21 numbers with the digest"
    with pytest.raises(telens.UsageError, match=match):
        attention(*packed, cu_seqlens_q=sums(lengths), cu_seqlens_q_padded=sums([4] * 20))


def sums_of_two_dtypes(rank: int) -> None:
    """cu_seqlens_q and cu_seqlens_kv with the same content are equal, whatever their integer
    types.
    """
    case = Case("p2p", "padding_causal", call={"cu_seqlens_kv": sums(LENGTHS).long()})
    compare(case, rank, 2, dist.group.WORLD)


def ranks_that_differ(rank: int) -> None:
    """Both ranks report the difference before they exchange data, and can continue."""
    shared = [x[:SIZE] for x in whole_tensors(Case("p2p"))[:3]]
    wide = [x.double() for x in shared]
    # The case of each rank, and words of the error.
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


def bias_of_one_rank(rank: int) -> None:
    """If one rank refuses its bias, the other does not wait, because sizes are compared first."""
    inputs = [x[:SIZE] for x in whole_tensors(Case("p2p"))[:3]]
    attention = make(Case("p2p"), cp_group=dist.group.WORLD)
    bias = torch.zeros(SIZE, SEQ if rank == 0 else SIZE)
    match = rf"core_attention_bias \[16, {bias.size(1)}\] Float, rank {1 - rank} attends by p2p"
    with pytest.raises(telens.UsageError, match=match):
        attention(*inputs, core_attention_bias=bias, core_attention_bias_type="post_scale_bias")


def refused_by_last(rank: int, case: Case, size: int, group: object, message: str) -> None:
    """The last rank refuses its inputs; the others report that instead of waiting for it."""
    positions = 15 if rank == size - 1 else 16
    inputs = [x[:positions] for x in whole_tensors(case)[:3]]
    own = "^DotProductAttention: 15 positions on a context-parallel rank"
    with pytest.raises(telens.UsageError, match=own if positions == 15 else message):
        make(case, cp_group=group, cp_comm_type=case.comm)(*inputs)


def refusal_of_one_rank(rank: int) -> None:
    for comm in ("p2p", "a2a"):
        message = (
            rf"rank 0 of cp_group attends by {comm} .*, rank 1 refuses its arguments \(.*15 posit"
        )
        for _ in range(3):
            refused_by_last(rank, Case(comm), 2, dist.group.WORLD, message)
        compare(Case(comm), rank, 2, dist.group.WORLD)


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
    refused("alibi does not go .*; in Transformer Engine neither", Case("p2p"),
            core_attention_bias_type="alibi")  # fmt: skip
    shape = r"core_attention_bias is \[16, 16\]; under .* = \[2, 4, 16, 32\] and covers every key"
    with pytest.raises(telens.ShapeError, match=shape):
        make(Case("p2p"), cp_group=dist.group.WORLD)(
            *(x[:SIZE] for x in whole_tensors(Case("p2p"))[:3]),
            core_attention_bias=torch.zeros(SIZE, SIZE),
            core_attention_bias_type="post_scale_bias",
        )
    biased = {"core_attention_bias_type": "post_scale_bias"}
    for comm in ("all_gather", "a2a"):
        refused("core_attention_bias under all_gather, a2a or .* use cp_comm_type p2p", Case(comm),
                core_attention_bias=torch.zeros(SIZE, SEQ), **biased)  # fmt: skip
    refused("core_attention_bias of packed sequences .thd. does not",
            Case("p2p", "padding", "thd"), cu_seqlens_q=sums([32]), **biased)  # fmt: skip
    refused("core_attention_bias_type post_scale_bias needs core_attention_bias", Case("p2p"),
            **biased)  # fmt: skip
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


@pytest.mark.parametrize("device", DEVICES)
def test_attention_shared_by_2_ranks_is_the_whole_one(device):
    run_ranks(two_ranks if device == "cpu" else matrix, device=device)


def four_ranks(rank: int) -> None:
    levels = two_levels(rank)
    with plain_kernels():
        for case in cases(["a2a+p2p"]):
            compare(case, rank, 4, levels)
    if rank_device().type == "cuda":
        return
    biases(rank, 4)
    refused_by_last(rank, Case("a2a+p2p"), 4, levels, r"refuses its arguments \(.*15 positions")
    compare(Case("a2a+p2p"), rank, 4, levels)
    for comm in COMMS:
        for mask, layout in (("causal", "sbhd"), ("no_mask", "bshd"), ("padding_causal", "thd")):
            compare(Case(comm, mask, layout), rank, 4, dist.group.WORLD)
    # If one of the two levels has one rank, the method of the other level is used.
    alone = [dist.new_group([each]) for each in range(4)][rank]
    for groups in ([alone, dist.group.WORLD], [dist.group.WORLD, alone]):
        compare(Case("a2a+p2p"), rank, 4, groups)


@pytest.mark.parametrize("device", DEVICES)
def test_attention_shared_by_4_ranks_is_the_whole_one(device):
    run_ranks(four_ranks, world_size=4, device=device)
