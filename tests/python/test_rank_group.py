"""RankGroup and RankStore in Python: two gloo ranks, a subgroup, a group without a store."""

import datetime
import gc
import time

import pytest
import torch
import torch.distributed
from distributed_workers import run_ranks

from telens.debug.rank_group import RankGroup, RankStore, to_rank_group


def world() -> RankGroup:
    return to_rank_group(torch.distributed.group.WORLD)


def describe(rank):
    group = world()
    assert (group.rank(), group.size()) == (rank, 2)
    assert group.description() == "default_pg"
    assert group.name() == torch.distributed.group.WORLD.group_name
    assert group.members() == "-"  # torch.distributed gives the world no list
    assert group.process_group is torch.distributed.group.WORLD


def test_world_has_its_rank_size_and_names():
    run_ranks(describe)


def describe_subgroups(rank):
    pairs = [
        torch.distributed.new_group(ranks, group_desc=f"pair {ranks}") for ranks in ([1], [0, 1])
    ]
    alone, both = pairs
    assert to_rank_group(both).members() == "0,1"
    assert to_rank_group(both).description() == "pair [0, 1]"
    if rank == 1:
        group = to_rank_group(alone)
        assert (group.rank(), group.size(), group.members()) == (0, 1, "1")
        assert group.gather(b"own") == b"own"


def test_members_are_ranks_of_the_world():
    run_ranks(describe_subgroups)


def gather_bytes(rank):
    group = world()
    own = bytes([rank, 255, 0, 128 + rank])
    assert group.gather(own) == b"\x00\xff\x00\x80\x01\xff\x00\x81"
    assert group.gather(b"") == b""
    with torch.device("meta"):  # the program's default device is not used
        assert group.gather(own[:1]) == b"\x00\x01"
    large = bytes(range(256)) * 4096
    assert group.gather(large) == large + large


def test_gather_joins_all_bytes_in_rank_order():
    run_ranks(gather_bytes)


def use_store(rank):
    store = world().store()
    assert store.can_decide()
    if rank == 0:
        time.sleep(0.2)  # rank 1 waits
        store.set("value", b"\xff\x00bytes")
    assert store.get("value") == b"\xff\x00bytes"
    assert store.has("value")
    assert not store.has("absent")
    store.add("count", 2)
    torch.distributed.barrier()
    assert store.add("count", 0) == 4
    store.set_if_missing("decision", b"rank %d" % rank)
    torch.distributed.barrier()
    decision = store.get("decision")
    assert decision in (b"rank 0", b"rank 1")
    assert world().gather(decision) == decision + decision
    torch.distributed.barrier()
    if rank == 0:
        store.remove("value")
    torch.distributed.barrier()
    assert not store.has("value")


def test_store_is_shared_and_decides_once():
    run_ranks(use_store)


def time_out(rank):
    limit = datetime.timedelta(milliseconds=700)
    short = torch.distributed.new_group([0, 1], timeout=limit)
    group = to_rank_group(short)
    assert group.time_limit() == 700
    assert world().time_limit() == 60_000
    begin = time.monotonic()
    if rank == 0:
        with pytest.raises(RuntimeError, match=r"(?i)time"):
            group.gather(b"x")
        assert 0.5 < time.monotonic() - begin < 20
    torch.distributed.barrier()


def test_gather_fails_after_the_time_limit():
    run_ranks(time_out)


def find_groups(rank):
    group = world()
    pair = torch.distributed.new_group([0, 1])
    assert group.find(pair.group_name).process_group is pair
    assert group.find("no such group") is None


def test_find_returns_groups_of_this_process():
    run_ranks(find_groups)


@pytest.fixture
def lone_world(tmp_path):
    """A process group of this process only."""
    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("lone_world")
def test_weak_store_ends_with_its_group():
    group = world()
    get_store = group.store().get_weak()
    assert isinstance(get_store(), RankStore)
    group.state()["sizes"] = [1, 2]
    assert world().state() == {"sizes": [1, 2]}
    del group
    torch.distributed.destroy_process_group()
    gc.collect()
    assert get_store() is None


@pytest.mark.usefixtures("lone_world")
def test_state_belongs_to_one_group():
    world().state()["key"] = 1
    assert to_rank_group(torch.distributed.new_group([0])).state() == {}


def test_store_without_atomic_calls_cannot_decide():
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    try:
        group = world()
        assert (group.rank(), group.size()) == (1, 4)
        assert not group.store().can_decide()
        assert group.members() == "-"
    finally:
        torch.distributed.destroy_process_group()


def test_only_process_groups_are_accepted():
    assert to_rank_group(None) is None
    with pytest.raises(
        TypeError, match=r"argument 'tp_group' must be .*ProcessGroup or None, not int"
    ):
        to_rank_group(3, "tp_group")
