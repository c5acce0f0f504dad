"""LayerNormLinear and LayerNormMLP that are divided among ranks against the whole layers."""

import itertools

import pytest
import torch
import torch.distributed as dist
from distributed_workers import DEVICES, rank_device, run_ranks
from parallel_helpers import Part, normal, numbers, region, sum_over_ranks

import telens.pytorch as te

HIDDEN, FFN, TOKENS, BATCH = 32, 128, 64, 2
# With per-tensor scaling each rank has its own scales for weights and for fc2's input.
PRECISIONS = ["FP32", "MXFP8"]


def close(actual: torch.Tensor, expected: torch.Tensor, what: object) -> None:
    """Within 32 FP32 roundings of the largest number, because sums have another order."""
    bound = 32 * 2.0**-24 * expected.abs().max().item()
    torch.testing.assert_close(actual, expected, rtol=0, atol=bound, msg=f"{what}: {{}}".format)


def gradients(outputs, seeds: list[torch.Tensor]) -> None:
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    torch.autograd.backward(outputs, seeds)


def compare(case, whole, own, dims: dict[str, int | None], part: Part, sequence: bool) -> None:
    """Returns the gradients of the parameters. Sums gradients of rows over the ranks."""
    for name, parameter in own.named_parameters():
        grad = parameter.grad
        if getattr(parameter, "sequence_parallel", False):
            grad = sum_over_ranks(grad, dist.group.WORLD)
        expected = part.of(whole.get_parameter(name).grad, dims.get(name))
        close(grad, expected, (*case, name))


def copy_shards(whole, own, dims: dict[str, int | None], part: Part) -> None:
    with torch.no_grad():
        for number, (name, parameter) in enumerate(whole.named_parameters()):
            parameter.copy_(numbers("FP32", *parameter.shape, seed=number) / 4)
            own.get_parameter(name).copy_(part.of(parameter, dims.get(name)))


def norm_linear(rank, size, precision, norm, sequence, returned) -> None:
    case = ("LayerNormLinear", precision, norm, sequence, returned)
    part = Part(rank, size)
    made = {"normalization": norm, "params_dtype": torch.float32, "device": rank_device()}
    parts = {"parameters_split": {"a": 64, "b": 64}}
    made |= {"return_layernorm_output": returned != "output alone"} | parts
    gathered = returned == "gathered"
    whole = te.LayerNormLinear(HIDDEN, FFN, **made)
    own = te.LayerNormLinear(
        HIDDEN, FFN, parallel_mode="column", tp_group=dist.group.WORLD, sequence_parallel=sequence,
        return_layernorm_output_gathered=gathered, **made,
    )  # fmt: skip
    split = ["a_weight", "a_bias", "b_weight", "b_bias"]
    copy_shards(whole, own, dict.fromkeys(split, 0), part)
    rows = 0 if sequence else None
    x = normal(TOKENS, BATCH, HIDDEN)
    own_x = part.of(x, rows).clone().requires_grad_()
    x.requires_grad_()
    seeds = [numbers("FP32", TOKENS, BATCH, FFN, seed=5)]
    # The parts of a split weight are divided separately, so this rank's features are at two places.
    features = torch.cat([part.of(each, -1) for each in seeds[0].chunk(2, -1)], -1)
    own_seeds = [features]
    if returned != "output alone":
        seeds.append(numbers("FP32", TOKENS, BATCH, HIDDEN, seed=6))
        # The gradient of a gathered result is the sum over all ranks.
        shared = seeds[1] / size if gathered and sequence else part.of(seeds[1], rows)
        own_seeds.append(shared)
    for layer, inp, gradient in ((whole, x, seeds), (own, own_x, own_seeds)):
        with region(precision, dist.group.WORLD):
            outputs = layer(inp)
        gradients(outputs, gradient)
        if layer is whole:
            expected = outputs if isinstance(outputs, tuple) else (outputs,)
    found = outputs if isinstance(outputs, tuple) else (outputs,)
    own_output = torch.cat([part.of(each, -1) for each in expected[0].chunk(2, -1)], -1)
    close(found[0], own_output, (*case, "output"))
    if returned != "output alone":
        normalized = expected[1] if gathered else part.of(expected[1], rows)
        close(found[1], normalized, (*case, "normalized"))
    close(own_x.grad, part.of(x.grad, rows), (*case, "dgrad"))
    compare(case, whole, own, dict.fromkeys(split, 0), part, sequence)


def norm_mlp(rank, size, precision, activation, sequence, bias) -> None:
    case = ("LayerNormMLP", precision, activation, sequence, bias)
    part = Part(rank, size)
    made = {
        "activation": activation,
        "bias": bias,
        "params_dtype": torch.float32,
        "device": rank_device(),
    }
    whole = te.LayerNormMLP(HIDDEN, FFN, **made)
    own = te.LayerNormMLP(
        HIDDEN, FFN, set_parallel_mode=True, tp_group=dist.group.WORLD, sequence_parallel=sequence,
        **made,
    )  # fmt: skip
    gated = activation == "swiglu"
    dims = {"fc1_weight": 0, "fc1_bias": 0, "fc2_weight": 1}

    def shard(tensor: torch.Tensor, name: str) -> torch.Tensor:
        if gated and name.startswith("fc1"):  # both halves of this rank's share
            return torch.cat([part.of(each, 0) for each in tensor.chunk(2)])
        return part.of(tensor, dims.get(name))

    with torch.no_grad():
        for number, (name, parameter) in enumerate(whole.named_parameters()):
            parameter.copy_(numbers("FP32", *parameter.shape, seed=number) / 4)
            own.get_parameter(name).copy_(shard(parameter, name))
    rows = 0 if sequence else None
    x = normal(TOKENS, BATCH, HIDDEN)
    own_x = part.of(x, rows).clone().requires_grad_()
    x.requires_grad_()
    gradient = numbers("FP32", TOKENS, BATCH, HIDDEN, seed=5)
    with region(precision, dist.group.WORLD):
        expected, found = whole(x), own(own_x)
    expected.backward(gradient)
    found.backward(part.of(gradient, rows))
    close(found, part.of(expected, rows), (*case, "output"))
    close(own_x.grad, part.of(x.grad, rows), (*case, "dgrad"))
    for name, parameter in own.named_parameters():
        grad = parameter.grad
        if getattr(parameter, "sequence_parallel", False):
            grad = sum_over_ranks(grad, dist.group.WORLD)
        close(grad, shard(whole.get_parameter(name).grad, name), (*case, name))


def all_norms(rank: int, size: int) -> None:
    for precision, norm, sequence, returned in itertools.product(
        PRECISIONS, ["LayerNorm", "RMSNorm"], [False, True], ["output alone", "own", "gathered"]
    ):
        norm_linear(rank, size, precision, norm, sequence, returned)
    for precision, activation, sequence, bias in itertools.product(
        PRECISIONS, ["gelu", "swiglu"], [False, True], [False, True]
    ):
        norm_mlp(rank, size, precision, activation, sequence, bias)


@pytest.mark.parametrize("device", DEVICES)
def test_shards_of_layers_after_a_norm_match_whole_layers(device):
    run_ranks(all_norms, 2, device=device)
