"""Statistics of sharded layers describe whole tensors and are equal on every rank. Recording them
does not change a bit.
"""

import pytest
import torch
import torch.distributed as dist
from debug_helpers import section
from distributed_workers import DEVICES, rank_device, run_ranks
from parallel_helpers import Part, numbers, region

import telens
import telens.debug as debug
import telens.pytorch as te

IN, OUT, TOKENS = 64, 64, 32
CASES = [
    (mode, sequence, precision)
    for mode in ("column", "row")
    for sequence in (False, True)
    for precision in ("FP32", "current", "MXFP8")
]
TENSORS = ["activation", "weight", "gradient", "output", "dgrad", "wgrad"]
STATS = ["numel", "l1_norm", "max"]
CONFIG = section({"LogTensorStats": {"enabled": True, "tensors": TENSORS, "stats": STATS}})


def name_of(case: tuple) -> str:
    mode, sequence, precision = case
    return f"{mode}.{'sequence' if sequence else 'whole'}.{precision}"


def whole_tensors(precision: str) -> dict[str, torch.Tensor]:
    """The values in one process, computed by torch."""
    x = numbers("FP32", TOKENS, 1, IN, seed=3)
    weight = numbers("FP32", OUT, IN, seed=1)
    gradient = numbers("FP32", TOKENS, 1, OUT, seed=4)
    return {
        "activation": x,
        "weight": weight,
        "gradient": gradient,
        "output": x @ weight.T,
        "dgrad": gradient @ weight,
        "wgrad": gradient.flatten(0, 1).T @ x.flatten(0, 1),
    }


def run_layer(layer, case, part: Part) -> list[torch.Tensor]:
    mode, sequence, precision = case
    tensors = whole_tensors(precision)
    rows = 0 if sequence else None
    in_dim, out_dim = (rows, -1) if mode == "column" else (-1, rows)
    with torch.no_grad():
        layer.weight.copy_(part.of(tensors["weight"], 0 if mode == "column" else 1))
    layer.zero_grad()
    x = part.of(tensors["activation"], in_dim).clone().requires_grad_()
    with region(precision, dist.group.WORLD):
        out = layer(x)
    out.backward(part.of(tensors["gradient"], out_dim))
    return [out.detach(), x.grad, layer.weight.grad]


def make(case):
    mode, sequence, _ = case
    return te.Linear(
        IN, OUT, bias=False, parallel_mode=mode, sequence_parallel=sequence,
        tp_group=dist.group.WORLD, name=name_of(case), device=rank_device(),
    )  # fmt: skip


def watched(rank: int, folder: str) -> None:
    part = Part(rank, 2)
    plain = [run_layer(make(case), case, part) for case in CASES]
    with debug.session(CONFIG, log_dir=folder):
        seen = [run_layer(make(case), case, part) for case in CASES]
        debug.step()
    for case, one, other in zip(CASES, plain, seen, strict=True):
        for a, b in zip(one, other, strict=True):
            assert torch.equal(a, b), case


@pytest.fixture(scope="module", params=DEVICES)
def records(tmp_path_factory, request):
    folder = tmp_path_factory.mktemp("watched")
    run_ranks(watched, str(folder), device=request.param)
    return telens.open_run(folder).records()


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_parallel_layer_statistics_match_whole_tensors(records, case):
    mine = records[records["layer"] == name_of(case)]
    for tensor, whole in whole_tensors(case[2]).items():
        expected = {
            "numel": whole.numel(), "l1_norm": whole.abs().sum().item(), "max": whole.max().item(),
        }  # fmt: skip
        for statistic, value in expected.items():
            chosen = mine[(mine["tensor"] == tensor) & (mine["statistic"] == statistic)]
            assert set(chosen["value"]) == {value}, (tensor, statistic)
