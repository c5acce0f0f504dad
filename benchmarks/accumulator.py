#!/usr/bin/env python3
"""How far products of FP8 on a GPU are from exact ones, in terms of sum |a| |b|, as JSON.

  benchmarks/accumulator.py LIBTELENS > benchmarks/results/accumulator-<card>.json

Needs the Python package (PYTHONPATH) and an NVIDIA GPU. A row has a product's kind, [M, N, K], its
accumulation, the spread of its data (normal times 2^(spread x normal)), and the base-2 logarithms
of the largest distance and of the root of the mean square; null where a sum |a| |b| is zero because
all of a row's small values became zero codes.
"""

import json
import math
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRODUCTS = ("tensor", "1x128 by 128x128", "any 1x128 by any 128x128", "MXFP8")
SHAPES = ((128, 128, 128), (256, 128, 384), (144, 272, 640), (16, 48, 2048), (128, 128, 8192))
SPREADS = (0.0, 2.0, 6.0)


def log2(value: float) -> float | None:
    return round(math.log2(value), 2) if value > 0 else None


def distances(ops, product: str, shape, split: bool, spread: float) -> dict:
    import torch
    from cuda_gemm_helpers import WAYS, multiply, operands

    a, b = operands(ops, shape, WAYS[product], spread=spread)
    out = multiply(ops, a, b, None, torch.float32, split=split).cpu().double()
    first, second = a.values(ops), b.values(ops)
    distance = (out - first @ second.t()).abs() / (first.abs() @ second.abs().t())
    return {
        "product": product,
        "shape": list(shape),
        "split": split,
        "spread": spread,
        "largest": log2(distance.max().item()),
        "root of mean square": log2(distance.square().mean().sqrt().item()),
    }


def main() -> None:
    import torch

    sys.path.insert(0, str(ROOT / "tests/python"))
    torch.ops.load_library(sys.argv[1])
    rows = [
        distances(torch.ops.telens, product, shape, split, spread)
        for product in PRODUCTS
        for shape in SHAPES
        for split in (True, False)
        for spread in SPREADS
    ]
    print(json.dumps({"card": torch.cuda.get_device_name(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
