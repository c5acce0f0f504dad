"""FSDP2 of weights that are stored in FP8 under one scale: shards and gathers are of codes."""

import itertools
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from distributed_workers import run_ranks
from torch.distributed.fsdp import fully_shard

import telens.pytorch as te
from telens.common.recipe import DelayedScaling, Float8CurrentScaling, MXFP8BlockScaling
from telens.pytorch.tensor.sharded_codes import largest_of_ranks

RANKS = 3
RECIPES = {"current": Float8CurrentScaling, "delayed": DelayedScaling}
OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.25),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.125),
}


def make(recipe, shard: bool, seed: int = 1) -> torch.nn.Sequential:
    """Weights of 96 rows, 32 on each rank, and of 80: 27, 27 and 26."""
    torch.manual_seed(seed)
    with te.fp8_model_init(recipe=recipe):
        model = torch.nn.Sequential(
            te.Linear(32, 96, device="cpu"), te.Linear(96, 80, device="cpu")
        )
    if shard:
        mesh = dist.device_mesh.init_device_mesh("cpu", (RANKS,))
        for module in (*model, model):
            fully_shard(module, mesh=mesh)
    return model


def batch(step: int, rank: int) -> torch.Tensor:
    """Whole numbers of which few are not 0, so that the mean of ranks' gradients is exact."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randint(-1, 2, (16, 32), generator=generator).float()


def run(model, recipe, x: torch.Tensor, group=None) -> torch.Tensor:
    with te.fp8_autocast(fp8_recipe=recipe, fp8_group=group):
        return model(x)


def parts_of(whole: torch.Tensor, rank: int) -> torch.Tensor:
    parts = whole.chunk(RANKS)
    return parts[rank]


def sharded_training(rank: int, name: str, optimizer: str) -> None:
    """Beside a model whose codes are whole and whose gradients are the mean of all ranks'."""
    recipe = RECIPES[name]()
    model, whole = make(recipe, True), make(recipe, False)
    for parameter, expected in zip(model.parameters(), whole.parameters(), strict=True):
        if isinstance(expected, te.Float8Tensor):
            own = parameter.to_local()
            assert isinstance(own, te.Float8Tensor)
            assert torch.equal(own._data, parts_of(expected._data, rank))
            assert own._data.untyped_storage().nbytes() <= -(-expected.numel() // RANKS // 96) * 96
    steps = [OPTIMIZERS[optimizer](each.parameters()) for each in (model, whole)]
    for step in range(3):
        out = run(model, recipe, batch(step, rank), dist.group.WORLD)
        expected = run(whole, recipe, batch(step, rank), dist.group.WORLD)
        assert torch.equal(out, expected), (name, optimizer, step)
        out.square().sum().backward()
        expected.square().sum().backward()
        for parameter, other in zip(model.parameters(), whole.parameters(), strict=True):
            # FSDP's own mean, which the order of ranks must not change.
            other.grad = parameter.grad.full_tensor()
        for each in steps:
            each.step()
            each.zero_grad()
    for parameter, expected in zip(model.parameters(), whole.parameters(), strict=True):
        if isinstance(expected, te.Float8Tensor):
            own = parameter.to_local()
            assert torch.equal(own._scale_inv, expected._scale_inv)
            assert torch.equal(own._data, parts_of(expected._data, rank))


def codes_are_gathered(rank: int) -> None:
    recipe = Float8CurrentScaling()
    model = make(recipe, True)
    run(model, recipe, batch(0, rank))
    for module, rows in ((model[0], 32 * 32), (model[1], 27 * 96)):
        group = module._get_fsdp_state()._fsdp_param_group
        group.reshard()
        sent = {each._module_info.param_name: each.all_gather_inputs for each in group.fsdp_params}
        (codes,) = sent["weight"]
        assert (codes.dtype, codes.numel()) == (torch.uint8, rows)


def special_values(rank: int) -> None:
    """A NaN or an Inf of one rank is in the scale of all, as in the scale of the whole."""
    specials = (float("nan"), float("inf"), 0.0, 448.0, 1e-30)
    for special, row in itertools.product(specials, (0, 95)):  # the first and the last rank have it
        recipe = Float8CurrentScaling()
        model, whole = make(recipe, True), make(recipe, False)
        values = torch.zeros(96, 32)
        values[row, 3] = special
        with torch.no_grad():
            whole[0].weight.quantize_(values)
            model[0].weight.to_local().quantize_(parts_of(values, rank))
        own, expected = model[0].weight.to_local(), whole[0].weight
        torch.testing.assert_close(
            own._scale_inv, expected._scale_inv, rtol=0, atol=0, equal_nan=True
        )
        assert torch.equal(own._data, parts_of(expected._data, rank)), (special, row)


def nan_of_the_second_of_two(rank: int) -> None:
    """gloo's own maximum loses it."""
    pair = dist.new_group([0, 1])
    if rank < 2:
        values = torch.tensor([[1.0, float("nan")][rank]])
        assert largest_of_ranks(values, pair).isnan()


def elsewhere_values_are_seen(rank: int) -> None:
    """Outside of FSDP the same operations see values, and change nothing of a weight."""
    weight = make(Float8CurrentScaling(), False)[0].weight
    before = weight.dequantize()
    with torch.no_grad():
        for made in (weight[:4], *weight.split(48), weight.new_zeros(3, 32), weight.view(-1)):
            assert type(made) is torch.Tensor
            made.zero_()
    assert torch.equal(weight.dequantize(), before)


def blocks_are_sharded_as_values(rank: int) -> None:
    recipe = MXFP8BlockScaling()
    model, whole = make(recipe, True), make(recipe, False)
    assert type(model[0].weight.to_local()) is torch.Tensor
    assert torch.equal(model[0].weight.full_tensor(), whole[0].weight.dequantize())


def checkpoint(rank: int, folder: str) -> None:
    """Codes and scales come from shards into shards, into whole weights, and from those."""
    recipe = Float8CurrentScaling()
    warnings.simplefilter("ignore")
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
    plain = torch.nn.Sequential(te.Linear(32, 96, device="cpu"), te.Linear(96, 80, device="cpu"))
    dcp.save(plain.state_dict(), checkpoint_id=f"{folder}/plain")
    state = make(recipe, True).state_dict()
    words = r"a checkpoint has values in torch\.float32 for a weight"
    with pytest.raises(BaseException, match=words):  # torch wraps it in one of these
        dcp.load(state, checkpoint_id=f"{folder}/plain")


def all_cases(rank: int, folder: str) -> None:
    for name, optimizer in itertools.product(RECIPES, OPTIMIZERS):
        sharded_training(rank, name, optimizer)
    codes_are_gathered(rank)
    special_values(rank)
    nan_of_the_second_of_two(rank)
    elsewhere_values_are_seen(rank)
    blocks_are_sharded_as_values(rank)
    checkpoint(rank, folder)


def test_sharded_codes_train_as_whole_ones_do(tmp_path):
    run_ranks(all_cases, str(tmp_path / "checkpoint"), world_size=RANKS)
