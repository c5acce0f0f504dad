"""MoEDispatcher: experts on several ranks against one process with all of them."""

import pytest
import torch
import torch.distributed as dist
from debug_helpers import section
from distributed_workers import DEVICES, rank_device, run_ranks

import telens
import telens._C as _C
import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import DelayedScaling, Float8CurrentScaling, MXFP8BlockScaling
from telens.debug import model_state

RANKS, EXPERTS, HIDDEN = 3, 6, 32  # two experts a rank: chunks are no square
# The number of tokens on each rank; in the last case no rank has any.
TOKENS = {
    "uneven": (5, 9, 7), "one rank has none": (6, 0, 3), "nothing": (0, 0, 0),
    "one rank gets none": (5, 9, 7),
}  # fmt: skip
RECIPES = {"delayed": DelayedScaling, "current": Float8CurrentScaling, "mxfp8": MXFP8BlockScaling}


def routing_of(tokens: int) -> torch.Tensor:
    """Tokens that go to zero to four experts; no token goes to the second expert."""
    generator = torch.Generator().manual_seed(tokens)
    routing = torch.rand(tokens, EXPERTS, generator=generator) < 0.4
    routing[:, 1] = False
    return routing


class Whole:
    """The batch of all ranks, and this rank's part of it."""

    def __init__(self, name: str, dtype: torch.dtype, rank: int) -> None:
        tokens = TOKENS[name]
        torch.manual_seed(1)
        device = rank_device()
        self.hidden = torch.randn(sum(tokens), HIDDEN).to(device, dtype)
        self.routing = routing_of(sum(tokens)).to(device)
        if name == "one rank gets none":
            self.routing[:, 4:] = False  # the experts of the last one
        self.probs = torch.rand(sum(tokens), EXPERTS).to(device)
        self.gradient = torch.randn(sum(tokens), HIDDEN).to(device, dtype)
        self.own = slice(sum(tokens[:rank]), sum(tokens[: rank + 1]))


def experts(first: int, count: int, dtype: torch.dtype) -> te.GroupedLinear:
    """Some of the experts of one mixture."""
    layer = te.GroupedLinear(
        count, HIDDEN, HIDDEN, bias=False, device=rank_device(), params_dtype=dtype,
        first_gemm=first,
        name="experts",
    )  # fmt: skip
    for i in range(count):
        generator = torch.Generator().manual_seed(100 + first + i)
        with torch.no_grad():
            weight = torch.randn(HIDDEN, HIDDEN, generator=generator) / 8
            layer.get_parameter(f"weight{i}").copy_(weight)
    return layer


def run(dispatcher, layer, data: Whole, part: slice, travels: bool, padded: bool = False) -> dict:
    """Runs forward and backward; returns the results on this rank."""
    hidden = data.hidden[part].clone().requires_grad_()
    probs = data.probs[part].clone().requires_grad_()
    routing = data.routing[part]
    if travels:
        tokens, row_probs, m_splits = dispatcher.dispatch_with_probs(hidden, routing, probs)
    else:
        tokens, m_splits = dispatcher.dispatch(hidden, routing, probs)
    rows = tokens
    if padded:
        padding = te.Fp8Padding(len(m_splits))
        rows, sizes = padding(rows, m_splits)
        made = te.Fp8Unpadding(len(m_splits))(layer(rows, sizes), m_splits)
    else:
        made = layer(rows, m_splits)
    if travels:
        made = made * row_probs.unsqueeze(1).to(made.dtype)
    out = dispatcher.combine(made)
    out.backward(data.gradient[part])
    return {
        "tokens": tokens.detach(), "m_splits": m_splits, "out": out.detach(),
        "hidden": hidden.grad, "probs": probs.grad,
        "weights": [weight.grad for weight in layer.parameters()],
    }  # fmt: skip


def compare(found: dict, whole: dict, data: Whole, first: int, count: int, case: object) -> None:
    """Equal bit for bit: rows are copied, and parts of a sum are added in one order."""
    mine = slice(first, first + count)
    assert found["m_splits"] == whole["m_splits"][mine], case
    begin = sum(whole["m_splits"][:first])
    rows = whole["tokens"][begin : begin + sum(found["m_splits"])]
    assert torch.equal(found["tokens"], rows), case
    for name in ("out", "hidden", "probs"):
        assert torch.equal(found[name], whole[name][data.own]), (name, case)
    for own, of_whole in zip(found["weights"], whole["weights"][mine], strict=True):
        assert torch.equal(own, of_whole), case


def beside_one_process(rank: int) -> None:
    dispatcher = te.MoEDispatcher(EXPERTS, dist.group.WORLD)
    alone = te.MoEDispatcher(EXPERTS)
    first, count = dispatcher.first_expert, dispatcher.num_local_experts
    assert (first, count) == (2 * rank, 2)
    assert (alone.first_expert, alone.num_local_experts) == (0, EXPERTS)
    for name in TOKENS:
        for dtype in (torch.float32, torch.bfloat16):
            for travels in (False, True):
                data = Whole(name, dtype, rank)
                case = (name, dtype, travels)
                whole = run(alone, experts(0, EXPERTS, dtype), data, slice(None), travels)
                found = run(dispatcher, experts(first, count, dtype), data, data.own, travels)
                compare(found, whole, data, first, count, case)
    for name, recipe in RECIPES.items():
        for tokens in ("uneven", "one rank gets none"):
            data = Whole(tokens, torch.float32, rank)
            all_experts = experts(0, EXPERTS, torch.float32)
            with te.fp8_autocast(fp8_recipe=recipe()):
                whole = run(alone, all_experts, data, slice(None), False, True)
            layer = experts(first, count, torch.float32)
            with te.fp8_autocast(fp8_recipe=recipe(), fp8_group=dist.group.WORLD):
                found = run(dispatcher, layer, data, data.own, False, True)
            compare(found, whole, data, first, count, (name, tokens))
            if name == "delayed":
                compare_histories(layer, all_experts, tokens)


def compare_histories(layer: te.GroupedLinear, whole: te.GroupedLinear, case: str) -> None:
    """Experts with the same index on different ranks share the largest of their amaxes."""
    for direction, slots in (("scaling_fwd", 3), ("scaling_bwd", 2)):
        found, of_whole = (each.fp8_meta[direction].amax_history for each in (layer, whole))
        by_rank = of_whole.view(len(of_whole), RANKS, EXPERTS // RANKS, slots)
        assert torch.equal(found, by_rank.amax(1).flatten(1)), (direction, case)
        assert found.count_nonzero() > 0


@pytest.mark.parametrize("device", DEVICES)
def test_expert_parallel_ranks_match_a_single_process(device):
    run_ranks(beside_one_process, world_size=RANKS, device=device)


# ---- two ranks: how often they communicate, second derivatives, refusals


def second_derivative(dispatcher, hidden: torch.Tensor, routing: torch.Tensor) -> torch.Tensor:
    hidden = hidden.clone().requires_grad_()
    tokens, _ = dispatcher.dispatch(hidden, routing)
    out = dispatcher.combine(tokens**3)
    (gradient,) = torch.autograd.grad(out.sum(), hidden, create_graph=True)
    return torch.autograd.grad(gradient.square().sum(), hidden)[0]


def derive_twice(rank: int) -> None:
    torch.manual_seed(2)
    hidden, routing = torch.randn(8, 4), torch.rand(8, 4) < 0.5
    own = slice(5 * rank, 5 + 3 * rank)  # 5 and 3 tokens
    found = second_derivative(te.MoEDispatcher(4, dist.group.WORLD), hidden[own], routing[own])
    whole = second_derivative(te.MoEDispatcher(4), hidden, routing)
    assert torch.equal(found, whole[own])


def count_messages(rank: int) -> None:
    dispatcher = te.MoEDispatcher(4, dist.group.WORLD)
    routing = torch.tensor([[1, 0, 1, 0], [0, 0, 1, 1]])
    hidden = torch.ones(2, 8, requires_grad=True)
    begin, begin_bytes = _C.collective_counts()
    tokens, m_splits = dispatcher.dispatch(hidden, routing)
    assert m_splits == ([2, 0] if rank == 0 else [4, 2])
    assert (tokens.shape, tokens.dtype) == ((sum(m_splits), 8), torch.float32)
    dispatcher.combine(tokens).sum().backward()
    collectives, sent = (
        now - before
        for now, before in zip(_C.collective_counts(), (begin, begin_bytes), strict=True)
    )
    assert collectives == 5  # the counts; rows there and back, twice
    rows = 4 * 2 + sum(m_splits) * 2  # there, back, and both again in the backward
    assert sent == (4 + 4) * 8 + rows * 8 * 4  # counts with what is compared on the way


def refuse(rank: int) -> None:
    dispatcher = te.MoEDispatcher(4, dist.group.WORLD)
    hidden, routing = torch.ones(3, 8), torch.ones(3, 4)
    cases = [
        (lambda: te.MoEDispatcher(5, dist.group.WORLD), "num_experts is 5; expected a multiple of"),
        (lambda: dispatcher.dispatch(hidden[0], routing), r"hidden is \[8\]"),
        (lambda: dispatcher.dispatch(hidden, routing[:2]), r"routing_map \[2, 4\]"),
        (lambda: dispatcher.dispatch(hidden, routing[:, :3]), r"expected .* \[tokens, 4\]"),
        (lambda: dispatcher.dispatch(hidden, routing, torch.ones(3)), r"probs are \[3\]"),
        (lambda: dispatcher.combine(hidden), "combine without dispatch"),
    ]
    for call, words in cases:
        with pytest.raises(telens.UsageError, match=words):
            call()
    tokens, _ = dispatcher.dispatch(hidden, routing)
    with pytest.raises(telens.ShapeError, match=r"rows is \[13, 8\]; expected \[12, width\]"):
        dispatcher.combine(torch.ones(13, 8))
    dispatcher.combine(tokens)
    with pytest.raises(telens.UsageError, match="combine without dispatch"):
        dispatcher.combine(tokens)
    with pytest.raises(telens.UsageError, match="dispatch was called before the previous dispatch"):
        dispatcher.dispatch(*[dispatcher.dispatch(hidden, routing)[0], routing])
    dispatcher.combine(dispatcher.dispatch(hidden, routing)[0])


def refuse_what_ranks_would_send(rank: int) -> None:
    """Both ranks raise an error without waiting for each other, and can continue."""
    dispatcher = te.MoEDispatcher(4, dist.group.WORLD)
    hidden, routing, probs = torch.ones(3, 8), torch.ones(3, 4), torch.ones(3, 4)
    dispatcher.combine(dispatcher.dispatch(hidden, routing, probs)[0])

    def send(width=8, dtype=torch.float32, travel=None, grad=False):
        rows = torch.ones(3, width, dtype=dtype, requires_grad=grad)
        if travel is None:
            return dispatcher.dispatch(rows, routing, probs)
        return dispatcher.dispatch_with_probs(rows, routing, travel)

    half = torch.float16
    # The arguments of each rank, and words of the error.
    cases = [
        ({}, {"width": 9}, "the width of hidden: 8 on rank 0, 9 on rank 1"),
        ({"dtype": half}, {}, "the dtype of hidden: Half on rank 0, Float on rank 1"),
        ({}, {"travel": probs}, "the dtype of probs that travel: none on rank 0, Float on rank 1"),
        ({"travel": probs.half()}, {"travel": probs}, "probs that travel: Half on rank 0, Float"),
        ({"grad": True}, {}, "gradients: of hidden on rank 0, none on rank 1"),
    ]
    for *brought, words in cases:
        with pytest.raises(telens.UsageError, match=words):
            send(**brought[rank])
    with pytest.raises(telens.UsageError, match=f"{rank} of ep_group sends rows to {4 + 2 * rank}"):
        te.MoEDispatcher(4 + 2 * rank, dist.group.WORLD).dispatch(
            hidden, torch.ones(3, 4 + 2 * rank)
        )
    another = te.MoEDispatcher(4, dist.group.WORLD)
    tokens, _ = another.dispatch(hidden, routing)
    with pytest.raises(telens.UsageError, match=f"{rank} of ep_group gives rows of {8 + rank} Flo"):
        another.combine(torch.ones(len(tokens), 8 + rank))
    message = r"sends rows to 4 experts, rank 1 refuses its arguments \(.*routing_map \[2, 4\]"
    with pytest.raises(telens.UsageError, match=r"routing_map \[2, 4\]; exp" if rank else message):
        te.MoEDispatcher(4, dist.group.WORLD).dispatch(hidden, routing[: 3 - rank])
    assert torch.equal(dispatcher.combine(dispatcher.dispatch(hidden, routing)[0]), 4 * hidden)


def on_two_ranks(rank: int) -> None:
    derive_twice(rank)
    count_messages(rank)
    refuse(rank)
    refuse_what_ranks_would_send(rank)


def test_two_ranks_exchange_rows_and_reject_mismatches():
    run_ranks(on_two_ranks)


# ---- one process


def test_dispatch_without_a_group_is_permute_and_unpermute():
    routing = routing_of(9)
    hidden, probs = torch.randn(9, HIDDEN), torch.rand(9, EXPERTS)
    dispatcher = te.MoEDispatcher(EXPERTS)
    rows, row_id_map = te.moe_permute(hidden, routing)
    tokens, m_splits = dispatcher.dispatch(hidden, routing, probs)
    assert torch.equal(tokens, rows)
    assert m_splits == routing.sum(0).tolist()
    assert torch.equal(
        dispatcher.combine(tokens), te.moe_unpermute(rows, row_id_map, merging_probs=probs)
    )
    tokens, row_probs, _ = dispatcher.dispatch_with_probs(hidden, routing, probs)
    assert torch.equal(row_probs, te.moe_permute_with_probs(hidden, probs, routing)[1])
    assert torch.equal(dispatcher.combine(tokens), te.moe_unpermute(rows, row_id_map))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0,), "num_experts is 0; expected a multiple of 1"),
        (("4",), "num_experts must be an integer"),
        ((4, "world"), "ep_group must be a group that this rank belongs to, not 'world'"),
    ],
)
def test_bad_arguments_are_refused(arguments, words):
    with pytest.raises(telens.UsageError, match=words):
        te.MoEDispatcher(*arguments)


def test_histories_of_two_experts_have_their_names():
    layer = te.GroupedLinear(2, 16, 16, bias=False, device="cpu", first_gemm=4)
    with te.fp8_autocast(fp8_recipe=DelayedScaling()):
        layer(torch.ones(32, 16), [16, 16])
    named = {shown[2] for shown in model_state._histories(layer, "experts")}
    assert named == {"experts.gemm_4", "experts.gemm_5"}


def test_experts_are_named_by_their_number_among_all(tmp_path):
    layer = te.GroupedLinear(2, 16, 16, bias=False, device="cpu", name="experts", first_gemm=4)
    config = section({"LogTensorStats": {"enabled": True, "tensors": "weight", "stats": ["max"]}})
    with debug.session(config, log_dir=tmp_path):
        layer(torch.ones(2, 16), [1, 1])
        debug.step()
    layers = set(telens.open_run(tmp_path).records()["layer"])
    assert layers == {"experts.gemm_4", "experts.gemm_5"}
    with pytest.raises(telens.UsageError, match="first_gemm is -1; expected a number from 0 on"):
        te.GroupedLinear(2, 16, 16, bias=False, device="cpu", first_gemm=-1)
