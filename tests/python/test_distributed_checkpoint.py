"""torch.distributed.checkpoint: shards of FSDP2, scales and histories with another world size."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from distributed_workers import run_ranks
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import telens.pytorch as te
from telens.common.recipe import DelayedScaling

RECIPE = DelayedScaling(amax_history_len=4)


def make(seed: int, shard: bool = True) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        te.Linear(32, 64, device="cpu"),
        te.LayerNormMLP(64, 64, device="cpu"),
        te.Linear(64, 32, device="cpu"),
    )
    if shard:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in (*model, model):
            fully_shard(layer, mesh=mesh)
    return model


def train(model, seed: int, steps: int) -> None:
    group = dist.group.WORLD if dist.is_initialized() else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        torch.manual_seed(1000 * seed + step)
        with te.fp8_autocast(fp8_recipe=RECIPE, fp8_group=group):
            out = model(torch.randn(16, 32))
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@torch.no_grad()
def state_of(model) -> dict[str, torch.Tensor]:
    """Returns outputs of an evaluation, scales and histories."""
    model.eval()
    torch.manual_seed(5)
    with te.fp8_autocast(fp8_recipe=RECIPE):
        seen = {"out": model(torch.randn(16, 32)).clone()}
    for number, layer in enumerate(model):
        for direction in ("scaling_fwd", "scaling_bwd"):
            meta = layer.fp8_meta[direction]
            seen[f"{number}.{direction}.scale"] = meta.scale.clone()
            seen[f"{number}.{direction}.history"] = meta.amax_history.clone()
    return seen


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


def save(rank: int, folder: str) -> None:
    model = make(1)
    train(model, seed=rank + 1, steps=3)
    dcp.save(get_model_state_dict(model), checkpoint_id=f"{folder}/checkpoint")
    seen = state_of(model)
    if rank == 0:
        torch.save(seen, f"{folder}/seen.pt")


def load(rank: int, folder: str) -> None:
    model = make(7)
    train(model, seed=9, steps=1)  # dcp.load fills tensors that are there
    state = get_model_state_dict(model)
    dcp.load(state, checkpoint_id=f"{folder}/checkpoint")
    set_model_state_dict(model, state)
    same(state_of(model), torch.load(f"{folder}/seen.pt"))


@pytest.mark.parametrize("ranks", [(2, 1), (1, 2)], ids=lambda ranks: f"{ranks}")
def test_sharded_checkpoint_loads_with_another_world_size(tmp_path, ranks):
    saving, loading = ranks
    run_ranks(save, str(tmp_path), world_size=saving)
    run_ranks(load, str(tmp_path), world_size=loading)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_sharded_checkpoint_loads_into_a_plain_model(tmp_path):
    run_ranks(save, str(tmp_path), world_size=2)
    model = make(7, shard=False)
    train(model, seed=9, steps=1)
    state = model.state_dict()
    dcp.load(state, checkpoint_id=tmp_path / "checkpoint")
    model.load_state_dict(state)
    same(state_of(model), torch.load(tmp_path / "seen.pt"))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize(("saved", "loaded"), [(3, 4), (4, 3), (2, 5)])
def test_states_between_scale_updates_load_into_any_model(tmp_path, saved, loaded):
    """dcp.load fills tensors in place: their sizes must not depend on the iteration."""
    recipe = DelayedScaling(amax_history_len=4, interval=4)

    def trained(seed: int, steps: int) -> torch.nn.Sequential:
        model = make(seed, shard=False)
        for step in range(steps):
            torch.manual_seed(seed + step)
            with te.fp8_autocast(fp8_recipe=recipe):
                model(torch.randn(16, 32)).square().mean().backward()
        return model

    model = trained(1, saved)
    dcp.save(model.state_dict(), checkpoint_id=tmp_path / "checkpoint")
    other = trained(7, loaded)
    state = other.state_dict()
    dcp.load(state, checkpoint_id=tmp_path / "checkpoint")
    other.load_state_dict(state)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name
