"""All statistics of a tensor in one read: against read bandwidth, and against torch's calls."""

import torch

from gpu_rows.bench import E4M3, TERA, Bench
from gpu_rows.row import Measured, Row, at_least

SCALE = 100.0
E4M3_MAX = 448.0  # the largest finite E4M3
READ = "the fastest of three reductions that read the same bytes"
TORCH = "the best torch call per statistic"


def matrix(bench: Bench) -> torch.Tensor:
    return bench.randn(bench.sizes.rows, bench.sizes.columns)


def one_pass(bench: Bench, x: torch.Tensor, with_fp8: bool):
    operator = bench.operator("statistics")
    casts = ([bench.one(SCALE)], [E4M3]) if with_fp8 else ([], [])
    return lambda: operator(x, *casts)


def against_reads(bench: Bench, with_fp8: bool) -> Measured:
    """The fastest reader is the bandwidth that a kernel reaches which only reads."""
    x = matrix(bench)
    words = x.view(torch.float32)
    amax = bench.operator("amax")  # looked up before: that takes the host milliseconds
    readers = {
        "torch.sum of FP32": lambda: words.sum(),
        "torch.amax of FP32": lambda: words.amax(),
        "our amax": lambda: amax(x),
    }
    ours, *reads = bench.seconds(one_pass(bench, x, with_fp8), *readers.values())
    by_name = dict(zip(readers, reads, strict=True))
    read = 2 * x.numel()
    rates = {name: f"{read / each / TERA:.2f} TB/s" for name, each in by_name.items()}
    return Measured(ours, min(reads), f"{read / ours / TERA:.2f} TB/s", {"read by": rates})


def base_by_torch(x: torch.Tensor) -> list[torch.Tensor]:
    """min, max (so amax), mean and std, l1, l2, and the smallest magnitude of the dynamic range."""
    norm = torch.linalg.vector_norm
    return [
        *torch.aminmax(x),
        *torch.var_mean(x),
        norm(x, 1, dtype=torch.float32),
        norm(x, 2, dtype=torch.float32),
        x.abs().masked_fill_(x == 0, torch.inf).amin(),
    ]


def fp8_by_torch(x: torch.Tensor, scale: torch.Tensor) -> list[torch.Tensor]:
    """underflows%, overflows% and mse of a cast that the three share."""
    scaled = x.float() * scale
    codes = scaled.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    values = codes.float()
    return [
        torch.count_nonzero(x) - torch.count_nonzero(values),
        (scaled.abs() > E4M3_MAX).sum(),
        torch.nn.functional.mse_loss(values / scale, x.float()),
    ]


def against_torch(bench: Bench, with_fp8: bool) -> Measured:
    x, scale = matrix(bench), bench.one(SCALE)

    def by_torch():
        base_by_torch(x)
        if with_fp8:
            fp8_by_torch(x, scale)

    return bench.against(one_pass(bench, x, with_fp8), by_torch)


def against_compiled(bench: Bench) -> Measured:
    x, scale = matrix(bench), bench.one(SCALE)
    both = bench.compiled(lambda x, scale: base_by_torch(x) + fp8_by_torch(x, scale))
    return bench.against(one_pass(bench, x, True), lambda: both(x, scale))


def histogram(bench: Bench) -> Measured:
    x = matrix(bench)
    counts = torch.zeros(514, dtype=torch.int64, device=bench.device)  # core/ops/histogram_layout.h
    operator = bench.operator("exponent_histogram")
    words = x.view(torch.float32)
    return bench.against(lambda: operator(x, counts), lambda: words.sum())


ROWS = [
    Row(
        "base statistics, one pass",
        READ,
        lambda bench: against_reads(bench, False),
        at_least({"H100": 0.80, "H200": 0.60}),
    ),
    Row(
        "base and FP8 statistics, one pass",
        READ,
        lambda bench: against_reads(bench, True),
        at_least({"H100": 0.65, "H200": 0.45}),
    ),
    Row(
        "base statistics against torch's calls",
        TORCH,
        lambda bench: against_torch(bench, False),
        at_least(20),
    ),
    Row(
        "base and FP8 statistics against torch's calls",
        TORCH,
        lambda bench: against_torch(bench, True),
        at_least(20),
    ),
    Row("exponent histogram", "torch.sum of as many bytes", histogram),
    Row(
        "base and FP8 statistics against torch.compile",
        "the same torch calls, compiled into one function",
        against_compiled,
    ),
]
