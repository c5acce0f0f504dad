"""FSDP2 with weights that are stored in FP8, with one scale or in blocks: codes are gathered."""

import itertools
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from checkpoints_of_codes import checkpoints
from distributed_workers import DEVICES, has_own_gpus, run_ranks
from models_of_codes import RANKS, RECIPES, batch, make, parts_of, run
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import telens.pytorch as te
from telens.common.recipe import Float8BlockScaling, Float8CurrentScaling, MXFP8BlockScaling
from telens.pytorch.tensor import sharded_codes
from telens.pytorch.tensor.sharded_codes import largest_of_ranks

OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.25),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.125),
}


def sharded_training(rank: int, name: str, optimizer: str) -> None:
    """Compares with a model that is not sharded, whose gradients are the mean over all ranks."""
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
            # The mean as FSDP computes it, which must not depend on the order of ranks.
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


def columns_of_gpus_are_freed(rank: int) -> None:
    """If the GEMM needs row-major codes: after a step each rank has only the columnwise codes of
    its shards.
    """
    with mock.patch.object(sharded_codes, "takes_any_layout", return_value=False):
        sharded_training(rank, "current", "SGD")
        recipe = Float8CurrentScaling()
        model = make(recipe, True)
        alive = []
        for step in range(2):
            run(model, recipe, batch(step, rank)).sum().backward()
            for module in model:
                group = module._get_fsdp_state()._fsdp_param_group
                (weight,) = (
                    each.unsharded_param
                    for each in group.fsdp_params
                    if each._module_info.param_name == "weight"
                )
                assert weight._transpose.is_contiguous()
                for codes in (weight._data, weight._transpose):
                    alive.append(codes.untyped_storage().nbytes())
        assert alive == [0] * 8


def special_values(rank: int) -> None:
    """A NaN or an Inf on one rank affects the scale on all ranks, as in the whole tensor."""
    specials = (float("nan"), float("inf"), 0.0, 448.0, 1e-30)
    for special, row in itertools.product(specials, (0, 95)):  # the first and the last rank have it
        recipe = Float8CurrentScaling()
        model, whole = make(recipe, True), make(recipe, False)
        # A non-finite amax gives a scale of 1, which these values do not.
        values = torch.full((96, 32), 2.0)
        values[row, 3] = special
        with torch.no_grad():
            whole[0].weight.quantize_(values)
            model[0].weight.to_local().quantize_(parts_of(values, rank))
        own, expected = model[0].weight.to_local(), whole[0].weight
        torch.testing.assert_close(
            own._scale_inv, expected._scale_inv, rtol=0, atol=0, equal_nan=True
        )
        assert torch.equal(own._data, parts_of(expected._data, rank)), (special, row)


def scale_of_a_step_is_not_that_of_gathered_codes(rank: int) -> None:
    """A model's outermost parameters stay gathered, even while an optimizer changes the shards."""
    recipe = Float8CurrentScaling()
    mesh = dist.device_mesh.init_device_mesh("cpu", (RANKS,))
    with te.fp8_model_init(recipe=recipe):
        model = te.Linear(32, 96, device="cpu")
    fully_shard(model, mesh=mesh)
    shard = model.weight.to_local()
    with torch.no_grad():
        before = run(model, recipe, batch(0, rank))
        assert not hasattr(model.weight, "to_local")  # gathered
        shard.quantize_(shard.dequantize() * 128)
        assert torch.equal(run(model, recipe, batch(0, rank)), before)
        model.reshard()
        assert run(model, recipe, batch(0, rank)).abs().max() > 8 * before.abs().max()


def mixed_precision(rank: int) -> None:
    """Gathered weights have the policy's dtype; weights and biases get FP32 gradients."""
    recipe = Float8CurrentScaling()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model, whole = make(recipe, True, mp_policy=policy), make(recipe, False)
    with torch.no_grad():
        for module in whole:  # values that BF16 has, which a weight's codes are
            module.bias.copy_(module.bias.bfloat16())
        for each, other in zip(model, whole, strict=True):
            each.bias.to_local().copy_(parts_of(other.bias, rank))
    for step in range(3):  # the second gathers into what the first has made
        with torch.autocast("cpu", torch.bfloat16, enabled=step == 2):
            out = run(model, recipe, batch(step, rank))
        with torch.autocast("cpu", torch.bfloat16):
            expected = run(whole, recipe, batch(step, rank).bfloat16())
        assert out.dtype is torch.bfloat16
        assert torch.equal(out, expected)
        out.float().sum().backward()
        expected.float().sum().backward()
        for parameter, other in zip(model.parameters(), whole.parameters(), strict=True):
            assert parameter.grad.dtype is torch.float32
            dist.all_reduce(other.grad)
            mean = other.grad / RANKS
            torch.testing.assert_close(parameter.grad.full_tensor(), mean, rtol=2**-8, atol=1e-6)
            parameter.grad = other.grad = None


def nan_of_the_second_of_two(rank: int) -> None:
    """The maximum of gloo would lose it."""
    pair = dist.new_group([0, 1])
    if rank < 2:
        values = torch.full((1000,), 2.0)
        values[777] = [1.0, float("nan")][rank]
        assert largest_of_ranks(values, pair).isnan()


def elsewhere_values_are_seen(rank: int) -> None:
    """Outside of FSDP, these operations return values and do not change a weight."""
    weight = make(Float8CurrentScaling(), False)[0].weight
    before = weight.dequantize()
    with torch.no_grad():
        for made in (
            weight[:4], *weight.split(48), weight.new_zeros(3, 32), weight.view(-1),
            of_that_name("narrow_tensor_by_index", "_shard/_utils.py")(weight),
            of_that_name("read_data", "checkpoint.py")(weight),
        ):  # fmt: skip
            assert type(made) is torch.Tensor
            made.zero_()
    assert torch.equal(weight.dequantize(), before)


def of_that_name(name: str, file: str):
    """Returns a function with the name of one of torch's, in a file with the same name."""
    functions = {"__name__": "trainer"}
    exec(compile(f"def {name}(weight): return weight[:4]", file, "exec"), functions)
    return functions[name]


def blocks_that_lie_on_two_ranks_are_sharded_as_values(rank: int) -> None:
    recipe = MXFP8BlockScaling()
    model, whole = make(recipe, True), make(recipe, False)
    assert type(model[0].weight.to_local()) is te.MXFP8Tensor  # 32 rows on each
    assert type(model[1].weight.to_local()) is torch.Tensor
    assert torch.equal(model[1].weight.full_tensor(), whole[1].weight.dequantize())
    recipe = Float8BlockScaling()
    model, whole = make(recipe, True), make(recipe, False)
    for own, expected in zip(model, whole, strict=True):
        assert type(own.weight.to_local()) is torch.Tensor
        assert torch.equal(own.weight.full_tensor(), expected.weight.dequantize())


def moved_shards_of_blocks_stay_shards(rank: int) -> None:
    """FSDP gathers copied shards, and shards that a parameter has taken over, as codes."""
    recipe = MXFP8BlockScaling()
    shard = make(recipe, True)[0].weight.to_local()
    whole = make(recipe, False, sizes=(32, 32))[0].weight
    assert (shard._is_shard, whole._is_shard) == (True, False)
    for copied in (shard.to("cpu", copy=True), shard.clone(), shard.detach()):
        assert type(copied) is te.MXFP8Tensor
        assert copied._is_shard
        assert torch.equal(copied._rowwise_data, shard._rowwise_data)
    taken = whole.detach()
    taken.data = shard
    assert taken._is_shard
    taken.data = taken.dequantize()  # values, under scales of their own
    assert taken._is_shard
    taken.data = whole
    assert not taken._is_shard
    assert torch.equal(taken._rowwise_data, whole._rowwise_data)


BLOCKS = {MXFP8BlockScaling: 32, Float8BlockScaling: 128}
# The parts of a tensor in blocks, and the dimension along which its rows are.
PARTS = {
    "_rowwise_data": 0, "_rowwise_scale_inv": 0, "_columnwise_data": 1, "_columnwise_scale_inv": 1,
}  # fmt: skip


def compare_blocks(model, whole, rank: int) -> None:
    for own, expected in zip(model, whole, strict=True):
        shard = own.weight.to_local()
        assert type(shard) is type(expected.weight.detach())
        for name, dim in PARTS.items():
            part = getattr(expected.weight, name).chunk(RANKS, dim)[rank]
            found = getattr(shard, name)
            assert torch.equal(found, part), name
            assert found.untyped_storage().nbytes() == part.numel() * part.element_size(), name


def blocks_train_as_whole_ones(rank: int, folder: str) -> None:
    for kind, block in BLOCKS.items():
        recipe, sizes = kind(), (2 * block, RANKS * block, 2 * RANKS * block)
        model, whole = make(recipe, True, sizes=sizes), make(recipe, False, sizes=sizes)
        compare_blocks(model, whole, rank)
        steps = [OPTIMIZERS["AdamW"](each.parameters()) for each in (model, whole)]
        for step in range(3):
            x = batch(step, rank, rows=block, width=2 * block)
            found, expected = (run(each, recipe, x) for each in (model, whole))
            assert torch.equal(found, expected), (kind, step)
            found.square().sum().backward()
            expected.square().sum().backward()
            for parameter, other in zip(model.parameters(), whole.parameters(), strict=True):
                other.grad = parameter.grad.full_tensor()
            for each in steps:
                each.step()
                each.zero_grad()
        compare_blocks(model, whole, rank)
        blocks_are_gathered(model)
        where = f"{folder}/{kind.__name__}"
        dcp.save(model.state_dict(), checkpoint_id=where)
        loaded = make(recipe, True, seed=2, sizes=sizes)
        state = loaded.state_dict()
        dcp.load(state, checkpoint_id=where)
        loaded.load_state_dict(state)
        compare_blocks(loaded, whole, rank)


def blocks_are_gathered(model) -> None:
    for module in model:
        group = module._get_fsdp_state()._fsdp_param_group
        group.reshard()
        sent = {each._module_info.param_name: each.all_gather_inputs for each in group.fsdp_params}
        rows, row_scales, columns, column_scales = sent["weight"]
        codes = module.weight.numel() // RANKS
        assert (
            (rows.dtype, rows.numel()) == (columns.dtype, columns.numel()) == (torch.uint8, codes)
        )
        assert row_scales.numel() + column_scales.numel() <= codes // 16


def trainings(rank: int) -> None:
    for name, optimizer in itertools.product(RECIPES, OPTIMIZERS):
        sharded_training(rank, name, optimizer)


def all_cases(rank: int, folder: str) -> None:
    trainings(rank)
    for case in (
        codes_are_gathered, columns_of_gpus_are_freed, special_values,
        scale_of_a_step_is_not_that_of_gathered_codes, mixed_precision,
        nan_of_the_second_of_two, elsewhere_values_are_seen,
        blocks_that_lie_on_two_ranks_are_sharded_as_values, moved_shards_of_blocks_stay_shards,
    ):  # fmt: skip
        case(rank)
    blocks_train_as_whole_ones(rank, folder)
    checkpoints(rank, folder)


@pytest.mark.parametrize("device", DEVICES)
def test_sharded_codes_train_as_whole_ones_do(tmp_path, device):
    if device == "cpu":
        run_ranks(all_cases, str(tmp_path / "checkpoint"), world_size=RANKS)
        return
    if not has_own_gpus(RANKS):
        pytest.skip(f"FSDP2 needs a GPU for each of {RANKS} ranks")
    run_ranks(trainings, world_size=RANKS, device=device)
