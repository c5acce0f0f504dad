"""Linear layers that are divided among ranks (tensor and sequence parallelism) against the whole
layer.
"""

import copy
import itertools

import pytest
import torch
import torch.distributed as dist
from distributed_workers import DEVICES, rank_device, run_ranks
from parallel_helpers import PRECISIONS, Part, equal, numbers, region, sum_over_ranks

import telens
import telens.pytorch as te
from telens import _C
from telens.common.recipe import CustomRecipe, DelayedScaling, Float8CurrentScaling

IN, OUT, BATCH = 64, 64, 4


def trained(layer, precision, group, x, gradient):
    """Two steps of a layer; delayed scaling has scales from amaxes only in the second one."""
    for _ in range(2):
        x = x.detach().requires_grad_()
        layer.zero_grad()
        with region(precision, group):
            out = layer(x)
        out.backward(gradient)
    return out.detach(), x.grad


def one_linear(rank, size, precision, mode, sequence, bias, tokens):
    """Compares forward, dgrad, wgrad and the bias's gradient of a shard with those of the whole
    layer.
    """
    case = (precision, mode, sequence, bias, tokens)
    dtype, _ = PRECISIONS[precision]
    part = Part(rank, size)
    made = {"bias": bias, "params_dtype": dtype, "device": rank_device()}
    whole = te.Linear(IN, OUT, **made)
    own = te.Linear(
        IN, OUT, parallel_mode=mode, tp_group=dist.group.WORLD, sequence_parallel=sequence, **made
    )
    columns = mode == "column"
    with torch.no_grad():
        whole.weight.copy_(numbers(precision, OUT, IN, seed=1))
        own.weight.copy_(part.of(whole.weight, 0 if columns else 1))
        if bias:
            whole.bias.copy_(numbers(precision, OUT, seed=2))
            own.bias.copy_(part.of(whole.bias, 0 if columns else None))
    x = numbers(precision, tokens, BATCH, IN, seed=3)
    gradient = numbers(precision, tokens, BATCH, OUT, seed=4)
    rows = 0 if sequence else None
    in_dim, out_dim = (rows, -1) if columns else (-1, rows)

    expected = trained(whole, precision, None, x, gradient)
    found = trained(
        own, precision, dist.group.WORLD, part.of(x, in_dim), part.of(gradient, out_dim)
    )
    equal(precision, found[0], part.of(expected[0], out_dim), (*case, "output"))
    equal(precision, found[1], part.of(expected[1], in_dim), (*case, "dgrad"))
    wgrad = part.of(whole.weight.grad, 0 if columns else 1)
    equal(precision, own.weight.grad, wgrad, (*case, "wgrad"))
    if bias:
        grad = own.bias.grad
        if not columns and sequence:  # that of this rank's rows
            grad = sum_over_ranks(grad, dist.group.WORLD)
        dbias = part.of(whole.bias.grad, 0 if columns else None)
        equal(precision, grad, dbias, (*case, "bias gradient"))


def one_sequence(rank, size, precision, mode, tokens):
    """Compares divided layers with and without sequence parallelism."""
    case = (precision, mode, tokens)
    dtype, _ = PRECISIONS[precision]
    part = Part(rank, size)
    made = {"params_dtype": dtype, "device": rank_device(), "tp_group": dist.group.WORLD}
    plain, sequence = (
        te.Linear(IN, OUT, parallel_mode=mode, sequence_parallel=each, **made)
        for each in (False, True)
    )
    with torch.no_grad():
        plain.weight.copy_(numbers(precision, *plain.weight.shape, seed=rank))
        sequence.weight.copy_(plain.weight)
    columns = mode == "column"
    seed = (0, rank) if columns else (rank, 0)  # alike on all ranks where it is whole
    x = numbers(precision, tokens, BATCH, plain.weight.shape[1], seed=10 + seed[0])
    gradient = numbers(precision, tokens, BATCH, plain.weight.shape[0], seed=20 + seed[1])
    in_rows, out_rows = (0, None) if columns else (None, 0)
    expected = trained(plain, precision, dist.group.WORLD, x, gradient)
    found = trained(
        sequence, precision, dist.group.WORLD, part.of(x, in_rows), part.of(gradient, out_rows)
    )
    equal(precision, found[0], part.of(expected[0], out_rows), (*case, "output"))
    equal(precision, found[1], part.of(expected[1], in_rows), (*case, "dgrad"))
    equal(precision, sequence.weight.grad, plain.weight.grad, (*case, "wgrad"))


def all_linears(rank: int, size: int, precisions: list[str]) -> None:
    # 64 tokens on each rank with a batch of 4 are whole blocks of 128 rows; 6 tokens are not.
    for precision, mode, sequence, bias, tokens in itertools.product(
        precisions, ["column", "row"], [False, True], [False, True], [128, 12]
    ):
        if not precision.endswith("rotated"):
            one_linear(rank, size, precision, mode, sequence, bias, tokens)
    for precision, mode, tokens in itertools.product(precisions, ["column", "row"], [128, 12]):
        one_sequence(rank, size, precision, mode, tokens)


@pytest.mark.parametrize("device", DEVICES)
def test_shards_of_a_linear_layer_are_the_whole_layer_on_2_ranks(device):
    run_ranks(all_linears, 2, list(PRECISIONS), device=device)


@pytest.mark.parametrize("device", DEVICES)
def test_shards_of_a_linear_layer_are_the_whole_layer_on_4_ranks(device):
    run_ranks(all_linears, 4, ["FP32", "current"], world_size=4, device=device)


def sent_bytes(layer, x) -> int:
    before = _C.collective_counts()[1]
    with torch.no_grad():
        layer(x)
    return _C.collective_counts()[1] - before


def codes_are_sent(rank: int) -> None:
    tokens = 128
    for mode, features in (("column", IN), ("row", IN // 2)):
        layer = te.Linear(
            IN, OUT, parallel_mode=mode, tp_group=dist.group.WORLD, sequence_parallel=True,
            device="cpu",
        )  # fmt: skip
        rows = tokens // 2 if mode == "column" else tokens
        x = torch.randn(rows, 1, features)
        plain = sent_bytes(layer, x)
        with te.fp8_autocast(fp8_recipe=Float8CurrentScaling()):
            quantized = sent_bytes(layer, x)
        # FP32 values, or one byte an element; sums over ranks are of outputs.
        assert plain == 4 * rows * (features if mode == "column" else OUT)
        assert quantized == (rows * features if mode == "column" else plain)


def joined_scales(rank: int) -> None:
    """Current scaling has one scale for the whole sequence, from the largest value on any rank."""
    layer = te.Linear(
        IN, OUT, parallel_mode="column", tp_group=dist.group.WORLD, sequence_parallel=True,
        device="cpu",
    )  # fmt: skip
    x = torch.full((16, 1, IN), 1.0 + rank)
    with te.fp8_autocast(fp8_recipe=Float8CurrentScaling()):
        layer(x)
    quantized = layer.quantizers["scaling_fwd"][0](x)
    assert quantized._scale_inv.item() == pytest.approx(2.0 / 448)


def refusals(rank: int) -> None:
    group = dist.group.WORLD
    x = torch.ones(16, 1, 32)
    common = {"tp_group": group, "device": "cpu"}
    with pytest.raises(telens.UsageError, match="out_features is 33, which 2 tensor-parallel"):
        te.Linear(32, 33, parallel_mode="column", **common)
    with pytest.raises(telens.UsageError, match="in_features is 33, which 2 tensor-parallel"):
        te.Linear(33, 32, parallel_mode="row", **common)
    with pytest.raises(telens.UsageError, match="the part 'a' of parameters_split is 31"):
        te.Linear(32, 64, parallel_mode="column", parameters_split={"a": 31, "b": 33}, **common)
    with pytest.raises(telens.UsageError, match="parallel_mode is 'diagonal'; expected None, col"):
        te.Linear(32, 32, parallel_mode="diagonal", **common)
    with pytest.raises(telens.UsageError, match="would normalize only this rank's features"):
        te.LayerNormLinear(32, 32, parallel_mode="row", **common)
    with pytest.raises(telens.UsageError, match="ffn_hidden_size is 33, which 2"):
        te.LayerNormMLP(32, 33, set_parallel_mode=True, **common)
    with pytest.raises(telens.UsageError, match="would be added by each rank; use bias=False"):
        te.GroupedLinear(2, 32, 32, parallel_mode="row", **common)
    later = te.Linear(32, 32, parallel_mode="column", tp_size=4, device="cpu")
    with pytest.raises(telens.UsageError, match="tp_size is 4, but tp_group is missing"):
        later(x)
    with pytest.raises(telens.UsageError, match="tp_group has 2 ranks; the layer is divided among"):
        later.set_tensor_parallel_group(group)
    row = te.Linear(32, 32, parallel_mode="row", sequence_parallel=True, **common)
    with pytest.raises(telens.ShapeError, match="scatters its first dimension to 2 ranks"):
        row(x[:15, :, :16])
    with pytest.raises(telens.ShapeError, match="divides the first dimension of at least two"):
        row(x[0, 0, :16])
    for given in (
        {},
        {"fp8_group": group, "fp8_recipe": DelayedScaling(reduce_amax=False)},
        {"fp8_recipe": requesting("input")},
        {"fp8_recipe": requesting("grad_output")},
    ):
        with (
            pytest.raises(telens.UsageError, match="which delayed scaling must scale alike"),
            te.fp8_autocast(**given),
        ):
            row(x[:, :, :16])
    with te.fp8_autocast(fp8_recipe=requesting("weight")):  # whose codes each rank keeps
        assert row(x[:, :, :16]).isfinite().all()


def requesting(tensor_type: str) -> CustomRecipe:
    """Delayed scaling for one tensor of a layer; the others have scales of their own amaxes."""

    def make(role):
        if role.tensor_type == tensor_type:
            return te.DelayedScalingRequest()
        is_gradient = role.tensor_type == "grad_output"
        return te.Float8CurrentScalingQuantizer(
            te.DType.kFloat8E5M2 if is_gradient else te.DType.kFloat8E4M3
        )

    return CustomRecipe(qfactory=make)


def attributes(parameter: torch.nn.Parameter) -> tuple:
    names = ("tensor_model_parallel", "partition_dim", "partition_stride", "sequence_parallel")
    return tuple(getattr(parameter, name, None) for name in names)


def marked_parameters(rank: int) -> None:
    divided = {"tp_group": dist.group.WORLD, "sequence_parallel": True, "device": "cpu"}
    column, row = (True, 0, 1, None), (True, 1, 1, None)
    partial_sum, whole = (None, None, None, True), (None,) * 4
    for layer, expected in (
        (te.Linear(32, 64, parallel_mode="column", **divided), {"weight": column, "bias": column}),
        (te.Linear(32, 64, parallel_mode="row", **divided), {"weight": row, "bias": partial_sum}),
        (te.Linear(32, 64, device="cpu"), {"weight": whole, "bias": whole}),
        (
            te.LayerNormLinear(
                32, 64, parallel_mode="column", parameters_split={"q": 32, "k": 32}, **divided
            ),
            {
                "layer_norm_weight": partial_sum, "layer_norm_bias": partial_sum,
                "q_weight": column, "q_bias": column, "k_weight": column, "k_bias": column,
            },
        ),
        (
            te.LayerNormMLP(32, 64, set_parallel_mode=True, **divided),
            {
                "layer_norm_weight": partial_sum, "layer_norm_bias": partial_sum,
                "fc1_weight": column, "fc1_bias": column, "fc2_weight": row,
                "fc2_bias": partial_sum,
            },
        ),
        (te.LayerNorm(32, sequence_parallel=True), {"weight": partial_sum, "bias": partial_sum}),
        (te.RMSNorm(32), {"weight": whole}),
    ):  # fmt: skip
        found = {name: attributes(each) for name, each in layer.named_parameters()}
        assert found == expected
    shapes = {
        name: tuple(each.shape)
        for name, each in te.LayerNormMLP(
            32, 64, activation="swiglu", set_parallel_mode=True, **divided
        ).named_parameters()
    }
    assert shapes["fc1_weight"] == (64, 32)
    assert shapes["fc2_weight"] == (32, 32)
    grouped = te.GroupedLinear(2, 32, 64, bias=False, parallel_mode="column", **divided)
    assert {tuple(each.shape) for each in grouped.parameters()} == {(32, 32)}
    assert attributes(grouped.weight1) == column
    assert grouped(torch.ones(16, 32), [8, 8]).shape == (16, 32)


def random_states(rank: int) -> None:
    tracker = te.CudaRNGStatesTracker("cpu")
    tracker.add("model-parallel-rng", 100 + rank)
    tracker.add("another", 7)
    torch.manual_seed(1)
    made = {"parallel_mode": "column", "tp_group": dist.group.WORLD, "device": "cpu"}
    with_tracker = {"get_rng_state_tracker": lambda: tracker}
    layers = {
        "own": te.Linear(32, 32, **made, **with_tracker),
        "alike": te.Linear(32, 32, **made, **with_tracker, rng_tracker_name="another"),
        "default": te.Linear(32, 32, **made),
    }
    for name, layer in layers.items():
        other = sum_over_ranks(layer.weight.detach(), dist.group.WORLD) - layer.weight.detach()
        assert torch.allclose(other, layer.weight) == (name != "own"), name


def symmetric_sums(rank: int) -> None:
    """On CPUs, torch computes a sum in symmetric memory as an all-reduce; what GPUs do instead is
    in test_cuda_ranks.py.
    """
    common = {"tp_group": dist.group.WORLD, "device": "cpu"}
    whole_numbers = torch.arange(6 * 16).view(6, 16) % (5 + rank) - 2.0  # their sums are exact
    for how in ("multimem_all_reduce", "two_shot", "one_shot"):
        layer = te.Linear(32, 48, parallel_mode="row", symmetric_ar_type=how, **common)
        with torch.no_grad():
            layer.weight.copy_(torch.arange(48 * 16).view(48, 16) % 7 - 3.0 + rank)
            layer.bias.copy_(torch.arange(48) % 9)
        total = whole_numbers @ layer.weight.detach().t()
        own = total.clone()
        dist.all_reduce(total)
        assert not torch.equal(total, own)
        assert torch.equal(layer(whole_numbers), total + layer.bias), how
    kinds = (
        lambda **how: te.Linear(32, 48, parallel_mode="row", **common, **how),
        lambda **how: te.LayerNormLinear(16, 48, parallel_mode="column", **common, **how),
        lambda **how: te.LayerNormMLP(16, 32, set_parallel_mode=True, **common, **how),
    )
    x = torch.randn(6, 16, generator=torch.Generator().manual_seed(rank))
    for make in kinds:
        torch.manual_seed(rank)
        plain = make()
        for how in ("multimem_all_reduce", "two_shot", "one_shot"):
            layer = make(symmetric_ar_type=how)
            layer.load_state_dict(plain.state_dict())
            before = _C.collective_counts()
            found = layer(x)
            between = _C.collective_counts()
            assert torch.equal(found, plain(x))
            after = _C.collective_counts()
            assert [b - a for a, b in zip(before, between, strict=True)] == [
                b - a for a, b in zip(between, after, strict=True)
            ]
            copied = copy.deepcopy(layer)
            copied.set_tensor_parallel_group(dist.group.WORLD)
            assert torch.equal(copied(x), found)
        expected = (
            "symmetric_ar_type is 'nccl'; expected None, multimem_all_reduce, two_shot or one_s"
        )
        with pytest.raises(telens.UsageError, match=expected):
            make(symmetric_ar_type="nccl")


def single_cases(rank: int) -> None:
    codes_are_sent(rank)
    symmetric_sums(rank)
    joined_scales(rank)
    refusals(rank)
    marked_parameters(rank)
    random_states(rank)


def test_divided_layers_codes_scales_and_errors():
    run_ranks(single_cases)
