"""Distributed checkpoints (DCP) of weights that are stored in FP8 with one scale."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from models_of_codes import RANKS, batch, make, parts_of, run
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

import telens.pytorch as te
from telens import _C
from telens.common.recipe import Float8BlockScaling, Float8CurrentScaling


def checkpoints(rank: int, folder: str) -> None:
    warnings.simplefilter("ignore")
    between_shards_and_whole_weights(rank, folder)
    values_are_refused_for_shards(folder)
    values_in_pieces(rank, folder)
    values_in_pieces_of_blocks(folder)
    whole_state_dict(rank)


def between_shards_and_whole_weights(rank: int, folder: str) -> None:
    """Codes and scales can be loaded from shards into shards, from shards into whole weights, and
    from whole weights into shards.
    """
    recipe = Float8CurrentScaling()
    for number, (saved, loaded) in enumerate([(True, True), (True, False), (False, True)]):
        model, other = make(recipe, saved), make(recipe, loaded, seed=2)
        where = f"{folder}/{number}"
        dcp.save(model.state_dict(), checkpoint_id=where)
        state = other.state_dict()
        dcp.load(state, checkpoint_id=where)
        other.load_state_dict(state)
        found = run(other, recipe, batch(0, rank))
        assert torch.equal(found, run(model, recipe, batch(0, rank))), (saved, loaded)
        if loaded:
            assert isinstance(other[0].weight.to_local(), te.Float8Tensor)


def values_are_refused_for_shards(folder: str) -> None:
    """Codes of another format are refused too, because their scale has another meaning."""
    plain = torch.nn.Sequential(te.Linear(32, 96, device="cpu"), te.Linear(96, 80, device="cpu"))
    other_format = te.Float8CurrentScalingQuantizer(_C.DType.kFloat8E5M2)(torch.ones(96, 32))
    for came, saved in (
        ("torch.float32", plain.state_dict()),
        ("kFloat8E5M2", {"0.weight": other_format}),
    ):
        where = f"{folder}/{came}"
        dcp.save(saved, checkpoint_id=where)
        state = make(Float8CurrentScaling(), True).state_dict()
        wanted = {name: value for name, value in state.items() if name in saved}
        words = f"a checkpoint has values in {came} for a weight"
        with pytest.raises(BaseException, match=words):  # torch wraps it in one of these
            dcp.load(wanted, checkpoint_id=where)


def values_in_pieces(rank: int, folder: str) -> None:
    """A whole weight gets the codes and the scale of all values, however the checkpoint divides
    them.
    """
    torch.manual_seed(3)
    values = torch.randn(96, 32) * torch.logspace(-4, 4, 96)[:, None]
    mesh = dist.device_mesh.init_device_mesh("cpu", (RANKS,))
    plain = torch.nn.Sequential(te.Linear(32, 96, device="cpu"))
    with torch.no_grad():
        plain[0].weight.copy_(values)
    fully_shard(plain[0], mesh=mesh)
    pieces = {
        "rows": plain[0].weight.detach(),
        "columns": distribute_tensor(values[:, :30], mesh, [Shard(1)]),
        "codes of another format": te.Float8CurrentScalingQuantizer(_C.DType.kFloat8E5M2)(values),
    }
    for name, saved in pieces.items():
        dcp.save({"weight": saved}, checkpoint_id=f"{folder}/{name}")
        whole = values if name == "rows" else saved.full_tensor() if name == "columns" else saved
        expected = te.Float8CurrentScalingQuantizer(_C.DType.kFloat8E4M3)(whole.float())
        loaded = te.Float8CurrentScalingQuantizer(_C.DType.kFloat8E4M3)(torch.ones(whole.shape))
        for _ in range(2):  # a second load begins anew
            dcp.load({"weight": loaded}, checkpoint_id=f"{folder}/{name}")
            assert torch.equal(loaded._scale_inv, expected._scale_inv), name
            assert torch.equal(loaded._data, expected._data), name
            assert torch.equal(loaded._transpose, expected._transpose), name
            loaded.quantize_(torch.ones(whole.shape))


def values_in_pieces_of_blocks(folder: str) -> None:
    """Loads the rows that values_in_pieces has saved."""
    plain = torch.ones(96, 32)
    dcp.load({"weight": plain}, checkpoint_id=f"{folder}/rows")
    with te.fp8_model_init(recipe=Float8BlockScaling()):
        loaded, expected = (te.Linear(32, 96, device="cpu").weight.detach() for _ in range(2))
    expected.quantize_(plain)
    dcp.load({"weight": loaded}, checkpoint_id=f"{folder}/rows")
    assert torch.equal(loaded._rowwise_scale_inv, expected._rowwise_scale_inv)
    assert torch.equal(loaded._rowwise_data, expected._rowwise_data)
    narrowed = narrow_tensor_by_index(loaded, (4, 8), (2, 3))
    assert type(narrowed) is torch.Tensor  # nothing is read into it
    assert torch.equal(narrowed, loaded.dequantize()[4:6, 8:11])


def whole_state_dict(rank: int) -> None:
    """A full state dict of layers without FP8 state is loaded on each rank; torch passes values to
    shards.
    """
    recipe = Float8CurrentScaling()
    model, whole = make(recipe, True, seed=2), make(recipe, False)
    set_model_state_dict(model, whole.state_dict(), options=StateDictOptions(full_state_dict=True))
    assert torch.equal(model[0].weight.to_local()._data, parts_of(whole[0].weight._data, rank))
    assert torch.equal(model[1].bias.full_tensor(), whole[1].bias)
