"""What the host needs for a Linear too small for the GPU to matter, forwards and backwards."""

import torch

from gpu_rows.bench import Bench, fp8
from gpu_rows.linear import training_step
from gpu_rows.row import Measured, Row, at_most

SIZE = 16  # the smallest that FP8 products take


def steps(bench: Bench):
    """Ours in BF16, ours in FP8, torch's: many steps a call."""
    import telens.pytorch as te

    options = {"params_dtype": torch.bfloat16, "device": bench.device}
    theirs = torch.nn.Linear(SIZE, SIZE, dtype=torch.bfloat16, device=bench.device)
    x, gradient = bench.randn(SIZE, SIZE, requires_grad=True), bench.randn(SIZE, SIZE)
    each = (
        training_step(te.Linear(SIZE, SIZE, **options), x, gradient),
        training_step(te.Linear(SIZE, SIZE, **options), x, gradient, fp8),
        training_step(theirs, x, gradient),
    )
    return [repeated(step, bench.sizes.host_calls) for step in each]


def repeated(step, count: int):
    def call():
        for _ in range(count):
            step()

    return call


def measured(bench: Bench, ours, theirs) -> Measured:
    both = bench.timer.host_seconds([ours, theirs])
    ours, theirs = (seconds / bench.sizes.host_calls for seconds in both)
    return Measured(ours, theirs, f"{1e6 * ours:.1f} us a step")


def bf16_over_torch(bench: Bench) -> Measured:
    bf16, _, theirs = steps(bench)
    return measured(bench, bf16, theirs)


def fp8_over_bf16(bench: Bench) -> Measured:
    bf16, in_fp8, _ = steps(bench)
    return measured(bench, in_fp8, bf16)


ROWS = [
    Row(
        "host time of a tiny BF16 Linear, forward and backward",
        "torch.nn.Linear",
        bf16_over_torch,
        at_most(1.1),
        of_time=True,
    ),
    Row(
        "host time of a tiny FP8 Linear, forward and backward",
        "our Linear in BF16",
        fp8_over_bf16,
        at_most(2),
        of_time=True,
    ),
]
