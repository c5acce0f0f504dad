"""Ranks that begin a session: messages that are printed once for all, and a rank that is
missing.
"""

import contextlib
import datetime
import os
import pathlib
import sys
import time

import pytest
import torch
import torch.distributed as dist
from distributed_workers import run_ranks

import telens
import telens.debug as debug
import telens.pytorch as te


def section(**options: object) -> dict:
    return {
        "enabled": True,
        "layers": {"layer_types": "all"},
        "transformer_engine": {
            "LogTensorStats": {
                "enabled": True,
                "stats": ["max"],
                "tensors": ["activation"],
                **options,
            }
        },
    }


EMPTY_LIST = {"watch": section(start_end_list=[])}  # a warning of the configuration


@contextlib.contextmanager
def stderr_in(path: pathlib.Path):
    """Redirects what C++ and Python write to stderr to a file."""
    kept = os.dup(2)
    with open(path, "ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def log_of(folder: pathlib.Path, rank: int) -> str:
    return (folder / "nvdlfw_inspect_logs" / f"nvdlfw_inspect_globalrank-{rank}.log").read_text()


# ---- messages


def say_everything(rank: int, folder: str) -> None:
    logs = pathlib.Path(folder)
    with stderr_in(logs / f"alike{rank}"):
        debug.initialize(EMPTY_LIST, log_dir=logs / "alike")
        debug.log_message(f"trouble of rank {rank}", level="WARNING")
        if rank > 0:  # a stage of a pipeline, as far as these know
            debug.on_finding(print)
        debug.step()
        debug.end_debug()
    with stderr_in(logs / f"different{rank}"):
        config = EMPTY_LIST if rank == 1 else {"watch": section()}
        with debug.session(config, log_dir=logs / "different"):
            debug.step()


OF_THE_RUN = "'start_end_list' is empty"


def test_first_rank_prints_the_common_warnings(begun):
    shown = [(begun / f"alike{rank}").read_text() for rank in range(3)]
    assert [each.count(OF_THE_RUN) for each in shown] == [1, 0, 0]
    assert [each.count("nothing will be found") for each in shown] == [0, 1, 1]
    for rank in range(3):
        assert [each.count(f"trouble of rank {rank}") for each in shown] == [
            int(shown_by == rank) for shown_by in range(3)
        ]
    events = telens.open_run(begun / "alike").table("events")
    assert OF_THE_RUN in log_of(begun / "alike", 1)
    assert set(events[events["text"].str.contains(OF_THE_RUN, regex=False)]["rank"]) == {0, 1, 2}
    # Ranks with another configuration print its warnings.
    shown = [(begun / f"different{rank}").read_text() for rank in range(3)]
    assert [each.count("'start_end_list' is empty") for each in shown] == [0, 1, 0]
    assert [each.count("the ranks have different configurations") for each in shown] == [1, 0, 0]
    assert "the ranks have different configurations" in log_of(begun / "different", 1)


# ---- a rank without a session

WAIT = 2  # seconds


def join_again(rank: int, folder: str) -> None:
    """New groups in which ranks wait only briefly for the others' session, but as usual in
    collectives.
    """
    dist.destroy_process_group()
    store = dist.FileStore(f"{folder}/store", 3)
    store.set_timeout(datetime.timedelta(seconds=2 * WAIT))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=3)


def train(layer: te.Linear, rank: int) -> None:
    layer(torch.full((16, 32), 1.0 + rank))
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == 3
    debug.step()


def some_begin(rank: int, folder: str) -> None:
    join_again(rank, folder)
    logs = pathlib.Path(folder)
    config = {
        "watch": section(),
        "ranks": {
            "enabled": True,
            "layers": {"layer_types": "all"},
            "telens": {"RankAgreement": {"enabled": True, "tensors": ["weight"]}},
        },
    }

    def begin(folder="alone"):
        debug.initialize(config, log_dir=logs / folder)

    layer = te.Linear(32, 32, name="fc")
    with stderr_in(logs / f"stderr{rank}"):
        if rank < 2:
            begin()
        train(layer, rank)
        if rank == 2:
            begin()
        train(layer, rank)
        assert debug.get_tensor_reduction_group() is None
        # The program's own group is not used either, because a rank would wait in it.
        debug.set_tensor_reduction_group(dist.group.WORLD)
        if rank == 0:
            layer(torch.ones(16, 32))
            debug.step()
        debug.end_debug()
    dist.barrier()
    # If a rank refuses, the others stop waiting: here for errors found in Python and in the core.
    refused = [{"log_dir": 3}, {"config_file": {"a": {"NoSuchFeature": {"enabled": True}}}}]
    for arguments in refused:
        if rank == 1:
            with pytest.raises((telens.ConfigError, TypeError, telens.UsageError)):
                debug.initialize(**arguments)
        else:
            with pytest.raises(telens.UsageError, match="rank 1 refused"):
                begin()
        dist.barrier()
    # Rank 0 skips a session, and is the first in the next one.
    with stderr_in(logs / f"skipped{rank}"):
        if rank > 0:
            begin("skipped")
            debug.end_debug()
    dist.barrier()
    if rank > 0:
        time.sleep(WAIT / 4)
    begin()
    assert debug.get_tensor_reduction_group() is not None
    train(layer, rank)
    # A second call is refused on its rank only, and the next session has all ranks.
    if rank == 0:
        with pytest.raises(telens.UsageError, match="a session already"):
            begin()
    debug.end_debug()
    dist.barrier()
    begin("next")
    assert debug.get_tensor_reduction_group() is not None
    debug.end_debug()


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(say_and_begin, str(folder), world_size=3)
    return folder


def say_and_begin(rank: int, folder: str) -> None:
    say_everything(rank, folder)
    some_begin(rank, folder)


def test_ranks_continue_without_a_rank_lacking_session(begun):
    what = "rank 2 of 3 had not called it after 2 s"
    shown = [(begun / f"stderr{rank}").read_text() for rank in range(3)]
    assert [each.count(what) for each in shown] == [1, 0, 1]
    skipped = [(begun / f"skipped{rank}").read_text() for rank in range(3)]
    assert [each.count("waits for rank 0 of 3") for each in skipped] == [0, 1, 0]
    assert "Call debug.initialize on every rank" in shown[0]
    assert "before this one came" in shown[2]
    assert "debug.initialize waits for rank 2 of 3" in shown[0]
    runs = sorted((begun / "alone" / "telens").iterdir())
    files = [sorted(file.name for file in run.glob("*.h5")) for run in runs]
    assert files == [[f"rank{rank:05}.h5" for rank in range(3)]] * 2
    alone = telens.open_run(runs[0])
    events = alone.table("events")
    assert set(events[events["text"].str.contains(what, regex=False)]["rank"]) == {0, 1, 2}
    values = alone.records(statistic="max")
    assert values["scope"].isna().all()
    assert sorted(zip(values["rank"], values["value"], strict=True)) == [
        (0, 1.0),
        (0, 1.0),
        (0, 1.0),
        (1, 2.0),
        (1, 2.0),
        (2, 3.0),
    ]
