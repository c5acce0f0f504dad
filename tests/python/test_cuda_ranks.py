"""Groups over NCCL: one rank on one GPU, and what only several GPUs can do."""

import math

import pytest
import torch
import torch.distributed as dist
from distributed_workers import has_own_gpus, rank_device, run_ranks
from parallel_helpers import PRECISIONS, numbers
from test_tensor_parallel import all_linears
from torch._C._autograd import DeviceType
from torch._C._distributed_c10d import _SymmetricMemory

import telens
import telens.pytorch as te
from telens.common.recipe import DelayedScaling

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def one_rank(rank: int) -> None:
    assert dist.get_backend() == "nccl"
    all_linears(rank, 1, list(PRECISIONS))
    amaxes_that_are_not_finite()


def amaxes_that_are_not_finite() -> None:
    for special in (math.nan, math.inf):
        layer = te.Linear(32, 32, bias=False, device=rank_device())
        x = torch.ones(16, 32, device=rank_device())
        x[3, 4] = special
        with te.fp8_autocast(fp8_recipe=DelayedScaling(), fp8_group=dist.group.WORLD):
            layer(x)
        assert not layer.fp8_meta["scaling_fwd"].amax_history[:, 0].isfinite().all()


def test_layers_and_amaxes_over_a_single_rank_nccl_group():
    run_ranks(one_rank, world_size=1, device="cuda")


def symmetric_sums(rank: int) -> None:
    made = {"parallel_mode": "row", "tp_group": dist.group.WORLD, "device": rank_device()}
    multicast = _SymmetricMemory.has_multicast_support(DeviceType.CUDA, rank_device().index)
    for dtype, tokens in ((torch.bfloat16, 5), (torch.float32, 3), (torch.float32, 512)):
        precision = "BF16" if dtype == torch.bfloat16 else "FP32"
        weight, x = (
            numbers(precision, *sizes, seed=rank + 10) for sizes in ((33, 16), (tokens, 16))
        )
        results = []
        for how in (None, "two_shot", "one_shot", "multimem_all_reduce"):
            layer = te.Linear(32, 33, bias=False, params_dtype=dtype, symmetric_ar_type=how, **made)
            with torch.no_grad():
                layer.weight.copy_(weight)
            if how == "multimem_all_reduce" and not multicast:
                with pytest.raises(telens.UsageError, match="no multicast"):
                    layer(x)
                continue
            results += [layer(x), layer(x)]  # the second one in memory that is there
        assert all(torch.equal(each, results[0]) for each in results)


def test_sums_in_symmetric_memory_match_an_all_reduce():
    if not has_own_gpus(2):
        pytest.skip("symmetric memory needs two GPUs")
    run_ranks(symmetric_sums, device="cuda")
