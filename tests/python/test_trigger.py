"""Trigger: sections that it starts, statistics that it keeps, and runs that it stops."""

import json
import math
import subprocess

import h5py
import pandas as pd
import pytest
import torch
from debug_helpers import message_log
from distributed_workers import run_ranks

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import DelayedScaling

TENSORS = ["activation", "gradient", "output"]


def trigger(**options) -> dict:
    return {
        "alarm": {
            "enabled": True,
            "layers": {"layer_types": "all"},
            "telens": {"Trigger": {"enabled": True, **options}},
        }
    }


def logging(section: str, stats: list[str], **keys) -> dict:
    feature = {"enabled": True, "tensors": TENSORS, "stats": stats}
    return {
        section: {
            "enabled": True,
            **keys,
            "layers": {"layer_types": "all"},
            "transformer_engine": {"LogTensorStats": feature},
        }
    }


CLOSER = logging("closer", ["max", "std"], started_by="alarm")
RING = logging("ring", ["l2_norm"], kept_by="alarm")


def losses(inputs, recipe=None) -> tuple[list[float], list[torch.Tensor]]:
    """Trains a small model, one iteration for each input; returns the losses and the final
    weights.
    """
    torch.manual_seed(1)
    layer = te.Linear(32, 32, params_dtype=torch.bfloat16, name="layers.0.fc1")
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
    seen = []
    for x in inputs:
        with te.autocast(enabled=recipe is not None, recipe=recipe):
            loss = layer(x).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
        debug.step(loss=loss.item())
    return seen, [p.detach().clone() for p in layer.parameters()]


def inputs(count: int, spike_at: int | None = None, value: float = 30.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    batches = [torch.randn(16, 32, generator=generator).bfloat16() for _ in range(count)]
    if spike_at is not None:
        batches[spike_at] = batches[spike_at] * value
    return batches


def recorded(log_dir, statistic: str, tensor: str = "output") -> list[int]:
    """The iterations for which the run has the statistic."""
    rows = telens.open_run(log_dir).records()
    return sorted(rows[(rows["statistic"] == statistic) & (rows["tensor"] == tensor)]["iteration"])


def firings(log_dir) -> list[tuple[int, str]]:
    events = telens.open_run(log_dir).events
    return [
        (int(iteration), text)
        for iteration, kind, text in zip(
            events["iteration"], events["kind"], events["text"], strict=True
        )
        if kind == "trigger"
    ]


def test_loss_spike_starts_sections_and_writes_history(tmp_path):
    config = trigger(when="loss spikes > 3x", start=4, write_last=5) | CLOSER | RING
    with debug.session(config, log_dir=tmp_path):
        losses(inputs(20, spike_at=12))
    ((iteration, text),) = firings(tmp_path)
    assert iteration == 12
    assert text.startswith("Trigger of section 'alarm' fired, loss spikes > 3x: loss was ")
    assert recorded(tmp_path, "std") == [13, 14, 15, 16]
    assert recorded(tmp_path, "l2_norm") == [8, 9, 10, 11, 12]
    assert "WARNING - Trigger of section 'alarm' fired" in message_log(tmp_path)


def test_waiting_sections_record_nothing_before_firing(tmp_path):
    config = trigger(when="loss spikes > 3x", start=4, write_last=5) | CLOSER | RING
    with debug.session(config, log_dir=tmp_path):
        losses(inputs(10))
    assert firings(tmp_path) == []
    assert len(telens.open_run(tmp_path).records()) == 0


def test_nan_stops_the_run_with_its_history(tmp_path):
    config = trigger(when="nonfinite of output > 0", write_last=3, stop=True) | RING
    debug.initialize(config, log_dir=tmp_path)
    with pytest.raises(telens.Error, match=r"nonfinite of output of layer layers\.0\.fc1 was 512"):
        losses(inputs(9, spike_at=5, value=math.nan))
    run = telens.open_run(tmp_path)  # flushed while the session is still open
    assert recorded(tmp_path, "l2_norm") == [3, 4, 5]
    assert "stopped" in set(run.events["kind"])
    debug.end_debug()


def operand_samples(log_dir, iteration: int) -> pd.DataFrame:
    """Reads the samples of a firing as docs/run_file.md shows, with h5py and pandas only."""
    [path] = log_dir.glob(f"tensor_dumps/rank_0/iter_{iteration:06d}/*_operands.h5")
    with h5py.File(path) as file:
        assert file.attrs["schema"].decode() == "telens operand samples"
        return pd.concat(
            pd.DataFrame({name: column[:] for name, column in group.items()}).assign(
                layer=group.attrs["layer"].decode(), tensor=group.attrs["tensor"].decode()
            )
            for group in file.values()
        )


@pytest.mark.parametrize("recipe", [None, DelayedScaling()], ids=["bf16", "fp8"])
def test_a_firing_writes_a_sample_of_the_operands_that_led_to_it(tmp_path, recipe):
    batches = inputs(8, spike_at=5)
    plain = losses(batches, recipe)
    config = trigger(when="loss spikes > 3x", write_last=3, operands=20)
    with debug.session(config, log_dir=tmp_path):
        watched = losses(batches, recipe)
    assert watched[0] == plain[0]
    assert all(torch.equal(a, b) for a, b in zip(watched[1], plain[1], strict=True))
    frame = operand_samples(tmp_path, 5)
    assert set(frame["layer"]) == {"layers.0.fc1"}
    counts = frame.groupby(["tensor", "iteration"]).size()
    assert dict(counts) == {
        (tensor, iteration): 20
        for tensor in ("activation", "gradient", "weight")
        for iteration in (3, 4, 5)
    }
    for row in frame[frame["tensor"] == "activation"].itertuples():
        assert batches[row.iteration][row.row, row.column].item() == row.value
    weights = frame[frame["tensor"] == "weight"]
    assert (weights["value"].abs() < 1).all()
    assert weights["value"].nunique() > 20


def test_operands_are_written_only_after_firing(tmp_path):
    config = trigger(when="loss spikes > 3x", write_last=3, operands=20)
    with debug.session(config, log_dir=tmp_path):
        losses(inputs(8))
    assert not (tmp_path / "tensor_dumps").exists()


def test_overflows_under_delayed_scaling_fire_and_info_shows_it(tmp_path, build_folder):
    config = trigger(when="overflows% of activation > 50", max_firings=1)
    with debug.session(config, log_dir=tmp_path):
        losses(inputs(9, spike_at=6, value=1e4), DelayedScaling(amax_history_len=4))
    assert [iteration for iteration, _ in firings(tmp_path)] == [6]
    result = subprocess.run(
        [build_folder / "bin/telens", "info", tmp_path], capture_output=True, text=True, check=True
    )
    assert (
        "iteration 6: Trigger of section 'alarm' fired, overflows% of activation" in result.stdout
    )


def test_a_recorded_number_fires(tmp_path):
    config = trigger(when=["recorded grad_norm jumps > 4x"])
    with debug.session(config, log_dir=tmp_path):
        for norm in (1.0, 3.0, 13.0):
            debug.record("grad_norm", norm)
            debug.step()
    assert [iteration for iteration, _ in firings(tmp_path)] == [2]


def test_altering_sections_may_be_started_too(tmp_path, build_folder):
    config = trigger(when="loss spikes > 3x", start=100)
    config["high_precision"] = {
        "enabled": True,
        "started_by": "alarm",
        "layers": {"layer_types": "all"},
        "transformer_engine": {"DisableFP8Layer": {"enabled": True}},
    }
    config["ledger"] = {
        "enabled": True,
        "layers": {"layer_types": "all"},
        "telens": {"PrecisionLedger": {"enabled": True}},
    }
    with debug.session(config, log_dir=tmp_path):
        losses(inputs(9, spike_at=6), DelayedScaling())
    command = [build_folder / "bin/telens", "ledger", tmp_path, "--format", "json"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    ran = [
        (row["from"], row["ran"])
        for row in json.loads(result.stdout)
        if (row["gemm"], row["tensor"]) == ("fprop", "activation")
    ]
    assert sorted(ran) == [(0, "E4M3 under tensor scaling"), (7, "BF16")]


@pytest.mark.parametrize("recipe", [None, DelayedScaling(amax_history_len=4)])
@pytest.mark.parametrize("when", ["loss > 1e9", "loss spikes > 3x"])
def test_neither_waiting_nor_firing_changes_a_bit(tmp_path, when, recipe):
    batches = inputs(16, spike_at=8)
    plain = losses(batches, recipe)
    config = trigger(when=[when, "std of gradient > 1e9"], start=4, write_last=3) | CLOSER | RING
    with debug.session(config, log_dir=tmp_path):
        watched = losses(batches, recipe)
    assert len(firings(tmp_path)) == (1 if "spikes" in when else 0)
    assert plain[0] == watched[0]
    assert all(torch.equal(a, b) for a, b in zip(plain[1], watched[1], strict=True))


@pytest.mark.parametrize(
    ("options", "more", "message"),
    [
        (
            {"when": "los > 3"},
            {},
            "is about 'los', which is not a statistic (did you mean 'loss'?)",
        ),
        ({"when": "loss > 3", "cool_down": 3}, {}, "did you mean 'cooldown'?"),
        ({"when": "loss > 3", "max_firings": 0}, {}, "'max_firings' must be at least 1, not 0"),
        ({"when": "loss > 3", "start": 3}, {}, "'start' has no effect: no section has"),
        ({"when": "loss > 3"}, CLOSER, "has no 'start: <iterations>'"),
        ({}, {}, "'when' is missing"),
    ],
)
def test_mistakes_are_errors_at_load(tmp_path, options, more, message):
    with pytest.raises(telens.ConfigError) as error:
        debug.initialize(trigger(**options) | more, log_dir=tmp_path)
    assert message in str(error.value)


# ---------------------------------------------------------------------- several ranks


def spike_on_rank_1(rank: int, folder: str, with_ring: bool) -> None:
    config = trigger(when="loss spikes > 3x", start=3, **({"write_last": 2} if with_ring else {}))
    config |= CLOSER | (RING if with_ring else {})
    with debug.session(config, log_dir=folder):
        losses(inputs(12, spike_at=7 if rank == 1 else None))


@pytest.mark.parametrize("with_ring", [False, True])
def test_firing_on_one_rank_starts_sections_everywhere(tmp_path, with_ring):
    run_ranks(spike_on_rank_1, str(tmp_path), with_ring)
    run = telens.open_run(tmp_path)
    events = run.events[run.events["kind"] == "trigger"]
    # The condition held in 7; the header of the next step tells the other rank.
    assert list(events["iteration"]) == [8, 8]
    by_rank = dict(zip(events["rank"], events["text"], strict=True))
    assert "it held on rank 1" in by_rank[0]
    assert "in iteration 7" in by_rank[1]
    assert set(recorded(tmp_path, "std")) == {9, 10, 11}
    assert set(recorded(tmp_path, "l2_norm")) == ({7, 8} if with_ring else set())


def stop_on_rank_1(rank: int, folder: str) -> None:
    debug.initialize(trigger(when="nonfinite of output > 0", stop=True), log_dir=folder)
    # Ranks that log different layers; only the output on the second rank is not finite.
    torch.manual_seed(1)
    layer = te.Linear(32, 32, name=f"rank{rank}.fc1")
    for step in range(3):
        value = math.inf if rank == 1 and step == 2 else 1.0
        layer(torch.full((16, 32), value)).sum().backward()
        debug.step()
    with pytest.raises(telens.Error, match="Trigger of section 'alarm' fired"):
        debug.step()
    debug.end_debug()


def test_firing_on_one_rank_stops_every_rank(tmp_path):
    run_ranks(stop_on_rank_1, str(tmp_path))
