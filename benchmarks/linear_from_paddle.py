"""Forward and backward of a tiny Linear of telens.paddle and of paddle.nn, in turn, FP32.

Prints lines of seconds, one sample a round: ours, then Paddle's, then what crossing into the core
and back takes of ours (three tensors there, one back, each way of autograd). Argument: the rounds.
"""

import sys
import time

import paddle
import torch

import telens.paddle as te
from telens.paddle.core_module import TENSORS

SIZE = 16
RUNS = 500  # a round, for one is too short to be timed
CROSSINGS = 6  # tensors that cross: input, gradient there; output and three gradients back


def time_round(step):
    start = time.perf_counter()
    for _ in range(RUNS):
        step()
    return (time.perf_counter() - start) / RUNS


def make_step(layer, x, gradient):
    tensors = [x, *layer.parameters()]

    def step():
        layer(x).backward(gradient)
        for tensor in tensors:
            tensor.clear_gradient(False)

    return step


def make_crossings(x):
    tensor = torch.zeros(SIZE, SIZE)

    def step():
        for _ in range(CROSSINGS // 3):
            TENSORS.view(x)
        for _ in range(CROSSINGS - CROSSINGS // 3):
            TENSORS.wrap(tensor)

    return step


def main():
    torch.set_num_threads(1)
    paddle.seed(1)
    x = paddle.randn([SIZE, SIZE])
    x.stop_gradient = False
    gradient = paddle.ones([SIZE, SIZE])
    steps = [
        make_step(te.Linear(SIZE, SIZE), x, gradient),
        make_step(paddle.nn.Linear(SIZE, SIZE), x, gradient),
        make_crossings(x),
    ]
    samples = [[] for _ in steps]
    for step in steps:
        time_round(step)
    for _ in range(int(sys.argv[1])):
        for step, seconds in zip(steps, samples, strict=True):
            seconds.append(time_round(step))
    for seconds in samples:
        print(*seconds)


if __name__ == "__main__":
    main()
