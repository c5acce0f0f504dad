"""A group of one rank over NCCL: layers, checkpoints, losses and experts that have a group compute
what those without one do, and sessions compare ranks. Skipped where there is no GPU; `make
gpu-check` runs them. TELENS_TEST_DEVICE=cpu runs them over gloo."""

import pytest
import torch
import torch.distributed as dist
from cuda_beside import RECIPES, WIDTH, build, forward, needs_gpu, normal
from cuda_helpers import DEVICE
from debug_helpers import section
from distributed_workers import rank_device, run_ranks
from same_tensors import assert_same

import telens
import telens.debug as debug
import telens.pytorch as te

pytestmark = [needs_gpu, pytest.mark.usefixtures("ops")]

STATISTICS = ["min", "max", "mean", "std", "l2_norm", "cur_amax", "numel"]
WATCHED = {
    **section(
        {
            "LogTensorStats": {
                "enabled": True,
                "tensors": ["activation", "weight", "gradient", "output", "wgrad", "dgrad"],
                "stats": STATISTICS,
            }
        }
    ),
    "ranks": section(
        {
            "RankAgreement": {
                "enabled": True,
                "tensors": ["activation", "weight", "gradient"],
                "timeout": 30,
            },
            "CollectiveCheck": {"enabled": True, "timeout": 30},
        },
        namespace="telens",
    )["section"],
}
KINDS = {
    "column": ("Linear", {"parallel_mode": "column"}),
    "row": ("Linear", {"parallel_mode": "row"}),
    "column, sequence": ("Linear", {"parallel_mode": "column", "sequence_parallel": True}),
    "norm": ("LayerNormLinear", {"parallel_mode": "column", "sequence_parallel": True}),
    "mlp": ("LayerNormMLP", {"set_parallel_mode": True, "sequence_parallel": True}),
}


def step(module, recipe, group=None) -> list[torch.Tensor]:
    x = normal(32, 2, WIDTH, dtype=torch.bfloat16).to(rank_device()).requires_grad_()
    with te.autocast(enabled=recipe is not None, recipe=recipe, amax_reduction_group=group):
        y = module(x)
    y.backward(normal(*y.shape, seed=2, dtype=torch.bfloat16).to(rank_device()))
    gradients = [parameter.grad for parameter in module.parameters()]
    return [each.detach().clone() for each in (y, x.grad, *gradients)]


def layers_have_the_bits_of_those_without_a_group() -> None:
    for name, (kind, options) in KINDS.items():
        for recipe in (None, "delayed", "current", "MXFP8"):
            make = RECIPES.get(recipe, lambda: None)
            grouped = build(
                kind, str(rank_device()), tp_group=dist.group.WORLD, tp_size=1, **options
            )
            plain = build(kind, str(rank_device()))
            for _ in range(2):
                grouped.zero_grad()
                plain.zero_grad()
                assert_same(
                    step(grouped, make(), dist.group.WORLD), step(plain, make()), (name, recipe)
                )


def a_divided_checkpoint_has_the_bits_of_a_plain_one() -> None:
    results = []
    for keywords in ({}, {"distribute_saved_activations": True, "tp_group": dist.group.WORLD}):
        layer = build("LayerNormMLP", str(rank_device()))
        x = normal(32, 2, WIDTH, dtype=torch.bfloat16).to(rank_device()).requires_grad_()
        y = te.checkpoint(forward, layer, x, RECIPES["current"](), **keywords)
        y.square().sum().backward()
        results.append([y, x.grad, *(p.grad for p in layer.parameters())])
    assert_same(*results, "checkpoint")


def a_divided_vocabulary_is_the_whole_one() -> None:
    target = torch.arange(24, device=rank_device()) % 20
    results = []
    for group in (None, dist.group.WORLD):
        logits = normal(24, 32, dtype=torch.bfloat16).to(rank_device()).requires_grad_()
        loss = te.parallel_cross_entropy(logits, target, 0.1, dist_process_group=group)
        loss.sum().backward()
        results.append([loss, logits.grad])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def session_of(folder: str, group) -> list[tuple]:
    layer = build("LayerNormMLP", str(rank_device()), name="mlp")
    optimizer = torch.optim.SGD(layer.parameters(), lr=2**-8)
    with debug.session(WATCHED, log_dir=folder):
        debug.infer_and_assign_layer_names(layer)
        debug.set_tensor_reduction_group(group)
        for _ in range(3):
            step(layer, RECIPES["delayed"](), group)
            for parameter in layer.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            optimizer.zero_grad()
            debug.step()
    assert set(telens.open_run(folder).events["kind"].astype(str)) == {"warm_up"}
    columns = ["iteration", "layer", "tensor", "statistic", "value"]
    rows = telens.open_run(folder).records()[columns].astype(str)
    return sorted(rows.itertuples(index=False, name=None))


def statistics_over_the_group_are_those_of_its_rank(folder: str) -> None:
    """With one rank, nothing is compared, so nothing may be reported."""
    grouped = session_of(f"{folder}/grouped", dist.group.WORLD)
    assert len(grouped) > 100
    assert grouped == session_of(f"{folder}/plain", None)


def one_rank(rank: int, folder: str) -> None:
    assert rank == 0
    assert dist.get_backend() == ("nccl" if rank_device().type == "cuda" else "gloo")
    layers_have_the_bits_of_those_without_a_group()
    a_divided_checkpoint_has_the_bits_of_a_plain_one()
    a_divided_vocabulary_is_the_whole_one()
    statistics_over_the_group_are_those_of_its_rank(folder)


def test_single_rank_group_matches_no_group(tmp_path):
    run_ranks(one_rank, str(tmp_path), world_size=1, device=DEVICE)
