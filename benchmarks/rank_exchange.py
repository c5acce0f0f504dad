"""What all statistics of 1,000 tensors cost two ranks of gloo at the end of a step.

Prints JSON: collectives and bytes of one step() of a rank, and seconds of step() by round, of ranks
that exchange their statistics and of ranks that keep them. Argument: the rounds.
"""

import json
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import Float8CurrentScaling

RANKS, SIZE = 2, 16
TENSORS = ["activation", "weight", "gradient", "output"]
STATISTICS = ["min", "max", "mean", "std", "l1_norm", "l2_norm", "cur_amax", "dynamic_range"]
LAYERS = 1000 // len(TENSORS)
CONFIG = {
    "everything": {
        "enabled": True,
        "layers": {"layer_types": "all"},
        "transformer_engine": {
            "LogTensorStats": {
                "enabled": True,
                "tensors": TENSORS,
                "stats": [
                    "min",
                    "max",
                    "mean",
                    "std",
                    "l1_norm",
                    "l2_norm",
                    "cur_amax",
                    "dynamic_range",
                ],
            },
            "LogFp8TensorStats": {
                "enabled": True,
                "tensors": TENSORS[:3],
                "stats": ["underflows%", "overflows%", "scale_inv_min", "scale_inv_max", "mse"],
            },
        },
    }
}


class Collectives(TorchDispatchMode):
    """Counts the collectives that begin while it is entered, and what this rank brings to them."""

    def __init__(self):
        super().__init__()
        self.names, self.bytes = [], 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.name()
        if name.startswith("c10d::"):
            self.names.append(name)
            sent = args[1] if "gather" in name else args[0]
            self.bytes += sum(each.nbytes for each in sent)
        return function(*args, **(kwargs or {}))


def run_layers(layers):
    with te.fp8_autocast(fp8_recipe=Float8CurrentScaling()):
        for layer in layers:
            layer(torch.randn(SIZE, SIZE)).sum().backward()


def time_steps(layers, rounds):
    seconds = []
    for _ in range(rounds + 1):  # the first makes series and agrees on keys
        run_layers(layers)
        dist.barrier()
        start = time.perf_counter()
        debug.step()
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


def measure(rank, store, rounds, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=RANKS)
    alone = [dist.new_group([each]) for each in range(RANKS)][rank]
    layers = [te.Linear(SIZE, SIZE, device="cpu", name=f"layers.{i}") for i in range(LAYERS)]
    measured = {}
    with debug.session(CONFIG, log_dir=f"{folder}/exchanged"):
        measured["exchanged"] = time_steps(layers, rounds)
        run_layers(layers)
        with Collectives() as collectives:
            debug.step()
    measured |= {"collectives": collectives.names, "bytes": collectives.bytes}
    with debug.session(CONFIG, log_dir=f"{folder}/kept"):
        debug.set_tensor_reduction_group(alone)
        measured["kept"] = time_steps(layers, rounds)
    if rank == 0:
        print(json.dumps(measured), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    with tempfile.TemporaryDirectory(prefix="telens-bench-") as folder:
        arguments = (f"{folder}/store", int(sys.argv[1]), folder)
        torch.multiprocessing.spawn(measure, arguments, nprocs=RANKS)


if __name__ == "__main__":
    main()
