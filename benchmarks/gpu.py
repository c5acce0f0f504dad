#!/usr/bin/env python3
"""Times the CUDA kernels side by side with what bounds them, and writes the rows as JSON.

  benchmarks/gpu.py [--library build/lib/libtelens.so] [--out FILE] [--only WORD] [--quick]

Every row is the median of CUDA-event times over fresh normal random data, contenders in turn. Bytes
are those that the operation must move: each input read once, each output written once; "of copy" is
their rate over that of a device-to-device copy of as many bytes, measured in the same run.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
E4M3, E5M2 = 0, 1
TENSOR_SCALING = 0
ROWS, COLUMNS = 16384, 8192

# From the project's targets: at least this much of the rate of a copy, or of the contender's speed.
TARGETS = {
    "quantize BF16 to E4M3": 0.85,
    "quantize BF16 to E4M3, both orientations": 0.85,
    "base statistics, one pass": {"H100": 0.80, "H200": 0.60},
    "base and FP8 statistics, one pass": {"H100": 0.65, "H200": 0.45},
    "layer norm": 0.75,
    "SwiGLU": 0.75,
    "FP8 GEMM 8192^3 over torch._scaled_mm": 0.98,
}


def event_times(calls, rounds: int) -> list[float]:
    """Medians in seconds of the calls, which take turns."""
    for call in calls:
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    samples = [[] for _ in calls]
    for _ in range(rounds):
        for call, times in zip(calls, samples, strict=True):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            call()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) / 1e3)
    return [statistics.median(times) for times in samples]


class Bench:
    def __init__(self, ops, rounds: int, only: str):
        self.ops = ops
        self.rounds = rounds
        self.only = only
        self.rows = []

    def wants(self, name: str) -> bool:
        return self.only in name

    def target(self, name: str) -> float | None:
        target = TARGETS.get(name)
        if isinstance(target, dict):
            card = torch.cuda.get_device_name()
            return next((value for key, value in target.items() if key in card), None)
        return target

    def against_copy(self, name: str, call, moved: int) -> None:
        """`moved`: bytes read plus bytes written."""
        if not self.wants(name):
            return
        source = torch.empty(moved // 2, dtype=torch.uint8, device="cuda").random_(0, 255)
        destination = torch.empty_like(source)
        ours, copy = event_times([call, lambda: destination.copy_(source)], self.rounds)
        self.add(
            name, ours, "a copy of as many bytes", copy, rate=f"{moved / ours / 1e12:.2f} TB/s"
        )

    def against(self, name: str, call, peer: str, peer_call, operations: float) -> None:
        if not self.wants(name):
            return
        ours, theirs = event_times([call, peer_call], self.rounds)
        self.add(name, ours, peer, theirs, rate=f"{operations / ours / 1e12:.0f} TFLOP/s")

    def add(self, name: str, ours: float, peer: str, theirs: float, rate: str) -> None:
        target = self.target(name)
        row = {
            "name": name,
            "seconds": ours,
            "rate": rate,
            "peer": peer,
            "peer_seconds": theirs,
            "of_peer": theirs / ours,
            "target": target,
            "met": None if target is None else theirs / ours >= target,
        }
        self.rows.append(row)
        wanted = "" if target is None else f", target {target:.2f}"
        print(f"{name:50} {ours * 1e6:9.1f} us  {rate:>14}  {theirs / ours:5.2f} of {peer}{wanted}")


def one(value: float) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.float32, device="cuda")


def memory_bound(bench: Bench) -> None:
    ops = bench.ops
    x = torch.randn(ROWS, COLUMNS, device="cuda", dtype=torch.bfloat16)
    scale, amax = one(80.0), one(0.0)
    count = x.numel()
    bench.against_copy("amax of BF16", lambda: ops.amax(x), 2 * count)
    bench.against_copy(
        "quantize BF16 to E4M3", lambda: ops.quantize_fp8(x, scale, amax, E4M3), 3 * count
    )
    bench.against_copy(
        "quantize BF16 to E4M3, both orientations",
        lambda: ops.quantize_fp8_both(x, scale, amax, E4M3),
        4 * count,
    )
    codes = ops.quantize_fp8(x, scale, None, E4M3)
    bench.against_copy(
        "dequantize E4M3 to BF16",
        lambda: ops.dequantize_fp8(codes, scale, E4M3, torch.bfloat16),
        3 * count,
    )
    bench.against_copy("base statistics, one pass", lambda: ops.statistics(x, [], []), 2 * count)
    bench.against_copy(
        "base and FP8 statistics, one pass",
        lambda: ops.statistics(x, [scale], [E4M3]),
        2 * count,
    )
    weight = torch.randn(COLUMNS, device="cuda", dtype=torch.bfloat16)
    bench.against_copy(
        "layer norm", lambda: ops.layer_norm_forward(x, weight, weight, 1e-5, False), 4 * count
    )
    bench.against_copy("SwiGLU", lambda: ops.activation_forward(x, "swiglu"), 3 * count)


def best_torch_calls(x: torch.Tensor):
    """The fastest torch calls for min, max, mean, std, l1, l2, zeros and amax."""
    torch.aminmax(x)
    torch.var_mean(x.float())
    torch.linalg.vector_norm(x, 1)
    torch.linalg.vector_norm(x, 2)
    torch.count_nonzero(x)
    torch.linalg.vector_norm(x, float("inf"))


def against_torch(bench: Bench) -> None:
    x = torch.randn(ROWS, COLUMNS, device="cuda", dtype=torch.bfloat16)
    bench.against(
        "base statistics over torch calls",
        lambda: bench.ops.statistics(x, [], []),
        "one torch call a statistic",
        lambda: best_torch_calls(x),
        float(x.numel()),
    )


def products(bench: Bench) -> None:
    ops = bench.ops
    size = 8192
    a = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    scale = one(80.0)
    inverse = scale.reciprocal()
    left = ops.quantize_fp8(a, scale, None, E4M3)
    right = ops.quantize_fp8(b, scale, None, E4M3)
    operations = 2.0 * size**3

    def ours():
        scaled = (inverse, None, E4M3, TENSOR_SCALING)
        return ops.gemm(left, *scaled, right, *scaled, None, torch.bfloat16)

    def scaled_mm():
        fp8 = torch.float8_e4m3fn
        # The same accumulation: sums are moved to FP32 in between (no fast accumulation).
        return torch._scaled_mm(
            left.view(fp8),
            right.view(fp8).t(),
            inverse,
            inverse,
            out_dtype=torch.bfloat16,
            use_fast_accum=False,
        )

    bench.against(
        "FP8 GEMM 8192^3 over torch._scaled_mm", ours, "torch._scaled_mm", scaled_mm, operations
    )
    bench.against("FP8 GEMM 8192^3 over BF16", ours, "torch.mm", lambda: a @ b.t(), operations)


def environment() -> dict:
    def first_line(*command: str) -> str:
        try:
            return subprocess.run(
                command, capture_output=True, text=True, check=True
            ).stdout.splitlines()[0]
        except (OSError, subprocess.CalledProcessError, IndexError) as error:
            return f"unknown ({error})"

    query = "name,driver_version,clocks.sm,clocks.mem"
    return {
        "card": torch.cuda.get_device_name(),
        "nvidia-smi": first_line("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "multiprocessors": torch.cuda.get_device_properties(0).multi_processor_count,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--library", type=Path, default=ROOT / "build/lib/libtelens.so")
    parser.add_argument("--out", type=Path, help="write the rows here, as JSON")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--quick", action="store_true", help="few rounds")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU: torch.cuda.is_available() is false", file=sys.stderr)
        return 2
    torch.ops.load_library(str(arguments.library))
    bench = Bench(torch.ops.telens, 5 if arguments.quick else 50, arguments.only)
    before = environment()
    for group in (memory_bound, against_torch, products):
        group(bench)
    if arguments.out:
        report = {"before": before, "after": environment(), "rows": bench.rows}
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
