"""Compares attention whose sequence is divided among ranks with whole attention: data,
comparisons.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from dataclasses import dataclass, field
from unittest import mock

import torch
import torch.distributed as dist
from distributed_workers import rank_device

import telens.pytorch as te

HEADS, SIZE, VALUE_SIZE, SEQ, BATCH = 4, 16, 24, 32, 2
LENGTHS = [30, 17]  # the batch's sequences, where they are padded
PACKED_LENGTHS, PACKED_PADDED = [13, 24, 3, 30], [16, 24, 8, 32]  # the latter are multiples of 8


@dataclass(frozen=True)
class Case:
    """One attention, and how its sequence is divided."""

    comm: str
    mask: str = "causal"
    layout: str = "sbhd"
    groups: int = HEADS
    dtype: torch.dtype = torch.float32
    window: tuple[int, int] | None = None
    options: dict = field(default_factory=dict)  # for the constructor
    call: dict = field(default_factory=dict)  # for the forward

    @property
    def packed(self) -> bool:
        return self.layout == "thd"


def chunks_of(rank: int, size: int, length: int, start: int = 0) -> list[int]:
    """The positions of a sequence that a rank has, by the definition."""
    chunk = length // (2 * size)
    second = 2 * size - 1 - rank
    return [
        *range(start + rank * chunk, start + (rank + 1) * chunk),
        *range(start + second * chunk, start + (second + 1) * chunk),
    ]


def sums(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int().to(rank_device())


def places(layout: str, rank: int, size: int) -> tuple[int, torch.Tensor]:
    """(dimension, indices) of this rank's part of a tensor in a layout."""
    if layout == "thd":
        starts = sums(PACKED_PADDED).tolist()
        every = [
            chunks_of(rank, size, length, start)
            for start, length in zip(starts[:-1], PACKED_PADDED, strict=True)
        ]
        dim, indices = 0, list(itertools.chain.from_iterable(every))
    else:
        dim, indices = layout.index("s"), chunks_of(rank, size, SEQ)
    return dim, torch.tensor(indices, device=rank_device())


def lengths_of(case: Case) -> dict:
    """The arguments with which an attention gets the lengths of the whole sequences."""
    if case.packed:
        return {"cu_seqlens_q": sums(PACKED_LENGTHS), "cu_seqlens_q_padded": sums(PACKED_PADDED)}
    return {"cu_seqlens_q": sums(LENGTHS)} if "padding" in case.mask else {}


def whole_tensors(case: Case) -> list[torch.Tensor]:
    """Query, key, value and the gradient of the output, alike on all ranks."""
    generator = torch.Generator().manual_seed(5)

    def draw(*last: int) -> torch.Tensor:
        first = {"sbhd": (SEQ, BATCH), "bshd": (BATCH, SEQ), "thd": (sum(PACKED_PADDED),)}
        drawn = torch.randn(*first[case.layout], *last, generator=generator)
        return drawn.to(rank_device(), case.dtype)

    return [
        draw(HEADS, SIZE),
        draw(case.groups, SIZE),
        draw(case.groups, VALUE_SIZE),
        draw(HEADS * VALUE_SIZE),
    ]


def attend(case: Case, attention, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """The output and the gradients of query, key and value."""
    *inputs, gradient = (x.detach().clone() for x in tensors)
    inputs = [x.requires_grad_() for x in inputs]
    out = attention(*inputs, **lengths_of(case), **case.call)
    out.backward(gradient)
    return [out.detach(), *(x.grad for x in inputs)]


def make(case: Case, **more) -> te.DotProductAttention:
    return te.DotProductAttention(
        HEADS, (SIZE, VALUE_SIZE), num_gqa_groups=case.groups, qkv_format=case.layout,
        attn_mask_type=case.mask, window_size=case.window, **case.options, **more,
    ).to(rank_device())  # fmt: skip


def plain_kernels() -> contextlib.AbstractContextManager:
    """On GPUs, attention uses products and softmax only: fused kernels round in other places."""
    if rank_device().type == "cpu":
        return contextlib.nullcontext()
    return mock.patch.dict(os.environ, {"NVTE_FLASH_ATTN": "0", "NVTE_FUSED_ATTN": "0"})


def close(actual: torch.Tensor, expected: torch.Tensor, what: object) -> None:
    """Within 64 roundings of the largest number (4 for BF16), because sums have another order."""
    assert not actual.isnan().any(), what
    roundings = 4 if expected.dtype == torch.bfloat16 else 64
    bound = roundings * torch.finfo(expected.dtype).eps / 2 * max(expected.abs().max().item(), 1e-3)
    torch.testing.assert_close(
        actual, expected, rtol=0, atol=bound, msg=lambda text: f"{what}: {text}"
    )


def compare(case: Case, rank: int, size: int, group: object) -> None:
    """Compares the forward and all gradients of a rank with its part of the whole attention."""
    whole = whole_tensors(case)
    dim, own = places(case.layout, rank, size)
    expected = attend(case, make(case), whole)
    divided = make(case, cp_group=group, cp_comm_type=case.comm)
    found = attend(case, divided, [x.index_select(dim, own) for x in whole])
    for name, actual, right in zip(("output", "dq", "dk", "dv"), found, expected, strict=True):
        close(actual, right.index_select(dim, own), (case, name))


def two_levels(rank: int) -> list[dist.ProcessGroup]:
    """Four ranks as two by two: a2a between neighbors, p2p between the pairs."""
    made = {pair: dist.new_group(list(pair)) for pair in ((0, 1), (2, 3), (0, 2), (1, 3))}
    return [group for pair, group in made.items() if rank in pair]
