"""Layers whose communication overlaps with their GEMMs against the same layers without overlap."""

import datetime
import itertools

import pytest
import torch
import torch.distributed as dist
from distributed_workers import run_ranks
from overlap_helpers import (
    BATCH,
    COLUMN,
    IN,
    OUT,
    OVERLAPS,
    ROW,
    Counts,
    data_of,
    fill,
    linear,
    trained,
    userbuffers,
)  # fmt: skip
from parallel_helpers import PRECISIONS, region

import telens
import telens.pytorch as te
from telens.pytorch import UserBufferQuantizationMode as Mode


def close(actual: torch.Tensor, expected: torch.Tensor, what: object) -> None:
    """Within 64 FP32 roundings of the largest number, because a product of fewer rows may add its
    terms in another order, and one rounding of the dtype for each addition over ranks, which a ring
    adds in another order, too.
    """
    assert actual.shape == expected.shape, (what, actual.shape, expected.shape)
    additions = 2 * (dist.get_world_size() - 1)
    bound = 64 * 2.0**-24 + additions * torch.finfo(actual.dtype).eps / 2
    bound *= max(expected.abs().max().item(), 1.0)
    torch.testing.assert_close(actual, expected, rtol=0, atol=bound, msg=f"{what}: {{}}".format)


def one_overlap(rank: int, size: int, name: str, precision: str, tokens: int, exact: bool) -> None:
    case = (name, precision, tokens, exact)
    mode, switches, settings = OVERLAPS[name]
    plain = linear(mode, precision)
    with userbuffers(size, settings):
        overlapped = linear(
            mode, precision, ub_name=COLUMN if mode == "column" else ROW, **switches
        )
        for layer in (plain, overlapped):
            fill(layer, precision, exact, seed=rank)
        x, gradient = data_of(plain, precision, tokens, exact, seed=10 + rank)
        expected = trained(plain, precision, x, gradient)
        found = trained(overlapped, precision, x, gradient)
    for what, tensor in expected.items():
        if exact:
            assert torch.equal(found[what], tensor), (*case, what)
        else:
            close(found[what], tensor, (*case, what))


def all_overlaps(rank: int, size: int, precisions: list[str]) -> None:
    # 64 tokens on each rank with a batch of 4 are whole blocks of 128 rows. 12 tokens in all are
    # not, so values are gathered instead of codes.
    for name, precision in itertools.product(OVERLAPS, precisions):
        for tokens in (128, 12):
            one_overlap(rank, size, name, precision, tokens, exact=True)
        one_overlap(rank, size, name, precision, 128, exact=False)


def test_overlapped_layers_are_the_plain_ones_on_2_ranks():
    run_ranks(all_overlaps, 2, list(PRECISIONS))


# ---- what is sent, and in how many parts a product runs


def counted(call) -> Counts:
    before = Counts.now()
    call()
    return Counts.now() - before


def sent_and_cut(rank: int, size: int) -> None:
    """The forward of a column layer with a ring, and of a row layer with both methods."""
    tokens = 16 * size
    element, rows = 4, tokens * BATCH
    ring_of_gather = linear("column", "FP32")
    x, _ = data_of(ring_of_gather, "FP32", tokens, True, 1)
    assert counted(lambda: ring_of_gather(x)) == Counts(1, 1, x.nbytes)
    with userbuffers(size):
        layer = linear("column", "FP32", ub_name="qkv", ub_overlap_ag=True)
        assert counted(lambda: layer(x)) == Counts(size, size - 1, (size - 1) * x.nbytes)
    whole = rows * OUT * element
    for settings, cuts, messages, sent in (
        (None, 4, 4, whole),
        ({"num_splits": 3}, 3, 3, whole),
        ({"num_splits": 1000}, 16 * BATCH, 16 * BATCH, whole),  # no part is empty
        ({"method": "ring_exchange"}, size, size - 1, whole // size * (size - 1)),
    ):
        with userbuffers(size, settings and {"proj_fprop": settings}):
            layer = linear("row", "FP32", ub_name="proj", ub_overlap_rs=True)
            x, _ = data_of(layer, "FP32", tokens, True, 1)
            with torch.no_grad():
                found = counted(lambda layer=layer, x=x: layer(x))
            assert found == Counts(cuts, messages, sent), settings


def codes_go_round(rank: int, size: int) -> None:
    """One byte for each element, and the scales of blocks."""
    with userbuffers(size):
        for precision, bytes_of_32 in (("current", 32), ("MXFP8", 33)):
            layer = linear("column", precision, ub_name="fc1", ub_overlap_ag=True)
            x, _ = data_of(layer, precision, 64 * size, True, 1)
            with torch.no_grad(), region(precision, dist.group.WORLD):
                found = counted(lambda layer=layer, x=x: layer(x))
            assert found.sent == (size - 1) * x.numel() // 32 * bytes_of_32, precision
            assert found.gemms == size, precision


def empty_inputs(rank: int, size: int) -> None:
    with userbuffers(size):
        for mode, switches in (
            ("column", {"ub_overlap_ag": True, "ub_bulk_dgrad": True, "ub_bulk_wgrad": True}),
            ("row", {"ub_overlap_ag": True, "ub_overlap_rs": True}),
        ):
            layer = linear(mode, "FP32", ub_name=COLUMN if mode == "column" else ROW, **switches)
            x = torch.zeros(0, BATCH, layer.weight.shape[1], requires_grad=True)
            out = layer(x)
            out.sum().backward()
            assert (out.shape, x.grad.shape) == ((0, BATCH, layer.weight.shape[0]), x.shape)
            assert not layer.weight.grad.any()


def special_values(rank: int, size: int) -> None:
    """A NaN or Inf of one rank arrives at the same place as without overlap."""
    specials = [float("nan"), float("inf"), -float("inf"), 1e-40, 3.0]
    with userbuffers(size, {"fc2_fprop": {"method": "ring_exchange"}}):
        for mode, name, switch in (
            ("column", COLUMN, "ub_overlap_ag"), ("row", ROW, "ub_overlap_rs"),
        ):  # fmt: skip
            layers = [linear(mode, "FP32"), linear(mode, "FP32", ub_name=name, **{switch: True})]
            for layer in layers:
                fill(layer, "FP32", True, seed=rank)
            x = torch.zeros(len(specials) * size, 1, layer.weight.shape[1])
            if rank == size - 1:
                x[: len(specials), 0, 0] = torch.tensor(specials)
            expected, found = (layer(x) for layer in layers)
            torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
            if mode == "column" or rank == 0:
                assert found.isnan().any()
                assert found.isinf().any()


def single_cases(rank: int, size: int) -> None:
    sent_and_cut(rank, size)
    codes_go_round(rank, size)
    empty_inputs(rank, size)
    special_values(rank, size)
    gradients_in_main_grad(rank, size)
    refusals_of_layers(rank, size)
    whole_layers(rank, size)
    if size == 2:
        a_rank_that_stays_away(rank)


def gradients_in_main_grad(rank: int, size: int) -> None:
    made = {"fuse_wgrad_accumulation": True}
    mode, switches, _ = OVERLAPS["ring gather"]
    results = []
    with userbuffers(size):
        for overlaps in ({}, {"ub_name": COLUMN, **switches}):
            layer = linear(mode, "FP32", **made, **overlaps)
            fill(layer, "FP32", True, seed=rank)
            layer.weight.main_grad = torch.ones_like(layer.weight)
            x, gradient = data_of(layer, "FP32", 32, True, rank)
            layer(x).backward(gradient)
            results.append(layer.weight.main_grad)
    assert torch.equal(*results)


# ---- whole Transformer layers


def whole_layers(rank: int, size: int) -> None:
    made = {
        "hidden_dropout": 0.0, "attention_dropout": 0.0, "fuse_qkv_params": True, "device": "cpu",
        "set_parallel_mode": True, "sequence_parallel": True, "tp_group": dist.group.WORLD,
    }  # fmt: skip
    for precision, switches, settings in (
        ("FP32", {}, None),
        ("current", {}, None),
        (
            "FP32",
            {"ub_overlap_rs_dgrad": True},
            {
                "qkv_dgrad": {"method": "ring_exchange"},
                "fc1_dgrad": {"method": "pipeline"},
                "proj_fprop": {"method": "ring_exchange"},
            },
        ),
    ):
        with userbuffers(size, settings):
            results = []
            for overlap in ({}, {"ub_tp_comm_overlap": True, **switches}):
                torch.manual_seed(rank)
                layer = te.TransformerLayer(64, 128, 4, **made, **overlap)
                torch.manual_seed(10 + rank)
                x = torch.randn(16, 2, 64, requires_grad=True)
                with region(precision, dist.group.WORLD):
                    out = layer(x)
                work = counted(lambda out=out: out.square().sum().backward())
                grads = {name: each.grad for name, each in layer.named_parameters()}
                results.append(({"out": out.detach(), "x": x.grad} | grads, work))
            (expected, plain), (found, overlapped) = results
            assert overlapped.gemms > plain.gemms, (precision, switches)
            for name, tensor in expected.items():
                close(found[name], tensor, (precision, switches, name))


# ---- refusals, and ranks that do not come


def refusals_of_layers(rank: int, size: int) -> None:
    with pytest.raises(telens.UsageError, match="call initialize_ub before the layer is made"):
        linear("column", "FP32", ub_name="qkv", ub_overlap_ag=True)
    linear("column", "FP32", ub_name="qkv")  # overlaps with nothing
    te.Linear(IN, OUT, ub_overlap_ag=True, device="cpu")  # one rank sends nothing
    te.TransformerLayer(64, 128, 4, ub_tp_comm_overlap=True, device="cpu")
    wrong = [
        ("column", {"ub_overlap_ag": True}, "ub_name is None; expected qkv, proj, fc1 or fc2"),
        ("column", {"ub_overlap_ag": True, "ub_name": "q"}, "ub_name is 'q'; expected qkv"),
        ("column", {"ub_overlap_ag": True, "ub_name": "proj"}, "asks proj_fprop for a gather"),
        ("row", {"ub_overlap_rs": True, "ub_name": "fc1"}, "asks fc1_fprop for a reduce-scatter"),
        (
            "column",
            {"ub_overlap_rs_dgrad": True, "ub_name": "fc1"},
            "asks fc1_dgrad for a reduce-scatter of its result, and initialize_ub has set it to "
            "bulk",
        ),
        (
            "column",
            {"ub_bulk_wgrad": True, "ub_name": "fc1", "delay_wgrad_compute": True},
            "ub_bulk_wgrad overlaps a reduce-scatter with the backward's wgrad, which",
        ),
    ]
    with userbuffers(size, quantization_modes=[Mode.NONE]):
        for mode, arguments, words in wrong:
            with pytest.raises(telens.UsageError, match=words):
                linear(mode, "FP32", **arguments)
        layer = linear("column", "FP32", ub_name="qkv", ub_overlap_ag=True, ub_bulk_dgrad=True)
        x = torch.ones(16, BATCH, IN, requires_grad=True)
        with (
            pytest.raises(telens.UsageError, match=r"UserBufferQuantizationMode.FP8 to its quanti"),
            region("current", dist.group.WORLD),
        ):
            layer(x)
        out = layer(x)
    for call in (lambda: layer(x), lambda: out.sum().backward()):
        with pytest.raises(
            telens.UsageError, match="destroy_ub was called after the layer was created"
        ):
            call()
    words = rf"tp_size is {size}, but initialize_ub received 1"
    with userbuffers(1), pytest.raises(telens.UsageError, match=words):
        linear("column", "FP32", ub_name="qkv", ub_overlap_ag=True)
    with userbuffers(size):
        switch = "ub_overlap_ag" if rank == 0 else "ub_bulk_dgrad"
        layer = linear("column", "FP32", ub_name="qkv", **{switch: True})
        with pytest.raises(telens.UsageError, match=r"rank . of tp_group has the ub_name qkv, ov"):
            layer(x)
    with pytest.raises(telens.UsageError, match=r"rank . of all ranks has shape="):
        te.initialize_ub([64 + size * rank, IN], size)
    assert not telens._C.is_ub_initialized()


def a_rank_that_stays_away(rank: int) -> None:
    """The timeout of the group ends the wait for it."""
    in_ring = {"fc2_fprop": {"method": "ring_exchange"}}
    for settings, late in ((None, 0), (None, 1), (in_ring, 1)):
        group = dist.new_group(timeout=datetime.timedelta(seconds=1))
        with userbuffers(2, settings):
            layers = [
                te.Linear(
                    IN, OUT, parallel_mode=mode, sequence_parallel=True, tp_group=group,
                    device="cpu", ub_name=name, **{switch: True},
                )
                for mode, name, switch in (
                    ("column", COLUMN, "ub_overlap_ag"), ("row", ROW, "ub_overlap_rs")
                )
            ]  # fmt: skip
            x = [torch.ones(4, BATCH, layer.weight.shape[1]) for layer in layers]
            for layer, each in zip(layers, x, strict=True):
                layer(each)
            dist.barrier()
            if rank == 0:
                with pytest.raises(RuntimeError, match=r"(?i)time"):
                    layers[late](x[late])
            dist.barrier()


def test_messages_products_refusals_and_whole_layers_on_2_ranks():
    run_ranks(single_cases, 2)


def four_ranks(rank: int) -> None:
    all_overlaps(rank, 4, ["BF16"])
    sent_and_cut(rank, 4)


def test_overlapped_layers_are_the_plain_ones_on_4_ranks():
    run_ranks(four_ranks, world_size=4)
