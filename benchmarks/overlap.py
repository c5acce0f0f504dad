"""A training step of a column and a row layer on two ranks of gloo, overlapped and not.

Prints JSON: seconds of forward and backward by round, by precision and way. Argument: the rounds.
"""

import contextlib
import json
import sys
import tempfile
import time

import torch
import torch.distributed as dist

import telens.pytorch as te
from telens.common.recipe import Float8CurrentScaling

RANKS, TOKENS, HIDDEN, FFN = 2, 2048, 1024, 4096
MODES = [te.UserBufferQuantizationMode.NONE, te.UserBufferQuantizationMode.FP8]
COLUMN = {"ub_name": "fc1", "ub_overlap_ag": True, "ub_bulk_dgrad": True, "ub_bulk_wgrad": True}
ROW = {"ub_name": "fc2", "ub_overlap_ag": True, "ub_overlap_rs": True}


def region(precision):
    recipe = Float8CurrentScaling() if precision == "FP8" else None
    return te.autocast(recipe=recipe) if recipe else contextlib.nullcontext()


def make_layers(overlaps):
    made = {
        "sequence_parallel": True, "tp_group": dist.group.WORLD, "params_dtype": torch.bfloat16,
        "device": "cpu",
    }  # fmt: skip
    return [
        te.Linear(HIDDEN, FFN, parallel_mode="column", **made, **(COLUMN if overlaps else {})),
        te.Linear(FFN, HIDDEN, parallel_mode="row", **made, **(ROW if overlaps else {})),
    ]


def time_step(layers, precision, x):
    dist.barrier()
    start = time.perf_counter()
    with region(precision):
        out = layers[1](layers[0](x))
    out.backward(x)
    return time.perf_counter() - start


def measure(rank, store, rounds):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=RANKS)
    te.initialize_ub([TOKENS, HIDDEN], RANKS, quantization_modes=MODES)
    ways = {"plain": make_layers(False), "overlapped": make_layers(True)}
    x = torch.randn(TOKENS // RANKS, HIDDEN, dtype=torch.bfloat16).requires_grad_()
    measured = {precision: {way: [] for way in ways} for precision in ("BF16", "FP8")}
    for precision, samples in measured.items():
        for done in range(rounds + 1):  # the first warms up
            for way, layers in ways.items():
                seconds = time_step(layers, precision, x)
                if done:
                    samples[way].append(seconds)
    if rank == 0:
        print(json.dumps(measured), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    with tempfile.TemporaryDirectory(prefix="telens-bench-") as folder:
        arguments = (f"{folder}/store", int(sys.argv[1]))
        torch.multiprocessing.spawn(measure, arguments, nprocs=RANKS)


if __name__ == "__main__":
    main()
