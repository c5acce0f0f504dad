"""Divided layers whose GEMMs overlap with communication, and the same layers without overlap."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from parallel_helpers import PRECISIONS, numbers, region

import telens.pytorch as te
from telens import _C
from telens.pytorch import UserBufferQuantizationMode as Mode

IN, OUT, BATCH = 64, 64, 4
# Names of a column and of a row layer, and the overlaps of each with the settings for them.
COLUMN, ROW = "fc1", "fc2"
OVERLAPS = {
    "ring gather": (
        "column",
        {"ub_overlap_ag": True, "ub_bulk_dgrad": True, "ub_bulk_wgrad": True},
        None,
    ),
    "ring scatter of dgrad": (
        "column",
        {"ub_overlap_ag": True, "ub_overlap_rs_dgrad": True},
        {"fc1_dgrad": {"method": "ring_exchange"}},
    ),
    "pipelined dgrad": (
        "column",
        {"ub_overlap_rs_dgrad": True},
        {"fc1_dgrad": {"method": "pipeline", "num_splits": 3}},
    ),
    "pipeline": ("row", {"ub_overlap_rs": True, "ub_overlap_ag": True}, None),
    "ring scatter": ("row", {"ub_overlap_rs": True}, {"fc2_fprop": {"method": "ring_exchange"}}),
}


@contextlib.contextmanager
def userbuffers(size: int, settings: dict | None = None, **arguments) -> Iterator[None]:
    """Calls initialize_ub for both precisions, and destroy_ub at the end."""
    modes = {"quantization_modes": [Mode.NONE, Mode.FP8], "ub_cfgs": settings}
    te.initialize_ub([size * 64, IN], size, **(modes | arguments))
    try:
        yield
    finally:
        te.destroy_ub()


def linear(mode: str, precision: str, **arguments) -> te.Linear:
    """A layer with sequence parallelism over all ranks."""
    dtype, _ = PRECISIONS[precision]
    return te.Linear(
        IN, OUT, parallel_mode=mode, sequence_parallel=True, tp_group=dist.group.WORLD,
        params_dtype=dtype, device="cpu", **arguments,
    )  # fmt: skip


@dataclass
class Counts:
    """The GEMMs of this process, and the messages and bytes that it sends."""

    gemms: int
    messages: int
    sent: int

    @classmethod
    def now(cls) -> Counts:
        return cls(sum(_C.gemm_counts()), *_C.collective_counts())

    def __sub__(self, other: Counts) -> Counts:
        return Counts(
            self.gemms - other.gemms, self.messages - other.messages, self.sent - other.sent
        )


def data_of(layer: te.Linear, precision: str, tokens: int, exact: bool, seed: int) -> tuple:
    """The input and the gradient of the output on this rank."""
    columns = layer.parallel_mode == "column"
    ranks = dist.get_world_size()
    rows = (tokens // ranks, tokens) if columns else (tokens, tokens // ranks)
    made = []
    for count, features, salt in zip(rows, reversed(layer.weight.shape), (0, 1), strict=True):
        sizes = (count, BATCH, features)
        if exact:
            made.append(numbers(precision, *sizes, seed=2 * seed + salt))
        else:
            generator = torch.Generator().manual_seed(2 * seed + salt)
            made.append(torch.randn(sizes, generator=generator).to(layer.weight.dtype))
    return tuple(made)


def fill(layer: te.Linear, precision: str, exact: bool, seed: int) -> None:
    """Fills weights and bias with numbers that depend on the seed only."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in layer.parameters():
            values = (
                numbers(precision, *parameter.shape, seed=seed)
                if exact
                else torch.randn(parameter.shape, generator=generator)
            )
            parameter.copy_(values)


def trained(layer: te.Linear, precision: str, x: torch.Tensor, gradient: torch.Tensor) -> dict:
    """Trains two steps, because delayed scaling has a scale from an amax only in the second one."""
    for _ in range(2):
        x = x.detach().requires_grad_()
        layer.zero_grad()
        with region(precision, dist.group.WORLD):
            out = layer(x)
        out.backward(gradient)
    made = {"output": out.detach(), "dgrad": x.grad}
    return made | {name: each.grad for name, each in layer.named_parameters()}
