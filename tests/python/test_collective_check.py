"""CollectiveCheck: compares what ranks sent with what was received, and gradients that must be
equal.
"""

import re

import pytest
import torch
import torch.distributed as dist
from debug_helpers import config_of
from distributed_workers import run_ranks

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import DelayedScaling, Float8CurrentScaling, MXFP8BlockScaling

CONFIG = config_of("CollectiveCheck", "telens", timeout=30)
WITHOUT_GRADIENTS = config_of("CollectiveCheck", "telens", timeout=30, gradients=False)


def wrong(run, statistic: str = "collectives_wrong") -> set[tuple]:
    rows = run.records()
    rows = rows[(rows["statistic"] == statistic) & (rows["value"] > 0)]
    return set(rows[["iteration", "layer", "rank"]].itertuples(index=False, name=None))


def reports(run, rank: int = 0) -> list[str]:
    events = run.events
    chosen = (events["kind"] == "collective_wrong") & (events["rank"] == rank)
    return list(events[chosen]["text"])


# ---- collectives of layers


def divided(rank: int, folder: str) -> None:
    """Runs every collective that layers use: gathers of codes and values, sums, scatters,
    amaxes.
    """
    recipes = {
        "values": None,
        "delayed": DelayedScaling(),
        "current": Float8CurrentScaling(),
        "blocks": MXFP8BlockScaling(),
    }
    torch.manual_seed(rank)
    with debug.session(CONFIG, log_dir=folder):
        for dtype in (torch.float32, torch.bfloat16):
            for name, recipe in recipes.items():
                for mode in ("column", "row"):
                    for sequence in (False, True):
                        layer = te.Linear(
                            64, 64, parallel_mode=mode, sequence_parallel=sequence,
                            tp_group=dist.group.WORLD, device="cpu", params_dtype=dtype,
                            name=f"{name}.{dtype}.{mode}.{sequence}",
                        )  # fmt: skip
                        features = 64 if mode == "column" else 32
                        x = torch.randn(64, features, dtype=dtype, requires_grad=True)
                        with te.fp8_autocast(
                            enabled=recipe is not None,
                            fp8_recipe=recipe,
                            fp8_group=dist.group.WORLD,
                        ):
                            out = layer(x)
                        out.sum().backward()
        debug.step()
        exchanges(rank)
        debug.step()


def exchanges(rank: int) -> None:
    """All-to-alls of which one rank has no rows; they are recorded under the layer that ran
    before.
    """
    te.Linear(32, 32, name="before", device="cpu")(torch.randn(8, 32))
    dispatcher = te.MoEDispatcher(4, dist.group.WORLD)
    for tokens in (8, 8 * rank):
        x = torch.randn(tokens, 32, requires_grad=True)
        routing = torch.zeros(tokens, 4, dtype=torch.bool)
        routing[:, rank] = routing[: tokens // 2, 3] = True
        rows, _ = dispatcher.dispatch(x, routing)
        dispatcher.combine(rows * 2).sum().backward()
    attention = te.DotProductAttention(4, 16, cp_group=dist.group.WORLD, cp_comm_type="a2a")
    leaves = [torch.randn(8, 2, 4, 16, requires_grad=True) for _ in range(3)]
    attention(*leaves).sum().backward()


class ChangedOnTheWay(dist.ProcessGroup):
    """A group that flips one bit of each message of the last rank."""

    def __init__(self, inner: dist.ProcessGroup) -> None:
        super().__init__(inner.rank(), inner.size())
        self._inner, self._sent = inner, []

    def getGroupName(self) -> str:
        return self._inner.group_name

    def send(self, tensors, to, tag):
        sent = [x.clone() for x in tensors]
        if self._inner.rank() == self._inner.size() - 1:
            sent[0].view(torch.uint8)[9] ^= 1
        self._sent.append(sent)
        return self._inner.send(sent, to, tag)

    def recv(self, tensors, source, tag):
        return self._inner.recv(tensors, source, tag)


def ring(rank: int, folder: str) -> None:
    """Attention whose keys and values travel around a ring, over a sound group and over a broken
    one.
    """
    for name, group in (("sound", dist.group.WORLD), ("broken", ChangedOnTheWay(dist.group.WORLD))):
        with debug.session(WITHOUT_GRADIENTS, log_dir=f"{folder}/{name}"):
            te.Linear(32, 32, name="before", device="cpu")(torch.randn(8, 32))
            attention = te.DotProductAttention(4, 16, cp_group=group)
            leaves = [torch.randn(8, 2, 4, 16, requires_grad=True) for _ in range(3)]
            attention(*leaves).sum().backward()
            debug.step()


def test_ring_messages_arrive_unchanged(tmp_path):
    run_ranks(ring, str(tmp_path))
    for name, found in (("sound", {0: 0, 1: 0}), ("broken", {0: 4, 1: 0})):
        run = telens.open_run(tmp_path / name)
        rows = run.records()
        rows = rows[rows["statistic"] == "collectives_wrong"]
        # Each of the two ranks sends keys and values once in each direction, and their gradients
        # twice.
        assert dict(zip(rows["rank"], rows["value"], strict=True)) == found
        assert len(reports(run)) == (name == "broken")
    assert re.search("transfer round a ring of Float .* from rank 1 differs", reports(run)[0])


def test_layer_collectives_are_verified(tmp_path):
    run_ranks(divided, str(tmp_path))
    run = telens.open_run(tmp_path)
    rows = run.records()
    seen = rows[rows["statistic"] == "collectives_wrong"]
    assert {layer.rpartition(".")[0].rpartition(".")[0] for layer in seen["layer"]} >= {
        "values.torch.float32", "current.torch.bfloat16", "blocks.torch.float32",
    }  # fmt: skip
    assert set(seen[seen["iteration"] == 1]["layer"]) == {"before"}
    assert wrong(run) == set()
    assert wrong(run, "nonfinite_lost") == set()
    assert reports(run) == []


# ---- collectives of the program


def broken_sum(rank: int) -> tuple:
    sent = torch.arange(100.0) + rank
    result = sent.clone()
    dist.all_reduce(result)
    return sent, result


def of_this_rank_alone(rank: int) -> tuple:
    sent, _ = broken_sum(rank)
    return sent, sent.clone(), "sum"


def of_one_element(rank: int) -> tuple:
    sent, result = broken_sum(rank)
    if rank == 1:
        result[50] += 0.5  # no sample: the total shows it
    return sent, result, "sum"


def of_a_maximum_that_loses_nan(rank: int) -> tuple:
    sent = torch.ones(100)
    if rank == 1:
        sent[7] = float("nan")
    # The maximum of gloo may lose a NaN, depending on rank and size.
    return sent, torch.ones(100), "max"


def of_a_gather(rank: int) -> tuple:
    sent = torch.full((4, 2), float(rank)).to(torch.float8_e4m3fn).view(torch.uint8)
    result = torch.empty(8, 2, dtype=torch.uint8)
    dist.all_gather_into_tensor(result, sent)
    if rank == 0:
        result[5, 1] ^= 1
    return sent, result, "gather"


def of_a_reduce_scatter(rank: int) -> tuple:
    sent = torch.arange(64.0) + rank
    result = torch.empty(32)
    dist.reduce_scatter_tensor(result, sent)
    if rank == 1:
        result[31] += 1  # the last element of the whole, which is a sample
    return sent, result, "reduce_scatter"


def of_rows_of_another_rank(rank: int) -> tuple:
    sent = torch.arange(64.0) + rank
    whole = sent.clone()
    dist.all_reduce(whole)
    return sent, whole.chunk(2)[1 - rank], "reduce_scatter"  # the total is right


def of_an_exchange(rank: int) -> tuple:
    sent = torch.arange(8) + 10 * rank
    result = torch.empty_like(sent)
    dist.all_to_all_single(result, sent)
    if rank == 0:
        result[6] ^= 1  # the other rank's part
    return sent, result, "all_to_all"


def of_an_exchange_in_another_order(rank: int) -> tuple:
    sent, result, _ = that_is_exchanged(rank)
    return sent, result.roll(4), "all_to_all"


def that_is_exchanged(rank: int) -> tuple:
    sent = torch.arange(8.0) + 10 * rank
    sent[3] = float("nan")
    result = torch.empty_like(sent)
    dist.all_to_all_single(result, sent)
    return sent, result, "all_to_all"


def that_is_scattered(rank: int) -> tuple:
    torch.manual_seed(rank)
    sent = (torch.randn(5000) * 1e3).bfloat16()
    result = torch.empty(2500).bfloat16()
    dist.reduce_scatter_tensor(result, sent)
    return sent, result, "reduce_scatter"


def that_is_right(rank: int) -> tuple:
    return *broken_sum(rank), "sum"


def that_is_rounded(rank: int) -> tuple:
    torch.manual_seed(rank)
    sent = (torch.randn(5000) * 1e3).bfloat16()
    result = sent.clone()
    dist.all_reduce(result)
    return sent, result, "sum"


def with_infinity_that_comes(rank: int) -> tuple:
    sent = torch.zeros(9)
    sent[0] = float("inf") if rank == 0 else -float("inf")
    result = sent.clone()
    dist.all_reduce(result)
    return sent, result, "sum"


def of_whole_numbers(rank: int) -> tuple:
    sent = torch.arange(100) + rank
    result = sent.clone()
    dist.all_reduce(result)
    if rank == 0:
        result[99] += 1  # far less than 199, the rounding that fractions may have
    return sent, result, "sum"


def that_is_of_whole_numbers(rank: int) -> tuple:
    sent = torch.arange(100, dtype=torch.int32) + rank
    result = sent.clone()
    dist.all_reduce(result)
    return sent, result, "sum"


# By name: a function that returns what is sent and received, the ranks that must notice, the number
# of lost elements, words of the report.
PROGRAMS = {
    "alone": (of_this_rank_alone, {0, 1}, 0, "it is this rank's own"),
    "element": (of_one_element, {1}, 0, "its elements add up to"),
    "nan": (of_a_maximum_that_loses_nan, {0, 1}, 1, "1 elements of rank 1 were NaN or infinite"),
    "gather": (of_a_gather, {0}, 0, "the data received from rank 1 differs from the data it sent"),
    "scattered element": (
        of_a_reduce_scatter,
        {0, 1},
        0,
        "its elements add up to|the data that the ranks sent gives",
    ),
    "scattered rows": (of_rows_of_another_rank, {0, 1}, 0, "the data that the ranks sent gives"),
    "exchange": (
        of_an_exchange,
        {0},
        0,
        "the data received from rank 1 differs from the data it sent",
    ),
    "order": (of_an_exchange_in_another_order, {0, 1}, 0, "the data received from rank 0 differs"),
    "exchanged": (that_is_exchanged, set(), 0, ""),
    "whole numbers": (of_whole_numbers, {0}, 0, "element 99 is 200"),
    "right whole numbers": (that_is_of_whole_numbers, set(), 0, ""),
    "scattered": (that_is_scattered, set(), 0, ""),
    "right": (that_is_right, set(), 0, ""),
    "rounded": (that_is_rounded, set(), 0, ""),
    "infinite": (with_infinity_that_comes, set(), 0, ""),
}


def run_programs(rank: int, folder: str) -> None:
    for name, (program, *_) in PROGRAMS.items():
        with debug.session(WITHOUT_GRADIENTS, log_dir=f"{folder}/{name}"):
            debug.step()
            sent, result, op = program(rank)
            debug.check_collective(name, sent, result, op)
            debug.step()
    with debug.session(WITHOUT_GRADIENTS, log_dir=f"{folder}/groups"):
        # A collective that is meant for both ranks but runs in groups of one.
        own = [dist.new_group([each]) for each in range(2)][rank]
        sent = torch.ones(3)
        result = sent.clone()
        dist.all_reduce(result, group=own)
        debug.check_collective("groups", sent, result, "sum", dist.group.WORLD)
        # The ranks are in different collectives, which they report.
        debug.check_collective("shapes", torch.ones(3 + rank), torch.ones(3 + rank) * 2)
        debug.step()


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("programs")
    run_ranks(run_programs, str(folder))
    return folder


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_collective_that_brings_something_else_is_found(programs, name):
    _, ranks, lost, words = PROGRAMS[name]
    run = telens.open_run(programs / name)
    assert wrong(run) == {(1, name, rank) for rank in ranks}
    rows = run.records()
    of_lost = rows[(rows["statistic"] == "nonfinite_lost") & (rows["iteration"] == 1)]
    assert set(of_lost["value"]) == {lost}
    for rank in range(2):
        texts = reports(run, rank)
        assert len(texts) == (rank in ranks)
        assert all(re.search(words, text) and "iteration 1" in text for text in texts)


def test_another_group_and_another_collective_are_found(programs):
    run = telens.open_run(programs / "groups")
    assert {layer for _, layer, _ in wrong(run)} == {"groups", "shapes"}
    (text,) = reports(run)
    assert "it is this rank's own value, as if the group had no other rank" in text


# ---- gradients


def make_model() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(te.LayerNormLinear(32, 32, device="cpu"), torch.nn.Linear(32, 4))


def train(rank: int, folder: str) -> None:
    for fault in ("none", "norm", "weight"):
        model = make_model()
        with debug.session(CONFIG, log_dir=f"{folder}/{fault}"):
            debug.infer_and_assign_layer_names(model)
            for step in range(3):
                torch.manual_seed(10 * step + rank)
                model(torch.randn(16, 32)).square().mean().backward()
                for name, parameter in model.named_parameters():
                    forgotten = {"norm": "0.layer_norm_weight", "weight": "0.weight"}.get(fault)
                    if step == 0 or name != forgotten:
                        dist.all_reduce(parameter.grad)
                    assert torch.isfinite(parameter.grad).all()
                debug.step()
                model.zero_grad()


@pytest.fixture(scope="module")
def trainings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gradients")
    run_ranks(train, str(folder))
    return folder


@pytest.mark.parametrize(
    ("fault", "layer"), [("norm", "model.0.layer_norm_weight"), ("weight", "model.0")]
)
def test_a_gradient_that_was_not_reduced_is_named(trainings, fault, layer):
    run = telens.open_run(trainings / fault)
    assert wrong(run, "gradient_differs") == {(1, layer, 1), (2, layer, 1)}
    events = run.events
    texts = list(events[(events["kind"] == "ranks_differ") & (events["rank"] == 1)]["text"])
    assert len(texts) == 1
    assert f"iteration 1: {layer}: the gradient differs on rank 1 from rank 0's" in texts[0]


def test_gradients_that_were_reduced_agree(trainings):
    run = telens.open_run(trainings / "none")
    rows = run.records()
    rows = rows[rows["statistic"] == "gradient_differs"]
    assert set(rows["value"]) == {0.0}
    assert set(rows["tensor"]) == {"wgrad"}
    parameters = ("0", "0.bias", "0.layer_norm_weight", "0.layer_norm_bias", "1", "1.bias")
    assert set(rows["layer"]) == {f"model.{each}" for each in parameters}


# ---- arguments


REFUSALS = {
    "op": ({"op": "mean"}, "op must be one of .*all_to_all, not 'mean'"),
    "sent": ({"sent": [1.0]}, "sent must be a tensor"),
    "result": ({"result": 1.0}, "result must be a tensor"),
    "size": ({"result": torch.ones(4)}, "result must be a tensor of 3 elements"),
    "dtype": ({"result": torch.ones(3).half()}, "result must be a tensor of torch.float32"),
    "name": ({"name": 5}, "name must be a string, not empty, not 5"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_bad_arguments_are_refused(case):
    arguments, words = REFUSALS[case]
    good = {"name": "sum", "sent": torch.ones(3), "result": torch.ones(3)}
    with pytest.raises(telens.UsageError, match=words):
        debug.check_collective(**{**good, **arguments})


def refuse(rank: int) -> None:
    three, four = torch.ones(3), torch.ones(4)
    other = [dist.new_group([each]) for each in range(2)][1 - rank]
    cases = [
        ((three, three, "gather"), "result must be a tensor of 6 elements"),
        ((three, three, "reduce_scatter"), "sent must be .* divided among 2 ranks"),
        ((four, four, "reduce_scatter"), "result must be a tensor of 2 elements"),
        ((three, three, "all_to_all"), "sent must be .* divided among 2 ranks"),
        ((three, three, "sum", other), "group must be a group that this rank belongs to"),
    ]
    for arguments, words in cases:
        with pytest.raises(telens.UsageError, match=words):
            debug.check_collective("bad", *arguments)


def test_bad_arguments_among_several_ranks_are_refused():
    run_ranks(refuse)


def test_does_nothing_outside_a_session():
    debug.check_collective("sum", torch.ones(3), torch.ones(3))
