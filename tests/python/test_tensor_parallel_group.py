"""tp_group and tp_size are passed to the calls of debug features, also for layers that are not
divided.
"""

import copy
import pickle

import pytest
import torch
import torch.distributed as dist
from debug_helpers import section
from distributed_workers import run_ranks

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.debug.features.api import TEConfigAPIMapper
from telens.debug.registry import Registry, api_method


class Groups(TEConfigAPIMapper):
    """Notes the group of each call."""

    seen = []  # noqa: RUF012

    @api_method
    def inspect_tensor_enabled(self, config, layer_name, tensor_name, iteration):
        return True, iteration + 1

    @api_method
    def inspect_tensor_postquantize_enabled(self, config, layer_name, gemm, tensor_name, iteration):
        return True, iteration + 1

    @api_method
    def inspect_tensor(self, config, layer_name, tensor_name, tp_group, tp_size, **kwargs):
        self.seen.append((layer_name, tensor_name, tp_group, tp_size))

    @api_method
    def inspect_tensor_postquantize(self, config, layer_name, tensor_name, tp_group, tp_size, gemm):
        self.seen.append((layer_name, f"quantized {tensor_name}", tp_group, tp_size))


TENSORS = ["activation", "weight", "gradient", "output", "wgrad", "dgrad"]
CONFIG = section({"Groups": {"enabled": True, "tensors": TENSORS}})


def calls_of(layer, folder) -> list:
    Groups.seen.clear()
    with debug.session(CONFIG, log_dir=folder):
        x = torch.ones(16, 32, requires_grad=True)
        with te.autocast():
            out = layer(x)
        out.sum().backward()
    return list(Groups.seen)


def on_two_ranks(rank: int, folder: str) -> None:
    Registry.register_feature(namespace="transformer_engine")(Groups)
    group = dist.new_group([0, 1])
    given = te.Linear(32, 32, device="cpu", name="fc1", tp_group=group)
    assert given.tp_group is group
    assert given.tp_size == 2
    for wrong in (1, 4):  # the group tells
        assert te.Linear(32, 32, device="cpu", tp_group=group, tp_size=wrong).tp_size == 2
    later = te.LayerNormLinear(32, 32, device="cpu", name="qkv", tp_size=2)
    with pytest.raises(telens.UsageError, match="qkv: tp_size is 2, but tp_group is missing"):
        later(torch.ones(16, 32))
    later.set_tensor_parallel_group(group)
    assert later.tp_group is group
    for layer in (given, later):
        seen = calls_of(layer, folder)
        names = {name for _, name, _, _ in seen}
        assert names == {*TENSORS, *(f"quantized {each}" for each in TENSORS[:3])}
        assert {(tp_group.group_name, size) for _, _, tp_group, size in seen} == {
            (group.group_name, 2)
        }
    for other in (copy.deepcopy(given), pickle.loads(pickle.dumps(given))):
        assert (other.tp_group, other.tp_size) == (None, 2)
        with pytest.raises(telens.UsageError, match="fc1: tp_size is 2, but tp_group is missing"):
            other(torch.ones(16, 32))
        other.set_tensor_parallel_group(group)
        assert {size for _, _, _, size in calls_of(other, folder)} == {2}


def test_layers_hand_the_group_that_they_were_given_to_every_call(tmp_path):
    run_ranks(on_two_ranks, str(tmp_path))


def weight_maximum(rank: int, folder: str) -> None:
    group = dist.new_group([0, 1])
    layer = te.Linear(32, 32, device="cpu", name="fc1", tp_group=group)
    with torch.no_grad():
        layer.weight.fill_(1.0 + rank)
    stats = {"enabled": True, "tensors": ["weight"], "stats": ["max"]}
    with debug.session(section({"LogTensorStats": stats}), log_dir=folder):
        layer(torch.ones(16, 32))
        debug.step()


def test_a_weights_statistics_are_reduced_over_the_group_of_its_layer(tmp_path):
    run_ranks(weight_maximum, str(tmp_path))
    records = telens.open_run(tmp_path).records()
    found = records[(records["tensor"] == "weight") & (records["statistic"] == "max")]
    assert set(found["value"]) == {2.0}


def test_single_rank_group_has_size_one(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        alone = {"tp_group": dist.group.WORLD, "tp_size": 4, "device": "cpu"}
        for made in (
            te.Linear(32, 32, **alone),
            te.GroupedLinear(2, 32, 32, **alone),
            te.LayerNormLinear(32, 32, **alone),
            te.LayerNormMLP(32, 64, **alone),
            te.MultiheadAttention(32, 2, **alone),
            te.TransformerLayer(32, 64, 2, **alone),
        ):
            assert made.tp_size == 1, type(made)
    finally:
        dist.destroy_process_group()


def test_calls_without_a_group_get_none_and_one(tmp_path, register):
    register(Groups)
    seen = calls_of(te.Linear(32, 32, device="cpu", name="fc1"), tmp_path)
    assert {(group, size) for _, _, group, size in seen} == {(None, 1)}
