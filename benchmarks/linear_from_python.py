"""Forward and backward of a tiny BF16 Linear from Python: ours and torch's, in turn.

Prints two lines of seconds, one sample a round: ours, then torch's. Argument: the rounds.
"""

import sys
import time

import torch

import telens.pytorch as te

SIZE = 16
RUNS = 500  # a round, for one is too short to be timed


def step(module, x, gradient):
    x.grad = module.weight.grad = module.bias.grad = None
    module(x).backward(gradient)


def time_round(module, x, gradient):
    start = time.perf_counter()
    for _ in range(RUNS):
        step(module, x, gradient)
    return (time.perf_counter() - start) / RUNS


def main():
    torch.set_num_threads(1)
    torch.manual_seed(1)
    ours = te.Linear(SIZE, SIZE, params_dtype=torch.bfloat16, device="cpu")
    theirs = torch.nn.Linear(SIZE, SIZE, dtype=torch.bfloat16)
    x = torch.randn(SIZE, SIZE, dtype=torch.bfloat16, requires_grad=True)
    gradient = torch.ones(SIZE, SIZE, dtype=torch.bfloat16)
    samples = {ours: [], theirs: []}
    for module in samples:
        time_round(module, x, gradient)
    for _ in range(int(sys.argv[1])):
        for module, seconds in samples.items():
            seconds.append(time_round(module, x, gradient))
    for seconds in samples.values():
        print(*seconds)


if __name__ == "__main__":
    main()
