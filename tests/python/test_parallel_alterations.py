"""Features that alter divided layers alter them like the whole layer, and equally on all ranks."""

import datetime
import os
import sys

import pytest
import torch
import torch.distributed as dist
from debug_helpers import section
from distributed_workers import run_ranks
from parallel_helpers import Part, equal, numbers, region

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import DelayedScaling
from telens.debug.features.api import TEConfigAPIMapper
from telens.debug.registry import Registry, api_method

IN, OUT, TOKENS = 64, 64, 32
PATIENCE = 4  # seconds of a group whose ranks are to miss each other


def fake_quant(gemm: str, *tensors: str) -> dict:
    return {
        "FakeQuant": {
            "enabled": True, "gemms": [gemm], "tensors": list(tensors), "quant_format": "FP8E4M3"
        }
    }  # fmt: skip


def disable(*gemms: str) -> dict:
    return {"DisableFP8GEMM": {"enabled": True, "gemms": list(gemms)}}


ALTERATIONS = {
    "fprop's operands": fake_quant("fprop", "activation", "weight"),
    "wgrad's activation": fake_quant("wgrad", "activation", "gradient"),
    "dgrad's gradient": fake_quant("dgrad", "gradient", "weight"),
    "fprop in BF16": disable("fprop"),
    "dgrad in BF16": disable("dgrad"),
    "all in BF16": disable("fprop", "dgrad", "wgrad"),
}


def divided(mode: str, **options: object) -> te.Linear:
    options = {"tp_group": dist.group.WORLD, "sequence_parallel": True, **options}
    return te.Linear(IN, OUT, bias=False, parallel_mode=mode, device="cpu", **options)


def one_alteration(rank: int, mode: str, precision: str) -> None:
    part = Part(rank, 2)
    whole, own = te.Linear(IN, OUT, bias=False, device="cpu"), divided(mode)
    columns = mode == "column"
    with torch.no_grad():
        whole.weight.copy_(numbers(precision, OUT, IN, seed=1))
        own.weight.copy_(part.of(whole.weight, 0 if columns else 1))
    x = numbers(precision, TOKENS, 2, IN, seed=3)
    gradient = numbers(precision, TOKENS, 2, OUT, seed=4)
    in_dim, out_dim = (0, -1) if columns else (-1, 0)

    def run(layer, group, x, gradient):
        x = x.clone().requires_grad_()
        layer.zero_grad()
        with region(precision, group):
            out = layer(x)
        out.backward(gradient)
        return out.detach(), x.grad

    expected = run(whole, None, x, gradient)
    found = run(own, dist.group.WORLD, part.of(x, in_dim), part.of(gradient, out_dim))
    equal(precision, found[0], part.of(expected[0], out_dim), (mode, precision, "output"))
    equal(precision, found[1], part.of(expected[1], in_dim), (mode, precision, "dgrad"))
    wgrad = part.of(whole.weight.grad, 0 if columns else 1)
    equal(precision, own.weight.grad, wgrad, (mode, precision, "wgrad"))


def all_alterations(rank: int, folder: str) -> None:
    for number, config in enumerate(ALTERATIONS.values()):
        with debug.session(section(config), log_dir=f"{folder}/{number}"):
            for mode in ("column", "row"):
                one_alteration(rank, mode, "current")
                one_alteration(rank, mode, "MXFP8")
            debug.step()
    for mode in ("column", "row"):
        one_alteration(rank, mode, "current")  # nothing is altered any more


def test_altered_sequence_parallel_layers_are_the_altered_whole_layer(tmp_path):
    run_ranks(all_alterations, str(tmp_path))


def leave() -> None:
    """Ends a rank without waiting for another one, which has already left the group."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def be_impatient() -> None:
    store = dist.distributed_c10d._get_default_store()
    store.set_timeout(datetime.timedelta(seconds=PATIENCE))


def run_under_current_scaling(layer: te.Linear) -> None:
    with region("current", dist.group.WORLD):
        layer(torch.ones(16, 1, IN if layer.parallel_mode == "column" else IN // 2))


def different_alterations(rank: int, folder: str) -> None:
    config = ALTERATIONS["fprop's operands" if rank == 0 else "fprop in BF16"]
    with (
        debug.session(section(config), log_dir=folder),
        pytest.raises(telens.UsageError) as error,
    ):
        run_under_current_scaling(divided("column", name="fc1"))
    said = str(error.value)
    altered = ["modifies its activation for fprop", "runs fprop in high precision"]
    assert "fc1: " in said
    for number in (0, 1):
        assert f"rank {number} " in said
        assert altered[number] in said
    assert "with one configuration on each of them" in said


def test_ranks_that_alter_differently_are_refused_at_once(tmp_path):
    run_ranks(different_alterations, str(tmp_path))


def alteration_on_one_rank(rank: int, folder: str) -> None:
    be_impatient()
    layer = divided("column", name="fc1")
    config = section(ALTERATIONS["fprop's operands"]) if rank == 0 else {}
    with debug.session(config, log_dir=folder):
        if rank == 0:
            with pytest.raises(
                telens.UsageError,
                match="fc1: this rank of tp_group modifies its activation for fprop, but rank "
                f"1 has not reported within {PATIENCE} s",
            ):
                run_under_current_scaling(layer)
        else:
            with pytest.raises(RuntimeError):  # the other rank has left
                run_under_current_scaling(layer)
        leave()


def test_alteration_on_one_rank_fails_in_bounded_time(tmp_path):
    run_ranks(alteration_on_one_rank, str(tmp_path))


def run_in_high_precision(layer: te.Linear) -> None:
    layer(torch.ones(16, 1, IN))


def first_forwards_that_differ(rank: int) -> None:
    said = f"fc1: rank {rank} of tp_group runs it column-parallel {{}}.*, rank {1 - rank} runs it "
    said += "column-parallel {}.*; give all"
    recipes = ["under fp8_current_scaling", "in high precision"]
    recipes = [f"with sequence_parallel, {recipe}" for recipe in recipes]
    sequences = [f"{word} sequence_parallel, in high precision" for word in ("with", "without")]
    mine_first = list if rank == 0 else reversed
    layer = divided("column", name="fc1")
    with pytest.raises(telens.UsageError, match=said.format(*mine_first(recipes))):
        (run_under_current_scaling if rank == 0 else run_in_high_precision)(layer)
    layer = divided("column", name="fc1", sequence_parallel=rank == 0)
    with pytest.raises(telens.UsageError, match=said.format(*mine_first(sequences))):
        run_in_high_precision(layer)
    layer = divided("column", name="fc1")
    inputs = [
        rf"with sequence_parallel, in high precision, on Float \[{n}, 1, {IN}\]" for n in (8, 16)
    ]
    with pytest.raises(telens.UsageError, match=said.format(*mine_first(inputs))):
        layer(torch.ones(8 + 8 * rank, 1, IN))


def an_input_that_one_rank_refuses(rank: int) -> None:
    layer = divided("column", name="fc1")
    error, said = telens.UsageError, "fc1: .*rank 1 .*refuses its arguments"
    if rank == 1:
        error, said = telens.Error, "fc1: "
    with pytest.raises(error, match=said):
        layer(torch.ones(8, 1, IN, dtype=torch.bfloat16 if rank == 1 else torch.float32))


def test_rejected_input_is_reported_to_other_ranks():
    run_ranks(an_input_that_one_rank_refuses)


def test_differing_first_forwards_are_reported():
    run_ranks(first_forwards_that_differ)


def own_codes(gemm_altered: str, **orientations: bool) -> None:
    """Registers a feature that makes NVFP4 codes of each rank's activation for one GEMM."""

    @Registry.register_feature(namespace="own")
    class OwnCodes(TEConfigAPIMapper):
        """Makes codes with a scale of this rank only."""

        @api_method
        def modify_tensor_enabled(self, config, layer_name, tensor_name, gemm, iteration):
            return gemm == gemm_altered and tensor_name == "activation", iteration + 1

        @api_method
        def modify_tensor(self, config, layer_name, *, tensor, **_):
            return te.NVFP4Quantizer(**orientations)(tensor)


def codes_of_other_scales(rank: int, folder: str) -> None:
    own_codes("fprop")
    layer = divided("column", name="fc1")
    config = section(
        {"OwnCodes": {"enabled": True, "gemms": ["fprop"], "tensors": ["activation"]}}, "own"
    )
    with debug.session(config, log_dir=folder), region("NVFP4", dist.group.WORLD):
        layer(torch.ones(16, 1, IN))  # alike
        with pytest.raises(telens.UsageError, match="codes whose scales differ between the ranks"):
            layer(torch.full((16, 1, IN), 1.0 + rank))


def test_rejects_feature_nvfp4_codes_with_other_scales(tmp_path):
    run_ranks(codes_of_other_scales, str(tmp_path))


def codes_of_one_orientation(rank: int, folder: str) -> None:
    own_codes("wgrad", columnwise=False)
    layer = divided("column", name="fc1")
    config = section(
        {"OwnCodes": {"enabled": True, "gemms": ["wgrad"], "tensors": ["activation"]}}, "own"
    )
    with debug.session(config, log_dir=folder):
        with region("NVFP4", dist.group.WORLD):
            out = layer(torch.ones(16, 1, IN))
        with pytest.raises(telens.UsageError, match="fc1: a feature has made codes without the or"):
            out.sum().backward()


def test_rejects_feature_codes_without_orientation(tmp_path):
    run_ranks(codes_of_one_orientation, str(tmp_path))


def crossed_groups(rank: int) -> None:
    """tp_group and fp8_group have two ranks each, of which they share one."""
    tensor_groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    crossing = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    tp_group, fp8_group = tensor_groups[rank // 2], crossing[rank % 2]
    layer = divided("column", tp_group=tp_group, name="fc1")
    x = torch.ones(16, 1, IN)
    with (
        pytest.raises(telens.UsageError, match=r"fc1: rank . of tp_group has the fp8_group '.*', "),
        te.fp8_autocast(fp8_recipe=DelayedScaling(), fp8_group=fp8_group),
    ):
        layer(x)
    for group in (tp_group, dist.group.WORLD):
        with te.fp8_autocast(fp8_recipe=DelayedScaling(), fp8_group=group):
            layer(x)


def test_an_fp8_group_of_other_ranks_than_tp_group_is_refused():
    run_ranks(crossed_groups, world_size=4)


def reduced_gradients(rank: int) -> None:
    """The ranks' gradients have different amaxes: codes with separate scales could not be added."""
    part = Part(rank, 2)
    whole, own = te.Linear(IN, OUT, bias=False, device="cpu"), divided("row")
    with torch.no_grad():
        whole.weight.copy_(numbers("current", OUT, IN, seed=1))
        own.weight.copy_(part.of(whole.weight, 1))
    x = numbers("current", TOKENS, 1, IN, seed=3)
    gradient = numbers("current", TOKENS, 1, OUT, seed=4)
    gradient[TOKENS // 2 :] *= 2  # those of rank 1
    found, expected = part.of(x, -1).requires_grad_(), x.clone().requires_grad_()
    for layer, each, grad in ((own, found, part.of(gradient, 0)), (whole, expected, gradient)):
        with region("current", dist.group.WORLD if layer is own else None):
            out = layer(each)
        out.backward(grad)
    assert torch.equal(found.grad, part.of(expected.grad, -1))
    assert torch.equal(own.weight.grad, part.of(whole.weight.grad, 1))


def test_row_layer_gradient_amax_covers_every_rank():
    run_ranks(reduced_gradients)


@pytest.mark.parametrize("precision", ["BF16", "current"])
def test_single_rank_row_layer_adds_bias_in_the_gemm(precision):
    dtype = torch.bfloat16
    layers = [
        te.Linear(IN, OUT, parallel_mode=mode, tp_size=1, params_dtype=dtype, device="cpu")
        for mode in (None, "row")
    ]
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        layers[1].weight.copy_(layers[0].weight.normal_(generator=generator))
        layers[1].bias.copy_(layers[0].bias.normal_(generator=generator))
    x = torch.randn(64, IN, dtype=dtype, generator=generator)
    with region(precision, None):
        outputs = [layer(x) for layer in layers]
    assert torch.equal(*outputs)
