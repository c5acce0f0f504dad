#!/usr/bin/env python3
"""Some slow kernels for Nsight Compute to profile, and an extract of what it says, as JSON.

  ncu --profile-from-start off --set full --import-source no --kernel-name-base function \\
      benchmarks/profiled_kernels.py run LIBTELENS > ncu.txt
  benchmarks/profiled_kernels.py extract ncu.txt > benchmarks/results/profiles-<card>.json

They read BF16, 16384 x 8192. `run` needs the Python package (PYTHONPATH) and an NVIDIA GPU.
"""

import json
import re
import sys
from pathlib import Path

ROWS, COLUMNS = 16384, 8192
SCALE = 100.0
E4M3 = 0  # core/formats/format_id.h

KERNEL = re.compile(r"^  (\S.*) \((\d+), 1, 1\)x\((\d+), 1, 1\), Context \d+, .*$", re.MULTILINE)
NAME = re.compile(r"(\w+)(?=<telens::|<at::|<\d|\()")
METRICS = (
    *("SM Frequency", "Duration", "DRAM Throughput", "L2 Cache Throughput", "Issue Slots Busy"),
    *("Executed Instructions", "Registers Per Thread", "Waves Per SM", "Achieved Occupancy"),
)
PIPELINE = re.compile(r"(\w+) is the highest-utilized pipeline \(([\d.]+)%\)")
STORES = re.compile(r"global stores to L1TEX .*?only\s+([\d.]+)\s+of\s+the\s+32", re.DOTALL)
EXCESSIVE = re.compile(r"global accesses resulting in a total of (\d+) excessive sectors \((\d+)%")


def run(library: str) -> None:
    import torch

    torch.ops.load_library(library)
    ops = torch.ops.telens
    x = torch.randn(ROWS, COLUMNS, device="cuda", dtype=torch.bfloat16)
    scale = torch.full((1,), SCALE, device="cuda")
    weight = torch.randn(COLUMNS, device="cuda", dtype=torch.bfloat16)
    amax = torch.zeros(1, device="cuda")
    codes, scales = ops.quantize_mxfp8(x, E4M3, 0, False, True, False)[:2]
    calls = (
        lambda: ops.dequantize_blocks(codes, scales, None, E4M3, 1, torch.bfloat16),
        lambda: ops.quantize_nvfp4(x, False, None, None, True, True),
        lambda: ops.statistics(x, [scale], [E4M3]),
        lambda: ops.statistics(x, [], []),
        lambda: ops.layer_norm_quantize(x, weight, weight, 1e-5, False, scale, amax, E4M3, False),
        lambda: ops.quantize_mxfp8(x, E4M3, 0, False, True, True),
        lambda: ops.quantize_fp8_blocks(x, E4M3, False, True, 0.0, True, True),
    )
    for call in calls:
        call()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    for call in calls:
        call()
        torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()


def metric(section: str, name: str) -> dict | None:
    found = re.search(rf"^ +{name}  +(\S+)? +([\d,.]+)$", section, re.MULTILINE)
    if found is None:
        return None
    return {"value": float(found[2].replace(",", "")), "unit": found[1] or ""}


def profile_of(kernel: re.Match, section: str) -> dict:
    """Shares are in percent of what the card can do."""
    profile = {"kernel": NAME.search(kernel[1])[1], "blocks": int(kernel[2])}
    profile["threads"] = int(kernel[3])
    profile |= {name: found for name in METRICS if (found := metric(section, name))}
    if busiest := PIPELINE.search(section):
        profile["busiest pipeline"] = {"name": busiest[1], "percent": float(busiest[2])}
    if stores := STORES.search(section):
        profile["used bytes of a stored sector"] = float(stores[1])
    if excessive := EXCESSIVE.search(section):
        profile["needless sectors"] = {"sectors": int(excessive[1]), "percent": int(excessive[2])}
    return profile


def profiles(printed: str) -> list[dict]:
    """Of what ncu printed, kernel by kernel, in the order in which they ran."""
    kernels = list(KERNEL.finditer(printed))
    ends = [*(each.start() for each in kernels[1:]), len(printed)]
    return [
        profile_of(kernel, printed[kernel.end() : end])
        for kernel, end in zip(kernels, ends, strict=True)
    ]


if __name__ == "__main__":
    action, argument = sys.argv[1:]
    if action == "run":
        run(argument)
    else:
        print(json.dumps(profiles(Path(argument).read_text()), indent=1))
