"""Modules with DDP and FSDP2 in two processes over gloo."""

import fcntl
import json
import os
import pathlib

import pytest
import torch
import torch.distributed as dist
import torch.distributed.fsdp
from distributed_workers import run_ranks

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import DelayedScaling


def make_model() -> torch.nn.Sequential:
    torch.manual_seed(1)
    return torch.nn.Sequential(
        te.TransformerLayer(32, 64, 2, hidden_dropout=0, attention_dropout=0), te.Linear(32, 32)
    )


def make_batch(rank: int) -> torch.Tensor:
    return torch.randn(16, 2, 32, generator=torch.Generator().manual_seed(rank))


def gradients_of_both_batches() -> list[torch.Tensor]:
    model = make_model()
    losses = [model(make_batch(rank)).square().mean() for rank in range(2)]
    (sum(losses) / 2).backward()
    return [p.grad for p in model.parameters()]


def ddp(rank: int) -> None:
    model = torch.nn.parallel.DistributedDataParallel(make_model())
    model(make_batch(rank)).square().mean().backward()
    for parameter, expected in zip(model.parameters(), gradients_of_both_batches(), strict=True):
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-4, atol=1e-5)


def test_ddp_averages_the_gradients_of_two_ranks():
    run_ranks(ddp)


def fsdp2(rank: int, granularity: str) -> None:
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    model = make_model()
    shards = {
        "root": [],
        "layers": list(model),
        "inside": [model[0].self_attention, model[0].layernorm_mlp],
    }[granularity]
    for module in shards:
        dist.fsdp.fully_shard(module, mesh=mesh)
    dist.fsdp.fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    plain = make_model()
    plain_optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    for _ in range(3):
        model(make_batch(rank)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        sum(plain(make_batch(other)).square().mean() / 2 for other in range(2)).backward()
        plain_optimizer.step()
        plain_optimizer.zero_grad()
    for parameter, expected in zip(model.parameters(), plain.parameters(), strict=True):
        assert isinstance(parameter, dist.tensor.DTensor)
        torch.testing.assert_close(parameter.full_tensor(), expected, rtol=1e-3, atol=1e-4)


def test_fsdp2_of_the_whole_model_trains_as_one_process_does():
    run_ranks(fsdp2, "root")


def test_per_layer_fsdp2_matches_one_process():
    run_ranks(fsdp2, "layers")


def test_fsdp2_of_the_children_of_a_layer_trains_as_one_process_does():
    run_ranks(fsdp2, "inside")


def reduced_amax(rank: int) -> None:
    torch.manual_seed(1)
    layer = te.Linear(32, 32)
    x = torch.full((16, 32), float(rank + 1))
    with te.autocast(
        recipe=DelayedScaling(amax_history_len=4), amax_reduction_group=dist.group.WORLD
    ):
        layer(x).sum().backward()
    states = [None, None]
    dist.all_gather_object(states, layer.get_extra_state().tolist())
    assert states[0] == states[1]


def test_amaxes_are_reduced_over_the_group():
    run_ranks(reduced_amax)


def watched(rank: int, folder: str) -> None:
    config = {
        "section": {
            "enabled": True,
            "layers": {"layer_types": "all"},
            "transformer_engine": {
                "LogTensorStats": {"enabled": True, "stats": ["max"], "tensors": ["activation"]}
            },
        }
    }
    layer = te.Linear(32, 32, name="fc")
    with debug.session(config, log_dir=folder):
        assert debug.get_tensor_reduction_group() is not None
        for step in range(2):
            layer(torch.full((16, 32), 10.0 * step + rank)).sum().backward()
            debug.step(float(rank))


def test_statistics_are_reduced_over_the_ranks_into_one_run(tmp_path):
    run_ranks(watched, str(tmp_path))
    run = telens.open_run(tmp_path)
    assert sorted(run.segments["rank"]) == [0, 1]
    records = run.records(statistic="max", tensor="activation")
    assert set(zip(records["iteration"], records["value"], strict=True)) == {(0, 1.0), (1, 11.0)}
    assert run.losses.tolist() == [0.0, 0.0]


def base_config(**feature) -> dict:
    return {
        "section": {
            "enabled": True,
            "layers": {"layer_types": "all"},
            "LogTensorStats": {"enabled": True, "tensors": ["logits"]} | feature,
        }
    }


def own_statistics(rank: int, folder: str) -> None:
    """Rank r's tensor has r + 2 elements of the value 10 * (r + 1)."""
    x = torch.full((rank + 2,), 10.0 * (rank + 1))

    def log(**options) -> dict[str, float]:
        values = debug.log_tensor_stats("head", tensor_name="logits", tensor=x, **options)
        return {name: value.item() for name, value in values.items()}

    alone = [dist.new_group([each]) for each in range(2)]
    config = base_config(stats=["mean", "l1_norm"], freq=2)
    with debug.session(config, log_dir=folder):
        whole = {"mean": 16.0, "l1_norm": 80.0}
        own = {"mean": x.mean().item(), "l1_norm": x.sum().item()}
        assert log() == (whole if rank == 1 else {})
        assert log(iteration=2, skip_reduction=True) == own
        assert log(iteration=4, reduction_group=dist.group.WORLD) == whole
        debug.set_tensor_reduction_group(alone[rank], layer_name="head")
        assert log(iteration=6) == own
        debug.set_tensor_reduction_group(None, layer_name="head")
        debug.set_tensor_reduction_group(dist.group.WORLD)
        assert log(iteration=8) == whole
        assert log(iteration=9) == {}


def test_statistics_of_ones_own_tensors_follow_the_groups(tmp_path):
    run_ranks(own_statistics, str(tmp_path))
    records = telens.open_run(tmp_path).records(statistic="mean")
    logged = sorted(zip(records["iteration"], records["value"], strict=True))
    last_rank, both = [(0, 16.0)], [(4, 16.0), (8, 16.0)]
    own = [(2, 10.0), (2, 20.0), (6, 10.0), (6, 20.0)]
    assert logged == sorted(last_rank + 2 * both + own)


def sharded_weight(rank: int, folder: str) -> None:
    config = base_config()["section"] | {
        "transformer_engine": {
            "LogTensorStats": {"enabled": True, "stats": ["max", "numel"], "tensors": ["weight"]}
        }
    }
    del config["LogTensorStats"]
    calls = debug.transformer_engine
    with debug.session({"section": config}, log_dir=folder):
        for reduces in (True, False):
            debug.set_weight_tensor_tp_group_reduce(reduces)
            calls.inspect_tensor(
                layer_name="fc",
                tensor_name="weight",
                tensor=torch.full((4,), float(rank)),
                tp_group=dist.group.WORLD,
                tp_size=2,
            )
            debug.step()


def test_weight_statistics_cover_every_shard_if_enabled(tmp_path):
    run_ranks(sharded_weight, str(tmp_path))
    records = telens.open_run(tmp_path).records(statistic="numel")
    assert sorted(zip(records["iteration"], records["value"], strict=True)) == [
        (0, 8.0),
        (0, 8.0),
        (1, 4.0),
        (1, 4.0),
    ]


WEIGHTS = {
    "section": {
        "enabled": True,
        "layers": {"layer_types": "all"},
        "transformer_engine": {
            "LogTensorStats": {"enabled": True, "stats": ["numel"], "tensors": ["weight"]}
        },
    }
}


def weight_that_one_rank_sees_first(rank: int, folder: str) -> None:
    group = dist.new_group([0, 1], group_desc="tensor_parallel")
    with debug.session(WEIGHTS, log_dir=folder):
        for step in range(2):
            if rank == 0 or step == 1:
                debug.transformer_engine.inspect_tensor(
                    layer_name="fc",
                    tensor_name="weight",
                    tensor=torch.ones(4),
                    tp_group=group if rank < 2 else None,
                    tp_size=2 if rank < 2 else 1,
                )
            debug.step()


def test_tp_group_reduces_a_layer_run_on_one_rank(tmp_path):
    run_ranks(weight_that_one_rank_sees_first, str(tmp_path), world_size=3)
    run = telens.open_run(tmp_path)
    records = run.records(statistic="numel").sort_values(["iteration", "rank"])
    expected = [(0, 0, 4.0), (1, 0, 8.0), (1, 1, 8.0), (1, 2, 4.0)]
    assert list(records[["iteration", "rank", "value"]].itertuples(index=False)) == expected
    assert records["scope"].isna().tolist() == [False, False, False, True]
    assert set(records["scope"].dropna()) == {"tensor_parallel"}


def rank_with_a_run_id_of_its_own(rank: int, folder: str, own: list[str]) -> None:
    os.environ["TELENS_RUN_ID"] = own[rank]
    debug.initialize("", log_dir=folder)
    debug.end_debug()


@pytest.mark.parametrize("own", [["", "second"], ["first", ""], ["first", "second"]])
def test_all_ranks_record_into_the_run_that_rank_0_decides_on(tmp_path, own):
    run_ranks(rank_with_a_run_id_of_its_own, str(tmp_path), own)
    (run,) = (tmp_path / "telens").iterdir()
    assert sorted(path.name for path in run.iterdir()) == ["rank00000.h5", "rank00001.h5"]
    if own[0]:
        assert run.name == own[0]
    for log in (tmp_path / "nvdlfw_inspect_logs").iterdir():  # no other run is accused
        assert "is already being recorded" not in log.read_text()


def test_a_run_that_one_rank_cannot_have_is_another_one_for_all_ranks(tmp_path):
    folder = tmp_path / "telens" / "run"
    folder.mkdir(parents=True)
    with open(folder / ".rank00001.lock", "w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        run_ranks(rank_with_a_run_id_of_its_own, str(tmp_path), ["run", "run"])
    recorded = sorted(path.name for path in (tmp_path / "telens" / "run-2").iterdir())
    assert recorded == ["rank00000.h5", "rank00001.h5"]
    assert [path.name for path in folder.iterdir()] == [".rank00001.lock"]
    for log in (tmp_path / "nvdlfw_inspect_logs").iterdir():
        assert "rank 1 of the run 'run' is already being recorded" in log.read_text()


def rank_that_refuses(rank: int, folder: str, what: str) -> None:
    bad = rank == 1
    config = WEIGHTS
    if bad and what == "configuration":
        config = {"section": WEIGHTS["section"] | {"NoSuchFeature": {"enabled": True}}}
    recording = {"max_size": 1} if bad and what == "option" else None
    feature_dirs = folder + "/nowhere" if bad and what == "folder" else None
    if bad and what == "feature file":
        feature_dirs = pathlib.Path(folder) / "features"
        feature_dirs.mkdir()
        (feature_dirs / "broken.py").write_text("import no_such_module")
    error, kind = {
        "configuration": ("NoSuchFeature", telens.UsageError),
        "option": ("max_size 1 is too small", telens.UsageError),
        "folder": ("no such folder", telens.UsageError),
        "feature file": ("no_such_module", telens.UsageError),
    }[what]
    if not bad:
        error, kind = "rank 1 refused", telens.UsageError
    with pytest.raises(kind, match=error):
        debug.initialize(config, log_dir=folder, recording=recording, feature_dirs=feature_dirs)
    with debug.session("", log_dir=folder):
        debug.step(float(rank))


@pytest.mark.parametrize("what", ["configuration", "option", "folder", "feature file"])
def test_failed_initialize_on_one_rank_ends_the_wait(tmp_path, what):
    run_ranks(rank_that_refuses, str(tmp_path), what, world_size=3)
    (run,) = (tmp_path / "telens").iterdir()
    assert sorted(path.name for path in run.iterdir()) == [f"rank0000{i}.h5" for i in range(3)]


def weights_that_one_rank_keeps_to_itself(rank: int, folder: str) -> None:
    with debug.session(WEIGHTS, log_dir=folder):
        for step in range(2):
            debug.set_weight_tensor_tp_group_reduce(rank == 0 or step == 1)
            debug.transformer_engine.inspect_tensor(
                layer_name="fc",
                tensor_name="weight",
                tensor=torch.ones(4),
                tp_group=dist.group.WORLD,
                tp_size=2,
            )
            debug.step()


def test_local_weight_statistics_do_not_block_ranks(tmp_path):
    run_ranks(weights_that_one_rank_keeps_to_itself, str(tmp_path))
    records = telens.open_run(tmp_path).records(statistic="numel")
    assert sorted(zip(records["iteration"], records["value"], strict=True)) == [
        (0, 4.0),
        (0, 4.0),
        (1, 8.0),
        (1, 8.0),
    ]


def different_configurations(rank: int, folder: str) -> None:
    def section(**feature) -> dict:
        return {
            "enabled": True,
            "layers": {"layer_types": "all"},
            "transformer_engine": {
                "LogTensorStats": {"enabled": True, "tensors": ["activation"]} | feature
            },
        }

    # Rank 1 would reduce in other iterations than rank 0, and wait forever.
    config = {"watch": section(stats=["max"], freq=1 + rank), "same": {"enabled": False}}
    layer = te.Linear(32, 32, name="fc")
    with debug.session(config, log_dir=folder):
        assert debug.get_tensor_reduction_group() is None
        for step in range(4):
            layer(torch.full((16, 32), 10.0 * step + rank))
            debug.step()


def test_ranks_with_mismatched_configs_are_warned(tmp_path):
    run_ranks(different_configurations, str(tmp_path))
    run = telens.open_run(tmp_path)
    records = run.records(statistic="max")
    values = sorted(zip(records["iteration"], records["value"], strict=True))
    assert values == [(0, 0.0), (0, 1.0), (1, 10.0), (2, 20.0), (2, 21.0), (3, 30.0)]
    assert records["scope"].isna().all()  # values of one rank alone
    for rank in range(2):
        log = tmp_path / "nvdlfw_inspect_logs" / f"nvdlfw_inspect_globalrank-{rank}.log"
        assert (
            "the ranks have different configurations, section 'watch' of rank 1 differing"
            in log.read_text()
        )


def configured_alike(rank: int, folder: str) -> None:
    config = {
        "section": {
            "enabled": True,
            "layers": {"layer_types": "all"},
            "transformer_engine": {
                "LogTensorStats": {"enabled": True, "stats": ["max"], "tensors": ["activation"]}
            },
        }
    }
    # Comments, the order of keys and disabled sections are not differences.
    text = pathlib.Path(folder) / f"config{rank}.yaml"
    text.write_text(("# of rank 1\n" if rank else "") + json.dumps(config))
    with debug.session(text, log_dir=folder):
        assert debug.get_tensor_reduction_group() is not None


def test_configurations_that_say_the_same_are_the_same(tmp_path):
    run_ranks(configured_alike, str(tmp_path))


def late_group(rank: int, folder: str) -> None:
    dist.destroy_process_group()
    os.environ |= {"TELENS_RUN_ID": "run", "RANK": str(rank), "WORLD_SIZE": "2"}
    debug.initialize("", log_dir=folder)
    store = dist.FileStore(f"{folder}/another_store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    debug.record("who", float(rank))
    debug.step()
    debug.end_debug()


def test_early_session_takes_rank_from_environment(tmp_path):
    run_ranks(late_group, str(tmp_path))
    run = telens.open_run(tmp_path)
    assert sorted(run.segments["rank"]) == [0, 1]
    log = tmp_path / "nvdlfw_inspect_logs" / "nvdlfw_inspect_globalrank-1.log"
    assert "came before torch.distributed.init_process_group" in log.read_text()
