"""RankAgreement: weights, scales and amax histories that must be equal on all ranks."""

import json
import os
import subprocess
import time
import warnings

import pytest
import torch
import torch.distributed as dist
from debug_helpers import config_of, message_log
from distributed_workers import run_ranks

import telens
import telens._C as _C
import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import CustomRecipe, DelayedScaling, Float8CurrentScaling
from telens.debug import model_state

CONFIG = config_of(
    "RankAgreement", "telens", tensors=["activation", "weight", "gradient"], timeout=30
)
TURN = 2  # the iteration in which something goes wrong


def make_model() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(
        te.Linear(32, 32, device="cpu"), te.LayerNormMLP(32, 32, device="cpu"),
        torch.nn.Linear(32, 4),
    )  # fmt: skip


def train(model, rank: int, recipe, group, change=lambda model: None, steps: int = 4) -> None:
    """Replicas with different data: data parallelism by hand."""
    debug.infer_and_assign_layer_names(model)
    generator = torch.Generator().manual_seed(7 + rank)
    for step in range(steps):
        if step == TURN and rank == 1:
            with torch.no_grad():
                change(model)
        x = torch.randn(16, 32, generator=generator)
        with te.fp8_autocast(fp8_recipe=recipe, fp8_group=group):
            out = model(x)
        out.square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.data -= 0.05 * parameter.grad
            parameter.grad = None
        debug.step()


def of_another_weight(model):
    weight = model[1].fc1_weight
    weight[3, 4] = torch.nextafter(weight[3, 4], torch.tensor(2.0))


def of_another_norm(model):
    model[1].layer_norm_weight[5] += 0.25


def of_another_scale(model):
    model[0].fp8_meta["scaling_fwd"].scale[0] = 3.0


def of_another_history(model):
    # Changes a past amax that is not the largest one, so no scale differs.
    model[0].fp8_meta["scaling_bwd"].amax_history[1, 0] *= 0.5


def request_inputs(role):
    if role.tensor_type == "input":
        return te.DelayedScalingRequest(amax_history_len=8)
    return te.Float8CurrentScalingQuantizer(te.DType.kFloat8E4M3)


DELAYED = DelayedScaling(amax_history_len=8)
REQUESTED = CustomRecipe(qfactory=request_inputs)
FAULTS = {
    "none": (lambda model: None, DELAYED),
    "weight": (of_another_weight, DELAYED),
    "norm": (of_another_norm, Float8CurrentScaling()),
    "scale": (of_another_scale, DELAYED),
    "history": (of_another_history, DELAYED),
    "request": (lambda model: None, REQUESTED),
    "requested scale": (of_another_scale, REQUESTED),
}


def train_with_faults(rank: int, folder: str) -> None:
    for name, (change, recipe) in FAULTS.items():
        with debug.session(CONFIG, log_dir=f"{folder}/{name}"):
            train(make_model(), rank, recipe, dist.group.WORLD, change)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("agreement")
    run_ranks(train_with_faults, str(folder))
    return folder


def differences(run) -> set[tuple]:
    """(iteration, layer, tensor, statistic, rank) of each difference."""
    rows = run.records()
    rows = rows[rows["value"] != 0]
    columns = ["iteration", "layer", "tensor", "statistic", "rank"]
    return set(rows[columns].itertuples(index=False, name=None))


def reports(run) -> list[str]:
    events = run.events
    return list(events[events["kind"] == "ranks_differ"]["text"])


def test_agreeing_ranks_report_every_tensor(runs):
    run = telens.open_run(runs / "none")
    rows = run.records()
    assert set(rows["value"]) == {0.0}
    assert reports(run) == []
    of_last = rows[(rows["iteration"] == 3) & (rows["rank"] == 1)]
    seen = set(of_last[["layer", "tensor", "statistic"]].itertuples(index=False, name=None))
    layers = ["model.0", "model.1.fc1", "model.1.fc2"]
    tensors = ["activation", "weight", "gradient"]
    expected = {(layer, "weight", "weight_differs") for layer in layers}
    expected |= {(layer, each, "scale_differs") for layer in layers for each in tensors}
    expected |= {(layer, each, "amax_history_differs") for layer in layers for each in tensors}
    expected |= {  # parameters that no GEMM of ours takes
        (f"model.{name}", "weight", "weight_differs")
        for name in ("0.bias", "1.layer_norm_weight", "1.layer_norm_bias", "1.fc1_bias",
                     "1.fc2_bias", "2", "2.bias")
    }  # fmt: skip
    assert seen == expected


def test_requested_input_and_weight_scales_are_compared(runs):
    run = telens.open_run(runs / "request")
    rows = run.records()
    assert set(rows["value"]) == {0.0}
    assert reports(run) == []
    compared = set(rows[["layer", "tensor", "statistic"]].itertuples(index=False, name=None))
    scales = {each[:2] for each in compared if each[2] == "scale_differs"}
    layers = ["model.0", "model.1.fc1", "model.1.fc2"]
    # Gradients differ between replicas, and so do their scales, which come from their own amaxes.
    assert scales == {(layer, each) for layer in layers for each in ("activation", "weight")}
    assert ("model.0", "activation", "amax_history_differs") in compared


@pytest.mark.parametrize(
    ("fault", "layer", "tensor", "what", "words"),
    [
        ("weight", "model.1.fc1", "weight", "weight", "the weight differs on rank 1"),
        ("norm", "model.1.layer_norm_weight", "weight", "weight", "the weight differs on rank 1"),
        ("scale", "model.0", "activation", "scale", "the scale of activation differs on rank 1"),
        ("history", "model.0", "gradient", "amax_history", "the amax history of gradient differs"),
        ("requested scale", "model.0", "activation", "scale", "the scale of activation differs on"),
    ],
)
def test_the_first_layer_tensor_and_rank_that_differs_is_named(
    runs, fault, layer, tensor, what, words
):
    run = telens.open_run(runs / fault)
    found = differences(run)
    first = min(iteration for iteration, *_ in found)
    assert first == TURN
    assert (TURN, layer, tensor, f"{what}_differs", 1) in found
    assert {rank for *_, rank in found} == {1}  # the second of two is the odd one
    (text, *_) = reports(run)
    assert f"iteration {TURN}" in text
    assert words in text
    assert "rank 0's" in text
    events = run.events
    assert events[events["kind"] == "ranks_differ"]["layer"].iloc[0] == layer


def test_differing_scales_are_reported(runs):
    (text, *_) = reports(telens.open_run(runs / "scale"))
    assert "(3, and " in text


def test_difference_is_reported_once(runs):
    texts = reports(telens.open_run(runs / "norm"))
    assert sum("model.1.layer_norm_weight" in text for text in texts) <= 2  # each rank's file
    assert len(texts) == len(set(texts)) * 2


# ---- bits


def pairs() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """The tensors of ranks 0 and 1 by name. If the name begins with "same", they are equal."""
    large = torch.arange(3 * 4096 + 5, dtype=torch.float32).reshape(-1, 1)
    moved = large.clone()
    moved[[1, 4097]] = large[[4097, 1]]
    near = large.clone()
    near[-1] = torch.nextafter(near[-1], torch.tensor(0.0))
    nan = torch.tensor([float("nan"), 1.0])
    other_nan = torch.tensor([0x7FC00001, 0x3F800000], dtype=torch.int32).view(torch.float32)
    return (
        {
            "same": (large, large.clone()),
            "same.strides": (large.expand(-1, 3), large.expand(-1, 3).t().contiguous().t()),
            "same.nan": (nan, nan.clone()),
            "same.empty": (torch.zeros(0, 4), torch.zeros(0, 4)),
            "last bit": (large, near),
            "order": (large, moved),
            "minus zero": (torch.tensor([0.0]), torch.tensor([-0.0])),
            "nan": (nan, other_nan),
            "shape": (large.reshape(1, -1), large),
            "dtype": (torch.zeros(4), torch.zeros(4, dtype=torch.int32)),
            "bfloat16": (torch.ones(3).bfloat16(), torch.tensor([1, 1, 1 + 2**-7]).bfloat16()),
            "double": (
                torch.ones(3).double(),
                torch.tensor([1, 1, 1 + 2**-52], dtype=torch.float64),
            ),
            "bytes": (
                torch.tensor([255], dtype=torch.uint8),
                torch.tensor([254], dtype=torch.uint8),
            ),
            "fp8": (
                torch.ones(8).to(torch.float8_e4m3fn),
                (-torch.ones(8)).to(torch.float8_e4m3fn),
            ),
        }
        if hasattr(torch, "float8_e4m3fn")
        else {}
    )


def show_pairs(rank: int, folder: str) -> None:
    with debug.session(config_of("RankAgreement", "telens", tensors="weight"), log_dir=folder):
        assert _C.debug.wants_model()
        shown = [("weight", name, name, "weight", each[rank], "") for name, each in pairs().items()]
        # Different parts of one tensor are not replicas.
        shown.append(("weight", "part", "part", "weight", torch.full((2,), rank), f"{rank} of 2"))
        if rank == 1:  # another rank's stage of a pipeline
            shown.append(("weight", "own", "own", "weight", torch.ones(2), ""))
        _C.debug.show_model(shown)
        debug.step()


def test_bits_and_places_are_compared_and_no_values(tmp_path):
    run_ranks(show_pairs, str(tmp_path))
    run = telens.open_run(tmp_path)
    odd = {layer for _, layer, _, _, _ in differences(run)}
    assert odd == {name for name in pairs() if not name.startswith("same")}
    compared = set(run.records()["layer"])
    assert compared == set(pairs())


# ---- tensor parallelism, and ranks with different layers


def divided(rank: int, folder: str) -> None:
    own_group = [dist.new_group([each]) for each in range(2)][rank]
    torch.manual_seed(10 + rank)
    column = te.Linear(
        32, 64, device="cpu", parallel_mode="column", tp_group=dist.group.WORLD, name="column"
    )
    copy = te.Linear(32, 32, device="cpu", name="copy")  # initialized otherwise on each rank
    only = te.Linear(32, 32, device="cpu", name=f"stage_{rank}")
    same = torch.randn(16, 32, generator=torch.Generator().manual_seed(3))
    recipe = Float8CurrentScaling()
    with debug.session(CONFIG, log_dir=f"{folder}/alike"):
        for _ in range(2):
            for layer in (column, copy, only):
                group = dist.group.WORLD if layer is column else own_group
                with te.fp8_autocast(fp8_recipe=recipe, fp8_group=group):
                    layer(same).sum().backward()
            debug.step()
    with debug.session(CONFIG, log_dir=f"{folder}/inputs"):
        give_one_rank_another_batch(rank, column)


def give_one_rank_another_batch(rank: int, column: te.Linear) -> None:
    row = te.Linear(
        64, 32, device="cpu", parallel_mode="row", tp_group=dist.group.WORLD, name="row"
    )
    for step in range(3):
        seed = 100 * rank if step == TURN else 0
        x = torch.randn(16, 32, generator=torch.Generator().manual_seed(seed))
        with te.fp8_autocast(fp8_recipe=Float8CurrentScaling(), fp8_group=dist.group.WORLD):
            row(column(x)).square().mean().backward()
        debug.step()


def test_differing_tp_input_is_found(divided_runs, build_folder):
    run = telens.open_run(divided_runs / "inputs")
    rows = run.records(statistic="replica_differs")
    compared = set(rows[["layer", "tensor"]].itertuples(index=False, name=None))
    # Rows of the output are summed over ranks, so both have its gradient; other operands are
    # divided.
    assert compared == {("column", "activation"), ("row", "gradient")}
    first = rows[rows["value"] != 0].iloc[0]
    assert (first["iteration"], first["layer"], first["rank"]) == (TURN, "column", 1)
    assert "column: the activation differs on rank 1 from rank 0's" in reports(run)[0]
    command = [build_folder / "bin/telens", "diagnose", divided_runs / "inputs", "--format", "json"]
    found = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)["findings"]
    assert (found[0]["cause"], found[0]["layer"]) == ("unlike_inputs", "column")


@pytest.fixture(scope="module")
def divided_runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("divided")
    run_ranks(divided, str(folder))
    return folder


def test_divided_weight_is_not_compared_as_replica(divided_runs):
    run = telens.open_run(divided_runs / "alike")
    rows = run.records()
    compared = set(rows[["layer", "tensor", "statistic"]].itertuples(index=False, name=None))
    # Each rank has the whole input of the column layer, so both scales are equal.
    assert ("column", "activation", "scale_differs") in compared
    assert ("column", "weight", "weight_differs") not in compared
    assert not {layer for layer, _, _ in compared} & {"stage_0", "stage_1"}
    assert {layer for _, layer, *_ in differences(run)} == {"copy"}


# ---- ranks that do not start


def one_dies(rank: int, folder: str) -> None:
    config = config_of("RankAgreement", "telens", tensors="weight", timeout=20)
    layer = te.Linear(32, 32, device="cpu", name="layer")
    debug.initialize(config, log_dir=folder)
    for step in range(4):
        if step == TURN and rank == 1:
            os._exit(0)
        layer(torch.ones(16, 32)).sum().backward()
        debug.step()
    debug.end_debug()
    os._exit(0)


def one_is_late(rank: int, folder: str) -> None:
    config = config_of("RankAgreement", "telens", tensors="weight", timeout=5)
    layer = te.Linear(32, 32, device="cpu", name="layer")
    with debug.session(config, log_dir=folder):
        for step in range(4):
            if step == TURN and rank == 1:
                time.sleep(9)
            layer(torch.ones(16, 32)).sum().backward()
            debug.step()


@pytest.mark.parametrize("worker", [one_dies, one_is_late])
def test_missing_rank_is_named_and_others_continue(tmp_path, worker):
    run_ranks(worker, str(tmp_path))
    events = telens.open_run(tmp_path).events
    lost = events[(events["kind"] == "ranks_not_compared") & (events["rank"] == 0)]
    (text,) = lost["text"]
    assert f"rank 1 did not come to the comparison of ranks in iteration {TURN}" in text
    assert text.endswith("; this rank goes on recording and is compared with no other any more")
    assert "ranks_not_compared" in message_log(tmp_path) or text in message_log(tmp_path)
    assert lost["iteration"].iloc[0] == TURN


def test_one_process_compares_nothing(tmp_path):
    layer = te.Linear(32, 32, device="cpu", name="layer")
    with debug.session(config_of("RankAgreement", "telens", tensors="weight"), log_dir=tmp_path):
        assert not _C.debug.wants_model()
        layer(torch.ones(16, 32)).sum().backward()
        debug.step()
    assert len(telens.open_run(tmp_path).records()) == 0


def test_a_timeout_out_of_range_is_refused():
    with pytest.raises(telens.ConfigError, match="'timeout' must be from 1 to 86400 s, not 0"):
        debug.initialize(config_of("RankAgreement", "telens", tensors="weight", timeout=0))


def test_unreadable_model_only_ends_the_comparison(monkeypatch):
    def fails():
        raise TypeError("this group has no rank")

    monkeypatch.setattr(model_state, "_named", {"model": None})
    monkeypatch.setattr(model_state, "_has_failed", False)
    monkeypatch.setattr(model_state, "_modules", fails)
    monkeypatch.setattr(model_state._C.debug, "wants_model", lambda: True)
    with pytest.warns(UserWarning, match="tensors no more: TypeError: this group has no rank"):
        model_state.show()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model_state.show()
